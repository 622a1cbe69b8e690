"""Collect rollouts, alternating with training or at the same time.

    serial        rollout k | training k | rollout k + 1 | training k + 1
    overlapped    rollout k | training k    ...
                            | rollout k + 1 ...

An overlapped rollout runs in a second thread on separate streams. It writes into the buffer that
training doesn't read, and acts with the weights from before that training: the policy lags by one
update. Random keys are split in the serial order, so only the lag changes the results.

At most one rollout is in progress. ``take`` waits for it. The next rollout may begin only after
``take``, and after training on the buffer that it will overwrite. The trainer calls ``settle``
after each step, so that no rollout is in progress between two steps.

``collectors.py`` has a collector for environments that the host steps, and one for environments
that a GPU steps.
"""

import math
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.distributed.single_process import SingleProcess
from puffer_mlx.ops.cpu_extension import count_cores
from puffer_mlx.ppo.precision import cast_weights
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.policy_assignment import WeightCache
from puffer_mlx.system.devices import building, for_cpu
from puffer_mlx.training.placement import Acting, Placement, rollout_cores
from puffer_mlx.training.streams import acting_streams, configure_learner_stream, rollout_worker
from puffer_mlx.vec.base import FinalObservations


@dataclass
class Rollout:
    """A rollout: its starting point, then its results, until the update on it is done.

    Collecting again from the same starting point gives the same rollout, so checkpoints contain
    only the starting point.

    Attributes:
        buffer: the buffer with the rollout's rows, from row 0 on.
        weights: the learner's weights, from which the acting weights are converted.
        key: the trainer's random key, before the rollout's key is split from it.
        states: recurrent states, one per group.
        acting: the acting weights; None after the rollout is collected.
        noise: random numbers for sampling the actions, (T, N, heads); None after the rollout is
            collected.
        fresh: opponents whose recurrent states are reset before the first step, numbered from 1.
        steps: number of completed steps per agent, (N,) int, counted after a failure.
        environments: the environments' state at the start, in the form that ``Collector.state_of``
            of the same collector reads. None if it wasn't saved.
        logs: means reported by the environments; empty until ``gpu_log`` is read.
        seconds: duration of collecting.
        scores: scores of single episodes, NumPy arrays: see ``ReportsScores``.
        last_observations: final observations without a row in the buffer. None after their values
            are added to the rewards: see ``rollout/time_limits.py``.
        gpu_log: the environments' log on the GPU, if ``take`` did not wait for the rollout.
        remaining_seconds: estimated time that the GPU still needs when ``take`` returns: the
            duration of the latest rollout with a wait, minus ``seconds``.
        launched_ahead: True if the rollout was launched before the results of the previous update
            were read.
        update_key: random key of the update on this rollout; None until it is split.
        games: metrics of self-play; None until the games of the rollout are counted.
        self_play: state of self-play before the games were counted, if a checkpoint may need it.
    """

    # The starting point.
    buffer: Any
    weights: Any
    key: mx.array
    states: list[Any]
    # Other inputs of collecting.
    acting: Any = None
    noise: Any = None
    fresh: Collection[int] = ()
    steps: np.ndarray | None = None
    environments: Any = None
    # The collected rollout.
    logs: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    scores: Any = None
    last_observations: FinalObservations | None = None
    gpu_log: mx.array | None = None
    remaining_seconds: float = 0.0
    # Set by the trainer.
    launched_ahead: bool = False
    update_key: mx.array | None = None
    games: dict[str, float] | None = None
    self_play: Any = None


