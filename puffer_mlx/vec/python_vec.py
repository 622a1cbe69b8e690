"""Vectorised Python environments: groups, backends, episodes and rows (``PythonVec``)."""

import _signal  # type: ignore  # ``signal`` takes 10 us a call: it converts to enumerations
import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

import numpy as np

from puffer_mlx.config.memory_needs import refuse_large_step
from puffer_mlx.errors import UserError
from puffer_mlx.vec import rollout_loop
from puffer_mlx.vec.backend_choice import choose_backend
from puffer_mlx.vec.base import TERMINATED, Collected, FinalObservations, Rows
from puffer_mlx.vec.episodes import Episodes, EpisodeTracker
from puffer_mlx.vec.instances import EnvFactory, EpisodeInfo
from puffer_mlx.vec.pool import AsyncGroup, SyncGroup, open_group
from puffer_mlx.vec.rows import RowsChecker, check_finite, check_picture

_INTERRUPT_TIMEOUT = 0.5  # seconds for the step in progress after Ctrl-C
_SEED_MODULUS = 2**32  # seeds of Gymnasium are smaller


class _DelayedInterrupt:
    """Context manager that delays Ctrl-C (KeyboardInterrupt) for at most half a second.

    So a step in progress is completed if it ends soon, and the environments can be used again. A
    second Ctrl-C is raised at once. Only works in the main thread with Python's default handler.
    """

    def __enter__(self) -> None:
        self._timer: threading.Timer | None = None
        self._delays = (
            _signal.getsignal(signal.SIGINT) is signal.default_int_handler
            and threading.current_thread() is threading.main_thread()
        )
        if self._delays:
            _signal.signal(signal.SIGINT, self._delay)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._delays:
            if self._timer is not None:
                self._timer.cancel()
            _signal.signal(signal.SIGINT, signal.default_int_handler)
            if self._timer is not None and kind is None:
                raise KeyboardInterrupt

    def _delay(self, number: int, frame: FrameType | None) -> None:
        if self._timer is not None:
            signal.default_int_handler(number, frame)
        again = threading.get_ident(), number
        self._timer = threading.Timer(_INTERRUPT_TIMEOUT, signal.pthread_kill, again)
        self._timer.daemon = True
        self._timer.start()


