"""Define the league of self-play, which chooses earlier weights of the learner as opponents.

The league decides once per rollout, before the next rollout starts, so a run makes the same
decisions with and without ``train.overlap``.

| | PufferLib 4.0's rules | 5.0's rules |
| --- | --- | --- |
| initial opponents | the initial weights | the initial weights |
| weights join the pool | every ``selfplay.snapshot_interval`` steps | every checkpoint |
| and | when an opponent is beaten and the pool is small | |
| opponents are replaced | when beaten, or after ``opp_timeout_steps`` | all, after the timeout |
| replacement starts | when a game has ended in each of its environments | immediately |
| the new opponent is drawn | from all but the newest 5, newer ones more often | uniformly |
| a full pool drops | every second entry of its older half | the oldest entry |
"""

from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from puffer_mlx.config import Config
from puffer_mlx.config.schema.selfplay import RULES_OF_5
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.training.game_results import GameResults
from puffer_mlx.training.league_table import (
    LeagueTable,
    Opponent,
    PoolEntry,
    draw_by_age,
    draw_uniform,
    restore_table,
    save_table,
    thin_pool,
)
from puffer_mlx.trees import leaves

Logs = dict[str, float]

SMALL_POOL_SIZE = 10  # In a smaller pool, the learner's weights join when an opponent is beaten.


class Puffer4(NamedTuple):
    """PufferLib 4.0's self-play rules: when to add weights to the pool and to replace opponents.

    The fields are keys of [selfplay].
    """

    max_size: int
    swap_winrate: float
    min_games: int
    snapshot_interval: int  # steps; 0: never
    opp_timeout_steps: int  # 0: never

    def decide(self, table: LeagueTable, tags: np.ndarray, step: int, weights: Any) -> None:
        """Update the pool of earlier weights and the opponents, after games were counted.

        Args:
            table: Pool and opponents; changed in place.
            tags: (E,) int, opponent in each environment, from 1; 0 means no opponent.
            step: Environment steps trained so far.
            weights: The learner's weights.
        """
        if _due(step, table.last_change_step, self.snapshot_interval):
            self._snapshot(table, step, weights)
        for b, opponent in enumerate(table.opponents):
            environments = tags == b + 1
            if opponent.pending is not None:  # A replacement waits until the games have ended.
                opponent.waited += 1
                if table.aligned[environments].all():
                    opponent.epochs_to_align = opponent.waited
                    table.replace(b, opponent.pending, step)
                continue
            beaten = self._beaten(opponent)
            if beaten or _due(step, opponent.started, self.opp_timeout_steps):
                if beaten and len(table.pool) < SMALL_POOL_SIZE:
                    self._snapshot(table, step, weights)
                opponent.pending = draw_by_age(table.pool, table.rng)
                opponent.winrate_at_swap = opponent.winrate
                table.aligned[environments] = False

    def _beaten(self, opponent: Opponent) -> bool:
        """Return True if the learner has won often enough against an opponent, in enough games."""
        rate = opponent.winrate
        return rate is not None and opponent.games >= self.min_games and rate >= self.swap_winrate

    def _snapshot(self, table: LeagueTable, step: int, weights: Any) -> None:
        """Add the learner's weights to the pool of opponents, and thin a pool that is too large."""
        table.pool = thin_pool([*table.pool, PoolEntry(weights, step, table.elo)], self.max_size)
        table.last_change_step = step


class Puffer5(NamedTuple):
    """PufferLib 5.0's self-play rules: when to add weights to the pool and to replace opponents."""

    max_size: int
    interval: int  # steps of base.checkpoint_interval epochs; 0: never
    opp_timeout_steps: int  # 0: never

    def decide(self, table: LeagueTable, tags: np.ndarray, step: int, weights: Any) -> None:
        """Add weights to the pool and replace opponents, when PufferLib 5.0's rules require it.

        Arguments as of ``Puffer4.decide``.
        """
        if self.interval and step and step % self.interval == 0:
            table.pool = [*table.pool, PoolEntry(weights, step, table.elo)][-self.max_size :]
        if _due(step, table.last_change_step, self.opp_timeout_steps):
            for b, opponent in enumerate(table.opponents):
                opponent.winrate_at_swap = opponent.winrate
                table.replace(b, draw_uniform(table.pool, table.rng), step)
            table.last_change_step = step


