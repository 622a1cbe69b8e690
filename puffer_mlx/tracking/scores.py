"""The score of a record, and the mean score of the last episodes of Python environments."""

from collections import deque
from collections.abc import Mapping

import numpy as np

EPISODES = 100
METRIC = "env/score"  # default of ``[sweep] metric``
SCORE = f"{METRIC}_{EPISODES}"  # name of the mean score in a record
EVALUATION = "eval/"  # before the names of what evaluations while training report


def score_name(logs: Mapping[str, float], metric: str) -> str:
    """Return the name of the number that ranks policies in a record, or "" without that number.

    Args:
        logs: The record.
        metric: Name of the metric, ``Config.metric``. For ``METRIC`` the mean over the last
            ``EPISODES`` episodes comes first.
    """
    names = (SCORE, METRIC) if metric == METRIC else (metric,)
    return next((name for name in names if name in logs), "")


class LastScores:
    """The scores of the last episodes, ``EPISODES`` at most."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, float]] = deque()
        self._count = 0.0  # episodes kept

    def add(self, scores: np.ndarray) -> None:
        """Add new scores.

        Args:
            scores: (k, 2) float64, in order of time: a mean score and its number of episodes.
        """
        for score, episodes in scores.tolist():
            self._kept.append((score, episodes))
            self._count += episodes
            while self._count - self._kept[0][1] >= EPISODES:
                self._count -= self._kept.popleft()[1]

    def mean(self) -> float | None:
        """Return the mean over the last ``EPISODES`` episodes, or all if there are fewer.

        The oldest score may be a mean over several episodes; only those among the last ``EPISODES``
        count. None without any score.
        """
        if not self._kept:
            return None
        kept = np.array(self._kept)
        kept[0, 1] -= max(0.0, self._count - EPISODES)
        return float(kept[:, 0] @ kept[:, 1] / kept[:, 1].sum())

    def state(self) -> np.ndarray | None:
        """Return the scores as (bytes,) uint8, or None without any."""
        if not self._kept:
            return None
        return np.frombuffer(np.array(self._kept, "<f8").tobytes(), np.uint8)

    def restore(self, state: np.ndarray | None) -> None:
        """Restore the scores that ``state`` returned."""
        self._kept.clear()
        self._count = 0.0
        if state is not None:
            self.add(np.frombuffer(state.tobytes(), "<f8").reshape(-1, 2))
