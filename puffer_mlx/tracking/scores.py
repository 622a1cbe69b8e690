"""Scores: which metric ranks policies, and the mean score of the last 100 episodes."""

from collections import deque
from collections.abc import Mapping

import numpy as np

SCORED_EPISODES = 100
DEFAULT_METRIC = "env/score"  # default of ``[sweep] metric``
MEAN_SCORE = f"{DEFAULT_METRIC}_{SCORED_EPISODES}"  # metric: mean over the last episodes
EVALUATION_PREFIX = "eval/"  # of metrics from evaluations during training


def score_name(record: Mapping[str, float], metric: str) -> str:
    """Choose the metric of an epoch's record that ranks policies. Returns its name.

    Args:
        record: Metrics of the epoch by name.
        metric: Configured metric, ``Config.metric``. For ``DEFAULT_METRIC``, the mean over the last
            episodes, ``MEAN_SCORE``, is preferred.

    Returns:
        A name in ``record``, or "" if the record lacks the metric.
    """
    names = (MEAN_SCORE, DEFAULT_METRIC) if metric == DEFAULT_METRIC else (metric,)
    return next((name for name in names if name in record), "")


class LastScores:
    """Mean score of the last ``SCORED_EPISODES`` episodes of Python environments."""

    def __init__(self) -> None:
        self._scores: deque[tuple[float, float]] = deque()
        self._count = 0.0  # total number of episodes in ``_scores``

    def add(self, new_scores: np.ndarray) -> None:
        """Add the scores of new episodes, and drop entries that aren't among the last episodes.

        Args:
            new_scores: (k, 2) float64, the newest row last. A row has a mean score and the number
                of episodes over which it was computed.
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
        """Serialize the last scores for a checkpoint, as (bytes,) uint8; None without scores."""
        if not self._scores:
            return None
        return np.frombuffer(np.array(self._scores, "<f8").tobytes(), np.uint8)

    def restore(self, state: np.ndarray | None) -> None:
        """Restore the last scores from a checkpoint: the result of ``state``."""
        self._scores.clear()
        self._count = 0.0
        if state is not None:
            self.add(np.frombuffer(state.tobytes(), "<f8").reshape(-1, 2))
