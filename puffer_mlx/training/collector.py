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
from puffer_mlx.ops.cpu_extension import threads
from puffer_mlx.ppo.precision import lower
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.seats import WeightCache
from puffer_mlx.system.devices import building, for_cpu
from puffer_mlx.training.placement import Acting, Placement, rollout_cores
from puffer_mlx.training.streams import acting_streams, learner_width, worker
from puffer_mlx.vec.base import FinalObservations


@dataclass
class Rollout:
    """A rollout, from ``Collector.begin`` to the end of the update on it.

    Collecting again from the same starting point gives the same rollout, so a checkpoint contains
    the starting point instead of the rollout.

    Attributes:
        buffer: the buffer with the rollout's rows; row 0 is the first row.
        weights: the learner's weights; the acting weights are converted from these.
        key: the trainer's key before the rollout's key is split from it.
        states: recurrent states, one per group.
        acting: the acting weights; None after the rollout is collected.
        noise: random numbers for sampling the actions, (T, N, heads); None after the rollout is
            collected.
        fresh: numbers (from 1) of the opponents whose recurrent states are reset.
        steps: number of completed steps per agent, (N,) int, counted after a failure.
        environments: what ``Collector.state_of`` needs for the state of the environments at the
            start, if it was saved.
        logs: means reported by the environments; empty while ``unread`` is set.
        seconds: duration of collecting.
        scores: scores of single episodes, NumPy arrays: see ``ReportsScores``.
        last: final observations without a row. None after their values are added to the rewards:
            see ``rollout/time_limits.py``.
        unread: the environments' log on the GPU, if ``take`` did not wait for the rollout.
        late: estimated seconds until the GPU finishes, counted from ``take``. The estimate is the
            duration of the latest rollout with a wait, less ``seconds``.
        launched_ahead: True if it was launched before the results of the previous update were
            read.
        update_key: random key of the update on this rollout; None until the key is split.
        games: self-play's logs; None until the games of the rollout are counted.
        self_play: state of self-play before the games were counted, if a checkpoint may need it.
    """

    # The starting point.
    buffer: Any
    weights: Any
    key: mx.array
    states: list[Any]
    # What collecting needs besides.
    acting: Any = None
    noise: Any = None
    fresh: Collection[int] = ()
    steps: np.ndarray | None = None
    environments: Any = None
    # The collected rollout.
    logs: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    scores: Any = None
    last: FinalObservations | None = None
    unread: mx.array | None = None
    late: float = 0.0
    # The epoch that trains on it.
    launched_ahead: bool = False
    update_key: mx.array | None = None
    games: dict[str, float] | None = None
    self_play: Any = None