class Collector:
    """Collect rollouts in the calling thread, or in a second thread (``train.overlap``).

    Args:
        inputs: the policy, the environments and their configuration.
        vec: the environments of ``inputs``, or an ``EnvironmentsOnGPU`` of them.
        placement: the devices that act and train.
        timer: the phases ``eval_*`` are charged to this timer.
        ranks: the ranks; each has a shard of the agents.

    Attributes:
        acting: the implementation of the policy's steps. Replace it only while no rollout is in
            progress.
        vec: the environments.
        bootstraps: True if rewards include the values of final observations without a row.
        cores: number of CPU cores for acting through MLX.
        overlap: True if a second thread collects.
        launches_ahead: True if ``take`` can return while the GPU still computes the rollout. The
            host then prepares and launches the next update before it reads the previous one's
            results.
        buffers: one buffer, or two that are filled alternately with ``overlap`` or
            ``launches_ahead``.
        buffer: the buffer of the latest rollout. Its row T is row 0 of the next rollout.
        states: recurrent states after the latest rollout, one per group.
        in_progress: the rollout that was begun and not yet taken, or None.
    """

    Buffer: Any  # class of the buffers
    acting: Any
    bootstraps = False
    launches_ahead = False

    def __init__(
        self,
        inputs: Acting,
        vec: Any,
        placement: Placement,
        timer: PhaseTimer,
        ranks: SingleProcess,
    ) -> None:
        self.config = inputs.config
        self.policy = inputs.policy
        self.vec = vec
        self.placement = placement
        self.overlap = placement.overlap
        self.in_progress: Rollout | None = None
        # Acting and training on one CPU use separate cores, or they would wait for each other.
        self.cores = rollout_cores(inputs.config)
        if placement.learner == mx.cpu:
            configure_learner_stream(count_cores() - self.cores)
        self._timer = timer
        self._ranks = ranks
        self._assignment = inputs.assignment
        self._opponents = WeightCache(self._acting_weights)
        self._precision = placement.acting_precision
        self._draw_noise = inputs.policy.distribution.noise
        self._future: Future[None] | None = None  # completes `in_progress` in the second thread
        # The rollout that has changed the environments and isn't complete; it may have failed.
        self._unfinished: Rollout | None = None
        # Duration of the latest rollout that `take` waited for; infinite before the first one.
        self._seconds = math.inf
        with ranks.report_lost_ranks():
            self._choose_acting(inputs)
        shape = (self.config.train.horizon, vec.num_agents, vec.num_groups)
        count = 2 if self.overlap or self.launches_ahead else 1
        self.buffers = [self.Buffer(vec.spec, *shape, vec.final_observations) for _ in range(count)]
        self.buffer = self.buffers[0]
        self.buffer.reset(vec)
        agents = vec.num_agents // vec.num_groups
        with building, mx.stream(placement.rollout):
            states = [self.policy.initial_state(agents) for _ in range(vec.num_groups)]
        mx.eval(states)
        self._initial_states = states
        self.states = states

    def _streams(self) -> list[mx.Stream]:
        """Return the MLX streams on which the policy acts in rollouts.

        Call this in the thread that collects.
        """
        return acting_streams(self.placement.rollout, self.cores, self.vec.num_groups)

    def restore(self, states: list[Any], carry: dict[str, mx.array]) -> None:
        """Restore recurrent states and the next rollout's first row (``RolloutBuffer.carry``)."""
        self.states = states
        self.buffer.restore(carry)
        self._unfinished = None

    def begin(
        self,
        weights: Any,
        key: mx.array,
        opponents: Sequence[Any] = (),
        fresh: Collection[int] = (),
    ) -> mx.array:
        """Begin a rollout. With overlap, the second thread starts to collect it.

        Args:
            weights: the learner's weights, evaluated.
            key: the trainer's random key; the rollout's key is split from it.
            opponents: weights of each opponent in self-play, evaluated.
            fresh: opponents whose recurrent states are reset, numbered from 1.

        Returns:
            The trainer's next random key.
        """
        assert self.in_progress is None, "the previous rollout has not been taken"
        T = self.buffer.horizon
        with building:
            next_key, rollout_key = mx.random.split(key)
            acting = self._acting_weights(weights)
            if self._assignment is not None:
                acting = [acting, *self._opponents(opponents)]
            noise = self._ranks.draw_columns(self._draw_noise, rollout_key, T, self.vec.num_agents)
        if self.launches_ahead:
            # Another thread may run the next step. It can't evaluate this thread's lazy arrays.
            mx.async_eval(next_key)
        else:
            mx.eval(next_key, noise, acting)
        latest = self.buffers.index(self.buffer)
        buffer = self.buffers[(latest + 1) % len(self.buffers)]
        self.in_progress = Rollout(buffer, weights, key, self.states, acting, noise, fresh)
        if self.overlap:
            self._future = rollout_worker().submit(partial(self._collect, self.in_progress))
        return next_key

    def _acting_weights(self, weights: Any) -> Any:
        """Convert weights to the acting device and the acting precision."""
        acts_elsewhere = self.placement.rollout != self.placement.learner
        return cast_weights(for_cpu(weights) if acts_elsewhere else weights, self._precision)

    def take(self, wait_for_gpu: bool = True) -> Rollout:
        """Return the rollout in progress, after waiting for the second thread or collecting it.

        Args:
            wait_for_gpu: False to return before the GPU has finished, if ``launches_ahead``. The
                caller must then call ``read`` later.

        Raises:
            BaseException: collecting failed. The next call runs ``resync`` and collects the rollout
                again.
        """
        rollout = self.in_progress
        assert rollout is not None, "no rollout is in progress"
        if self.overlap:
            self._wait(rollout)
        else:
            self._collect(rollout, wait_for_gpu or not self.launches_ahead)
        self.in_progress = None
        self._future = None
        return rollout

    def _wait(self, rollout: Rollout) -> None:
        """Wait until the second thread has collected a rollout. Raises the error if it failed."""
        if self._future is None:  # An earlier attempt to collect the rollout has failed.
            self._future = rollout_worker().submit(partial(self._collect, rollout))
        future = self._future
        wait([future])  # If a signal interrupts the wait, the rollout stays in progress.
        error = future.exception()
        if error is not None:
            self._future = None  # The next call tries again.
            raise error

    def discard(self) -> None:
        """Drop the rollout that was begun and not yet taken. Call ``settle`` first."""
        self.in_progress = None
        self._future = None

    def settle(self) -> None:
        """Wait until the second thread has finished its rollout. ``take`` still returns it later.

        Raises:
            KeyboardInterrupt: an interrupt came during the wait. It is raised after the rollout has
                finished, because a partly written buffer can't be used.
        """
        interrupt: KeyboardInterrupt | None = None
        future = self._future
        while future is not None:
            try:
                wait([future])
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt:
            raise interrupt

    @property
    def previous_buffer(self) -> Any:
        """Buffer of the previous rollout: the other one of two buffers."""
        latest = self.buffers.index(self.buffer)
        return self.buffers[latest - 1]  # index -1 is the last buffer

    def state(self) -> Any:
        """Return the current state of the environments, or None when they can't save it.

        ``states`` and the carried row of ``buffer`` match this state, even after a failed rollout.
        """
        if self._unfinished is not None and self.vec.state() is not None:
            self.resync()
        return self.vec.state()

    def resync(self) -> None:
        """Make environments, carried row and recurrent states consistent if a rollout failed."""
        if self._unfinished is not None:
            self._undo(self._unfinished)
            self._unfinished = None

    def _collect(self, rollout: Rollout, wait_for_gpu: bool = True) -> None:
        """Collect a rollout. With overlap, this runs in the second thread."""
        began = time.perf_counter()
        is_measured = self._seconds < math.inf
        if self.overlap and is_measured:
            self._timer.lap("eval_idle")
        else:
            self._timer.start()
        self.resync()
        if self.config.base.reset_state:
            rollout.states = self._initial_states
        else:
            rollout.states = self._reset_opponents(rollout.fresh)
        final_states = self._fill(rollout, wait_for_gpu)
        self.buffer = rollout.buffer
        self.states = final_states
        self._unfinished = None
        rollout.acting = None  # free the memory
        rollout.noise = None
        self._timer.lap("eval_misc")
        rollout.seconds = time.perf_counter() - began
        if rollout.gpu_log is None:
            self._seconds = rollout.seconds
        elif is_measured:
            rollout.remaining_seconds = max(0.0, self._seconds - rollout.seconds)

    def _reset_opponents(self, fresh: Collection[int]) -> list[Any]:
        """Return all groups' recurrent states, reset for the opponents in ``fresh``."""
        if self._assignment is None or not fresh:
            return self.states
        is_fresh = np.isin(self._assignment.policy, list(fresh))
        with building, mx.stream(self.placement.rollout):
            masks = mx.split(mx.array(is_fresh[:, None].tolist()), len(self.states))
            states = [
                tree_map(partial(mx.where, mask), initial, state)
                for mask, initial, state in zip(
                    masks, self._initial_states, self.states, strict=True
                )
            ]
        mx.eval(states)
        return states

    # Subclasses implement the following methods for their environments.

    def _choose_acting(self, inputs: Acting) -> None:
        """Choose how the policy's steps are computed in rollouts, before the first rollout.

        Sets ``acting``, ``bootstraps`` and ``launches_ahead``. Subclasses implement this.
        """
        raise NotImplementedError

    def _fill(self, rollout: Rollout, wait_for_gpu: bool) -> list[Any]:
        """Fill the buffer of a rollout, and set its logs.

        Subclasses set ``_unfinished`` before the first change that ``resync`` must undo, because an
        interrupt may come at any line.

        Returns:
            The recurrent states after the last step, one per group.
        """
        raise NotImplementedError

    def _undo(self, failed: Rollout) -> None:
        """Make environments, carried row and recurrent states consistent after a failed rollout."""
        raise NotImplementedError

    def state_of(self, rollout: Rollout) -> Any:
        """Return the environments' state at the start of a rollout, or None when not saved."""
        raise NotImplementedError

    def read(self, rollout: Rollout) -> None:
        """Read a rollout's logs from the GPU, if ``take`` didn't wait for them."""

    def take_back(self, rollout: Rollout) -> mx.array:
        """Undo a rollout that was launched ahead: the next one begins at the same starting point.

        Returns:
            The trainer's random key before the rollout.
        """
        raise NotImplementedError

    @property
    def progress(self) -> float | None:
        """Collected fraction of the latest rollout, or None if unknown. Any thread may read it."""
