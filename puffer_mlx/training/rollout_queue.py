"""Rollouts in the order in which they are trained on, and the random keys of rollouts and updates.

    serial      rollout k | update k     | rollout k + 1 | update k + 1
    overlapped  rollout k | update k      ...
                          | rollout k + 1 ...
    ahead       rollout k | update k     | rollout k + 1 | update k + 1     on the GPU
                          prepare update k + 1 ...                          on the host

Keys are split in the order rollout k, update k, rollout k + 1, ... in every mode. The queue holds a
rollout until ``release`` commits its update. After a failed step, the next step repeats the update.
"""

from typing import Any

import mlx.core as mx

from puffer_mlx.errors import UserError
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.on_gpu import WATCHDOG_ERROR, WATCHDOG_HINT
from puffer_mlx.system.backend import backend
from puffer_mlx.system.devices import building
from puffer_mlx.training.collector import Collector, Rollout
from puffer_mlx.training.self_play import SelfPlay


class RolloutQueue:
    """Holds the rollout to train on and the one after it, and draws the random keys.

    Args:
        collector: collects the rollouts.
        key: random key of the run.
        timer: phase timer of the training thread. Waiting for a rollout is charged here.
        self_play: chooses the opponents.

    Attributes:
        key: random key. The keys of the next rollout and update are split from it.
        rollout: the rollout to train on. None before it is collected.
        following: the next rollout, launched ahead during the update on ``rollout``.
        acting_weights: acting weights of the next rollout in a resumed overlapped run, which are
            one update old, or None (the newest weights).
    """

    def __init__(
        self,
        collector: Collector,
        key: mx.array,
        timer: PhaseTimer,
        self_play: SelfPlay | None = None,
    ) -> None:
        self.collector = collector
        self.key = key
        self.rollout: Rollout | None = None
        self.following: Rollout | None = None
        self.acting_weights: Any = None
        self._timer = timer
        self._self_play = self_play

    def newest(self, weights: Any) -> Rollout | None:
        """Return the rollout to train on, if there is one.

        A rollout launched ahead with other weights is undone first.
        """
        rollout = self.rollout
        if rollout is not None and rollout.weights is not weights:
            self.take_back_all()
        return self.rollout

    def current(self, weights: Any, wait_for_gpu: bool = True) -> Rollout:
        """Return the rollout to train on. Collect it first if it does not exist.

        If a serial rollout fails, it is dropped and the key is reset. So the next call gives the
        same result as a run that is resumed from the trainer's state.

        Args:
            weights: the newest weights, used for acting in a new rollout.
            wait_for_gpu: True to wait until a rollout on the GPU is computed.

        Raises:
            UserError: macOS ended the GPU's rollout.
        """
        rollout = self.newest(weights)
        if rollout is not None:
            return rollout
        collector = self.collector
        key = self.key
        try:
            self.start_next(weights)
            rollout = collector.take(wait_for_gpu)
        except BaseException as error:
            if not collector.overlap:
                collector.discard()
                self.key = key
            if not isinstance(error, RuntimeError) or WATCHDOG_ERROR not in str(error):
                raise
            hint = f"{WATCHDOG_HINT}; or --train.rollout-device cpu"
            raise UserError(f"macOS ended the GPU's rollout: {error}", hint) from None
        if collector.overlap:
            self._timer.lap("train_wait")
        else:
            self._timer.start()  # this thread collected the rollout, charged to the other timer
        self.rollout = rollout
        return rollout

    def start_next(self, weights: Any) -> None:
        """Start the next rollout unless one is in progress.

        With ``train.overlap`` another thread begins to collect it. Otherwise ``current`` collects
        it.

        Args:
            weights: acting weights, evaluated.
        """
        if self.collector.begun is not None:
            return
        if self.acting_weights is not None:
            weights = self.acting_weights
            self.acting_weights = None
        opponents, fresh = (), ()
        if self._self_play is not None:
            league = self._self_play.league
            opponents, fresh = league.opponents, league.replaced
        self.key = self.collector.begin(weights, self.key, opponents, fresh)
        self._timer.lap("train_copy")  # weights and noise were copied to the acting device

    def launch_ahead(self, weights: Any) -> Rollout:
        """Launch the next rollout on the GPU.

        Args:
            weights: acting weights; they may not be computed yet.

        Returns:
            The rollout, not computed yet. ``release`` makes it the current one.
        """
        collector = self.collector
        self._timer.lap("train_misc")
        key = collector.begin(weights, self.key)
        try:
            rollout = collector.take(wait_for_gpu=False)
        except BaseException:
            collector.discard()
            raise
        rollout.launched_ahead = True
        self.key = key
        self.following = rollout
        self._timer.start()  # this thread launched the rollout, charged to the other timer
        return rollout

    def update_key(self, rollout: Rollout) -> mx.array:
        """Return the key of the update on a rollout. A repeated update gets the same key."""
        if rollout.update_key is None:
            with building:
                key, update_key = mx.random.split(self.key)
            # Both keys outlive this step, and other threads can't evaluate this thread's lazy
            # arrays. On Metal, asynchronous results are lost if macOS stops the training.
            evaluate = mx.eval if backend() == "metal" else mx.async_eval
            evaluate(key, update_key)
            self.key = key
            rollout.update_key = update_key
        return rollout.update_key

    def release(self) -> None:
        """Commit the update: drop the current rollout and make the following one current."""
        self.rollout = self.following
        self.following = None

    def take_back(self) -> None:
        """Undo the launch of the following rollout, if it was launched."""
        if self.following is not None:
            self.key = self.collector.take_back(self.following)
            self.following = None

    def take_back_all(self) -> None:
        """Undo all launches ahead: environments return to the end of the last trained rollout."""
        self.take_back()
        if self.rollout is not None and self.rollout.launched_ahead:
            self.key = self.collector.take_back(self.rollout)
            self.rollout = None

    def clear(self) -> None:
        """Drop all rollouts, before a state is restored."""
        self.rollout = self.following = None
        self.collector.discard()
