"""The interface of vectorised environments (``VecEnv``) and its optional extensions. NumPy only.

N agents form Q groups of n = N / Q; group q has agents ``[q * n, (q + 1) * n)``. Groups step
independently and asynchronously, so a policy can act for one group while others step. The order in
which groups step doesn't change the results.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from puffer_mlx.spec import EnvSpec


class Rows(NamedTuple):
    """Output of environments for n agents at one time: observations, rewards, terminals, masks.

    All arrays are C-contiguous. ``terminals`` is 1 where the observation is the first of a new
    episode (environments reset themselves).
    """

    observations: np.ndarray  # (n, D) uint8 or float32
    rewards: np.ndarray  # (n,) float32
    terminals: np.ndarray  # (n,) float32, 0 or 1
    masks: np.ndarray | None  # (n, mask_size) uint8, non-zero where an action is legal
    final_observations: np.ndarray | None = None  # (n,) float32: see ``VecEnv.final_observations``

    def select(self, *index: Any) -> "Rows":
        """Return these ``Rows`` with each array indexed, for example to select some agents."""
        return Rows(*(None if array is None else array[index] for array in self))  # type: ignore


# Values of ``Rows.final_observations`` at an episode's last observation.
TERMINATED = 1.0
TRUNCATED = 2.0


class FinalObservations(NamedTuple):
    """Last observations of k episodes that a time limit ended, if ``Rows`` don't contain them.

    Attributes:
        steps: (k,) int, number of the step that ended the episode; 1 is the first step.
        agents: (k,) int, index of the agent.
        observations: (k, D), as a policy gets observations.
    """

    steps: np.ndarray
    agents: np.ndarray
    observations: np.ndarray


class Collected(NamedTuple):
    """Time that collecting a rollout took.

    Attributes:
        acting: Thread-seconds in which the policy chose actions.
        stepping: Thread-seconds in which environments stepped.
        spans: Time spans in which a thread worked: number of the thread, first agent, begin and end
            in seconds of ``time.perf_counter``.
    """

    acting: float
    stepping: float
    spans: list[tuple[int, int, float, float]]


@runtime_checkable
class CollectsRollouts(Protocol):
    """Vectorised environments that collect an entire rollout with a policy that acts in C."""

    def collect(
        self, steps: int, act: tuple[int, int], actions: np.ndarray, out: Rows, spans: int = 0
    ) -> Collected:
        """Collect a rollout: act and step ``steps`` times for all agents.

        Args:
            steps: Number of steps T.
            act: Addresses of a C function (``PufferAct`` in envs/src/vec.h) and of its context.
            actions: (T, N, heads) float32, written by the policy.
            out: Rows (T + 1, N, ...). Time 0 is input; steps write times 1 to T.
            spans: Maximum number of ``Collected.spans``.
        """
        ...


class PreparedStep(NamedTuple):
    """A repeatable environment step of some groups whose input and output arrays are fixed.

    Attributes:
        send: Begins the step, as ``VecEnv.send`` does for one group.
        wait: Blocks until the step is done and its rows are written.
    """

    send: Callable[[], None]
    wait: Callable[[], None]


@runtime_checkable
class PreparesSteps(Protocol):
    """Vectorised environments that prepare a step: check its arrays once, repeat it unchecked."""

    def prepare(self, groups: range, actions: np.ndarray, out: Rows) -> PreparedStep:
        """Prepare a repeatable environment step of consecutive groups.

        Args:
            groups: Indices of the groups.
            actions: (n, heads) float32, actions of the n agents in these groups.
            out: Rows of the same n agents, written by the step.
        """
        ...


@runtime_checkable
class HasExactObservations(Protocol):
    """Vectorised environments that can return their observations in float64, before rounding."""

    def exact_observations(self, agents: slice) -> np.ndarray | None:
        """Return the current observations of some agents in float64, before rounding to float32.

        Args:
            agents: Range of agents; must consist of entire groups.

        Returns:
            (n, D) float64, or None when rounding to float32 changes nothing.
        """
        ...


@runtime_checkable
class ReportsFinalObservations(Protocol):
    """Vectorised environments that report episodes' last observations separately from ``Rows``.

    Attributes:
        reports_final_observations: True if these environments do so, because the step that ends an
            episode also begins the next one.
    """

    reports_final_observations: bool

    def take_final_observations(self) -> FinalObservations:
        """Return the last observations of episodes that ended since the previous call.

        Recording starts with the first call.
        """
        ...


@runtime_checkable
class HasNormalizer(Protocol):
    """Vectorised environments that normalise observations or rewards by running statistics."""

    def statistics(self) -> dict[str, np.ndarray]:
        """Return copies of the statistics that normalise observations and rewards, by name."""
        ...

    def restore_statistics(self, statistics: dict[str, np.ndarray], frozen: bool = False) -> None:
        """Restore the statistics that normalise observations and rewards from ``statistics``.

        Args:
            statistics: Arrays by name.
            frozen: True to stop updating the statistics.

        Raises:
            UserError: The statistics belong to other environments.
        """
        ...


@runtime_checkable
class ReportsScores(Protocol):
    """Vectorised environments that report each finished episode's score."""

    def scores(self) -> np.ndarray:
        """Return the scores of the episodes that the last ``log`` averaged, ordered by time.

        Returns:
            (k, 2) float64: scores, and the number of episodes that each is the mean of, usually 1.
        """
        ...


