"""What all roads to environments in Python have in common: groups in turn, episodes, no state."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec import rollout_loop
from puffer_mlx.vec.base import TERMINATED, Collected, Rows
from puffer_mlx.vec.episode_ends import EpisodeEnds
from puffer_mlx.vec.episodes import Episodes
from puffer_mlx.vec.finite import check_finite
from puffer_mlx.vec.instances import Fact, Shapes
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.plan import Plan
from puffer_mlx.vec.pool import Here, Workers
from puffer_mlx.vec.rows import RowShapes, check_picture

__all__ = ["PythonVec"]


class PythonVec:
    """The part of ``ScoredVec`` that ``GymVec``, ``ZooVec`` and ``PufferVec`` share.

    The pool's environments write rows, and where an episode's last observation has a row of its own
    the next step begins the next episode; ``PufferVec`` has it otherwise.

    Args:
        name: of the environment, for messages.
        agents: N.
        groups: Q.
        threads: that may act for the policy in ``collect``.
        seed: of environment 0.
        finals: see ``VecEnv.finals``.

    Attributes:
        layout: how observations and actions lie in rows; ``layout.restore`` gives Dicts and Tuples
            back.
    """

    spec: EnvSpec
    description: str
    backend: str
    layout: Layout
    _rows: RowShapes  # of a group
    _episodes: Episodes
    _seeds: Sequence[int]  # of each environment

    def __init__(
        self, name: str, agents: int, groups: int, threads: int, seed: int, finals: bool
    ) -> None:
        self._envs: list[Here | Workers] = []  # one for each group; none once they are closed
        self._under_way: list[Rows | None] = [None] * groups
        self.unread: list[str] = []  # an argument that isn't taken is an error
        self.num_agents, self.num_groups, self.num_threads = agents, groups, threads
        self._n = agents // groups  # agents of a group
        self._name, self._seed, self._resets, self.finals = name, seed, 0, finals

    def _build(
        self, plan: Plan, layout: Layout, shapes: Shapes, agents: int, timeout: float
    ) -> None:
        """Make the environments.

        Args:
            plan: how a group steps.
            layout: of rows.
            shapes: of a group's buffers.
            agents: of one environment.
            timeout: seconds after which an environment's process hangs.
        """
        self.backend, self.description = plan.form, plan.description
        self._per_environment, self.num_environments = agents, self.num_agents // agents
        self._ends = [EpisodeEnds(self._n, self.finals) for _ in range(self.num_groups)]
        self._episodes = Episodes(self.num_agents, agents)
        self._settle(layout)
        with self._closing_on_failure():
            for group in range(self.num_groups):
                self._envs.append(plan.build(shapes, group, self._seed, timeout))

    def _settle(self, layout: Layout) -> None:
        self.layout, self.spec = layout, layout.spec
        self._rows = RowShapes(self.spec, self._n)
        self._all_rows = RowShapes(self.spec, self.num_agents)

    def reset(self, out: Rows) -> None:
        """Start new episodes for all N agents; write their first rows, rewards and terminals 0.

        Waits for steps under way. The k-th time (from 0), environment i gets the seed
        ``seed + i + k * num_environments``.

        Raises:
            UserError: an environment failed; all are closed then.
        """
        self._all_rows.check(out)
        for group in range(self.num_groups):
            self.wait(group)
        out.rewards[:] = 0
        out.terminals[:] = 0
        if out.finals is not None:
            out.finals[:] = 0
        self._episodes.restart()
        with self._closing_on_failure():
            self._reset_environments()
            for group in range(self.num_groups):
                self._begin_episodes(group, out.part(self._agents(group)))

    def _reset_environments(self) -> None:
        self._reset_all(self._seed + self._resets * self.num_environments)
        self._resets += 1

    def _reset_all(self, seed: int | None) -> None:
        for env in self._envs:
            env.ask("reset", seed)
        for env in self._envs:
            env.answer()

    def _begin_episodes(self, group: int, out: Rows) -> None:
        """A group was reset: write its first rows."""
        ends = self._ends[group]
        ends.restart(~self._envs[group].buffers.present)
        if out.finals is not None:
            out.finals[:] = TERMINATED * ends.over
        self._write(group, out)

    def busy_seconds(self) -> float:
        """Seconds spent inside environment steps since creation, all processes together."""
        return sum(env.busy_seconds() for env in self._envs)

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
        np.copyto(env.buffers.actions, self._taken(actions))
        try:
            env.ask("step")
        except BaseException:
            self.close()
            raise
        self._under_way[group] = out

    def wait(self, group: int) -> None:
        """Block until the group's step is done and its rows are written.

        Raises:
            UserError: an environment failed, or returned what isn't a number; all are closed then.
        """
        env = self._open(group)
        out, self._under_way[group] = self._under_way[group], None
        if out is None:
            return
        try:
            self._arrive(group, env.answer(), out)
        except BaseException:
            self.close()
            raise

    def _taken(self, actions: np.ndarray) -> np.ndarray:
        """A policy's actions as they lie in the buffers."""
        return actions

    def _arrive(self, group: int, facts: list[Fact], out: Rows) -> None:
        """Write the rows of a step, and count the episodes that it ended."""
        buffers, ends = self._envs[group].buffers, self._ends[group]
        over, idle = ends.write(buffers.terminals, buffers.truncations, out)
        out.rewards[:] = buffers.rewards
        told = {fact.agent: fact.numbers for fact in facts} if facts else None
        ended = over if idle is None else over & ~idle  # idle: began anew, or away
        first = group * self._n
        self._episodes.add(buffers.rewards, ended, first=first, resets=idle, infos=told)
        self._write(group, out)

    def _write(self, group: int, out: Rows) -> None:
        """What agents see and may do, into rows, and the check of these."""
        buffers = self._envs[group].buffers
        np.copyto(out.observations, buffers.observations)
        if out.masks is not None:
            np.copyto(out.masks, buffers.legal)
        self._check_finite(group, out)

    def _check_finite(self, group: int, out: Rows) -> None:
        first = group * self._n // self._per_environment
        check_finite(
            self._name, out.observations, out.rewards, first, self._seeds, self._per_environment
        )

    def render(self) -> np.ndarray | bool:
        """Environment 0's picture (h, w, 3) uint8.

        Raises:
            UserError: it can't be drawn.
        """
        return check_picture(self._name, self._drawn())

    def _drawn(self) -> Any:
        env = self._open(0)
        with self._closing_on_failure():
            found = env.render()
        if isinstance(found, UserError):
            raise found
        return found

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

    def _agents(self, group: int) -> slice:
        return slice(group * self._n, (group + 1) * self._n)

    def _open(self, group: int) -> Here | Workers:
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
