"""Collect rollouts in environments that a GPU steps. Only their logs leave the GPU.

MLX's arrays never change, so a rollout is undone by continuing from the arrays of its start. This
is done if a rollout fails, or if it was launched ahead and is not used.
"""

import mlx.core as mx
import numpy as np

from puffer_mlx.rollout.buffer import State
from puffer_mlx.rollout.on_gpu import BufferOnGPU, EnvironmentsOnGPU, RolloutsOnGPU
from puffer_mlx.system.backend import backend
from puffer_mlx.training.collector import Collector, Rollout
from puffer_mlx.training.placement import Acting


class DeviceCollector(Collector):
    """Collects rollouts in environments that a GPU steps: see ``Collector``."""

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
