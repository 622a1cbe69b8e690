"""Save and restore the state of a trainer, so that a resumed run continues identically."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint.folder import State, subtree
from puffer_mlx.config.fit import is_explicit
from puffer_mlx.errors import UserError
from puffer_mlx.ops import implementation
from puffer_mlx.ppo import optimizers
from puffer_mlx.ppo.update import TrainState
from puffer_mlx.trees import named

SELF_PLAY = "selfplay"  # prefix of the opponents' arrays


def save_state(trainer: Any) -> State:
    """Return the state of a ``Trainer`` between two steps.

    Untrained rollouts are not saved. With overlap, or if the rollout was launched ahead, its
    starting point is saved, and the resumed run collects it again. In serial runs the state
    contains the environments after the rollout.
    """
    queue = trainer.queue
    collector = trainer.collector
    rollout = queue.newest(trainer.weights)
    start = rollout or collector.begun
    if not (trainer.placement.overlap or (rollout and rollout.launched_ahead)):
        start = None
    environments = collector.state_of(start) if start else collector.state()
    part: dict[str, Any] = {  # arrays of this process's agents
        "recurrent": start.states if start else collector.states,
        "carry": start.buffer.carry(0) if start else collector.buffer.carry(),
    }
    arrays = {
        **optimizers.to_checkpoint(trainer.train_state.optimizer),
        "scaler": trainer.train_state.scaler,
        "key": start.key if start else queue.key,
        **part,
        "recorded": trainer.recorded,
    }
    acting = start.weights if start else queue.acting_weights
    if acting is not None and acting is not trainer.weights:
        arrays["acting"] = acting
    if environments is not None:
        arrays["environments"] = part["environments"] = mx.array(environments)
    if (scores := trainer.epoch_logs.scores.state()) is not None:
        arrays["scores"] = mx.array(scores)
    arrays |= trainer.ranks.gather_arrays(dict(named(part)))
    numbers = {
        "epoch": trainer.epoch,
        "global_step": trainer.global_step,
        "uptime": trainer.epoch_logs.uptime,
        "rollout_device": trainer.placement.rollout_device,
        "optimizer": trainer.config.train.optimizer,
        **trainer.ranks.numbers(),
    }
    if implementation.refused:
        numbers["refused"] = sorted(implementation.refused)
    if trainer.schedules:
        numbers["schedules"] = sorted(trainer.schedules)
    if trainer.rate is not None:
        numbers["learning_rate"] = trainer.rate
    if trainer.self_play is not None:
        before = rollout.self_play if rollout and start else None
        arrays[SELF_PLAY], numbers[SELF_PLAY] = before or trainer.self_play.state()
    return State(dict(named(arrays)), numbers)


def restore_state(trainer: Any, weights: Any, state: State) -> bool:
    """Continue a trainer where ``state`` was saved.

    Args:
        trainer: A ``Trainer`` with the same policy, agents and buffers as the saved one.
        weights: The policy's weights from the same checkpoint.
        state: The saved state.

    Returns:
        True if the environments are restored, too; False if they start new episodes.

    Raises:
        UserError: If the state has another configuration or another optimizer.
    """
    optimizers.refuse_another(trainer.config.train.optimizer, state.numbers)
    _refuse_lost_schedule(trainer, state.numbers)
    state = State(trainer.ranks.restore(state.arrays, state.numbers), state.numbers)
    environments = state.arrays.get("environments")
    scores = state.arrays.get("scores")
    queue = trainer.queue
    collector = trainer.collector
    continues = environments is not None and collector.vec.state() is not None
    current = trainer.train_state
    expected = {
        **optimizers.to_checkpoint(current.optimizer),
        "key": queue.key,
        "scaler": current.scaler,
    }
    if continues:
        expected |= {"recurrent": collector.states, "carry": collector.buffer.carry()}
    if trainer.placement.overlap and any(name.startswith("acting.") for name in state.arrays):
        expected["acting"] = current.weights
    trees = state.taken(expected)
    if continues:
        collector.vec.restore(np.asarray(environments))
        trainer.ranks.begin_statistics(trainer.vec)
    optimizer = optimizers.from_checkpoint(trees, current.optimizer)
    trainer.train_state = TrainState(weights, optimizer, trees["scaler"])
    queue.clear()
    queue.key = trees["key"]
    queue.acting_weights = trees.get("acting")
    if continues:
        collector.restore(trees.get("recurrent", collector.states), trees["carry"])
    trainer.epoch = state.numbers["epoch"]
    trainer.global_step = state.numbers["global_step"]
    if trainer.rate is not None:  # The saved run may have had another schedule.
        trainer.rate = state.numbers.get("learning_rate", trainer.rate)
    if trainer.self_play is not None:
        opponents = subtree(state.arrays, SELF_PLAY)
        trainer.self_play.restore(opponents, state.numbers.get(SELF_PLAY))
        if not continues:
            trainer.self_play.discard_games()
    scores = None if scores is None else np.asarray(scores)
    trainer.epoch_logs.restore(state.numbers["uptime"], scores)
    mx.eval(weights, trees)
    return continues


def _refuse_lost_schedule(trainer: Any, numbers: Mapping[str, Any]) -> None:
    """Raise UserError if a coefficient was a function and the resumed run has no function for it.

    A value that the user gives replaces the function.
    """
    names = numbers.get("schedules", ["learning_rate"] if "schedule" in numbers else [])
    for name in names:
        if name not in trainer.schedules and not is_explicit(trainer.config, f"train.{name}"):
            raise UserError(
                f"the run's {name} is a function, which checkpoints don't contain",
                f"pass it in Python: Trainer.load(path, {name}=…); or pass a number",
            )