@runtime_checkable
class TakesSnapshots(Protocol):
    """Vectorised environments that copy their state faster than ``VecEnv.state`` returns it."""

    def snapshot(self) -> Callable[[], np.ndarray] | None:
        """Take a snapshot: copy the current state of all environments, to encode it later.

        Returns:
            A function that returns the copy in the format of ``VecEnv.state``, or None for
            environments that can't save their state.
        """
        ...


@runtime_checkable
class DeclaresPolicies(Protocol):
    """Vectorised environments that assign a policy (learner or opponent) to each agent."""

    def declared_policies(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Return each agent's environment, (N,) int32, and policy, (N,) int32 or None.

        Policy 0 is the learner, and a larger number is the index of an opponent. None means that
        the environments don't assign policies.
        """
        ...

    def set_tags(self, tags: np.ndarray) -> None:
        """Set each environment's tag: the largest index of an opponent that plays in it.

        Waits for steps in progress.

        Args:
            tags: (E,) int32, 0 for an environment without opponents.
        """
        ...


class VecEnv(Protocol):
    """Environments with N agents in Q groups that step together (vectorised environments).

    Reset them before the first step, and close them once.

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
            None. An absent agent's rows are zeros with terminal 1 and ``TERMINATED`` until its
            environment is reset, so that the agent learns nothing from them.
        unused: Parameters without effect, because the environment doesn't read them.
        description: One line on how environments are stepped.
    """

    spec: EnvSpec
    num_agents: int
    num_groups: int
    num_environments: int
    final_observations: bool
    unused: list[str]
    description: str

    def reset(self, out: Rows) -> None:
        """Start new episodes for all N agents and write their first observations into ``out``.

        Rewards and terminals of these rows are 0. Waits for steps in progress.
        """
        ...

    def send(self, group: int, actions: np.ndarray, out: Rows) -> None:
        """Begin one environment step of a group of agents and return at once.

        Args:
            group: Index of a group that isn't stepping, 0 ≤ group < Q.
            actions: (n, heads) float32, C-contiguous; discrete actions are whole numbers. Copied
                before the call returns.
            out: Rows of the group's n agents; the memory must live until ``wait(group)`` returns.
        """
        ...

    def wait(self, group: int) -> None:
        """Block until the environment step of a group is done and its rows are written."""
        ...

    def log(self) -> dict[str, float]:
        """Return means of the metrics of all episodes that ended since the previous call.

        ``n`` is the number of episodes; the result is {} if none ended. May be called from any
        thread.
        """
        ...

    def state(self) -> np.ndarray | None:
        """Return the state of all environments as bytes, or None when it can't be saved.

        Waits for steps in progress. The state contains the episodes that ``log`` hasn't reported,
        but not the last rows, which belong to the caller.

        Returns:
            (bytes,) uint8, for ``restore``.
        """
        ...

    def restore(self, state: np.ndarray) -> None:
        """Restore all environments from a result of ``state``, bit for bit, without a reset.

        Writes no rows: the caller restores its copy of the last rows. Waits for steps in progress.

        Raises:
            UserError: The state is damaged or belongs to other environments, or these environments
                can't be restored.
        """
        ...

    def busy_seconds(self) -> float:
        """Return the thread-seconds spent in environment steps since creation."""
        ...

    def close(self) -> None:
        """Close all environments and free their memory. Calling ``close`` twice is harmless."""
        ...


class ScoredVec(VecEnv, Protocol):
    """Vectorised environments that also report the metrics of every single episode."""

    def episodes(self) -> list[dict[str, float]]:
        """Return episode metrics by environment, for episodes that ended since the previous call.

        Each record has the environment's index ``env``, the number ``n`` of its episodes, and means
        of their metrics.
        """
        ...


class Environments(ScoredVec, Protocol):
    """Vectorised environments as ``vec.make`` returns them: a context manager that can render.

    Attributes:
        backend: ``native`` for environments in C; ``vector``, ``sync`` or ``async`` in Python.
    """

    backend: str

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def render(self) -> np.ndarray | bool:
        """Render environment 0, which returns a picture or draws in a window.

        Returns:
            (h, w, 3) uint8 picture; or True if the environment drew in its window; or False if the
                user closed this window, after which ``render`` must not be called again.

        Raises:
            UserError: The environment can't be rendered.
        """
        ...
