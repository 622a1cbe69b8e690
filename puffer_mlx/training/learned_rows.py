"""Whose rows of a rollout are trained on, where opponents act for some agents.

The learner's alone: they are gathered once an epoch, before anything else looks at them, so what
opponents' rows contain changes nothing. An epoch still has as many minibatches of the same size as
without opponents, which PufferLib counts by all agents, too.

With ``selfplay.train_on_opponents`` all rows are, as PufferLib 5.0's are. The opponents' are taken
for the learner's own: with the log-probabilities that the opponents gave their actions, and (as
upstream) the initial recurrent states.
"""

import math
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.ops import take_rows
from puffer_mlx.ppo.sections import Fields
from puffer_mlx.selfplay.seats import Seats


class Learned:
    """The rows of a rollout that are trained on, in the order in which they are.

    Args:
        config: a valid configuration.
        seats: who acts for which agents.

    Attributes:
        rows: (n,) int32 of the N agents. Where minibatches are the next S agents in their order,
            again from the first one on: as many as are trained on before it repeats.
    """

    def __init__(self, config: Config, seats: Seats) -> None:
        self._everybody = config.selfplay.train_on_opponents
        self._opponents = mx.array((seats.policy > 0).tolist())
        rows = np.arange(len(seats.policy), dtype=np.int32) if self._everybody else seats.learners
        if config.facts.in_order:
            S, K = config.segments, config.minibatches
            rows = np.resize(rows, min(K * S, math.lcm(len(rows), S)))
        self.rows = rows
        self._at = mx.array(rows)

    @property
    def agents(self) -> int:
        """How many agents are trained on, L or N."""
        return len(np.unique(self.rows))

    def fields(self, fields: Fields) -> Fields:
        """A rollout's arrays of those agents, (T, n, ...)."""
        T = fields["actions"].shape[0]
        return {
            name: None if array is None else take_rows(array, self._at, T)
            for name, array in fields.items()
        }

    def finals(self, finals: np.ndarray | None) -> np.ndarray | None:
        """``RolloutBuffer.last_rows`` of those agents."""
        return None if finals is None else finals[:, self.rows]

    def states(self, states: Any) -> Any:
        """Those agents' of all agents' recurrent states (N, ...) when the rollout began."""
        if self._everybody:
            theirs = self._opponents[:, None]
            states = tree_map(lambda a: mx.where(theirs, mx.zeros_like(a), a), states)
        return tree_map(lambda array: array[self._at], states)

    def of_learner(self, computed: mx.array, recorded: mx.array) -> mx.array:
        """Numbers (T, n) that the learner's weights gave, of opponents' rows what is recorded."""
        if not self._everybody:
            return computed
        return mx.where(self._opponents[self._at], recorded, computed)
