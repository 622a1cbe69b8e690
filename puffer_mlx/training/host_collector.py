"""Collect rollouts in environments that the host steps. The policy acts on any device.

A rollout fails if an environment raises an exception or the user interrupts it. Its steps are
dropped. Successful rollouts copy nothing for this purpose, except that an overlapped rollout saves
the state of its environments.
"""

import mlx.core as mx

from puffer_mlx.rollout.acting import RolloutBackend, choose_acting, replay_states
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.time_limits import add_values, showing_last
from puffer_mlx.training.collector import Collector, Rollout
from puffer_mlx.training.placement import Acting
from puffer_mlx.vec.base import ReportsScores, VecEnv

SLOW = 1.0  # seconds; if a rollout took longer, the progress of the next one is displayed


class HostCollector(Collector):
    """Collects rollouts in environments that the host steps: see ``Collector``."""

    Buffer = RolloutBuffer
    acting: RolloutBackend
    vec: VecEnv
    _marked: RolloutBuffer | None = None

    def _choose_acting(self, acting: Acting) -> None:
        """See ``Collector``."""
        config, vec, policy, run, seats = acting
        self._shows_last = showing_last(config, vec)
        self._tells_scores = vec if isinstance(vec, ReportsScores) else None
        self.bootstraps = self._shows_last is not None
        about = (policy, run, vec, self._streams, self._timer, seats)
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
            self._shows_last.take_last()  # discard those of an interrupted rollout
        rollout.environments = self.vec.state() if self.overlap else None
        buffer.begin(self.buffer)
        buffer.mark()
        self._marked = buffer if self._seconds > SLOW else None
        rollout.steps = None  # of an earlier attempt
        self._unfinished = rollout  # before `mark_last`, which overwrites row T
        buffer.mark_last()
        after = self.acting.collect(buffer, self.vec, rollout.acting, rollout.states, rollout.noise)
        if self._shows_last is not None:
            rollout.last = self._shows_last.take_last()
        rollout.logs = self.vec.log()
        if self._tells_scores is not None:
            rollout.scores = self._tells_scores.scores()
        return after

    def _undo(self, failed: Rollout) -> None:
        """See ``Collector``.

        If the state of the environments was saved at the start of the rollout, it is restored.
        Otherwise each environment finishes its current step, whose results are row 0 of the next
        rollout. The recurrent states are recomputed from all rows before that one.
        """
        if failed.environments is not None:
            self.vec.restore(failed.environments)
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

    def state_of(self, rollout: Rollout) -> object:
        """See ``Collector``."""
        return rollout.environments

    @property
    def progress(self) -> float | None:
        """See ``Collector``. The fraction is unknown for short rollouts: see ``SLOW``."""
        marked = self._marked  # another thread may replace it
        return marked.part if marked else None
