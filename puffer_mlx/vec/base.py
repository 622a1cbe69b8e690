"""The contract of a vectorised environment. NumPy only.

N agents live in Q groups of n = N / Q; group q owns agents ``[q * n, (q + 1) * n)``. A group is
stepped on its own and asynchronously, so a policy can act for one while others step. Results don't
depend on the interleaving.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from puffer_mlx.spec import EnvSpec


class Rows(NamedTuple):
    """Where an environment writes what *arrives together*: C-contiguous arrays of n agents.

    ``terminals`` is 1 where ``observations`` already is the first of a new episode (environments
    reset themselves).
    """

    observations: np.ndarray  # (n, D) uint8 or float32
    rewards: np.ndarray  # (n,) float32
    terminals: np.ndarray  # (n,) float32, 0 or 1
    masks: np.ndarray | None  # (n, mask_size) uint8, non-zero where an action is legal


class Collected(NamedTuple):
    """What ``collect`` measured, in thread-seconds, and who worked when."""

    acting: float
    stepping: float
    spans: list[tuple[int, int, float, float]]  # thread, first agent, begin and end (perf_counter)


@runtime_checkable
class WholeRollouts(Protocol):
    """Environments that collect a rollout without Python, if the policy's step is a C function."""

    def collect(
        self, steps: int, act: tuple[int, int], actions: np.ndarray, out: Rows, spans: int = 0
    ) -> Collected:
        """Act and step all agents ``steps`` times: see ``native.NativeVec.collect``."""
        ...


class VecEnv(Protocol):
    """N agents that step together. Created reset-able, closed once."""

    spec: EnvSpec
    num_agents: int  # N
    num_groups: int  # Q

    def reset(self, out: Rows) -> None:
        """Start new episodes for all N agents; write their first rows, rewards and terminals 0.

        Waits for steps under way.
        """
        ...

    def send(self, group: int, actions: np.ndarray, out: Rows) -> None:
        """Begin one step of a group and return at once.

        Args:
            group: 0 ≤ group < Q; it must not be stepping already.
            actions: (n, heads) float32, C-contiguous; discrete ids are whole numbers. Not modified,
                copied before the return.
            out: rows of the group's n agents; its memory must live until ``wait(group)`` returns.
        """
        ...

    def wait(self, group: int) -> None:
        """Block until the group's step is done and its rows are written."""
        ...

    def log(self) -> dict[str, float]:
        """Means over episodes that ended since the last call, ``n`` their number; empty if none.

        May be called from any thread.
        """
        ...

    def state(self) -> np.ndarray | None:
        """Everything that stepping depends on, (bytes,) uint8; None if it can't be had.

        Waits for steps under way. What ``log`` hasn't reported yet is in it. The rows that arrived
        last aren't: they belong to the caller.
        """
        ...

    def restore(self, state: np.ndarray) -> None:
        """Go on from what ``state`` returned, bit for bit; instead of ``reset``, or later.

        Writes no rows: to act next, the caller needs those that arrived before the state was saved,
        and restores its own copy of them. Waits for steps under way.

        Raises:
            UserError: the state is damaged or belongs to other environments, or they can't be
                restored; the message says which.
        """
        ...

    def busy_seconds(self) -> float:
        """Thread-seconds spent inside environment steps since creation."""
        ...

    def close(self) -> None:
        """Free everything. Calling it twice is harmless."""
        ...
