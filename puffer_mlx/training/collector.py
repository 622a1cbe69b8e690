"""When rollouts are collected: one after the other with training, or beside it.

    serial        rollout k | training k | rollout k + 1 | training k + 1
    overlapped    rollout k | training k    ...
                            | rollout k + 1 ...

Overlapped, a rollout is collected by a thread of its own, on streams of its own, into the buffer
that training doesn't read, with the weights from before that training: one iteration of policy
lag. The order of everything random is that of serial, so the lag alone makes results differ.

The fence is ``take``: the trainer waits for the rollout there, and a rollout is only begun when the
one before has been taken and the buffer it will write has been trained on. So at most one is under
way. Nothing of it is under way between two steps of the trainer: ``settle``.

What a rollout began from is kept with it. A checkpoint holds that, and not the rollout: collecting
again from there gives the same one.

A rollout may fail in the middle: an environment raises an exception, or the user interrupts it. Its
steps are dropped, and the next rollout begins from environments, rows and recurrent states that
belong together (``resync``). Nothing is copied for that while rollouts succeed.
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
from puffer_mlx.rollout.on_gpu import BufferOnGPU, EnvironmentsOnGPU, RolloutsOnGPU, Stepped
from puffer_mlx.rollout.seats import PerPolicy
from puffer_mlx.rollout.time_limits import add_values, are_bootstrapped
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import building, for_cpu
from puffer_mlx.training.placement import Acting, Placement, rollout_cores
from puffer_mlx.training.streams import acting_streams, learner_width, worker
from puffer_mlx.vec.base import LastObservations, TellsScores
from puffer_mlx.vec.native.vec import NativeVec

SLOW = 1.0  # seconds: after a rollout that took longer, the progress of the next one is shown


@dataclass(frozen=True)
class RolloutStart:
    """What a rollout begins from."""

    buffer: RolloutBuffer  # its row 0 is the rollout's first
    weights: Any  # the learner's, which the acting ones are made from
    states: list[Any]  # recurrent, of each group
    key: mx.array  # the trainer's, before the rollout's was drawn from it
    environments: Any  # their state; None if they can't be saved, or needn't be, or are
    stepped: Stepped | None = None  # on a GPU


@dataclass
class Rollout:
    """A full buffer, until its update is done.

    Attributes:
        buffer: the rollout's rows.
        start: what the rollout began from.
        logs: means that the environments reported; empty until ``Collector.read`` if ``unread``.
        seconds: how long collecting took.
        scores: single episodes' scores, NumPy's: see ``TellsScores``.
        late: seconds that the GPU still needs after ``take``: as many as the last rollout took
            that was waited for.
        unread: the environments' log on the GPU, if the rollout was not waited for.
        ahead: launched before the results of the previous update were read.
        update_key: random key of the update on the rollout, once it is drawn.
        games: self-play's logs, once the rollout's games are counted.
        self_play: self-play's state before they were, where a checkpoint may need it.
        last: last observations that have no row, until rewards have got their values: see
            ``rollout/time_limits.py``.
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
    """A rollout that is being collected, or has failed.

    Attributes:
        start: what it began from.
        weights: the weights that act.
        noise: (T, N, heads), what its actions are drawn with.
        steps: (N,) int, the number of each agent's steps that were made; None: not counted yet.
    """

    start: RolloutStart
    weights: Any
    noise: mx.array
    steps: np.ndarray | None = None


