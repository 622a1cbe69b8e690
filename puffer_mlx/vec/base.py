"""The contract of a vectorised environment. NumPy only.

N agents form Q groups of n = N / Q; group q has agents ``[q * n, (q + 1) * n)``. Groups step
independently and asynchronously, so a policy can act for one while others step. The order doesn't
change the results.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from puffer_mlx.spec import EnvSpec


class Rows(NamedTuple):
    """Arrays of n agents that environments write together, C-contiguous.

    ``terminals`` is 1 where the observation is the first of a new episode (environments reset
    themselves).
    """

    observations: np.ndarray  # (n, D) uint8 or float32
    rewards: np.ndarray  # (n,) float32
    terminals: np.ndarray  # (n,) float32, 0 or 1
    masks: np.ndarray | None  # (n, mask_size) uint8, non-zero where an action is legal
    final_observations: np.ndarray | None = None  # (n,) float32: see ``VecEnv.final_observations``

    def part(self, *index: Any) -> "Rows":
        """Return the same part of every array."""
        return Rows(*(None if array is None else array[index] for array in self))  # type: ignore


TERMINATED, TRUNCATED = (
    1.0,
    2.0,
)  # values of ``final_observations`` at an episode's last observation


class LastObservations(NamedTuple):
    """Last observations of k episodes that time limits ended, where rows don't contain them.

    Attributes:
        rows: (k,) int, index of the row that arrived with the end; 1 is the first step.
        agents: (k,) int, index of the agent.
        observations: (k, D), as a policy gets observations.
    """

    rows: np.ndarray
    agents: np.ndarray
    observations: np.ndarray


class Collected(NamedTuple):
    """Measurements of ``collect``: thread-seconds, and when each thread was busy."""

    acting: float
    stepping: float
    spans: list[tuple[int, int, float, float]]  # thread, first agent, begin and end (perf_counter)


@runtime_checkable
class WholeRollouts(Protocol):
    """Environments that collect a rollout without Python, if the policy's step is a C function."""

    def collect(
        self, steps: int, act: tuple[int, int], actions: np.ndarray, out: Rows, spans: int = 0
    ) -> Collected:
        """Act and step all agents ``steps`` times: see ``native.vec.NativeVec.collect``."""
        ...


class PreparedStep(NamedTuple):
    """A step of some groups with fixed memory.

    Attributes:
        send: Begins the step, as ``VecEnv.send`` does for one group.
        wait: Blocks until the step is done and its rows are written.
    """

    send: Callable[[], None]
    wait: Callable[[], None]


@runtime_checkable
class PreparesSteps(Protocol):
    """Environments whose steps, made again and again with the same memory, are checked once."""

    def prepare(self, groups: range, actions: np.ndarray, out: Rows) -> PreparedStep:
        """Prepare a step of neighbouring groups, whose agents' rows are one after the other.

        Args:
            groups: Indices of the groups.
            actions: (n, heads) actions of the groups' n agents, see ``VecEnv.send``.
            out: Rows of the same agents.
        """
        ...


@runtime_checkable
class ShowsExactly(Protocol):
    """Environments whose observations may be wider than rows of float32."""

    def exact_observations(self, agents: slice) -> np.ndarray | None:
        """Return the newest observations of whole groups of agents, (n, D) float64.

        Args:
            agents: Range of agents.

        Returns:
            The rows without rounding, or None where rows of float32 are exact.
        """
        ...


@runtime_checkable
class ShowsLast(Protocol):
    """Environments that may show an episode's last observation beside the rows.

    Attributes:
        shows_last: True if the step that ends an episode begins the next one.
    """

    shows_last: bool

    def take_last(self) -> LastObservations:
        """Return the last observations since the last call; recording starts at the first call."""
        ...


@runtime_checkable
class HasNormalizer(Protocol):
    """Environments with running statistics that a policy depends on."""

    def memory(self) -> dict[str, np.ndarray]:
        """Return copies of the statistics, small arrays by name."""
        ...

    def remember(self, memory: dict[str, np.ndarray], frozen: bool = False) -> None:
        """Restore statistics that ``memory`` returned.

        Args:
            memory: The statistics.
            frozen: Don't update them any more.

        Raises:
            UserError: They belong to other environments.
        """
        ...


@runtime_checkable
class ReportsScores(Protocol):
    """Environments that report each episode's score."""

    def scores(self) -> np.ndarray:
        """Return the scores that the last ``log`` averaged, in order of time.

        Returns:
            (k, 2) float64: a mean score and its number of episodes.
        """
        ...


