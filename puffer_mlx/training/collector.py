"""When rollouts are collected: one after the other with training, or beside it.

    serial        rollout k | training k | rollout k + 1 | training k + 1
    overlapped    rollout k | training k    ...
                            | rollout k + 1 ...

Overlapped, a rollout is collected by a thread of its own, on streams of its own, into the slot that
training doesn't read, with the weights from before that training: one iteration of policy lag. The
order of everything random is that of serial, so the lag alone makes results differ.

The fence is ``take``: the trainer waits for the rollout there, and a rollout is only begun when the
one before has been taken and the slot it will write has been trained on. So at most one is under
way. Nothing of it is under way between two steps of the trainer: ``settle``.

What a rollout began from is kept with it. A checkpoint holds that, and not the rollout: collecting
again from there gives the same one.
"""

import functools
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.policy.policy import Policy
from puffer_mlx.ppo.precision import lower
from puffer_mlx.ppo.update import Executables
from puffer_mlx.profiling.phases import SAMPLE_EVERY, PhaseTimer
from puffer_mlx.rollout.buffer import RolloutBuffer, collect, collect_in_c
from puffer_mlx.rollout.compiled_step import make_actor
from puffer_mlx.system.devices import building, for_cpu
from puffer_mlx.training.placement import Placement, rollout_cores
from puffer_mlx.training.streams import acting_streams, learner_width
from puffer_mlx.training.worker import worker
from puffer_mlx.vec.base import TellsScores, VecEnv, WholeRollouts


@dataclass(frozen=True)
class RolloutStart:
    """What a rollout begins from."""

    slot: RolloutBuffer  # its row 0 is the rollout's first
    weights: Any  # the learner's, which the acting ones are made from
    states: list[Any]  # recurrent, of each group
    key: mx.array  # the trainer's, before the rollout's was drawn from it
    environments: Any  # their state; None if they can't be saved, or needn't be


@dataclass(frozen=True)
class Rollout:
    """A slot that is full, where it began, and what environments reported meanwhile."""

    slot: RolloutBuffer
    start: RolloutStart
    logs: dict[str, float]
    seconds: float
    scores: Any = None  # NumPy's, of single episodes: see ``TellsScores``