def _due(step: int, last: int, interval: int) -> bool:
    """Return True if ``interval`` steps have passed since step ``last``. 0 means never."""
    return interval > 0 and step - last >= interval


class League:
    """A self-play league: a pool of earlier weights, and the opponents chosen from the pool.

    Args:
        config: Configuration with self-play enabled.
        assignment: Assignment of policies to agents.
        weights: The learner's initial weights, also the first weights of all opponents.
    """

    def __init__(self, config: Config, assignment: PolicyAssignment, weights: Any) -> None:
        play = config.selfplay
        first = PoolEntry(weights, 0, play.elo_init)
        self.table = LeagueTable(
            pool=[first],
            opponents=[Opponent(first) for _ in range(assignment.opponents)],
            elo=play.elo_init,
            rng=np.random.default_rng(play.seed),
            aligned=np.zeros(len(assignment.tags), bool),
        )
        self._tags = assignment.tags
        self._elo_k = play.elo_k
        if config.selfplay_rules == RULES_OF_5:
            interval = config.base.checkpoint_interval * config.batch_size
            self._rules = Puffer5(play.max_size, interval, play.opp_timeout_steps)
        else:
            self._rules = Puffer4(**{name: getattr(play, name) for name in Puffer4._fields})
        self._name = type(self._rules).__name__.lower()

    @property
    def opponents(self) -> list[Any]:
        """Weights of the B opponents in the next rollout, trees with the learner's shapes."""
        return [opponent.entry.weights for opponent in self.table.opponents]

    @property
    def replaced(self) -> frozenset[int]:
        """Opponents, numbered from 1, whose weights changed after the last rollout.

        Their recurrent states are reset, because other weights computed them.
        """
        return self.table.replaced

    def finish_rollout(self, step: int, results: GameResults, weights: Any) -> Logs:
        """Count the games of a rollout, and choose the opponents of the next one.

        Args:
            step: Environment steps trained so far.
            results: Games that ended in the rollout.
            weights: The learner's current weights.

        Returns:
            Metrics to log.
        """
        mx.eval(leaves(weights))  # The pool stores arrays, not graphs.
        self.clear_replaced()
        self.table.count(results, self._elo_k)
        logs = _logs(self.table)
        self._rules.decide(self.table, self._tags, step, weights)
        return logs | {"pool/size": len(self.table.pool), "pool/swaps": self.table.swaps}

    def clear_replaced(self) -> None:
        """Clear the set of opponents whose weights changed, after a rollout."""
        self.table.replaced = frozenset()

    def state(self) -> tuple[dict[str, mx.array], dict[str, Any]]:
        """Return the league's state for a checkpoint: arrays and JSON values, by name."""
        arrays, values = save_table(self.table)
        return arrays, {**values, "rules": self._name}

    def restore(self, arrays: dict[str, mx.array], values: dict[str, Any]) -> None:
        """Restore the league's state from a checkpoint.

        Raises:
            UserError: If it was saved with other rules, assignment or policies, or is damaged.
        """
        self.table = restore_table(arrays, values, self.table, self._name)


def _logs(table: LeagueTable) -> Logs:
    """Return the self-play metrics of a league by name.

    Opponents are called banks, numbered from 0, as in PufferLib.
    """
    logs: Logs = {"env/elo": table.elo, "pool/num_banks": len(table.opponents)}
    by_name: dict[str, list[float]] = {}
    for b, opponent in enumerate(table.opponents):
        metrics = {
            "pool/winrate": opponent.winrate,
            "env/historical_winrate": opponent.winrate,  # sweeps accept only env/ metrics
            "pool/winrate_at_swap": opponent.winrate_at_swap,
            "pool/epochs_to_align": opponent.epochs_to_align,
            "pool/opponent_elo": opponent.entry.elo,
        }
        for name, value in metrics.items():
            if value is not None:
                logs[f"{name}_bank_{b}"] = value
                by_name.setdefault(name, []).append(value)
    return logs | {name: float(np.mean(values)) for name, values in by_name.items()}
