"""Scores: which metric ranks policies, and the mean score of the last 100 episodes."""

from collections import deque
from collections.abc import Mapping

import numpy as np

SCORED_EPISODES = 100
METRIC = "env/score"  # default of ``[sweep] metric``
SCORE = f"{METRIC}_{SCORED_EPISODES}"  # name of the mean over the last episodes, in a record
EVALUATION = "eval/"  # prefix of metrics from evaluations during training


def score_name(logs: Mapping[str, float], metric: str) -> str:
    """Return the name of the metric that ranks policies in an epoch's record.

    Args:
        logs: The record, metrics by name.
        metric: Configured metric, ``Config.metric``. For the default, ``METRIC``, the mean over the
            last ``SCORED_EPISODES`` episodes is preferred.

    Returns:
        A name in ``logs``, or "" if the record lacks the metric.
    """
    names = (SCORE, METRIC) if metric == METRIC else (metric,)
    return next((name for name in names if name in logs), "")


class LastScores:
    """Mean score of the last ``SCORED_EPISODES`` episodes of Python environments."""

    def __init__(self) -> None:
        self._scores: deque[tuple[float, float]] = deque()
        self._count = 0.0  # number of episodes in them

    def add(self, new_scores: np.ndarray) -> None:
        """Add the scores of new episodes, and drop the oldest ones.

        Args:
            new_scores: (k, 2) float64 in order of time, each a mean score and its number of
                episodes.
        """
        for score, episodes in new_scores.tolist():
            self._scores.append((score, episodes))
            self._count += episodes
            while self._count - self._scores[0][1] >= SCORED_EPISODES:
                self._count -= self._scores.popleft()[1]

    def mean(self) -> float | None:
        """Return the mean score of the last ``SCORED_EPISODES`` episodes, or of fewer at the start.

        The oldest entry may be a mean over several episodes; its weight is the number of them that
        belong to the last ``SCORED_EPISODES``. Returns None if no episode has ended.
        """
        if not self._scores:
            return None
        scores = np.array(self._scores)
        scores[0, 1] -= max(0.0, self._count - SCORED_EPISODES)
        return float(scores[:, 0] @ scores[:, 1] / scores[:, 1].sum())

    def state(self) -> np.ndarray | None:
        """Serialize the last scores for a checkpoint, as (bytes,) uint8. None before the first."""
        if not self._scores:
            return None
        return np.frombuffer(np.array(self._scores, "<f8").tobytes(), np.uint8)

    def restore(self, state: np.ndarray | None) -> None:
        """Restore the last scores from a checkpoint: the result of ``state``."""
        self._scores.clear()
        self._count = 0.0
        if state is not None:
            self.add(np.frombuffer(state.tobytes(), "<f8").reshape(-1, 2))
