"""Run self-play: opponents act for some agents, and a league chooses the opponents.

The trainer calls ``SelfPlay.finish_rollout`` once per rollout, before it starts the next one, so
runs with and without overlap make the same decisions. If a resumed run must collect a rollout
again, the checkpoint contains the state before the rollout's games were counted.
"""

from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint.folder import arrays_below
from puffer_mlx.config import Config
from puffer_mlx.config.schema.selfplay import RULES_OF_4
from puffer_mlx.distributed.single_process import SingleProcess
from puffer_mlx.errors import UserError
from puffer_mlx.rollout.policy_assignment import (
    PolicyAssignment,
    assign_as_declared,
    assign_in_blocks,
    set_tags,
)
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.game_results import GameCounter
from puffer_mlx.training.league import League
from puffer_mlx.vec.base import VecEnv

LEAGUE = "league"  # prefix of the league's arrays in a checkpoint
UNFINISHED = "under_way"  # name of the unfinished games' array in a checkpoint

State = tuple[dict[str, mx.array], dict[str, Any]]


def create_self_play(
    config: Config, vec: VecEnv, weights: Any, ranks: SingleProcess
) -> "SelfPlay | None":
    """Return the self-play of a run, or None when it is disabled.

    Args:
        config: A valid configuration.
        vec: Environments before their reset. This function sets their tags.
        weights: The learner's initial weights, evaluated.
        ranks: Processes that train together.

    Raises:
        UserError: If the agents can't be divided as configured, or several ranks train together.
    """
    if not config.selfplay.enabled:
        return None
    if ranks.size > 1:
        raise UserError(
            f"selfplay.enabled is 1, but {ranks.size} ranks train together",
            "self-play needs one process: no mlx.launch, and --train.gpus 1",
        )
    keys = config.vec
    if config.selfplay_rules == RULES_OF_4:
        assignment = assign_in_blocks(vec, keys.num_frozen_banks, keys.frozen_bank_pct)
    else:
        assignment = assign_as_declared(vec, keys.num_policies - 1, keys.hist_policy_percent)
    set_tags(vec, assignment)
    return SelfPlay(config, vec, assignment, weights)


class SelfPlay:
    """Self-play of a run: which policy plays which agents, the league, and the count of games.

    Args:
        config: Configuration with self-play enabled.
        vec: Environments of the run.
        assignment: Assignment of policies to agents.
        weights: The learner's initial weights.

    Attributes:
        assignment: Assignment of policies to agents.
        league: Pool of earlier weights and the current opponents.
    """

    def __init__(
        self, config: Config, vec: VecEnv, assignment: PolicyAssignment, weights: Any
    ) -> None:
        self.assignment = assignment
        self._vec = vec
        self.league = League(config, assignment, weights)
        self._games = GameCounter(assignment)

    def finish_rollout(self, rollout: Rollout, step: int, weights: Any) -> dict[str, float]:
        """Count the games of a rollout, and choose the opponents of the next one.

        Args:
            rollout: The rollout to count, before it is trained on.
            step: Environment steps trained so far.
            weights: The learner's current weights.

        Returns:
            Metrics to log.
        """
        fields = rollout.buffer.fields
        rewards = np.asarray(fields["rewards"])[1:]
        terminals = np.asarray(fields["terminals"])[1:]
        results = self._games.count(rewards, terminals)
        return self.league.finish_rollout(step, results, weights)

    def state(self) -> State:
        """Return the state of self-play for a checkpoint: arrays and JSON values, by name."""
        arrays, values = self.league.state()
        league_arrays = {f"{LEAGUE}.{name}": array for name, array in arrays.items()}
        return {**league_arrays, UNFINISHED: mx.array(self._games.state())}, values

    def restore(self, arrays: dict[str, mx.array], values: Any) -> None:
        """Restore the state of self-play from a checkpoint, after the environments.

        Raises:
            UserError: If the state belongs to another configuration, or to a run without self-play.
        """
        if UNFINISHED not in arrays or not isinstance(values, dict):
            raise UserError(
                "the saved state has no opponents: the run was trained without self-play",
                "start a new run from its weights: --load-model-path",
            )
        self.league.restore(arrays_below(arrays, LEAGUE), values)
        self._games.restore(np.asarray(arrays[UNFINISHED]))
        set_tags(self._vec, self.assignment)

    def discard_games(self) -> None:
        """Discard unfinished games, because the environments were reset."""
        self._games = GameCounter(self.assignment)
