"""Time the two halves of an iteration separately, to compare with overlapped iterations."""

import time

import mlx.core as mx

from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.trainer import Logs, Trainer


class Halves:
    """Times a trainer's rollout, its training, and both as it does them; in seconds.

    What is timed alone runs as it would in the whole: the rollout in its thread, on its streams and
    its share of the cores, the training on its own. The three may be called in any order.

    Args:
        trainer: between two steps; its run must be long enough for all iterations.

    Attributes:
        logs: the record of the last iteration.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.logs: Logs = {}
        self._newest: Rollout | None = None

    def rollout(self) -> float:
        """Collect a rollout while the learner is idle. Overlapped training uses it next."""
        self._take()
        began = time.perf_counter()
        self.trainer.queue.start_next(self.trainer.weights)
        self._take()
        return time.perf_counter() - began

    def training(self) -> float:
        """Train on a rollout while the collector is idle, and drop the new weights."""
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
        """A step of the trainer: both halves at once with ``train.overlap``, else in turns."""
        if self.trainer.placement.overlap and not self.trainer.queue.rollout:
            self._take()
            if not self.trainer.queue.rollout:  # else the first one would collect two rollouts
                self.rollout()
        began = time.perf_counter()
        self.logs = self.trainer.step()
        return time.perf_counter() - began

    def _take(self) -> None:
        """Take the rollout that has been begun, if one has."""
        trainer = self.trainer
        if trainer.collector.in_progress is not None:
            self._newest = trainer.collector.take()
            trainer.queue.rollout = self._newest if trainer.placement.overlap else None
