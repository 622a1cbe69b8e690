"""Queue the rollouts to train on, and split the random keys of rollouts and updates.

    serial      rollout k | update k     | rollout k + 1 | update k + 1
    overlapped  rollout k | update k      ...
                          | rollout k + 1 ...
    ahead       rollout k | update k     | rollout k + 1 | update k + 1     on the GPU
                          prepare update k + 1 ...                          on the host

In all three modes, keys are split in the order rollout k, update k, rollout k + 1, ... The queue
keeps a rollout until ``release`` commits its update. If a step fails, the next step repeats the
update.
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
    """Hold the rollout to train on and the next one, and split the random keys.

    Args:
        collector: collects the rollouts.
        key: random key of the run.
        timer: phase timer of the training thread, also for the time of waiting for a rollout.
        self_play: chooses the opponents. None without self-play.

    Attributes:
        key: random key, from which the keys of the next rollout and update are split.
        rollout: the rollout to train on. None before it is collected.
        next_rollout: the next rollout, launched ahead during the update on ``rollout``.
        acting_weights: weights that act in the next rollout, if they aren't the newest ones: a
            resumed overlapped run acts with weights that are one update old. Else None.
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
        self.next_rollout: Rollout | None = None
        self.acting_weights: Any = None
        self._timer = timer
        self._self_play = self_play

    def collected(self, weights: Any) -> Rollout | None:
        """Return the rollout to train on, or None when it isn't collected yet.

        A rollout that was launched ahead is undone first if other weights acted in it than the
        current ones: the caller has replaced the weights since.

        Args:
            weights: the learner's current weights.
        """
        rollout = self.rollout
        if rollout is not None and rollout.weights is not weights:
            self.take_back_all()
        return self.rollout

    def current(self, weights: Any, wait_for_gpu: bool = True) -> Rollout:
        """Return the rollout to train on. Collect it first, unless ``collected`` returns one.

        If a serial rollout fails, it is dropped and the key is reset. The next call then gives the
        same result as in a run that is resumed from the trainer's state.

        Args:
            weights: the learner's current weights. A new rollout acts with them.
            wait_for_gpu: True to wait until a rollout on the GPU is computed.

        Raises:
            UserError: macOS ended the GPU's rollout.
        """
        rollout = self.collected(weights)
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
            ended_by_macos = isinstance(error, RuntimeError) and WATCHDOG_ERROR in str(error)
            if not ended_by_macos:
                raise
            hint = f"{WATCHDOG_HINT}; or --train.rollout-device cpu"
            raise UserError(f"macOS ended the GPU's rollout: {error}", hint) from None
        if collector.overlap:
            self._timer.lap("train_wait")
        else:
            self._timer.start()  # The collector's timer has measured the time until now.
        self.rollout = rollout
        return rollout

    def start_next(self, weights: Any) -> None:
        """Start the next rollout unless one is in progress.

        With ``train.overlap``, another thread starts to collect the rollout. Otherwise ``current``
        collects it.

        Args:
            weights: acting weights, evaluated.
        """
        if self.collector.in_progress is not None:
            return
        if self.acting_weights is not None:
            weights = self.acting_weights
            self.acting_weights = None
        opponents = ()
        fresh = ()
        if self._self_play is not None:
            league = self._self_play.league
            opponents = league.opponents
            fresh = league.replaced
        self.key = self.collector.begin(weights, self.key, opponents, fresh)
        self._timer.lap("train_copy")  # for copying weights and noise to the acting device

    def launch_next(self, weights: Any) -> Rollout:
        """Launch the next rollout on the GPU, before the current update is computed.

        Args:
            weights: acting weights; they may not be computed yet.

        Returns:
            The rollout, not computed yet. ``release`` makes it the current rollout.
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
        self.next_rollout = rollout
        self._timer.start()  # The collector's timer has measured the time until now.
        return rollout

    def update_key(self, rollout: Rollout) -> mx.array:
        """Return the random key of the update on a rollout. A repeated update gets the same key."""
        if rollout.update_key is None:
            with building:
                key, update_key = mx.random.split(self.key)
            # Evaluate the keys, because later steps may run in other threads, which can't evaluate
            # this thread's lazy arrays. On Metal, asynchronous results are lost if macOS stops the
            # training.
            evaluate = mx.eval if backend() == "metal" else mx.async_eval
            evaluate(key, update_key)
            self.key = key
            rollout.update_key = update_key
        return rollout.update_key

    def release(self) -> None:
        """Drop the current rollout after its update, and make the next rollout the current one."""
        self.rollout = self.next_rollout
        self.next_rollout = None

    def take_back(self) -> None:
        """Undo the next rollout, if it was launched ahead."""
        if self.next_rollout is not None:
            self.key = self.collector.take_back(self.next_rollout)
            self.next_rollout = None

    def take_back_all(self) -> None:
        """Undo all rollouts launched ahead: environments return to the end of the last update."""
        self.take_back()
        if self.rollout is not None and self.rollout.launched_ahead:
            self.key = self.collector.take_back(self.rollout)
            self.rollout = None

    def clear(self) -> None:
        """Drop all rollouts, before a trainer's state is restored."""
        self.rollout = None
        self.next_rollout = None
        self.collector.discard()
