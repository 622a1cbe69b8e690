"""The two halves of an iteration, each alone: what an overlapped one is measured against."""

import time

import mlx.core as mx

from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.trainer import Logs, Pending, Trainer


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
        """Collect a rollout, the learner idle; overlapped training goes on with it."""
        self._take()
        began = time.perf_counter()
        self.trainer.begin_rollout()
        self._take()
        return time.perf_counter() - began

    def training(self) -> float:
        """Train on a rollout, the collector idle; what is learned is forgotten."""
        trainer = self.trainer
        self._take()
        if self._newest is None:
            self.rollout()
        assert self._newest is not None
        began = time.perf_counter()
        with building:
            inputs = trainer.inputs(self._newest, trainer.learner.draws(mx.random.key(0)))
        trainer.learner.train(inputs)
        return time.perf_counter() - began

    def iteration(self) -> float:
        """A step of the trainer: both halves at once with ``train.overlap``, else in turns."""
        if self.trainer.placement.overlap and not self.trainer.pending:
            self._take()
            if not self.trainer.pending:  # else the first one would collect two rollouts
                self.rollout()
        began = time.perf_counter()
        self.logs = self.trainer.step()
        return time.perf_counter() - began

    def _take(self) -> None:
        """Take the rollout that has been begun, if one has."""
        trainer = self.trainer
        if trainer.collector.waiting:
            self._newest = trainer.collector.take()
            trainer.pending = Pending(self._newest) if trainer.placement.overlap else None