@runtime_checkable
class TakesSnapshots(Protocol):
    """Environments that copy their state faster than ``VecEnv.state`` returns it."""

    def snapshot(self) -> Callable[[], np.ndarray] | None:
        """Copy the current state.

        Returns:
            A function that returns the copied state in the form of ``VecEnv.state``, or None for
            environments without saved states.
        """
        ...


@runtime_checkable
class DeclaresPolicies(Protocol):
    """Environments with a policy assignment for self-play."""

    def declared_policies(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return each agent's environment, (N,) int32, and policy, (N,) int32 or None.

        Policy 0 is the learner, b > 0 opponent b. None means that the environments don't assign
        policies.
        """
        ...

    def set_tags(self, tags: np.ndarray) -> None:
        """Pass each environment the largest number of an opponent in it; waits for steps.

        Args:
            tags: (E,) int32, 0 for an environment without opponents.
        """
        ...


class VecEnv(Protocol):
    """N agents that step together. Reset before the first step; close once.

    Attributes:
        spec: Observations and actions of one agent.
        num_agents: Number of agents N.
        num_groups: Number of groups Q.
        num_environments: Number of environments that share the agents.
        final_observations: True if an episode's last observation has a separate row. Its
            ``Rows.final_observations`` is ``TERMINATED`` (value 0) or ``TRUNCATED`` (value
            estimated by the policy); in other rows it is 0. The row has the reward of the last
            action, and the action chosen from it is ignored. The next row is the first of the next
            episode, with terminal 1 and reward 0. Without such rows ``Rows.final_observations`` is
            None. An absent agent has rows of zeros, terminal 1 and ``TERMINATED`` until its
            environment is reset: nothing is learned from them.
        unread: Parameters that the environment didn't read.
        description: One line on how environments are stepped.
    """

    spec: EnvSpec
    num_agents: int
    num_groups: int
    num_environments: int
    final_observations: bool
    unread: list[str]
    description: str

    def reset(self, out: Rows) -> None:
        """Start new episodes for all N agents; write their first rows, rewards and terminals 0.

        Waits for steps in progress.
        """
        ...

    def send(self, group: int, actions: np.ndarray, out: Rows) -> None:
        """Begin one step of a group and return at once.

        Args:
            group: Index of a group that isn't stepping, 0 ≤ group < Q.
            actions: (n, heads) float32, C-contiguous; discrete actions are whole numbers. Copied
                before the call returns.
            out: Rows of the group's n agents; the memory must live until ``wait(group)`` returns.
        """
        ...

    def wait(self, group: int) -> None:
        """Block until the group's step is done and its rows are written."""
        ...

    def log(self) -> dict[str, float]:
        """Return means over the episodes that ended since the last call, {} without any.

        ``n`` is the number of episodes. May be called from any thread.
        """
        ...

    def state(self) -> np.ndarray | None:
        """Return the state of all environments, or None for environments without saved states.

        Waits for steps in progress. The state contains the episodes that ``log`` hasn't reported,
        but not the last rows, which belong to the caller.

        Returns:
            (bytes,) uint8, for ``restore``.
        """
        ...

    def restore(self, state: np.ndarray) -> None:
        """Restore a state that ``state`` returned, bit for bit; instead of ``reset``, or later.

        Writes no rows: the caller restores its copy of the rows that arrived before. Waits for
        steps in progress.

        Raises:
            UserError: The state is damaged or belongs to other environments, or environments can't
                be restored.
        """
        ...

    def busy_seconds(self) -> float:
        """Return the thread-seconds spent in environment steps since creation."""
        ...

    def close(self) -> None:
        """Free everything. Calling it twice is harmless."""
        ...


class ScoredVec(VecEnv, Protocol):
    """Environments that report every episode."""

    def episodes(self) -> list[dict[str, float]]:
        """Return a record of each environment where an episode ended since the last call.

        A record has the environment's index ``env`` and the number ``n`` of episodes that its
        numbers are means of.
        """
        ...


class Environments(ScoredVec, Protocol):
    """Result of ``vec.make``: a context manager that closes the environments, and can draw.

    Attributes:
        backend: ``native``, in C; ``vector``, ``sync`` or ``async``, in Python.
    """

    backend: str

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def render(self) -> np.ndarray | bool:
        """Return environment 0's picture (h, w, 3) uint8, or True if it drew in its window.

        False means that the user closed the window: don't draw again.

        Raises:
            UserError: It can't be drawn.
        """
        ...
