"""Time the two halves of an iteration separately, to compare with overlapped iterations."""

import time

import mlx.core as mx

from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.trainer import Logs, Trainer


class Halves:
    """Time a trainer's rollout, its training, and complete iterations, in seconds.

    A half that is timed alone runs as in an iteration: the rollout in its thread, on its streams
    and cores. The methods may be called in any order.

    Args:
        trainer: Trainer between two steps. Its run must be long enough for all iterations.

    Attributes:
        logs: Record of the last iteration.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.logs: Logs = {}
        self._newest: Rollout | None = None

    def rollout(self) -> float:
        """Return the seconds of a rollout while the learner is idle.

        Overlapped training uses the rollout next.
        """
        self._take()
        began = time.perf_counter()
        self.trainer.queue.start_next(self.trainer.weights)
        self._take()
        return time.perf_counter() - began

    def training(self) -> float:
        """Return the seconds of training on a rollout while the collector is idle.

        The new weights are discarded.
        """
        trainer = self.trainer
        self._take()
        if self._newest is None:
            self.rollout()
        assert self._newest is not None
        began = time.perf_counter()
        inputs = self._newest, trainer.train_state, trainer.scheduled(trainer.epoch)
        update = trainer.learner.prepare(*inputs, mx.random.key(0), trainer.epoch)
        update.submit()
        update.wait()
        return time.perf_counter() - began

    def iteration(self) -> float:
        """Return the seconds of one iteration of the trainer.

        With ``train.overlap``, the rollout and training run at the same time.
        """
        if self.trainer.placement.overlap and not self.trainer.queue.rollout:
            self._take()
            if not self.trainer.queue.rollout:  # otherwise the step would collect two rollouts
                self.rollout()
        began = time.perf_counter()
        self.logs = self.trainer.step()
        return time.perf_counter() - began

    def _take(self) -> None:
        """Wait for the trainer's rollout in progress, if any, and keep the rollout."""
        trainer = self.trainer
        if trainer.collector.in_progress is not None:
            self._newest = trainer.collector.take()
            trainer.queue.rollout = self._newest if trainer.placement.overlap else None
