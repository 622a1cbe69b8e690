"""Who the opponents are: earlier weights of the learner's, replaced as training goes on.

The trainer asks once a rollout, when it was taken and before the next one is begun: so runs decide
alike whether or not rollouts are collected beside training.
"""

from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.config.schema.selfplay import OF_5
from puffer_mlx.selfplay.results import Results
from puffer_mlx.selfplay.rules import Puffer4, Puffer5
from puffer_mlx.selfplay.saved_table import restored, saved
from puffer_mlx.selfplay.seats import Seats
from puffer_mlx.selfplay.table import Entry, Opponent, Table
from puffer_mlx.trees import leaves

Logs = dict[str, float]


def make_league(config: Config, seats: Seats, weights: Any) -> "League":
    """The league of a run that begins.

    Args:
        config: with self-play.
        seats: who plays where.
        weights: the learner's first, which all opponents begin with.
    """
    play, opponents = config.selfplay, seats.opponents
    first = Entry(weights, 0, play.elo_init)
    table = Table(
        pool=[first],
        opponents=[Opponent(first) for _ in range(opponents)],
        elo=play.elo_init,
        rng=np.random.default_rng(play.seed),
        aligned=np.zeros(len(seats.tags), bool),
    )
    return League(table, _rules(config), seats.tags, play.elo_k)


def _rules(config: Config) -> Puffer4 | Puffer5:
    play = config.selfplay
    if config.selfplay_rules == OF_5:
        interval = config.base.checkpoint_interval * config.batch_size
        return Puffer5(play.max_size, interval, play.opp_timeout_steps)
    return Puffer4(**{name: getattr(play, name) for name in Puffer4._fields})


class League:
    """A pool of earlier weights, and the opponents that are drawn from it.

    Args:
        table: as it stands.
        rules: by which it changes.
        tags: (E,) int: the opponent in each environment, from 1; 0: none.
        k: ``selfplay.elo_k``.
    """

    def __init__(self, table: Table, rules: Puffer4 | Puffer5, tags: np.ndarray, k: float) -> None:
        self.table = table
        self._rules, self._tags, self._k = rules, tags, k

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
        """A rollout was collected and nothing is decided by it: from now on nobody is fresh."""
        self.table.fresh = frozenset()

    def state(self) -> tuple[dict[str, mx.array], dict[str, Any]]:
        """Everything that ``restore`` needs to go on identically: arrays, and what JSON holds."""
        arrays, numbers = saved(self.table)
        return arrays, {**numbers, "rules": type(self._rules).__name__.lower()}

    def restore(self, arrays: dict[str, mx.array], numbers: dict[str, Any]) -> None:
        """Go on where ``state`` was taken.

        Raises:
            UserError: it is of other rules, seats or policies, or is damaged.
        """
        rules = type(self._rules).__name__.lower()
        self.table = restored(arrays, numbers, self.table, rules)


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
