"""Self-play in a run: opponents act for some agents, and the league decides who they are.

The trainer calls ``after`` once for each rollout, when it was taken and before the next one is
begun. So serial and overlapped runs decide at the same places, and what a checkpoint has to
remember of a rollout that is collected again is what was decided before it.
"""

from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.checkpoint.folder import within
from puffer_mlx.config import Config
from puffer_mlx.config.schema.selfplay import OF_4
from puffer_mlx.errors import UserError
from puffer_mlx.machines.single_process import SingleProcess
from puffer_mlx.rollout import seats as seating
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.game_results import GameCounter
from puffer_mlx.training.league import League
from puffer_mlx.vec.base import VecEnv

LEAGUE, UNDER_WAY = "league", "under_way"  # names of a state's arrays

State = tuple[dict[str, mx.array], dict[str, Any]]


def begin_self_play(
    config: Config, vec: VecEnv, weights: Any, ranks: SingleProcess
) -> "SelfPlay | None":
    """A run's self-play; None if it has none.

    Args:
        config: a valid configuration.
        vec: the environments, before they are reset: those that want to know it are told who plays
            in them.
        weights: the learner's first, evaluated.
        ranks: the processes that train together.

    Raises:
        UserError: the environments' agents can't be divided as the configuration asks, or several
            ranks train together.
    """
    if not config.selfplay.enabled:
        return None
    if ranks.size > 1:
        raise UserError(
            f"selfplay.enabled 1, and {ranks.size} ranks train together",
            "self-play is trained by one process: without mlx.launch, and with --train.gpus 1",
        )
    seats = choose_seats(config, vec)
    seating.set_tags(vec, seats)
    return SelfPlay(config, vec, seats, weights)


def choose_seats(config: Config, vec: VecEnv) -> Seats:
    """Who acts for which agents, by the configuration's rules.

    Raises:
        UserError: see ``rollout.seats``.
    """
    keys = config.vec
    if config.selfplay_rules == OF_4:
        return seating.seats_in_blocks(vec, keys.num_frozen_banks, keys.frozen_bank_pct)
    return seating.seats_as_declared(vec, keys.num_policies - 1, keys.hist_policy_percent)


class SelfPlay:
    """Opponents of a run.

    Args:
        config: with self-play.
        vec: the environments.
        seats: who acts for which agents.
        weights: the learner's first.

    Attributes:
        seats: who acts for which agents.
        league: who the opponents are.
    """

    def __init__(self, config: Config, vec: VecEnv, seats: Seats, weights: Any) -> None:
        self.seats, self._vec = seats, vec
        self.league = League(config, seats, weights)
        self._scores = GameCounter(seats)

    def after(self, rollout: Rollout, step: int, weights: Any) -> dict[str, float]:
        """Count a rollout's games, and decide who plays in the next one.

        Args:
            rollout: that was just taken.
            step: environment steps trained so far.
            weights: the learner's now.

        Returns:
            What to log.
        """
        fields = rollout.buffer.fields
        rewards, terminals = (np.asarray(fields[name])[1:] for name in ("rewards", "terminals"))
        results = self._scores.take(rewards, terminals)
        return self.league.after(step, results, weights)

    def state(self) -> State:
        """What ``restore`` needs to go on identically: arrays, and numbers of JSON."""
        arrays, numbers = self.league.state()
        named = {f"{LEAGUE}.{name}": array for name, array in arrays.items()}
        return {**named, UNDER_WAY: mx.array(self._scores.state())}, numbers

    def restore(self, arrays: dict[str, mx.array], numbers: Any) -> None:
        """Go on where ``state`` was taken, the environments being restored already.

        Raises:
            UserError: it is of another configuration, or of a run without self-play.
        """
        if UNDER_WAY not in arrays or not isinstance(numbers, dict):
            raise UserError(
                "the run's state has no opponents: it was trained without self-play",
                "begin a new run from its weights: --load-model-path",
            )
        self.league.restore(within(arrays, LEAGUE), numbers)
        self._scores.restore(np.asarray(arrays[UNDER_WAY]))
        seating.set_tags(self._vec, self.seats)

    def begin_anew(self) -> None:
        """Forget the games under way: the environments were reset."""
        self._scores = GameCounter(self.seats)
