"""Self-play: opponents act for some agents, and the league chooses the opponents.

The trainer calls ``after`` once per rollout, before it starts the next one. So runs with and
without overlap make the same decisions. A rollout that will be collected again on resume is saved
with the decisions made before it.
"""

from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint.folder import subtree
from puffer_mlx.config import Config
from puffer_mlx.config.schema.selfplay import RULES_OF_4
from puffer_mlx.distributed.single_process import SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.rollout import seats as seating
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.game_results import GameCounter
from puffer_mlx.training.league import League
from puffer_mlx.vec.base import VecEnv

LEAGUE = "league"  # prefix of the league's arrays in a state
UNFINISHED = "under_way"  # array of the unfinished games in a state

State = tuple[dict[str, mx.array], dict[str, Any]]


def create_self_play(
    config: Config, vec: VecEnv, weights: Any, ranks: SingleProcess
) -> "SelfPlay | None":
    """Return the self-play of a run. Returns None when it is disabled.

    Args:
        config: A valid configuration.
        vec: Environments before their reset. Their tags are set.
        weights: The learner's initial weights, evaluated.
        ranks: Processes that train together.

    Raises:
        UserError: If the agents can't be divided as configured, or several ranks train together.
    """
    if not config.selfplay.enabled:
        return None
    if ranks.size > 1:
        raise UserError(
            f"selfplay.enabled 1, and {ranks.size} ranks train together",
            "self-play trains in one process: without mlx.launch, and with --train.gpus 1",
        )
    keys = config.vec
    if config.selfplay_rules == RULES_OF_4:
        seats = seating.seats_in_blocks(vec, keys.num_frozen_banks, keys.frozen_bank_pct)
    else:
        seats = seating.seats_as_declared(vec, keys.num_policies - 1, keys.hist_policy_percent)
    seating.set_tags(vec, seats)
    return SelfPlay(config, vec, seats, weights)


class SelfPlay:
    """The self-play of a run: policy assignment, league and game counter.

    Args:
        config: Configuration with self-play enabled.
        vec: Environments of the run.
        seats: Assignment of policies to agents.
        weights: The learner's initial weights.

    Attributes:
        seats: Assignment of policies to agents.
        league: Pool of earlier weights and the current opponents.
    """

    def __init__(self, config: Config, vec: VecEnv, seats: Seats, weights: Any) -> None:
        self.seats = seats
        self._vec = vec
        self.league = League(config, seats, weights)
        self._games = GameCounter(seats)

    def after(self, rollout: Rollout, step: int, weights: Any) -> dict[str, float]:
        """Count the games of a rollout, and choose the opponents of the next one.

        Args:
            rollout: The rollout to count, before it is trained on.
            step: Environment steps trained so far.
            weights: The learner's current weights.

        Returns:
            Values to log.
        """
        fields = rollout.buffer.fields
        rewards = np.asarray(fields["rewards"])[1:]
        terminals = np.asarray(fields["terminals"])[1:]
        return self.league.after(step, self._games.take(rewards, terminals), weights)

    def state(self) -> State:
        """Return the state for ``restore``: arrays by name, and JSON values by name."""
        arrays, values = self.league.state()
        named = {f"{LEAGUE}.{name}": array for name, array in arrays.items()}
        return {**named, UNFINISHED: mx.array(self._games.state())}, values

    def restore(self, arrays: dict[str, mx.array], values: Any) -> None:
        """Restore what ``state`` returned. Call this after restoring the environments.

        Raises:
            UserError: If the state has another configuration, or no self-play.
        """
        if UNFINISHED not in arrays or not isinstance(values, dict):
            raise UserError(
                "the saved state has no opponents: the run was trained without self-play",
                "start a new run from its weights: --load-model-path",
            )
        self.league.restore(subtree(arrays, LEAGUE), values)
        self._games.restore(np.asarray(arrays[UNFINISHED]))
        seating.set_tags(self._vec, self.seats)

    def discard_games(self) -> None:
        """Discard unfinished games, after the environments were reset."""
        self._games = GameCounter(self.seats)
