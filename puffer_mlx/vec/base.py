"""The contract of a vectorised environment. NumPy only.

N agents live in Q groups of n = N / Q; group q owns agents ``[q * n, (q + 1) * n)``. A group is
stepped on its own and asynchronously, so a policy can act for one while others step. Results don't
depend on the interleaving.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

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
    finals: np.ndarray | None = None  # (n,) float32: see ``VecEnv.finals``

    def part(self, *index: Any) -> "Rows":
        """The same part of every array."""
        return Rows(*(None if array is None else array[index] for array in self))  # type: ignore


TERMINATED, TRUNCATED = 1.0, 2.0  # what ``finals`` says of an episode's last observation


class LastObservations(NamedTuple):
    """Last observations of k episodes that time limits ended, which have no rows of their own.

    Attributes:
        rows: (k,) int, the row that arrived with the end: 1 for the first step.
        agents: (k,) int.
        observations: (k, D), as the policy sees observations.
    """

    rows: np.ndarray
    agents: np.ndarray
    observations: np.ndarray


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
        """Act and step all agents ``steps`` times: see ``native.vec.NativeVec.collect``."""
        ...


class PreparedStep(NamedTuple):
    """A step of some groups, always of the same memory.

    Attributes:
        send: begins it, as ``VecEnv.send`` does for one group.
        wait: blocks until it is done and its rows are written.
    """

    send: Callable[[], None]
    wait: Callable[[], None]


@runtime_checkable
class PreparesSteps(Protocol):
    """Environments whose steps, made again and again with the same memory, are checked once."""

    def prepare(self, groups: range, actions: np.ndarray, out: Rows) -> PreparedStep:
        """Prepare a step of neighbouring groups, whose agents' rows are one after the other.

        Args:
            groups: their numbers.
            actions: (n, heads) of all their n agents, see ``VecEnv.send``.
            out: rows of those agents.
        """
        ...


@runtime_checkable
class ShowsExactly(Protocol):
    """Environments whose observations may be wider than rows of float32."""

    def exact_observations(self, agents: slice) -> np.ndarray | None:
        """Return the newest observations of whole groups of agents, (n, D) float64.

        Args:
            agents: ``[first, last)``.

        Returns:
            Their rows without rounding; None if rows of float32 hold observations exactly.
        """
        ...


@runtime_checkable
class ShowsLast(Protocol):
    """Environments that may show an episode's last observation beside the rows.

    Attributes:
        shows_last: Whether they do: they begin the next episode in the step that ends one.
    """

    shows_last: bool

    def take_last(self) -> LastObservations:
        """Return those of the steps since the last call; nothing is kept before the first one."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """Environments that learn something about themselves which a policy depends on."""

    def memory(self) -> dict[str, np.ndarray]:
        """What they have learned, by name: small arrays, copies."""
        ...

    def remember(self, memory: dict[str, np.ndarray], frozen: bool = False) -> None:
        """Go on from what ``memory`` returned; ``frozen``: learn no more.

        Raises:
            UserError: it is of other environments.
        """
        ...


@runtime_checkable
class TellsScores(Protocol):
    """Environments that tell each episode's score: those of Python."""

    def scores(self) -> np.ndarray:
        """(k, 2) float64: what the last ``log``'s ``score`` is the mean of, in order of time.

        A score, and over how many episodes it is a mean itself.
        """
        ...


@runtime_checkable
class KnowsSeats(Protocol):
    """Environments that say which agents sit together, and are told who plays in self-play."""

    def seats(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Of each agent (N,) int32 the number of its environment, and whose seat it has.

        0: the learner's, b > 0: opponent b's, in an environment where others play too. None if the
        environments don't say.
        """
        ...

    def set_tags(self, tags: np.ndarray) -> None:
        """Tell each environment the largest number of an opponent in it, (E,) int32; 0: none.

        Environments that don't want to know aren't told. Waits for steps under way.
        """
        ...


class VecEnv(Protocol):
    """N agents that step together. Created reset-able, closed once.

    Attributes:
        spec: what an agent sees and does.
        num_agents: N.
        num_groups: Q.
        num_environments: how many share the agents.
        finals: whether an episode's last observation has a row of its own, and so can be told from
            the next one's first. Its ``Rows.finals`` is ``TERMINATED``, worth nothing, or
            ``TRUNCATED``, worth what the policy thinks; other rows' is 0. The reward is that of the
            last action. The action chosen from it is ignored; the row after it is the first of the
            next episode, terminal 1 and reward 0. Without them ``Rows.finals`` is None. An agent
            that is away, until its environment begins anew, has rows of zeros, terminal 1 and
            ``TERMINATED``: nothing is learned from them.
        unread: the environment's parameters that nobody asked for.
        description: how they are stepped, one line.
    """

    spec: EnvSpec
    num_agents: int
    num_groups: int
    num_environments: int
    finals: bool
    unread: list[str]
    description: str

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


class ScoredVec(VecEnv, Protocol):
    """Environments that tell of every episode."""

    def episodes(self) -> list[dict[str, float]]:
        """A record of each environment where an episode ended since the last call.

        With its number ``env`` and the number ``n`` of those episodes, over which it is a mean.
        """
        ...


class Environments(ScoredVec, Protocol):
    """What ``vec.make`` returns: closed at the end of a ``with``, and able to draw themselves.

    Attributes:
        backend: how they are stepped: ``native``, in C; ``vector``, ``sync`` or ``async``.
    """

    backend: str

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def render(self) -> np.ndarray | bool:
        """Environment 0's picture (h, w, 3) uint8, or that it drew in a window of its own.

        Then False says that the person there wants no more: don't draw again.

        Raises:
            UserError: it can't be drawn.
        """
        ...