class PythonVec:
    """Environments in Python that step N agents in Q groups; implements ``ScoredVec``.

    If an episode's last observation has a row (``final_observations``), the next step begins the
    next episode. Otherwise the step that ends an episode also begins the next one.

    | backend | steps |
    | --- | --- |
    | vector | all environments of a group at once, by the environment's vectorised version |
    | sync | one instance after the other, in this process |
    | async | instances in several processes |

    ``sync`` and ``async`` give the same rows, bit for bit. ``auto`` is ``vector`` if there is a
    vectorised version, else ``async`` if a measured step is slow enough to be worth processes.

    Args:
        factory: Makes the instances.
        total_agents: Number of agents N, a multiple of Q and of the agents of an instance.
        num_buffers: Number of groups Q.
        seed: Seed of environment 0.
        backend: ``vector``, ``sync``, ``async`` or ``auto``.
        timeout: Seconds after which the process of an environment counts as hanging.
        num_threads: Maximum number of processes, and of threads that act in ``collect``.

    Attributes:
        factory: Factory of the instances.
        layout: Layout of observations and actions in rows; ``layout.restore`` returns Dicts and
            Tuples.

    Raises:
        UserError: The environment can't be made, fails, or has an unsupported space; or the backend
            isn't possible.
        Misfit: The agents of the instances don't add up to N.
    """

    def __init__(
        self,
        factory: EnvFactory,
        *,
        total_agents: int,
        num_buffers: int = 1,
        seed: int = 0,
        backend: str = "auto",
        timeout: float = 60.0,
        num_threads: int = 1,
    ) -> None:
        self.factory = factory
        self.num_agents = total_agents
        self.num_groups = num_buffers
        self.num_threads = num_threads
        self._name = factory.name
        self._seed = seed % _SEED_MODULUS
        self._resets = 0
        self._fresh = False  # True if ``render`` reset the instances before the first ``reset``
        self._envs: list[SyncGroup | AsyncGroup] = []  # one for each group; empty if closed
        self._in_progress: list[Rows | None] = [None] * num_buffers
        try:
            self._make(backend, timeout)
        except UserError:
            if not factory.from_cache:
                raise
            factory.forget_probe()  # the environment may have changed since
            self._make(backend, timeout)

    def _make(self, backend: str, timeout: float) -> None:
        """Probe the Python environment, choose how it steps, and make all its instances."""
        factory, total, groups = self.factory, self.num_agents, self.num_groups
        factory.probe(backend, self._seed)
        choice = choose_backend(factory, total, groups, backend, self.num_threads, self._seed)
        self.backend = choice.backend
        self.description = choice.description
        self._n = total // groups  # agents of a group
        self._per_environment = factory.agents // factory.environments
        self.num_environments = total // self._per_environment
        self.layout = factory.layout
        self.spec = factory.layout.spec
        self.unused = factory.unused
        self.final_observations = factory.final_observations
        self.reports_final_observations = factory.reports_final_observations
        arrays = factory.shapes(1).values()
        row_bytes = sum(math.prod(shape) * np.dtype(kind).itemsize for shape, kind in arrays)
        refuse_large_step(self.spec, total, row_bytes)
        # Steps of each group since the last call of ``take_final_observations``.
        self._steps = [0] * groups
        self._final_observations_list: list[FinalObservations] | None = (
            None  # None before the first call
        )
        self._ends = [EpisodeTracker(self._n, self.final_observations) for _ in range(groups)]
        self._episodes = Episodes(total, self._per_environment)
        self._rows = RowsChecker(self.spec, self._n)
        self._all_rows = RowsChecker(self.spec, total)
        envs_per_group = self._n // self._per_environment
        envs_per_seed = 1 if factory.by_environment else envs_per_group // choice.count
        self._seeds = [self._seed + i // envs_per_seed for i in range(self.num_environments)]
        seeds_per_group = envs_per_group // envs_per_seed
        with self._closing_on_failure():
            for group in range(groups):
                opened = open_group(
                    factory.shapes(self._n),
                    workers=choice.workers,
                    timeout=timeout,
                    factory=factory,
                    count=choice.count,
                    num_envs=choice.num_envs,
                    seed=self._seed,
                    number=group * seeds_per_group,
                )
                self._envs.append(opened)

    def reset(self, out: Rows) -> None:
        """Start new episodes for all N agents and write their first observations into ``out``.

        Rewards and terminals of these rows are 0. Waits for steps in progress. At the k-th reset
        (from 0) instance i gets the seed ``seed + i + k * num_environments``; Gymnasium's
        environments get a seed at the first reset only.

        Raises:
            UserError: An environment failed; all are closed then.
        """
        self._all_rows.check(out)
        for group in range(self.num_groups):
            self.wait(group)
        out.rewards[:] = 0
        out.terminals[:] = 0
        if out.final_observations is not None:
            out.final_observations[:] = 0
        self._episodes.restart()
        with self._closing_on_failure():
            self._reset_environments()
            for group in range(self.num_groups):
                self._begin_episodes(group, out.select(self._agents(group)))

    def _reset_environments(self) -> None:
        """Reset all Python environments, unless ``render`` did so before the first reset."""
        if self._fresh:
            self._fresh = False
            return
        seed = self._seed + self._resets * self.num_environments
        fresh = self._resets == 0 or self.factory.reseeds
        self._resets += 1
        for env in self._envs:
            env.submit("reset", seed if fresh else None)
        for env in self._envs:
            env.wait()

    def _begin_episodes(self, group: int, out: Rows) -> None:
        """Write the first observations of a group whose environments were just reset into rows."""
        ends = self._ends[group]
        ends.reset(~self._envs[group].buffers.present)
        if out.final_observations is not None:
            out.final_observations[:] = TERMINATED * ends.over
        self._write_observations(group, out)

    def busy_seconds(self) -> float:
        """Return the seconds spent in environment steps since creation, over all processes."""
        return sum(env.busy_seconds() for env in self._envs)

    def send(self, group: int, actions: np.ndarray, out: Rows) -> None:
        """Begin one environment step of a group of agents and return at once (``VecEnv.send``).

        Processes begin the step now; environments in this process step in ``wait``.

        Raises:
            IndexError: There is no such group.
            ValueError: An array has another shape or dtype.
            RuntimeError: The group is stepping already, or the environments are closed.
            UserError: An environment failed, or its process has died; all are closed then.
        """
        env = self._open(group)
        if self._in_progress[group] is not None:
            raise RuntimeError(f"group {group} is stepping already; wait({group}) first")
        self._rows.check_actions(actions)
        self._rows.check(out)
        np.copyto(env.buffers.actions, actions)
        with _DelayedInterrupt():
            try:
                env.submit("step")
            except BaseException:
                self.close()
                raise
            self._in_progress[group] = out

    def wait(self, group: int) -> None:
        """Block until a group's environment step is done and its rows are written.

        Raises:
            UserError: An environment failed, or returned a non-finite number; all are closed then.
            KeyboardInterrupt: After Ctrl-C. The step is complete, or took more than half a second
                and all environments are closed.
        """
        env = self._open(group)
        out, self._in_progress[group] = self._in_progress[group], None
        if out is None:
            return
        with _DelayedInterrupt():
            try:
                self._finish_step(group, env.wait(), out)
            except BaseException:
                self.close()
                raise

    def _finish_step(self, group: int, infos: list[EpisodeInfo], out: Rows) -> None:
        """Complete a group's step: write its rows, and record the episodes that it ended."""
        buffers = self._envs[group].buffers
        ends = self._ends[group]
        over, only_reset = ends.write(buffers.terminals, buffers.truncations, out)
        out.rewards[:] = rewards = buffers.rewards
        self._steps[group] += 1
        if self._final_observations_list is not None and ends.any_over:
            self._record_final_observations(group)
        if not self.final_observations and b"\0" in buffers.present.tobytes():
            only_reset = ~buffers.present
            rewards = np.where(only_reset, 0, rewards)
        ended = over
        if only_reset is not None:  # a step that only reset an environment belongs to no episode
            ended = over & ~only_reset
        reported = {info.agent: info.metrics for info in infos if info.agent >= 0}
        first = group * self._n
        self._episodes.add(rewards, ended, first=first, resets=only_reset, infos=reported)
        for info in infos:
            if info.agent < 0:
                self._episodes.add_report(info.metrics)
        self._write_observations(group, out)

    def _record_final_observations(self, group: int) -> None:
        """Store last observations of episodes that a time limit ended in a group's last step."""
        buffers = self._envs[group].buffers
        first = group * self._n
        indices = np.flatnonzero(buffers.truncations & ~buffers.terminals)
        steps = np.full(len(indices), self._steps[group])
        observations = buffers.last[indices]
        assert self._final_observations_list is not None
        self._final_observations_list.append(
            FinalObservations(steps, first + indices, observations)
        )

    def take_final_observations(self) -> FinalObservations:
        """Return the last observations of episodes that ended since the previous call, unrounded.

        See ``ReportsFinalObservations``.
        """
        empty = np.zeros(0, int)
        none = FinalObservations(empty, empty, np.zeros((0, self.spec.observation_size)))
        per_step = self._final_observations_list or [none]
        self._final_observations_list = [] if self.reports_final_observations else None
        self._steps = [0] * self.num_groups
        return FinalObservations(*map(np.concatenate, zip(*per_step, strict=True)))

    def _write_observations(self, group: int, out: Rows) -> None:
        """Copy a group's observations and action masks into rows, and check the rows for NaN."""
        buffers = self._envs[group].buffers
        np.copyto(out.observations, buffers.observations)
        if out.masks is not None:
            np.copyto(out.masks, buffers.legal)
        first = group * self._n // self._per_environment
        check_finite(
            self._name, out.observations, out.rewards, first, self._seeds, self._per_environment
        )

    def exact_observations(self, agents: slice) -> np.ndarray | None:
        """Return the observations of some agents in float64, before they are rounded to float32."""
        if self.layout.exact_dtype == self.spec.observation_dtype:
            return None
        groups = range(agents.start // self._n, agents.stop // self._n)
        return np.concatenate([self._envs[group].buffers.observations for group in groups])

    def render(self) -> np.ndarray | bool:
        """Render environment 0. Returns a picture (h, w, 3) uint8, or True if it drew in a window.

        Raises:
            UserError: The environment can't be rendered.
        """
        env = self._open(0)
        with self._closing_on_failure():
            if not self._resets:
                self._reset_environments()
                self._fresh = True
            picture = env.render()
        if isinstance(picture, UserError):
            raise picture
        return True if picture is True else check_picture(self._name, picture)

    def collect(
        self, steps: int, act: tuple[int, int], actions: np.ndarray, out: Rows, spans: int = 0
    ) -> Collected:
        """Collect a rollout: let a C policy act and the environments step, in a Python loop."""
        return rollout_loop.collect(self, steps, act, actions, out, spans, self.num_threads)

    def log(self) -> dict[str, float]:
        """Return mean metrics of all episodes that ended since the previous call.

        May be called from any thread.
        """
        return self._episodes.log()

    def scores(self) -> np.ndarray:
        """Return the scores of the episodes that the last ``log`` averaged, ordered by time."""
        return self._episodes.scores()

    def episodes(self) -> list[dict[str, float]]:
        """Return the metrics of each episode that ended since the previous call."""
        return self._episodes.take()

    def state(self) -> None:
        """Return None, because the state of Python environments can't be saved."""

    def restore(self, state: np.ndarray) -> None:
        """Raise an error, because the state of Python environments can't be restored.

        Raises:
            UserError: Always.
        """
        raise UserError(
            f"{self._name}: environments in Python can't resume from a state",
            "resume without it: the environments start new episodes",
        )

    def close(self) -> None:
        """Close the environments and end their processes. Calling ``close`` twice is harmless."""
        envs, self._envs = self._envs, []
        self._in_progress = [None] * len(self._in_progress)
        for env in envs:
            env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _agents(self, group: int) -> slice:
        return slice(group * self._n, (group + 1) * self._n)

    def _open(self, group: int) -> SyncGroup | AsyncGroup:
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
