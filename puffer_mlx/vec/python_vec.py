"""What all roads to environments in Python have in common: groups in turn, episodes, no state."""

import math
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, ClassVar, Self

import numpy as np

from puffer_mlx.config.memory_needs import refuse_step
from puffer_mlx.errors import UserError
from puffer_mlx.spec import EnvSpec
from puffer_mlx.vec import rollout_loop
from puffer_mlx.vec.base import TERMINATED, Collected, LastObservations, Rows
from puffer_mlx.vec.episodes import EpisodeEnds, Episodes
from puffer_mlx.vec.instances import Fact, Recipe
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.plan import plan
from puffer_mlx.vec.pool import SingleProcess, Workers, open_group
from puffer_mlx.vec.rows import RowShapes, check_finite, check_picture
from puffer_mlx.vec.space_parts import SMALLEST

_SEEDS = 2**32  # Gymnasium takes none beyond


class PythonVec:
    """The part of ``ScoredVec`` that ``GymVec``, ``ZooVec`` and ``PufferVec`` share.

    The pool's environments write rows, and where an episode's last observation has a row of its own
    the next step begins the next episode; ``PufferVec`` has it otherwise.

    Args:
        make: what makes an instance.
        name: of the environment, for messages.
        total_agents: N, a multiple of Q and of the agents of an instance.
        env: further arguments of ``make``.
        render: make environments that can ``render``.
        rescale_actions: a continuous action's -1 to 1 is the low to high of its bounds.
        image_channels: which dimension of an image holds its channels: ``space_parts.image_of``.
        num_buffers: Q.
        seed: of environment 0.
        backend: ``vector``, ``sync``, ``async``; ``auto`` is ``vector`` where that exists, else
            what a few steps promise to be faster of the others.
        timeout: seconds after which an environment's process is taken to hang.
        num_threads: the most processes, and threads that may act for the policy in ``collect``.
        more: what else the recipe takes.

    Attributes:
        recipe: how instances are made.
        layout: how observations and actions lie in rows; ``layout.restore`` gives Dicts and Tuples
            back.

    Raises:
        UserError: the environment can't be made, or the backend isn't possible.
        Misfit: its agents don't add up to N.
    """

    recipe: ClassVar[type[Recipe]]
    layout: Layout
    spec: EnvSpec
    _rows: RowShapes  # of a group
    _all_rows: RowShapes

    def __init__(
        self,
        make: Any,
        *,
        name: str,
        total_agents: int,
        env: Mapping[str, Any] | None = None,
        render: bool = False,
        rescale_actions: bool = False,
        image_channels: str = SMALLEST,
        num_buffers: int = 1,
        seed: int = 0,
        backend: str = "auto",
        timeout: float = 60.0,
        num_threads: int = 1,
        **more: Any,
    ) -> None:
        settings = dict(env or {}), render, rescale_actions, image_channels
        recipe = self.recipe(name, make, *settings, **more)
        self._envs: list[SingleProcess | Workers] = []  # one for each group; none once closed
        self._under_way: list[Rows | None] = [None] * num_buffers
        self.num_agents, self.num_groups = total_agents, num_buffers
        self.num_threads = num_threads
        self._recipe, self._name, self._seed, self._resets = recipe, name, seed % _SEEDS, 0
        with closing(recipe):
            recipe.look(self._seed)
            chosen = plan(recipe, total_agents, num_buffers, backend, num_threads, self._seed)
            self.backend, self.description = chosen.form, chosen.description
            self._n = total_agents // num_buffers  # agents of a group
            self._per_environment = recipe.agents // recipe.environments
            self.num_environments = total_agents // self._per_environment
            together = self._n // self._per_environment  # environments of a group
            recipe.settle(chosen.form, together)
            arrays = recipe.shapes(1).values()  # of one agent
            each = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in arrays)
            refuse_step(recipe.layout.spec, total_agents, each)
            self.unread, self.finals = recipe.unread, recipe.finals
            self.shows_last = recipe.shows_last
            self._steps = [0] * num_buffers  # of each group, since last observations were taken
            self._last: list[LastObservations] | None = None  # since then; None before the first
            self._ends = [EpisodeEnds(self._n, self.finals) for _ in range(num_buffers)]
            self._episodes = Episodes(total_agents, self._per_environment)
            self._settle(recipe.layout)
            inside = 1 if recipe.by_environment else together // chosen.count
            self._seeds = [self._seed + i // inside for i in range(self.num_environments)]
            apart = together // inside  # of the numbers of two groups' first instances
            with self._closing_on_failure():
                for group in range(num_buffers):
                    opened = open_group(
                        recipe.shapes(self._n),
                        workers=chosen.workers,
                        timeout=timeout,
                        recipe=recipe,
                        count=chosen.count,
                        num_envs=chosen.num_envs,
                        seed=self._seed,
                        number=group * apart,
                    )
                    self._envs.append(opened)

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
        np.copyto(env.buffers.actions, self._recipe.buffered(actions))
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

    def _arrive(self, group: int, facts: list[Fact], out: Rows) -> None:
        """Write the rows of a step, and count the episodes that it ended."""
        buffers, ends = self._envs[group].buffers, self._ends[group]
        over, idle = ends.write(buffers.terminals, buffers.truncations, out)
        out.rewards[:] = buffers.rewards
        self._steps[group] += 1
        if self._last is not None and ends.any_over:
            self._keep_last(group)
        infos = {fact.agent: fact.numbers for fact in facts} if facts else None
        ended = over if idle is None else over & ~idle  # idle: began anew, or away
        first = group * self._n
        self._episodes.add(buffers.rewards, ended, first=first, resets=idle, infos=infos)
        self._write(group, out)

    def _keep_last(self, group: int) -> None:
        """Copy last observations of episodes of a group that a time limit ended in this step."""
        buffers, first = self._envs[group].buffers, group * self._n
        places = np.flatnonzero(buffers.truncations & ~buffers.terminals)
        rows, seen = np.full(len(places), self._steps[group]), buffers.last[places]
        assert self._last is not None
        self._last.append(LastObservations(rows, first + places, seen))

    def take_last(self) -> LastObservations:
        """Return last observations since the last call, not rounded: see ``ShowsLast``."""
        empty = np.zeros(0, int)
        none = LastObservations(empty, empty, np.zeros((0, self.spec.observation_size)))
        parts = self._last or [none]
        self._last = [] if self.shows_last else None
        self._steps = [0] * self.num_groups
        return LastObservations(*map(np.concatenate, zip(*parts, strict=True)))

    def _write(self, group: int, out: Rows) -> None:
        """What agents see and may do, into rows, and the check of these."""
        buffers = self._envs[group].buffers
        np.copyto(out.observations, buffers.observations)
        if out.masks is not None:
            np.copyto(out.masks, buffers.legal)
        self._check_finite(group, out)

    def exact_observations(self, agents: slice) -> np.ndarray | None:
        """Return what some agents see without rounding; see ``ShowsExactly``."""
        if self.layout.exact_dtype == self.spec.observation_dtype:
            return None
        groups = range(agents.start // self._n, agents.stop // self._n)
        return np.concatenate([self._exact(group) for group in groups])

    def _exact(self, group: int) -> np.ndarray:
        return self._envs[group].buffers.observations

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
            picture = env.render()
        if isinstance(picture, UserError):
            raise picture
        return picture

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

    def _open(self, group: int) -> SingleProcess | Workers:
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
