"""Collect rollouts: alternating with training, or overlapped with it.

    serial        rollout k | training k | rollout k + 1 | training k + 1
    overlapped    rollout k | training k    ...
                            | rollout k + 1 ...

An overlapped rollout runs in a second thread on separate streams. It writes the buffer that
training doesn't read, and acts with the weights from before that training: a policy lag of one
iteration. Random keys are split in the serial order, so only the lag changes the results.

At most one rollout is in progress. ``take`` waits for the rollout. The next one may begin only
after ``take``, and after training on the buffer that it will overwrite. The trainer calls
``settle`` after each step, so no rollout is in progress between two steps.

Each rollout stores its starting point (``RolloutStart``). A checkpoint contains the starting point
instead of the rollout, because collecting again from there gives the same rollout.

A rollout fails if an environment raises an exception or the user interrupts it. Its steps are
dropped, and ``resync`` restores consistent environments, rows and recurrent states for the next
rollout. Successful rollouts copy nothing for this purpose.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.machines.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.ppo.precision import lower
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting import choose_acting, replay_states
from puffer_mlx.rollout.buffer import RolloutBuffer
from puffer_mlx.rollout.on_gpu import BufferOnGPU, EnvironmentsOnGPU, EnvSnapshot, RolloutsOnGPU
from puffer_mlx.rollout.seats import WeightCache
from puffer_mlx.rollout.time_limits import add_values, are_bootstrapped
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import building, for_cpu
from puffer_mlx.training.placement import Acting, Placement, rollout_cores
from puffer_mlx.training.streams import acting_streams, learner_width, worker
from puffer_mlx.vec.base import LastObservations, TellsScores
from puffer_mlx.vec.native.vec import NativeVec

SLOW = 1.0  # seconds; if a rollout took longer, the progress of the next one is displayed


@dataclass(frozen=True)
class RolloutStart:
    """The starting point of a rollout."""

    buffer: RolloutBuffer  # the buffer to fill; row 0 is the first row of the rollout
    weights: Any  # the learner's weights; the acting weights are converted from these
    states: list[Any]  # recurrent states, one per group
    key: mx.array  # the trainer's key before the rollout's key is split from it
    environments: Any  # saved state; None if not needed or not possible, or on a GPU: `stepped`
    stepped: EnvSnapshot | None = None  # state of environments on a GPU


@dataclass
class Rollout:
    """A collected rollout, from ``Collector.take`` to the end of its update.

    Attributes:
        buffer: the buffer with the rollout's rows.
        start: the starting point of the rollout.
        logs: means reported by the environments. If ``unread`` is set, empty until
            ``Collector.read``.
        seconds: duration of collecting.
        scores: scores of single episodes, NumPy arrays: see ``TellsScores``.
        late: estimated seconds until the GPU finishes, counted from ``take``. The estimate is the
            duration of the latest rollout with a wait, less ``seconds``.
        unread: the environments' log on the GPU, if ``take`` did not wait for the rollout.
        ahead: True if it was launched before the results of the previous update were read.
        update_key: random key of the update on this rollout; None until the key is split.
        games: self-play's logs; None until the games of the rollout are counted.
        self_play: state of self-play before the games were counted, if a checkpoint may need it.
        last: final observations without a row. None after their values are added to the rewards:
            see ``rollout/time_limits.py``.
    """

    buffer: RolloutBuffer
    start: RolloutStart
    logs: dict[str, float]
    seconds: float
    scores: Any = None
    late: float = 0.0
    unread: mx.array | None = None
    ahead: bool = False
    update_key: mx.array | None = None
    games: dict[str, float] | None = None
    self_play: Any = None
    last: LastObservations | None = None


@dataclass
class Unfinished:
    """A rollout that is in progress or has failed.

    Attributes:
        start: the starting point of the rollout.
        weights: the acting weights.
        noise: random numbers for sampling the actions, (T, N, heads).
        steps: number of completed steps per agent, (N,) int; None until they are counted.
    """

    start: RolloutStart
    weights: Any
    noise: mx.array
    steps: np.ndarray | None = None


class Collector:
    """Collects rollouts, in the calling thread or in a second one (``train.overlap``).

    Args:
        acting: the policy, the environments and their configuration.
        placement: the devices that act and train.
        timer: the phases ``eval_*`` are charged to this timer.
        ranks: the ranks; each has a shard of the agents.

    Attributes:
        acting: the implementation of acting. Replace it only while no rollout is in progress.
        vec: the environments, or an ``EnvironmentsOnGPU`` if the GPU steps them.
        bootstraps: True if values of final observations without a row are added to rewards.
        cores: number of CPU cores for acting through MLX.
        buffers: one buffer; two, filled alternately, with ``overlap`` or ``ahead``.
        buffer: the buffer of the latest rollout. Its row T is row 0 of the next one.
        ahead: True if ``take`` can return while the GPU still computes the rollout. The host then
            prepares and launches the update without knowing the results of the previous one.
            False on a Mac, because macOS may end a launch.
        states: recurrent states after the latest rollout, one per group.
    """

    def __init__(
        self,
        acting: Acting,
        placement: Placement,
        timer: PhaseTimer,
        ranks: SingleProcess = SINGLE_PROCESS,
    ) -> None:
        config, vec, policy, run, seats = acting
        self._ranks, self._seats = ranks, seats
        self._opponents = WeightCache(self._to_act)
        if placement.gpu_rollouts is not None:
            assert isinstance(vec, NativeVec)
            vec = EnvironmentsOnGPU(vec, placement.gpu_rollouts)
        self.config, self.vec, self.policy, self.placement = config, vec, policy, placement
        self.bootstraps = are_bootstrapped(config, vec)
        self.overlap = placement.overlap
        there = placement.gpu_rollouts is not None and backend() != "metal"
        self.ahead = there and not placement.overlap
        self._timer = timer
        # Acting and training on one CPU use separate cores. Otherwise they wait for each other.
        self.cores = rollout_cores(config)
        if placement.learner == mx.cpu:  # training uses the cores that the rollout doesn't
            learner_width(threads() - self.cores)
        device, precision = placement.rollout, placement.acting_precision
        streams = lambda: acting_streams(device, self.cores, vec.num_groups)  # noqa: E731
        with ranks.guarded():
            self.acting = choose_acting(
                *(device, precision, policy, run, vec, streams, timer, seats),
                config.train.launch_steps,
            )
        shape = (config.train.horizon, vec.num_agents, vec.num_groups)
        Buffer = RolloutBuffer if placement.gpu_rollouts is None else BufferOnGPU
        self.buffers: list[Any] = [
            Buffer(vec.spec, *shape, vec.finals)
            for _ in range(2 if self.overlap or self.ahead else 1)
        ]
        self.buffer = self.buffers[0]
        self.buffer.reset(vec)
        self.states = self._fresh = self._initial_states()
        self._job: Callable[[], Rollout] | Future[Rollout] | None = None
        self._start: RolloutStart | None = None  # starting point of the latest rollout
        self._seconds = math.inf  # duration of the latest rollout that `take` waited for
        self._marked: RolloutBuffer | None = None
        self._unfinished: Unfinished | None = None

    def _initial_states(self) -> list[Any]:
        """Return the initial recurrent states, one per group."""
        n = self.vec.num_agents // self.vec.num_groups
        with building, mx.stream(self.placement.rollout):
            states = [self.policy.initial_state(n) for _ in range(self.vec.num_groups)]
        mx.eval(states)
        return states

    def restore(self, states: list[Any], carry: dict[str, mx.array]) -> None:
        """Restore the recurrent states and the first row: see ``RolloutBuffer.carry``."""
        self.states = states
        self.buffer.restore(carry)
        self._unfinished = None

    @property
    def begun(self) -> RolloutStart | None:
        """Starting point of the rollout that waits for ``take``, or None. Call ``settle`` first."""
        return self._start if self.waiting else None

    def discard(self) -> None:
        """Drop the rollout that waits for ``take``. Call ``settle`` first."""
        self._job = None

    @property
    def waiting(self) -> bool:
        """True if a rollout has begun and has not been taken."""
        return self._job is not None

    @property
    def under_way(self) -> bool:
        """True if the other thread is collecting a rollout."""
        job = self._job  # another thread may replace it
        return isinstance(job, Future) and not job.done()

    def begin(
        self,
        weights: Any,
        key: mx.array,
        opponents: Sequence[Any] = (),
        fresh: Collection[int] = (),
    ) -> mx.array:
        """Begin a rollout.

        Args:
            weights: the learner's weights, evaluated.
            key: the trainer's key; the rollout's key is split from it.
            opponents: weights of each opponent in self-play, evaluated.
            fresh: numbers (from 1) of the opponents whose recurrent states are reset.

        Returns:
            The trainer's next key.
        """
        assert self._job is None, "the rollout before has not been taken"
        with building:
            after, mine = mx.random.split(key)
            acting = self._to_act(weights)
            if self._seats is not None:
                acting = [acting, *self._opponents(opponents)]
            T, draw = self.buffer.horizon, self.policy.distribution.noise
            noise = self._ranks.columns(lambda N: draw(mine, (T, N)), self.vec.num_agents)
        if self.ahead:
            mx.async_eval(after)  # the next step may run in another thread
        else:
            mx.eval(after, noise, acting)
        buffer = self.buffers[(self.buffers.index(self.buffer) + 1) % len(self.buffers)]
        self._work = partial(self._collect, buffer, weights, acting, key, noise, fresh)
        self._job = worker().submit(self._work) if self.overlap else self._work
        return after

    def _to_act(self, weights: Any) -> Any:
        """Return the weights on the acting device, in the acting precision."""
        away = self.placement.rollout != self.placement.learner
        acting = for_cpu(weights) if away else weights
        return lower(acting, self.placement.acting_precision)

    def take(self, ahead: bool = False) -> Rollout:
        """Return the rollout begun by ``begin``: wait for the other thread, or collect it now.

        Args:
            ahead: True to return before the GPU has finished, if ``self.ahead``. The caller must
                then call ``read`` later.

        Raises:
            BaseException: collecting failed. The rollout remains to be taken: the next call runs
                ``resync`` and collects it again.
        """
        job = self._job
        assert job is not None, "no rollout has been begun"
        if isinstance(self.acting, RolloutsOnGPU):
            self.acting.waits = not (ahead and self.ahead)
        if self.overlap and not isinstance(job, Future):  # it failed before
            job = self._job = worker().submit(job)
        if isinstance(job, Future):
            wait([job])  # if a signal ends this, the rollout is still there
        try:
            rollout = job.result() if isinstance(job, Future) else job()
        except Exception:
            self._job = self._work  # the next call tries again
            raise
        self._job = None
        if rollout.last is None:
            return rollout
        start, mine = rollout.start, (self.policy, rollout.start.weights)
        with mx.stream(self.placement.learner):
            add_values(rollout.buffer, rollout.last, *mine, start.states, self.config)
        rollout.last = None
        return rollout

    def read(self, rollout: Rollout) -> None:
        """Read a rollout's logs, if ``take`` did not wait for them."""
        if rollout.unread is not None:
            assert isinstance(self.vec, EnvironmentsOnGPU)
            rollout.logs, rollout.unread = self.vec.read(rollout.unread), None

    def take_back(self, rollout: Rollout) -> mx.array:
        """Undo the latest rollout, launched ahead: the next one begins at its starting point.

        Returns:
            The trainer's key before the rollout.
        """
        start = rollout.start
        assert isinstance(self.vec, EnvironmentsOnGPU) and start.stepped is not None
        self.buffer, self.states = self.before, start.states
        self.vec.rollback(start.stepped)
        return start.key

    def resync(self) -> None:
        """Recover from a failed rollout, if the latest one failed.

        If the state of the environments was saved at the start of the rollout, it is restored.
        Otherwise each environment finishes its current step, whose results are row 0 of the next
        rollout. The recurrent states are recomputed from all rows before that one.
        """
        failed = self._unfinished
        if failed is None:
            return
        start = failed.start
        if isinstance(self.vec, EnvironmentsOnGPU):
            assert isinstance(self.buffer, BufferOnGPU) and isinstance(start.buffer, BufferOnGPU)
            self.vec.rollback(start.stepped)
            self.buffer.last = start.buffer.first
        elif start.environments is not None:
            self.vec.restore(start.environments)
        else:
            for group in range(self.vec.num_groups):
                self.vec.wait(group)
            if failed.steps is None:
                failed.steps = start.buffer.written
            self.states = replay_states(
                *(self.acting, self.placement.rollout, start.buffer),
                *(failed.weights, start.states, failed.noise, failed.steps),
            )
            self.buffer.restore(start.buffer.rows_after(failed.steps))
        self._unfinished = None

    def state(self) -> Any:
        """Return the current state of the environments, or None if they can't be saved.

        ``states`` and the carried row of ``buffer`` match this state, also after a failed rollout.
        """
        if self._unfinished is not None and self.vec.state() is not None:
            self.resync()
        return self.vec.state()

    def state_of(self, start: RolloutStart) -> Any:
        """Return the state of the environments at the start of a rollout; waits for the GPU."""
        if start.environments is None and start.stepped is not None:
            assert isinstance(self.vec, EnvironmentsOnGPU)
            return self.vec.state_of(start.stepped)
        return start.environments

    @property
    def before(self) -> Any:
        """Buffer of the rollout before the latest one, if there are two buffers."""
        return self.buffers[self.buffers.index(self.buffer) - 1]

    @property
    def part(self) -> float | None:
        """Fraction of the latest rollout that is collected, for any thread.

        None if it is unknown, as for short rollouts: see ``SLOW``.
        """
        marked = self._marked  # another thread may replace it
        return marked.part if marked else None

    def settle(self) -> None:
        """Wait until no rollout is in progress. A finished or failed one remains to be taken.

        Raises:
            KeyboardInterrupt: an interrupt came during the wait. It is raised after the rollout has
                finished, because a partly written buffer can't be used.
        """
        interrupt: KeyboardInterrupt | None = None
        while isinstance(job := self._job, Future):
            try:
                wait([job])
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt:
            raise interrupt

    def _renewed(self, fresh: Collection[int]) -> list[Any]:
        """Return the recurrent states of each group, reset for the opponents in ``fresh``."""
        if self._seats is None or not fresh:
            return self.states
        theirs = np.isin(self._seats.policy, list(fresh))
        with building, mx.stream(self.placement.rollout):
            new = mx.split(mx.array(theirs[:, None].tolist()), len(self.states))
            groups = zip(new, self._fresh, self.states, strict=True)
            states = [tree_map(partial(mx.where, *each[:1]), *each[1:]) for each in groups]
        mx.eval(states)
        return states

    def _collect(
        self,
        buffer: RolloutBuffer,
        weights: Any,
        acting: Any,
        key: mx.array,
        noise: mx.array,
        fresh: Collection[int],
    ):
        """Collect a rollout. This runs in the second thread if rollouts overlap training."""
        timer, began = self._timer, time.perf_counter()
        if self.overlap and self._start:
            timer.lap("eval_idle")
        else:
            timer.start()
        self.resync()
        if self.bootstraps:
            self.vec.take_last()  # type: ignore  # discard those of an interrupted rollout
        states = self._fresh if self.config.base.reset_state else self._renewed(fresh)
        stepped = self.vec.stepped if isinstance(self.vec, EnvironmentsOnGPU) else None
        environments = self.vec.state() if self.overlap and stepped is None else None
        buffer.begin(self.buffer)
        start = RolloutStart(buffer, weights, states, key, environments, stepped)
        self._start = start
        on_host = isinstance(buffer, RolloutBuffer)
        if on_host:
            buffer.mark()
        self._marked = buffer if on_host and self._seconds > SLOW else None
        # Set this before `mark_last`, which overwrites row T: an interrupt may come at any line.
        self._unfinished = Unfinished(start, acting, noise)
        if on_host:
            buffer.mark_last()
        after = self.acting.collect(buffer, self.vec, acting, states, noise)
        unread = None
        if isinstance(self.acting, RolloutsOnGPU) and not self.acting.waits:
            unread = self.vec.take_log()  # type: ignore
        last = self.vec.take_last() if self.bootstraps else None  # type: ignore
        logs = self.vec.log() if unread is None else {}
        scores = self.vec.scores() if isinstance(self.vec, TellsScores) else None
        self.buffer, self.states = buffer, after
        self._unfinished = None
        timer.lap("eval_misc")
        seconds = time.perf_counter() - began
        if unread is not None:
            late = max(0.0, self._seconds - seconds) if math.isfinite(self._seconds) else 0.0
            return Rollout(buffer, start, logs, seconds, scores, late, unread)
        self._seconds = seconds
        return Rollout(buffer, start, logs, seconds, scores, last=last)