class Collector:
    """Collects rollouts, when asked for or in a thread of its own.

    Args:
        config: a valid configuration.
        vec: the environments.
        policy: the acting policy.
        run: its compiled functions.
        placement: where it acts.
        lane: gets the phases ``eval_*``.

    Attributes:
        slot: that the last rollout filled; its row T is where the next one begins.
        states: each group's recurrent state after the last rollout.
    """

    def __init__(
        self,
        config: Config,
        vec: VecEnv,
        policy: Policy,
        run: Executables,
        placement: Placement,
        lane: PhaseTimer,
    ) -> None:
        self.config, self.vec, self.policy, self.placement = config, vec, policy, placement
        self.overlap = placement.overlap
        self._run, self._lane, self._actor = run, lane, make_actor(policy)
        # On the cores alone each half has its own; else each would wait for the other's pieces.
        self._cores = rollout_cores(config)
        if placement.learner == mx.cpu:  # of all cores, unless some are the rollout's
            learner_width(threads() - self._cores)
        shape = (config.train.horizon, vec.num_agents, vec.num_groups)
        self._slots = [
            RolloutBuffer(vec.spec, *shape, vec.finals) for _ in range(2 if self.overlap else 1)
        ]
        self.slot = self._slots[0]
        self.slot.reset(vec)
        self.states = self._fresh = self._initial_states()
        self._job: Callable[[], Rollout] | Future[Rollout] | None = None
        self._start: RolloutStart | None = None  # of the rollout that was begun last
        self._count = 0  # rollouts collected

    def _initial_states(self) -> list[Any]:
        """Each group's recurrent state before its first step."""
        n = self.vec.num_agents // self.vec.num_groups
        with building, mx.stream(self.placement.rollout):
            states = [self.policy.initial_state(n) for _ in range(self.vec.num_groups)]
        mx.eval(states)
        return states

    @property
    def in_c(self) -> bool:
        """Whether a rollout is one call of C, the policy's steps included."""
        place = self.placement
        in_c = place.rollout == mx.cpu and place.acting_precision == "fp32"
        return in_c and self._actor is not None and isinstance(self.vec, WholeRollouts)

    def restore(self, states: list[Any], carry: dict[str, mx.array]) -> None:
        """Go on from these recurrent states and this row: see ``RolloutBuffer.carry``."""
        self.states = states
        self.slot.restore(carry)

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

    def begin(self, weights: Any, key: mx.array) -> mx.array:
        """Begin a rollout with these weights.

        Args:
            weights: the learner's, evaluated.
            key: the trainer's, which the rollout's is drawn from.

        Returns:
            The key to go on with.
        """
        assert self._job is None, "the rollout before has not been taken"
        with building:
            after, mine = mx.random.split(key)
            away = self.placement.rollout != self.placement.learner
            acting = for_cpu(weights) if away else weights
            acting = lower(acting, self.placement.acting_precision)
            shape = (self.slot.horizon, self.vec.num_agents)
            noise = self.policy.distribution.noise(mine, shape)
        mx.eval(after, noise, acting)
        slot = self._slots[(self._slots.index(self.slot) + 1) % len(self._slots)]
        self._work = functools.partial(self._collect, slot, weights, acting, key, noise)
        self._job = worker().submit(self._work) if self.overlap else self._work
        return after

    def take(self) -> Rollout:
        """The rollout that was begun: waits for it, or collects it now.

        Raises:
            Exception: what went wrong while it was collected; the next call collects it again.
        """
        job = self._job
        assert job is not None, "no rollout has been begun"
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
        return rollout

    def settle(self) -> None:
        """Wait until nothing is under way; a rollout that is done or has failed waits for take.

        Raises:
            KeyboardInterrupt: there was one meanwhile. It ends no rollout: a slot that is half
                written would be of no use.
        """
        interrupt: KeyboardInterrupt | None = None
        while isinstance(self._job, Future):
            try:
                wait([self._job])
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt:
            raise interrupt

    def _collect(
        self, slot: RolloutBuffer, weights: Any, acting: Any, key: mx.array, noise: mx.array
    ):
        """The rollout's whole work, in the thread where it runs; returns the Rollout."""
        lane, began = self._lane, time.perf_counter()
        if self.overlap and self._start:
            lane.lap("eval_idle")
        else:
            lane.start()
        states = self._fresh if self.config.base.reset_state else self.states
        environments = self.vec.state() if self.overlap else None
        slot.begin(self.slot)
        self._start = start = RolloutStart(slot, weights, states, key, environments)
        try:
            after = self._act(slot, acting, states, noise)
        except Exception:
            if environments is not None:  # they are in the middle; begin again from the start
                self.vec.restore(environments)
            raise
        logs = self.vec.log()
        scores = self.vec.scores() if isinstance(self.vec, TellsScores) else None
        self.slot, self.states, self._count = slot, after, self._count + 1
        lane.lap("eval_misc")
        return Rollout(slot, start, logs, time.perf_counter() - began, scores)

    def _act(
        self, slot: RolloutBuffer, weights: Any, states: list[Any], noise: mx.array
    ) -> list[Any]:
        """Fill the slot, in C where that can be; returns the states after it."""
        vec, place = self.vec, self.placement
        if self.in_c:
            assert self._actor is not None and isinstance(vec, WholeRollouts)
            return collect_in_c(slot, vec, self._actor, weights, states, noise, self._lane)
        streams = acting_streams(place.rollout, self._cores, vec.num_groups)
        if self._lane.enabled and self._count % SAMPLE_EVERY == 1:
            self._divide(slot, weights, states, noise, streams[0])
        return collect(slot, vec, self._run.act, weights, states, noise, streams, self._lane)

    def _divide(
        self, slot: RolloutBuffer, weights: Any, states: Any, noise: Any, stream: mx.Stream
    ) -> None:
        """Find which share of acting is choosing, by the policy's step alone; nobody's time."""
        inputs = weights, slot.inputs[0][0], states[0]
        with building, mx.stream(stream):
            drawn = noise[0, slot.groups[0]]
        mx.eval(drawn)
        policy = self._seconds(stream, self._run.step, *inputs, slot.ended[0][0])
        act = self._run.act, *inputs, drawn, slot.legal[0][0], slot.ended[0][0]
        both = max(policy, self._seconds(stream, *act))
        self._lane.part("eval_act", {"eval_act": policy, "eval_sample": both - policy})
        self._lane.start()

    @staticmethod
    def _seconds(stream: mx.Stream, function: Callable[..., Any], *arguments: Any) -> float:
        """The least of three calls, after one that compiles."""
        times = []
        for _ in range(4):
            began = time.perf_counter()
            with building, mx.stream(stream):
                result = function(*arguments)
            mx.eval(result)
            times.append(time.perf_counter() - began)
        return min(times[1:])
