"""A rollout as the learner reads it, whatever device and policies acted."""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.ops import take_rows
from puffer_mlx.ppo.sections import Fields
from puffer_mlx.rollout.acting_in_mlx import joined
from puffer_mlx.rollout.seats import Seats
from puffer_mlx.system.devices import building, for_gpu
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.placement import Placement

AT_ONCE = 2**17  # samples whose log-probabilities a GPU computes again at a time


class Learned:
    """The rows of a rollout that are trained on, where opponents act for some agents; in order.

    The learner's alone: they are gathered once an epoch, before anything else looks at them, so
    what opponents' rows contain changes nothing. An epoch still has as many minibatches of the same
    size as without opponents, which PufferLib counts by all agents, too.

    With ``selfplay.train_on_opponents`` all rows are, as PufferLib 5.0's are. The opponents' are
    taken for the learner's own: with the log-probabilities that the opponents gave their actions,
    and (as upstream) the initial recurrent states.

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
        """Those agents' recurrent states when the rollout began, from all agents' (N, ...)."""
        if self._everybody:
            theirs = self._opponents[:, None]
            states = tree_map(lambda a: mx.where(theirs, mx.zeros_like(a), a), states)
        return tree_map(lambda array: array[self._at], states)

    def of_learner(self, computed: mx.array, recorded: mx.array) -> mx.array:
        """Numbers (T, n) by the learner's weights; for opponents' rows the recorded ones."""
        if not self._everybody:
            return computed
        return mx.where(self._opponents[self._at], recorded, computed)


class Reader:
    """Two steps before the minibatches, where another device or another type acted.

    Devices and types round differently, and the policy's ratios should tell what training changed.
    So log-probabilities of such a rollout are computed again, by the weights that acted, from the
    recurrent states that it began with.

    Args:
        gather: ``UpdateFunctions.gather``.
        logprobs: (weights, *inputs, states) -> log-probabilities (T, S), compiled.
        placement: the devices that act and train.
        config: of which a minibatch's segments count, which are recomputed at a time, and whether
            every rollout begins from the initial states.
        learned: whose rows are trained on; None: all agents'.
    """

    def __init__(
        self,
        gather: Callable[..., Any],
        logprobs: Callable[..., Any],
        placement: Placement,
        config: Config,
        learned: Learned | None = None,
    ) -> None:
        self._gather, self._logprobs, self._learned = gather, logprobs, learned
        self._away = placement.away
        # shuffled samples may be fewer than a segment; a GPU is told little, and computes a lot
        self._segments = max(1, config.segments)
        if placement.learner == mx.gpu:
            self._segments = max(self._segments, AT_ONCE // config.train.horizon)
        self._carries = not config.base.reset_state
        # Whether rollouts are the host's, which this device reads best after one copy.
        self._from_host = placement.rollout != placement.learner == mx.gpu

    @property
    def is_noop(self) -> bool:
        """True if a rollout is trained on as it is."""
        return not (self._away or self._from_host or self._learned)

    def copy(self, fields: Fields) -> Fields:
        """A rollout's arrays of the agents that are trained on.

        Where the learner's device reads them fastest.
        """
        with building:
            fields = for_gpu(fields) if self._from_host else fields
            return fields if self._learned is None else self._learned.fields(fields)

    def recompute(self, fields: Fields, rollout: Rollout) -> Fields:
        """A rollout's arrays with log-probabilities (T, N) as training computes them."""
        if not self._away:
            return fields
        N, S = fields["actions"].shape[1], self._segments
        states, parts = self.first_states(rollout), []
        for begin in range(0, N, S):
            first = max(0, min(begin, N - S))  # equal sizes: other ones are compiled again
            with building:
                rows = mx.arange(first, min(first + S, N), dtype=mx.int32)
                part = _of_agents(states, slice(first, first + S))
                inputs = self._gather(fields, rows)
            logprobs = self.behaviour(rollout, part, inputs)
            with building:
                parts.append(logprobs[:, begin - first :])
            mx.async_eval(parts[-1])
        with building:
            logprobs = mx.concatenate(parts, axis=1)
            if self._learned is not None:
                logprobs = self._learned.of_learner(logprobs, fields["logprobs"])
            return {**fields, "logprobs": logprobs}

    def first_states(self, rollout: Rollout) -> Any:
        """Recurrent states (N, ...) of the agents when the rollout began; None: the first."""
        if not self._carries:
            return None
        with building:
            states = joined(rollout.start.states, range(len(rollout.start.states)))
            if self._learned is not None:
                states = self._learned.states(states)
            return for_gpu(states) if self._from_host else states

    def behaviour(self, rollout: Rollout, states: Any, minibatch: tuple) -> Any:
        """Log-probabilities (T, S) of rows by the weights that acted, from the rows' states."""
        with building:
            return self._logprobs(rollout.start.weights, *minibatch, states)


def _of_agents(states: Any, agents: slice) -> Any:
    """Views of some agents' states; None stays None."""
    return None if states is None else tree_map(lambda state: state[agents], states)
