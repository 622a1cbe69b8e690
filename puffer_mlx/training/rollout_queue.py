"""Rollouts in the order in which they are trained on, and the random keys of rollouts and updates.

    serial      rollout k | update k     | rollout k + 1 | update k + 1
    overlapped  rollout k | update k      ...
                          | rollout k + 1 ...
    ahead       rollout k | update k     | rollout k + 1 | update k + 1     on the GPU
                          prepare update k + 1 ...                          on the host

Keys are drawn in the order rollout k, update k, rollout k + 1, ... in every mode. A rollout is kept
until its update is committed by ``release``: after a failed step the next one repeats the update.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.on_gpu import ENDED, RELAX
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Collector, Rollout


class RolloutQueue:
    """Holds the rollout to train on and the one after it, and draws the random keys.

    Args:
        collector: collects the rollouts.
        key: random key of the run.
        timer: phases of the training thread: waiting for a rollout is charged here.
        opponents: returns each opponent's weights, and the opponents (from 1) whose recurrent
            states start anew.

    Attributes:
        key: the key that the next rollout's or update's is split from.
        rollout: the rollout to train on; None if it has to be collected first.
        following: the rollout that was launched while ``rollout`` is trained on.
        acting_weights: what the next rollout acts by, if not by the newest weights: a resumed
            overlapped run acts by the weights of one update before.
    """

    def __init__(
        self,
        collector: Collector,
        key: mx.array,
        timer: PhaseTimer,
        opponents: Callable[[], tuple[Any, Any]],
    ) -> None:
        self.collector, self.key = collector, key
        self.rollout: Rollout | None = None
        self.following: Rollout | None = None
        self.acting_weights: Any = None
        self._timer, self._opponents = timer, opponents

    def newest(self, weights: Any) -> Rollout | None:
        """Return the rollout to train on, if there is one.

        A rollout that was launched ahead by other weights is taken back first.
        """
        rollout = self.rollout
        if rollout is not None and rollout.start.weights is not weights:
            self.take_back_all()
        return self.rollout

    def current(self, weights: Any, wait: bool = True) -> Rollout:
        """Return the rollout to train on: the kept one, the one in progress or a new one.

        Args:
            weights: the newest.
            wait: wait until it is computed, also where a GPU makes it.
        """
        if self.newest(weights) is None:
            self.rollout = self.collect(weights, wait)
        assert self.rollout is not None
        return self.rollout

    def collect(self, weights: Any, wait: bool = True) -> Rollout:
        """Return the rollout in progress, or a new one, without keeping it: see ``current``.

        A serial rollout that fails is dropped, and the key is what it was before. So the next call
        continues as a run does that is resumed from the trainer's state.

        Raises:
            UserError: macOS ended the GPU's rollout.
        """
        collector, key = self.collector, self.key
        try:
            self.start_next(weights)
            rollout = collector.take(ahead=not wait)
        except BaseException as error:
            if not collector.overlap:
                collector.discard()
                self.key = key
            if not isinstance(error, RuntimeError) or ENDED not in str(error):
                raise
            hint = f"{RELAX}; or --train.rollout-device cpu"
            raise UserError(f"macOS ended the GPU's rollout: {error}", hint) from None
        if collector.overlap:
            self._timer.lap("train_wait")
        else:
            self._timer.start()  # the rollout was this thread's own work, on the other timer
        return rollout

    def start_next(self, weights: Any) -> None:
        """Start the next rollout unless one is in progress.

        With ``train.overlap`` another thread collects it from now on, else ``current`` does.

        Args:
            weights: weights to act by, evaluated.
        """
        if self.collector.waiting:
            return
        if self.acting_weights is not None:
            weights, self.acting_weights = self.acting_weights, None
        self.key = self.collector.begin(weights, self.key, *self._opponents())
        self._timer.lap("train_copy")  # of weights and noise, to where they are used

    def launch_ahead(self, weights: Any) -> Rollout:
        """Launch the next rollout on the GPU, by weights that may still be in computation.

        Returns:
            The rollout, in computation as well. ``release`` makes it the current one.
        """
        collector = self.collector
        self._timer.lap("train_misc")
        key = collector.begin(weights, self.key)
        try:
            rollout = collector.take(ahead=True)
        except BaseException:
            collector.discard()
            raise
        rollout.ahead = True
        self.key, self.following = key, rollout
        self._timer.start()  # the launch was this thread's own work, on the other timer
        return rollout

    def update_key(self, rollout: Rollout) -> mx.array:
        """Return the key of the update on a rollout: the same again after a failed step."""
        if rollout.update_key is None:
            with building:
                key, update_key = mx.random.split(self.key)
            # Both are kept after this step, and another thread can't evaluate lazy arrays of this
            # one. On Metal, what is computed beside training is lost if macOS stops the training.
            evaluate = mx.eval if backend() == "metal" else mx.async_eval
            evaluate(key, update_key)
            self.key, rollout.update_key = key, update_key
        return rollout.update_key

    def release(self) -> None:
        """Commit the update: the current rollout is done with, and the following one is current."""
        self.rollout, self.following = self.following, None

    def take_back(self) -> None:
        """Undo the launch of the following rollout, if there was one."""
        if self.following is not None:
            self._take_back(self.following)
            self.following = None

    def take_back_all(self) -> None:
        """Undo every launch ahead: the environments are where the last update's rollout ended."""
        self.take_back()
        if self.rollout is not None and self.rollout.ahead:
            self._take_back(self.rollout)
            self.rollout = None

    def settle(self) -> None:
        """Wait until no rollout is in progress. A finished one stays in the collector."""
        self.collector.settle()

    def clear(self) -> None:
        """Drop all rollouts: a state is restored."""
        self.rollout = self.following = None
        self.collector.discard()

    def _take_back(self, rollout: Rollout) -> None:
        self.key = self.collector.take_back(rollout)
