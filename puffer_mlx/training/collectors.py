"""Define a collector for environments that the host steps, and one for environments on a GPU."""

from collections.abc import Callable
from typing import cast

import mlx.core as mx
import numpy as np

from puffer_mlx.distributed.single_process import SINGLE_PROCESS, SingleProcess
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting import RolloutBackend, choose_acting, replay_states
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.on_gpu import BufferOnGPU, EnvironmentsOnGPU, RolloutsOnGPU
from puffer_mlx.rollout.time_limits import add_final_values, env_with_final_observations
from puffer_mlx.system.backend import backend
from puffer_mlx.training.collector import Collector, Rollout
from puffer_mlx.training.placement import Acting, Placement
from puffer_mlx.vec.base import ReportsScores, TakesSnapshots, VecEnv
from puffer_mlx.vec.native.vec import NativeVec

# Progress is reported if the latest rollout took longer than this.
PROGRESS_MIN_SECONDS = 1.0


def make_collector(
    inputs: Acting, placement: Placement, timer: PhaseTimer, ranks: SingleProcess = SINGLE_PROCESS
) -> Collector:
    """Return a rollout collector: one for environments on the host, or one for those on a GPU."""
    if placement.gpu_rollouts is None:
        return HostCollector(inputs, inputs.vec, placement, timer, ranks)
    native = cast(NativeVec, inputs.vec)  # GPUs step only native environments
    vec = EnvironmentsOnGPU(native, placement.gpu_rollouts)
    return DeviceCollector(inputs, vec, placement, timer, ranks)


class HostCollector(Collector):
    """Collect rollouts in environments that the host steps. The policy acts on any device.

    A rollout fails if an environment raises an exception or the user interrupts it. Its steps are
    then dropped. Only overlapped rollouts save the environments' state beforehand.
    """

    Buffer = RolloutBuffer
    acting: RolloutBackend
    vec: VecEnv
    _marked: RolloutBuffer | None = None  # buffer from which ``progress`` is read

    def _choose_acting(self, inputs: Acting) -> None:
        """Choose how the policy's steps are computed in rollouts on the host, and set ``acting``.

        Also sets ``bootstraps``: whether the environments report final observations without a row.
        """
        config, vec, policy, assignment = inputs
        # The environments if they report final observations without a row, else None.
        self._last_observations = env_with_final_observations(config, vec)
        # The environments if they report scores of single episodes, else None.
        self._episode_scores = vec if isinstance(vec, ReportsScores) else None
        self.bootstraps = self._last_observations is not None
        self.acting = choose_acting(
            self.placement.rollout,
            self._precision,
            policy,
            vec,
            self._streams,
            self._timer,
            assignment,
        )

    def take(self, wait_for_gpu: bool = True) -> Rollout:
        """Return the rollout in progress; add values of final observations to its rewards."""
        rollout = super().take(wait_for_gpu)
        if rollout.last_observations is not None:
            inputs = (self.policy, rollout.weights, rollout.states, self.config)
            with mx.stream(self.placement.learner):
                add_final_values(rollout.buffer, rollout.last_observations, *inputs)
            rollout.last_observations = None
        return rollout

    def _fill(self, rollout: Rollout, wait_for_gpu: bool) -> list[State]:
        """Fill the buffer of a rollout by stepping environments and policy, and set its logs."""
        buffer = rollout.buffer
        if self._last_observations is not None:
            # Discard the observations of an interrupted rollout.
            self._last_observations.take_final_observations()
        rollout.environments = self._snapshot() if self.overlap else None
        buffer.begin(self.buffer)
        buffer.mark()  # Steps that aren't written yet can then be recognized.
        self._marked = buffer if self._seconds > PROGRESS_MIN_SECONDS else None
        rollout.steps = None  # discard the count of an earlier attempt
        self._unfinished = rollout  # before `mark_last`, which overwrites row T
        buffer.mark_last()
        after = self.acting.collect(buffer, self.vec, rollout.acting, rollout.states, rollout.noise)
        if self._last_observations is not None:
            rollout.last_observations = self._last_observations.take_final_observations()
        rollout.logs = self.vec.log()
        if self._episode_scores is not None:
            rollout.scores = self._episode_scores.scores()
        return after

    def _snapshot(self) -> Callable[[], np.ndarray] | None:
        """Save the environments' state before a rollout.

        Returns a function that returns this state, or None if the environments can't save it.
        """
        if isinstance(self.vec, TakesSnapshots):
            return self.vec.snapshot()
        state = self.vec.state()
        return None if state is None else lambda: state

    def _undo(self, failed: Rollout) -> None:
        """Make environments, carried row and recurrent states consistent after a failed rollout.

        If the environments' state was saved at the start of the rollout, it is restored. Otherwise
        each environment finishes its current step, whose results become row 0 of the next rollout.
        The recurrent states are recomputed from all earlier rows.
        """
        if failed.environments is not None:
            self.vec.restore(failed.environments())
        else:
            for group in range(self.vec.num_groups):
                self.vec.wait(group)
            steps = failed.steps
            if steps is None:
                steps = failed.buffer.written_steps
                failed.steps = steps  # counted once, because `restore` may overwrite the marks
            self.states = replay_states(
                self.acting,
                self.placement.rollout,
                failed.buffer,
                failed.acting,
                failed.states,
                failed.noise,
                steps,
            )
            self.buffer.restore(failed.buffer.env_outputs_after(steps))

    def state_of(self, rollout: Rollout) -> np.ndarray | None:
        """Return the environments' state at the start of a rollout, or None when not saved."""
        return None if rollout.environments is None else rollout.environments()

    @property
    def progress(self) -> float | None:
        """Collected fraction of the latest rollout, or None when rollouts are short."""
        marked = self._marked  # Another thread may replace the attribute.
        return marked.written_fraction if marked else None