class Collector:
    """Collects rollouts, when asked for or in a thread of its own.

    Args:
        acting: what acts, and in which environments.
        placement: where it acts.
        timer: gets the phases ``eval_*``.
        ranks: the processes that have a part of the run's agents each.

    Attributes:
        acting: how it acts; another way may be put in its place while nothing is under way.
        vec: the environments; where a GPU steps them itself, what stands for them there.
        bootstraps: whether rewards get the values of last observations that have no row.
        cores: of a CPU, for acting through MLX; as ``acting``.
        buffers: one, or two with overlap or ``ahead``, filled in turns.
        buffer: that the last rollout filled; its row T is where the next one begins.
        ahead: whether ``take`` need not wait for a rollout, which a GPU makes: this thread can
            prepare the training on it meanwhile, and launch it before it knows what training
            before it came to. Not on a Mac, where macOS may end a launch.
        states: each group's recurrent state after the last rollout.
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
        self._opponents = PerPolicy(self._to_act)
        if placement.whole is not None:
            assert isinstance(vec, NativeVec)
            vec = EnvironmentsOnGPU(vec, placement.whole)
        self.config, self.vec, self.policy, self.placement = config, vec, policy, placement
        self.bootstraps = are_bootstrapped(config, vec)
        self.overlap = placement.overlap
        there = placement.whole is not None and backend() != "metal"
        self.ahead = there and not placement.overlap
        self._timer = timer
        # On the cores alone each half has its own; else each would wait for the other's pieces.
        self.cores = rollout_cores(config)
        if placement.learner == mx.cpu:  # of all cores, unless some are the rollout's
            learner_width(threads() - self.cores)
        device, precision = placement.rollout, placement.acting_precision
        streams = lambda: acting_streams(device, self.cores, vec.num_groups)  # noqa: E731
        self.acting = choose_acting(
            device, precision, policy, run, vec, streams, timer, seats, config.train.launch_steps
        )
        shape = (config.train.horizon, vec.num_agents, vec.num_groups)
        Buffer = RolloutBuffer if placement.whole is None else BufferOnGPU
        self.buffers: list[Any] = [
            Buffer(vec.spec, *shape, vec.finals)
            for _ in range(2 if self.overlap or self.ahead else 1)
        ]
        self.buffer = self.buffers[0]
        self.buffer.reset(vec)
        self.states = self._fresh = self._initial_states()
        self._job: Callable[[], Rollout] | Future[Rollout] | None = None
        self._start: RolloutStart | None = None  # of the rollout that was begun last
        self._seconds = math.inf  # that the last one took that was waited for
        self._marked: RolloutBuffer | None = None
        self._unfinished: Unfinished | None = None

    def _initial_states(self) -> list[Any]:
        """Each group's recurrent state before its first step."""
        n = self.vec.num_agents // self.vec.num_groups
        with building, mx.stream(self.placement.rollout):
            states = [self.policy.initial_state(n) for _ in range(self.vec.num_groups)]
        mx.eval(states)
        return states

    def restore(self, states: list[Any], carry: dict[str, mx.array]) -> None:
        """Go on from these recurrent states and this row: see ``RolloutBuffer.carry``."""
        self.states = states
        self.buffer.restore(carry)
        self._unfinished = None

    @property
    def begun(self) -> RolloutStart | None:
        """What the rollout that waits for ``take`` began from, nothing being under way."""
        return self._start if self.waiting else None

    def discard(self) -> None:
        """Forget the rollout that waits for ``take``, nothing being under way."""
        self._job = None

    @property
    def waiting(self) -> bool:
        """Whether a rollout has been begun and not been taken."""
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
        """Begin a rollout with these weights.

        Args:
            weights: the learner's, evaluated.
            key: the trainer's, which the rollout's is drawn from.
            opponents: of self-play, each one's weights, evaluated.
            fresh: the opponents, from 1, whose recurrent states begin anew.

        Returns:
            The key to go on with.
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
        """Weights on the device, and in the type, that act."""
        away = self.placement.rollout != self.placement.learner
        acting = for_cpu(weights) if away else weights
        return lower(acting, self.placement.acting_precision)

    def take(self, ahead: bool = False) -> Rollout:
        """The rollout that was begun: waits for it, or collects it now.

        Args:
            ahead: whether to return while a GPU may still be at it, where that can be. Whoever
                takes it then calls ``read`` once, later.

        Raises:
            BaseException: what went wrong while it was collected. The rollout still waits then: the
                next call collects it again, from where ``resync`` continues.
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
        """Forget the last rollout, which was not waited for: the next one begins where it did.

        Returns:
            The key to go on with, as ``begin``.
        """
        start = rollout.start
        assert isinstance(self.vec, EnvironmentsOnGPU) and start.stepped is not None
        self.buffer, self.states = self.before, start.states
        self.vec.go_back(start.stepped)
        return start.key

    def resync(self) -> None:
        """Continue after a rollout that failed in the middle; else do nothing.

        Environments are restored if their state was saved when the rollout began. Else they finish
        the step that they are in: what they show then is the row that the next rollout begins with,
        and the recurrent states are those of the policy when it had seen all rows before.
        """
        failed = self._unfinished
        if failed is None:
            return
        start = failed.start
        if isinstance(self.vec, EnvironmentsOnGPU):
            assert isinstance(self.buffer, BufferOnGPU) and isinstance(start.buffer, BufferOnGPU)
            self.vec.go_back(start.stepped)
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
        """Return the environments' state as it is now; None if they can't be saved.

        ``states`` and the row that ``buffer`` carries belong to it, also after a failed rollout.
        """
        if self._unfinished is not None and self.vec.state() is not None:
            self.resync()
        return self.vec.state()

    def state_of(self, start: RolloutStart) -> Any:
        """The environments' state when a rollout began; waits for it."""
        if start.environments is None and start.stepped is not None:
            assert isinstance(self.vec, EnvironmentsOnGPU)
            return self.vec.state_of(start.stepped)
        return start.environments

    @property
    def before(self) -> Any:
        """The buffer of the rollout before the last one, where there are two."""
        return self.buffers[self.buffers.index(self.buffer) - 1]

    @property
    def part(self) -> float | None:
        """Which part of the last begun rollout is collected; None where nobody knows.

        From any thread. Of short rollouts it isn't known: see ``SLOW``.
        """
        marked = self._marked  # another thread may replace it
        return marked.part if marked else None

    def settle(self) -> None:
        """Wait until nothing is under way; a rollout that is done or has failed waits for take.

        Raises:
            KeyboardInterrupt: there was one meanwhile. It ends no rollout: a buffer that is half
                written would be of no use.
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
        """The groups' recurrent states, with initial ones for new opponents."""
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
        """Collect a rollout; runs in the collecting thread."""
        timer, began = self._timer, time.perf_counter()
        if self.overlap and self._start:
            timer.lap("eval_idle")
        else:
            timer.start()
        self.resync()
        if self.bootstraps:
            self.vec.take_last()  # type: ignore  # of before: what an interrupted rollout left
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
        # In this order: an interrupt may come anywhere, and row T is lost from `mark_last` on.
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
