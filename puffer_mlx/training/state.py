"""Save and restore the state of a trainer, so that a resumed run continues identically."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint.folder import SavedState, arrays_below
from puffer_mlx.config.fit import is_explicit
from puffer_mlx.errors import UserError
from puffer_mlx.ops import implementation
from puffer_mlx.ppo import optimizers
from puffer_mlx.ppo.update import TrainState
from puffer_mlx.trees import named_arrays

SELF_PLAY = "selfplay"  # prefix of the opponents' arrays


def save_state(trainer: Any) -> SavedState:
    """Return the state of a ``Trainer`` between two steps, for a checkpoint.

    Rollouts that aren't trained on yet are not saved. With overlap, or if a rollout was launched
    ahead, the state contains the rollout's starting point, and the resumed run collects it again.
    Otherwise it contains the environments after the latest rollout.
    """
    queue = trainer.queue
    collector = trainer.collector
    rollout = queue.collected(trainer.weights)
    # The rollout whose starting point is saved; None to save the state after the latest rollout.
    start = None
    if trainer.placement.overlap or (rollout and rollout.launched_ahead):
        start = rollout or collector.in_progress
    environments = collector.state_of(start) if start else collector.state()
    rank_arrays: dict[str, Any] = {  # arrays that differ between ranks
        "recurrent": start.states if start else collector.states,
        "carry": start.buffer.env_outputs(0) if start else collector.buffer.env_outputs(),
    }
    arrays = {
        **optimizers.to_checkpoint(trainer.train_state.optimizer),
        "scaler": trainer.train_state.scaler,
        "key": start.key if start else queue.key,
        **rank_arrays,
        "recorded": trainer.recorded,
    }
    acting = start.weights if start else queue.acting_weights
    if acting is not None and acting is not trainer.weights:
        arrays["acting"] = acting
    if environments is not None:
        arrays["environments"] = rank_arrays["environments"] = mx.array(environments)
    if (scores := trainer.epoch_logs.scores.state()) is not None:
        arrays["scores"] = mx.array(scores)
    arrays |= trainer.ranks.gather_arrays(dict(named_arrays(rank_arrays)))
    values = {
        "epoch": trainer.epoch,
        "global_step": trainer.global_step,
        "uptime": trainer.epoch_logs.uptime,
        "rollout_device": trainer.placement.rollout_device,
        "optimizer": trainer.config.train.optimizer,
        **trainer.ranks.checkpoint_values(),
    }
    if implementation.refused:  # names of implementations that failed on this machine's GPU
        values["refused"] = sorted(implementation.refused)
    if trainer.schedules:
        values["schedules"] = sorted(trainer.schedules)
    if trainer.rate is not None:
        values["learning_rate"] = trainer.rate
    if trainer.self_play is not None:
        # The games of a rollout that the resumed run collects again must not be counted twice.
        before_games = rollout.self_play if rollout and start else None
        arrays[SELF_PLAY], values[SELF_PLAY] = before_games or trainer.self_play.state()
    return SavedState(dict(named_arrays(arrays)), values)


def restore_state(trainer: Any, weights: Any, state: SavedState) -> bool:
    """Restore a ``Trainer`` from a saved state, so that it continues identically.

    Args:
        trainer: A ``Trainer`` with the same policy, agents and buffers as the saved one.
        weights: The policy's weights from the same checkpoint.
        state: The saved state.

    Returns:
        True if the environments are restored too; False if they start new episodes.

    Raises:
        UserError: If the state belongs to another configuration or another optimizer.
    """
    optimizers.check_same_optimizer(trainer.config.train.optimizer, state.values)
    _refuse_lost_schedule(trainer, state.values)
    state = SavedState(trainer.ranks.restore(state.arrays, state.values), state.values)
    environments = state.arrays.get("environments")
    scores = state.arrays.get("scores")
    queue = trainer.queue
    collector = trainer.collector
    continues_episodes = environments is not None and collector.vec.state() is not None
    current = trainer.train_state
    expected = {
        **optimizers.to_checkpoint(current.optimizer),
        "key": queue.key,
        "scaler": current.scaler,
    }
    if continues_episodes:
        expected |= {"recurrent": collector.states, "carry": collector.buffer.env_outputs()}
    if trainer.placement.overlap and any(name.startswith("acting.") for name in state.arrays):
        expected["acting"] = current.weights
    trees = state.matching_trees(expected)
    if continues_episodes:
        collector.vec.restore(np.asarray(environments))
        trainer.ranks.begin_statistics(trainer.vec)
    optimizer = optimizers.from_checkpoint(trees, current.optimizer)
    trainer.train_state = TrainState(weights, optimizer, trees["scaler"])
    queue.clear()
    queue.key = trees["key"]
    queue.acting_weights = trees.get("acting")
    if continues_episodes:
        collector.restore(trees.get("recurrent", collector.states), trees["carry"])
    trainer.epoch = state.values["epoch"]
    trainer.global_step = state.values["global_step"]
    if trainer.rate is not None:  # The saved run may have used another schedule.
        trainer.rate = state.values.get("learning_rate", trainer.rate)
    if trainer.self_play is not None:
        opponents = arrays_below(state.arrays, SELF_PLAY)
        trainer.self_play.restore(opponents, state.values.get(SELF_PLAY))
        if not continues_episodes:
            trainer.self_play.discard_games()
    scores = None if scores is None else np.asarray(scores)
    trainer.epoch_logs.restore(state.values["uptime"], scores)
    mx.eval(weights, trees)
    return continues_episodes


def _refuse_lost_schedule(trainer: Any, values: Mapping[str, Any]) -> None:
    """Raise UserError if the saved run had a custom schedule that the resumed run lacks.

    The user may replace the schedule by another function or by a number.
    """
    # Older checkpoints have ``schedule`` if the learning rate had a custom schedule.
    names = values.get("schedules", ["learning_rate"] if "schedule" in values else [])
    for name in names:
        if name not in trainer.schedules and not is_explicit(trainer.config, f"train.{name}"):
            raise UserError(
                f"the run's {name} is a function, which checkpoints don't contain",
                f"pass it in Python: Trainer.load(path, {name}=…); or pass a number",
            )