class DeviceCollector(Collector):
    """Collect rollouts in environments that a GPU steps. Only their logs leave the GPU.

    MLX's arrays never change, so a rollout is undone by continuing from the arrays of its start.
    This happens if a rollout fails, or if it was launched ahead and isn't used.
    """

    Buffer = BufferOnGPU
    acting: RolloutsOnGPU
    vec: EnvironmentsOnGPU

    def _choose_acting(self, inputs: Acting) -> None:
        """Create the object that runs rollouts on the GPU, and set if they may be launched ahead.

        Macs never launch a rollout ahead, because macOS may stop a launch.
        """
        self.launches_ahead = backend() != "metal" and not self.overlap
        launch_steps = self.config.train.launch_steps
        self.acting = RolloutsOnGPU(self.vec.kernel, self._streams, self._timer, launch_steps)

    def _fill(self, rollout: Rollout, wait_for_gpu: bool) -> list[State]:
        """Fill the buffer of a rollout on the GPU, and set its logs or ``gpu_log``."""
        buffer = rollout.buffer
        rollout.environments = self.vec.stepped  # snapshot after the previous rollout
        buffer.begin(self.buffer)
        self._unfinished = rollout
        self.acting.waits = wait_for_gpu
        after = self.acting.collect(buffer, self.vec, rollout.acting, rollout.states, rollout.noise)
        if wait_for_gpu:
            rollout.logs = self.vec.log()
        else:
            rollout.gpu_log = self.vec.take_log()
        return after

    def _undo(self, failed: Rollout) -> None:
        """Reset environments, carried row and recurrent states to the start of a failed rollout."""
        self.vec.rollback(failed.environments)
        self.states = failed.states
        self.buffer.last = failed.buffer.first

    def state_of(self, rollout: Rollout) -> np.ndarray | None:
        """Return the environments' state at the start of a rollout, after waiting for the GPU."""
        stepped = rollout.environments
        return None if stepped is None else self.vec.state_of(stepped)

    def read(self, rollout: Rollout) -> None:
        """Wait for the logs of a rollout on the GPU, if not done yet, and store them in it."""
        if rollout.gpu_log is not None:
            rollout.logs = self.vec.read(rollout.gpu_log)
            rollout.gpu_log = None

    def take_back(self, rollout: Rollout) -> mx.array:
        """Undo a rollout that was launched ahead. Returns the trainer's key before the rollout."""
        self.buffer = self.previous_buffer
        self.states = rollout.states
        self.vec.rollback(rollout.environments)
        return rollout.key
