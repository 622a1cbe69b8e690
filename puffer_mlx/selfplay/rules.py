"""When weights join the pool, and when an opponent is replaced by whom: both releases' rules.

| | PufferLib 4.0's | 5.0's |
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

import numpy as np

from puffer_mlx.selfplay.table import Entry, Opponent, Table, draw_any, draw_by_age, thinned

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
