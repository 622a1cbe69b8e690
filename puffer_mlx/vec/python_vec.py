"""What all roads to environments in Python have in common: groups in turn, episodes, no state."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec import rollout_loop
from puffer_mlx.vec.base import Collected, Rows
from puffer_mlx.vec.episodes import Episodes
from puffer_mlx.vec.rows import RowShapes


class Closes(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """End it."""
        ...


Env = TypeVar("Env", bound=Closes)  # what steps a group
Step = TypeVar("Step")  # what ``wait`` needs of a step under way


class PythonVec(ABC, Generic[Env, Step]):
    """The part of ``ScoredVec`` that ``GymVec``, ``PufferVec`` and ``ZooVec`` share.

    They set all that is named here.
    """

    spec: EnvSpec
    num_agents: int
    num_groups: int
    num_environments: int
    num_threads: int
    finals: bool
    unread: list[str]
    description: str
    _name: str
    _envs: list[Env]  # one for each group; none once they are closed
    _under_way: list[Step | None]  # of each group
    _rows: RowShapes  # of a group
    _episodes: Episodes

    @abstractmethod
    def reset(self, out: Rows) -> None:
        """Start new episodes for all N agents: see ``VecEnv.reset``."""

    @abstractmethod
    def busy_seconds(self) -> float:
        """Seconds spent inside environment steps, of all processes together."""

    @abstractmethod
    def _begin(self, group: int, env: Env, actions: np.ndarray, out: Rows) -> Step:
        """Begin a step whose arguments are checked; the actions are the caller's, to be copied."""

    @abstractmethod
    def _end(self, group: int, env: Env, step: Step) -> None:
        """Wait for a step, write its rows, and count the episodes that it ends."""

    def send(self, group: int, actions: np.ndarray, out: Rows) -> None:
        """Begin one step of a group and return at once: see ``VecEnv.send``.

        Processes begin with it; what steps in this process does so in ``wait``.

        Raises:
            IndexError: there is no such group.
            ValueError: an array has another shape or dtype.
            RuntimeError: the group is stepping already, or the environments are closed.
            UserError: an environment failed, or its process has died; all are closed then.
        """
        env = self._open(group)
        if self._under_way[group] is not None:
            raise RuntimeError(f"group {group} is stepping already; wait({group}) first")
        self._rows.check_actions(actions)
        self._rows.check(out)
        self._under_way[group] = self._begin(group, env, actions, out)

    def wait(self, group: int) -> None:
        """Block until the group's step is done and its rows are written.

        Raises:
            UserError: an environment failed, or returned what isn't a number; all are closed then.
        """
        env = self._open(group)
        step, self._under_way[group] = self._under_way[group], None
        if step is not None:
            self._end(group, env, step)

    def collect(
        self, steps: int, act: tuple[int, int], actions: np.ndarray, out: Rows, spans: int = 0
    ) -> Collected:
        """Act and step all agents ``steps`` times, step by step: see ``WholeRollouts.collect``."""
        return rollout_loop.collect(self, steps, act, actions, out, spans, self.num_threads)

    def log(self) -> dict[str, float]:
        """Means over episodes that ended since the last call, ``n`` their number; empty if none.

        What environments tell of an episode is among them, and goes before what was counted. May be
        called from any thread.
        """
        return self._episodes.log()

    def scores(self) -> np.ndarray:
        """The scores that the last ``log`` was about: see ``TellsScores``."""
        return self._episodes.scores()

    def episodes(self) -> list[dict[str, float]]:
        """A record of each episode that ended since the last call: see ``Episodes.take``."""
        return self._episodes.take()

    def state(self) -> None:
        """None: environments in Python can't be saved; they start anew."""

    def restore(self, state: np.ndarray) -> None:
        """There is no state to go on from.

        Raises:
            UserError: always.
        """
        raise UserError(
            f"{self._name}: environments in Python can't go on from a state",
            "go on without it: the environments start anew",
        )

    def close(self) -> None:
        """Close the environments and end their processes. Calling it twice is harmless."""
        envs, self._envs = self._envs, []
        self._under_way = [None] * len(self._under_way)
        for env in envs:
            env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, group: int) -> Env:
        if not self._envs:
            raise RuntimeError(f"{self._name}: the environments are closed")
        if not 0 <= group < self.num_groups:
            raise IndexError(f"group {group}, expected 0 to {self.num_groups - 1}")
        return self._envs[group]

    @contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise
