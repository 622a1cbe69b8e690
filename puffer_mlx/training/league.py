"""The opponents of self-play: earlier weights of the learner's, replaced as training goes on.

The trainer asks once a rollout, when it was taken and before the next one is begun: so runs decide
alike whether or not rollouts are collected beside training.

| | PufferLib 4.0's rules | 5.0's |
| --- | --- | --- |
| first opponents | the first weights | the first weights |
| weights join every | ``selfplay.snapshot_interval`` steps | ``base.checkpoint_interval`` epochs |
| and | before a beaten opponent goes, while there are few | |
| an opponent goes | when beaten, or after ``opp_timeout_steps`` | all after ``opp_timeout_steps`` |
| at once? | when a game has ended in each of its environments | yes |
| its successor | rather a newer one, but not the newest | any |
| a full pool loses | every second one of its older half | the oldest |
"""

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.config.schema.selfplay import OF_5
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.training.game_results import Results
from puffer_mlx.training.league_table import (
    Entry,
    Opponent,
    Table,
    draw_any,
    draw_by_age,
    restored,
    saved,
    thinned,
)
from puffer_mlx.trees import leaves

Logs = dict[str, float]

FEW = 10  # entries: below it a beaten opponent makes the learner's weights one


class Puffer4(NamedTuple):
    """PufferLib 4.0's rules; the fields are keys of [selfplay]."""

    max_size: int
    swap_winrate: float
    min_games: int
    snapshot_interval: int  # steps; 0: never
    opp_timeout_steps: int  # 0: never

    def decide(self, table: Table, tags: np.ndarray, step: int, weights: Any) -> None:
        """Change the table after a rollout whose games are counted.

        Args:
            table: is changed.
            tags: (E,) int: the opponent in each environment, from 1; 0: none.
            step: environment steps trained so far.
            weights: the learner's.
        """
        if _due(step, table.stepped, self.snapshot_interval):
            self._snapshot(table, step, weights)
        for b, opponent in enumerate(table.opponents):
            its_own = tags == b + 1
            if opponent.pending is not None:
                opponent.waited += 1
                if table.aligned[its_own].all():
                    opponent.epochs_to_align = opponent.waited
                    table.replace(b, opponent.pending, step)
                continue
            beaten = self._beaten(opponent)
            if beaten or _due(step, opponent.started, self.opp_timeout_steps):
                if beaten and len(table.pool) < FEW:
                    self._snapshot(table, step, weights)
                opponent.pending = draw_by_age(table.pool, table.rng)
                opponent.winrate_at_swap = opponent.winrate
                table.aligned[its_own] = False

    def _beaten(self, opponent: Opponent) -> bool:
        rate = opponent.winrate
        return rate is not None and opponent.games >= self.min_games and rate >= self.swap_winrate

    def _snapshot(self, table: Table, step: int, weights: Any) -> None:
        table.pool = thinned([*table.pool, Entry(weights, step, table.elo)], self.max_size)
        table.stepped = step


class Puffer5(NamedTuple):
    """PufferLib 5.0's rules."""

    max_size: int
    interval: int  # steps of base.checkpoint_interval epochs; 0: never
    opp_timeout_steps: int  # 0: never

    def decide(self, table: Table, tags: np.ndarray, step: int, weights: Any) -> None:
        """Change the table after a rollout; as ``Puffer4.decide``."""
        if self.interval and step and step % self.interval == 0:
            table.pool = [*table.pool, Entry(weights, step, table.elo)][-self.max_size :]
        if _due(step, table.stepped, self.opp_timeout_steps):
            for b, opponent in enumerate(table.opponents):
                opponent.winrate_at_swap = opponent.winrate
                table.replace(b, draw_any(table.pool, table.rng), step)
            table.stepped = step


def _due(step: int, last: int, interval: int) -> bool:
    """Whether an interval has passed; one of 0 never does."""
    return interval > 0 and step - last >= interval


class League:
    """A pool of earlier weights, and the opponents that are drawn from it.

    Args:
        config: with self-play.
        seats: the agents of each policy.
        weights: the learner's first, which all opponents begin with.
    """

    def __init__(self, config: Config, seats: Seats, weights: Any) -> None:
        play, first = config.selfplay, Entry(weights, 0, config.selfplay.elo_init)
        self.table = Table(
            pool=[first],
            opponents=[Opponent(first) for _ in range(seats.opponents)],
            elo=play.elo_init,
            rng=np.random.default_rng(play.seed),
            aligned=np.zeros(len(seats.tags), bool),
        )
        self._tags, self._k = seats.tags, play.elo_k
        if config.selfplay_rules == OF_5:
            interval = config.base.checkpoint_interval * config.batch_size
            self._rules = Puffer5(play.max_size, interval, play.opp_timeout_steps)
        else:
            self._rules = Puffer4(**{name: getattr(play, name) for name in Puffer4._fields})
        self._name = type(self._rules).__name__.lower()

    @property
    def opponents(self) -> list[Any]:
        """B trees of weights, of the learner's shapes: what opponents 1 to B act by next."""
        return [opponent.entry.weights for opponent in self.table.opponents]

    @property
    def fresh(self) -> frozenset[int]:
        """The opponents, from 1, whose weights changed after the last rollout.

        Their recurrent states begin anew with the next one: those of other weights say nothing.
        """
        return self.table.fresh

    def after(self, step: int, results: Results, weights: Any) -> Logs:
        """Count a rollout's games, and decide who plays in the next one.

        Args:
            step: environment steps trained so far.
            results: of the rollout.
            weights: the learner's now.

        Returns:
            What to log of it.
        """
        mx.eval(leaves(weights))  # an entry is no graph
        self.play_on()
        self.table.count(results, self._k)
        logs = _logs(self.table)
        self._rules.decide(self.table, self._tags, step, weights)
        return logs | {"pool/size": len(self.table.pool), "pool/swaps": self.table.swaps}

    def play_on(self) -> None:
        """Clear the set of new opponents: a rollout was collected."""
        self.table.fresh = frozenset()

    def state(self) -> tuple[dict[str, mx.array], dict[str, Any]]:
        """Everything that ``restore`` needs to go on identically: arrays, and what JSON holds."""
        arrays, numbers = saved(self.table)
        return arrays, {**numbers, "rules": self._name}

    def restore(self, arrays: dict[str, mx.array], numbers: dict[str, Any]) -> None:
        """Go on where ``state`` was taken.

        Raises:
            UserError: it is of other rules, seats or policies, or is damaged.
        """
        self.table = restored(arrays, numbers, self.table, self._name)


def _logs(table: Table) -> Logs:
    """What to log after a rollout; banks are counted from 0, as PufferLib does."""
    logs: Logs = {"env/elo": table.elo, "pool/num_banks": len(table.opponents)}
    by_name: dict[str, list[float]] = {}
    for b, opponent in enumerate(table.opponents):
        numbers = {
            "pool/winrate": opponent.winrate,
            "env/historical_winrate": opponent.winrate,  # a metric for sweeps has to be the env's
            "pool/winrate_at_swap": opponent.winrate_at_swap,
            "pool/epochs_to_align": opponent.epochs_to_align,
            "pool/opponent_elo": opponent.entry.elo,
        }
        for name, value in numbers.items():
            if value is not None:
                logs[f"{name}_bank_{b}"] = value
                by_name.setdefault(name, []).append(value)
    return logs | {name: float(np.mean(values)) for name, values in by_name.items()}
