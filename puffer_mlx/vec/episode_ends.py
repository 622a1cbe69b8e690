"""Where episodes end: what environments in Python say, as rows say it."""

import numpy as np

from puffer_mlx.vec.base import TERMINATED, TRUNCATED, Rows


class EpisodeEnds:
    """Those of one group's agents, step by step.

    Args:
        n: agents of the group.
        finals: whether an episode's last observation has a row of its own (``VecEnv.finals``). The
            row after it is then the first of the next episode, and that step only began it.

    Attributes:
        over: (n,) bool: where an episode ended in the last step.
        any_over: whether one did anywhere.
    """

    def __init__(self, n: int, finals: bool) -> None:
        self._finals = finals
        self.restart(np.zeros(n, bool))

    def restart(self, away: np.ndarray) -> None:
        """All agents begin anew, but for those that aren't there yet, (n,) bool."""
        self.over, self.any_over = away, bool(away.any())

    def write(
        self, terminated: np.ndarray, truncated: np.ndarray, out: Rows
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Take a step's ends, and write ``terminals`` and ``finals`` of its rows.

        Args:
            terminated: (n,) bool.
            truncated: (n,) bool.
            out: the step's rows.

        Returns:
            (n,) bool: where an episode ended; and where the step only began the next one, or None
            if it did so nowhere.
        """
        before, any_before = self.over, self.any_over
        over = self.over = np.logical_or(terminated, truncated)
        self.any_over = b"\1" in over.tobytes()  # a fifth of the time of any()
        if not self._finals:
            out.terminals[:] = over
            return over, None
        if any_before:
            out.terminals[:] = before
        else:
            out.terminals.fill(0)
        if out.finals is not None:
            out.finals.fill(0)
            if self.any_over:
                out.finals[truncated] = TRUNCATED
                out.finals[terminated] = TERMINATED
        return over, before if any_before else None
