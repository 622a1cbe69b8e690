"""Collectors of the two kinds of environments: those that the host steps, and those on a GPU."""

from collections.abc import Callable
from typing import cast

import mlx.core as mx
import numpy as np

from puffer_mlx.distributed.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting import RolloutBackend, choose_acting, replay_states
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.on_gpu import BufferOnGPU, EnvironmentsOnGPU, RolloutsOnGPU
from puffer_mlx.rollout.time_limits import add_values, showing_last
from puffer_mlx.system.backend import backend
from puffer_mlx.training.collector import Collector, Rollout
from puffer_mlx.training.placement import Acting, Placement
from puffer_mlx.vec.base import ReportsScores, TakesSnapshots, VecEnv
from puffer_mlx.vec.native.vec import NativeVec

SLOW = 1.0  # seconds; if a rollout took longer, the progress of the next one is displayed


def make_collector(
    acting: Acting, placement: Placement, timer: PhaseTimer, ranks: SingleProcess = SINGLE_PROCESS
) -> Collector:
    """Return the collector for a placement: see ``Collector``."""
    if placement.gpu_rollouts is None:
        return HostCollector(acting, acting.vec, placement, timer, ranks)
    native = cast(NativeVec, acting.vec)  # a GPU steps no others
    vec = EnvironmentsOnGPU(native, placement.gpu_rollouts)
    return DeviceCollector(acting, vec, placement, timer, ranks)


class HostCollector(Collector):
    """Collects rollouts in environments that the host steps. The policy acts on any device.

    A rollout fails if an environment raises an exception or the user interrupts it. Its steps are
    dropped. Successful rollouts copy nothing for this purpose, except that an overlapped rollout
    saves the state of its environments.
    """

    Buffer = RolloutBuffer
    acting: RolloutBackend
    vec: VecEnv
    _marked: RolloutBuffer | None = None

    def _choose_acting(self, acting: Acting) -> None:
        """See ``Collector``."""
        config, vec, policy, seats = acting
        self._shows_last = showing_last(config, vec)
        self._reports_scores = vec if isinstance(vec, ReportsScores) else None
        self.bootstraps = self._shows_last is not None
        about = (policy, vec, self._streams, self._timer, seats)
        self.acting = choose_acting(self.placement.rollout, self._precision, *about)

    def take(self, wait_for_gpu: bool = True) -> Rollout:
        """See ``Collector``. Values of final observations without a row are added to rewards."""
        rollout = super().take(wait_for_gpu)
        if rollout.last is not None:
            about = (self.policy, rollout.weights, rollout.states, self.config)
            with mx.stream(self.placement.learner):
                add_values(rollout.buffer, rollout.last, *about)
            rollout.last = None
        return rollout

    def _fill(self, rollout: Rollout, wait_for_gpu: bool) -> list[State]:
        """See ``Collector``. A rollout on the host is always waited for."""
        buffer = rollout.buffer
        if self._shows_last is not None:
            self._shows_last.take_final_observations()  # discard those of an interrupted rollout
        rollout.environments = self._snapshot() if self.overlap else None
        buffer.begin(self.buffer)
        buffer.mark()
        self._marked = buffer if self._seconds > SLOW else None
        rollout.steps = None  # of an earlier attempt
        self._unfinished = rollout  # before `mark_last`, which overwrites row T
        buffer.mark_last()
        after = self.acting.collect(buffer, self.vec, rollout.acting, rollout.states, rollout.noise)
        if self._shows_last is not None:
            rollout.last = self._shows_last.take_final_observations()
        rollout.logs = self.vec.log()
        if self._reports_scores is not None:
            rollout.scores = self._reports_scores.scores()
        return after

    def _snapshot(self) -> Callable[[], np.ndarray] | None:
        """Return a function that returns the current state of the environments, or None."""
        if isinstance(self.vec, TakesSnapshots):
            return self.vec.snapshot()
        state = self.vec.state()
        return None if state is None else lambda: state

    def _undo(self, failed: Rollout) -> None:
        """See ``Collector``.

        If the state of the environments was saved at the start of the rollout, it is restored.
        Otherwise each environment finishes its current step, whose results are row 0 of the next
        rollout. The recurrent states are recomputed from all rows before that one.
        """
        if failed.environments is not None:
            self.vec.restore(failed.environments())
        else:
            for group in range(self.vec.num_groups):
                self.vec.wait(group)
            steps = failed.buffer.written if failed.steps is None else failed.steps
            failed.steps = steps  # `restore` below may overwrite the marks
            self.states = replay_states(
                *(self.acting, self.placement.rollout, failed.buffer),
                *(failed.acting, failed.states, failed.noise, steps),
            )
            self.buffer.restore(failed.buffer.rows_after(steps))

    def state_of(self, rollout: Rollout) -> np.ndarray | None:
        """See ``Collector``."""
        return None if rollout.environments is None else rollout.environments()

    @property
    def progress(self) -> float | None:
        """See ``Collector``. The fraction is unknown for short rollouts: see ``SLOW``."""
        marked = self._marked  # another thread may replace it
        return marked.part if marked else None


class DeviceCollector(Collector):
    """Collects rollouts in environments that a GPU steps. Only their logs leave the GPU.

    MLX's arrays never change, so a rollout is undone by continuing from the arrays of its start.
    This is done if a rollout fails, or if it was launched ahead and is not used.
    """

    Buffer = BufferOnGPU
    acting: RolloutsOnGPU
    vec: EnvironmentsOnGPU

    def _choose_acting(self, acting: Acting) -> None:
        """See ``Collector``. Nothing is launched ahead on a Mac: macOS may end a launch."""
        self.launches_ahead = backend() != "metal" and not self.overlap
        launch_steps = self.config.train.launch_steps
        self.acting = RolloutsOnGPU(self.vec.kernel, self._streams, self._timer, launch_steps)

    def _fill(self, rollout: Rollout, wait_for_gpu: bool) -> list[State]:
        """See ``Collector``."""
        buffer = rollout.buffer
        rollout.environments = self.vec.stepped
        buffer.begin(self.buffer)
        self._unfinished = rollout
        self.acting.waits = wait_for_gpu
        after = self.acting.collect(buffer, self.vec, rollout.acting, rollout.states, rollout.noise)
        if wait_for_gpu:
            rollout.logs = self.vec.log()
        else:
            rollout.unread = self.vec.take_log()
        return after

    def _undo(self, failed: Rollout) -> None:
        """See ``Collector``. The environments return to the start of the failed rollout."""
        self.vec.rollback(failed.environments)
        self.states = failed.states
        self.buffer.last = failed.buffer.first

    def state_of(self, rollout: Rollout) -> np.ndarray | None:
        """See ``Collector``. This waits for the GPU."""
        stepped = rollout.environments
        return None if stepped is None else self.vec.state_of(stepped)

    def read(self, rollout: Rollout) -> None:
        """See ``Collector``."""
        if rollout.unread is not None:
            rollout.logs = self.vec.read(rollout.unread)
            rollout.unread = None

    def take_back(self, rollout: Rollout) -> mx.array:
        """See ``Collector``."""
        self.buffer = self.previous_buffer
        self.states = rollout.states
        self.vec.rollback(rollout.environments)
        return rollout.key