class Collector:
    """Collects rollouts, in the calling thread or in a second one (``train.overlap``).

    Args:
        acting: the policy, the environments and their configuration.
        vec: the environments of ``acting``, or the ``EnvironmentsOnGPU`` made from them.
        placement: the devices that act and train.
        timer: the phases ``eval_*`` are charged to this timer.
        ranks: the ranks; each has a shard of the agents.

    Attributes:
        acting: the implementation of acting. Replace it only while no rollout is in progress.
        vec: the environments.
        bootstraps: True if values of final observations without a row are added to rewards.
        cores: number of CPU cores for acting through MLX.
        overlap: True if a second thread collects.
        launches_ahead: True if ``take`` can return while the GPU still computes the rollout. The
            host then prepares and launches the update without knowing the results of the previous
            one.
        buffers: one buffer; two, filled alternately, with ``overlap`` or ``launches_ahead``.
        buffer: the buffer of the latest rollout. Its row T is row 0 of the next one.
        states: recurrent states after the latest rollout, one per group.
        begun: the rollout between ``begin`` and ``take``, or None.
    """

    Buffer: Any  # class of the buffers
    acting: Any
    bootstraps = False
    launches_ahead = False

    def __init__(
        self,
        acting: Acting,
        vec: Any,
        placement: Placement,
        timer: PhaseTimer,
        ranks: SingleProcess,
    ) -> None:
        self.config = acting.config
        self.policy = acting.policy
        self.vec = vec
        self.placement = placement
        self.overlap = placement.overlap
        self.begun: Rollout | None = None
        # Acting and training on one CPU use separate cores. Otherwise they wait for each other.
        self.cores = rollout_cores(acting.config)
        if placement.learner == mx.cpu:  # training uses the cores that the rollout doesn't
            learner_width(threads() - self.cores)
        self._timer = timer
        self._ranks = ranks
        self._seats = acting.seats
        self._opponents = WeightCache(self._to_act)
        self._precision = placement.acting_precision
        self._noise = acting.policy.distribution.noise
        self._future: Future[None] | None = None  # of `begun`, in the second thread
        self._unfinished: Rollout | None = None  # in progress, or it has failed
        self._seconds = math.inf  # duration of the latest rollout that `take` waited for
        with ranks.report_lost_ranks():
            self._choose_acting(acting)
        shape = (self.config.train.horizon, vec.num_agents, vec.num_groups)
        count = 2 if self.overlap or self.launches_ahead else 1
        self.buffers = [self.Buffer(vec.spec, *shape, vec.finals) for _ in range(count)]
        self.buffer = self.buffers[0]
        self.buffer.reset(vec)
        agents = vec.num_agents // vec.num_groups
        with building, mx.stream(placement.rollout):
            states = [self.policy.initial_state(agents) for _ in range(vec.num_groups)]
        mx.eval(states)
        self._initial_states = states
        self.states = states

    def _streams(self) -> list[mx.Stream]:
        """Return the streams for acting. Call this in the thread that collects."""
        return acting_streams(self.placement.rollout, self.cores, self.vec.num_groups)

    def restore(self, states: list[Any], carry: dict[str, mx.array]) -> None:
        """Restore the recurrent states and the first row: see ``RolloutBuffer.carry``."""
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
        """Begin a rollout.

        Args:
            weights: the learner's weights, evaluated.
            key: the trainer's key; the rollout's key is split from it.
            opponents: weights of each opponent in self-play, evaluated.
            fresh: numbers (from 1) of the opponents whose recurrent states are reset.

        Returns:
            The trainer's next key.
        """
        assert self.begun is None, "the previous rollout has not been taken"
        T = self.buffer.horizon
        with building:
            after, mine = mx.random.split(key)
            acting = self._to_act(weights)
            if self._seats is not None:
                acting = [acting, *self._opponents(opponents)]
            noise = self._ranks.columns(self._noise, mine, T, self.vec.num_agents)
        if self.launches_ahead:
            mx.async_eval(after)  # the next step may run in another thread
        else:
            mx.eval(after, noise, acting)
        latest = self.buffers.index(self.buffer)
        buffer = self.buffers[(latest + 1) % len(self.buffers)]
        self.begun = Rollout(buffer, weights, key, self.states, acting, noise, fresh)
        if self.overlap:
            self._future = worker().submit(partial(self._collect, self.begun))
        return after

    def _to_act(self, weights: Any) -> Any:
        """Return the weights on the acting device, in the acting precision."""
        away = self.placement.rollout != self.placement.learner
        return lower(for_cpu(weights) if away else weights, self._precision)

    def take(self, wait_for_gpu: bool = True) -> Rollout:
        """Return the rollout begun by ``begin``: wait for the other thread, or collect it now.

        Args:
            wait_for_gpu: False to return before the GPU has finished, if ``launches_ahead``. The
                caller must then call ``read`` later.

        Raises:
            BaseException: collecting failed. The rollout remains to be taken: the next call runs
                ``resync`` and collects it again.
        """
        rollout = self.begun
        assert rollout is not None, "no rollout has been begun"
        if self.overlap:
            self._wait(rollout)
        else:
            self._collect(rollout, wait_for_gpu or not self.launches_ahead)
        self.begun = None
        self._future = None
        return rollout

    def _wait(self, rollout: Rollout) -> None:
        """Wait until the second thread has collected a rollout."""
        if self._future is None:  # the first attempt failed
            self._future = worker().submit(partial(self._collect, rollout))
        future = self._future
        wait([future])  # if a signal ends this, the rollout is still there
        error = future.exception()
        if error is not None:
            self._future = None  # the next call tries again
            raise error

    def discard(self) -> None:
        """Drop the rollout that waits for ``take``. Call ``settle`` first."""
        self.begun = None
        self._future = None

    def settle(self) -> None:
        """Wait until no rollout is in progress. A finished or failed one remains to be taken.

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
        """The other buffer of two: that of the previous rollout."""
        return self.buffers[self.buffers.index(self.buffer) - 1]

    def state(self) -> Any:
        """Return the current state of the environments, or None for those without a state.

        ``states`` and the carried row of ``buffer`` match this state, also after a failed rollout.
        """
        if self._unfinished is not None and self.vec.state() is not None:
            self.resync()
        return self.vec.state()

    def resync(self) -> None:
        """Recover from a failed rollout, if the latest one failed.

        Afterwards environments, carried row and recurrent states are consistent.
        """
        if self._unfinished is not None:
            self._undo(self._unfinished)
            self._unfinished = None

    def _collect(self, rollout: Rollout, wait_for_gpu: bool = True) -> None:
        """Collect a rollout. This runs in the second thread if rollouts overlap training."""
        began = time.perf_counter()
        if self.overlap and self._seconds < math.inf:
            self._timer.lap("eval_idle")
        else:
            self._timer.start()
        self.resync()
        if self.config.base.reset_state:
            rollout.states = self._initial_states
        else:
            rollout.states = self._renewed(rollout.fresh)
        after = self._fill(rollout, wait_for_gpu)
        self.buffer = rollout.buffer
        self.states = after
        self._unfinished = None
        rollout.acting = rollout.noise = None  # free the memory
        self._timer.lap("eval_misc")
        rollout.seconds = time.perf_counter() - began
        if rollout.unread is None:
            self._seconds = rollout.seconds
        elif self._seconds < math.inf:
            rollout.late = max(0.0, self._seconds - rollout.seconds)

    def _renewed(self, fresh: Collection[int]) -> list[Any]:
        """Return the recurrent states of each group, reset for the opponents in ``fresh``."""
        if self._seats is None or not fresh:
            return self.states
        theirs = np.isin(self._seats.policy, list(fresh))
        with building, mx.stream(self.placement.rollout):
            new = mx.split(mx.array(theirs[:, None].tolist()), len(self.states))
            groups = zip(new, self._initial_states, self.states, strict=True)
            states = [tree_map(partial(mx.where, rows), *both) for rows, *both in groups]
        mx.eval(states)
        return states

    # Each of the two collectors implements the rest for its environments.

    def _choose_acting(self, acting: Acting) -> None:
        """Set ``acting``, ``bootstraps`` and ``launches_ahead``."""
        raise NotImplementedError

    def _fill(self, rollout: Rollout, wait_for_gpu: bool) -> list[Any]:
        """Fill the buffer of a rollout, and set its logs.

        Set ``_unfinished`` before the first change that ``resync`` must undo: an interrupt may come
        at any line.

        Returns:
            The recurrent states after the last step, one per group.
        """
        raise NotImplementedError

    def _undo(self, failed: Rollout) -> None:
        """Make environments, carried row and recurrent states consistent after a failed rollout."""
        raise NotImplementedError

    def state_of(self, rollout: Rollout) -> Any:
        """Return the state of the environments at the start of a rollout, or None without one."""
        raise NotImplementedError

    def read(self, rollout: Rollout) -> None:
        """Read a rollout's logs, if ``take`` did not wait for them."""

    def take_back(self, rollout: Rollout) -> mx.array:
        """Undo the latest rollout, launched ahead: the next one begins at its starting point.

        Returns:
            The trainer's key before the rollout.
        """
        raise NotImplementedError

    @property
    def progress(self) -> float | None:
        """Collected fraction of the latest rollout or None (unknown). Any thread may read it."""
