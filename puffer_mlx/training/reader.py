"""Prepare a rollout for the learner: select its agents, copy it, recompute log-probabilities."""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.config import Config
from puffer_mlx.ops import take_rows
from puffer_mlx.ppo.sections import Fields, Minibatch
from puffer_mlx.rollout.acting_in_mlx import concat_states
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.system.devices import building, for_gpu
from puffer_mlx.training.collector import Rollout
from puffer_mlx.training.placement import Placement

AT_ONCE = 2**17  # samples per call when a GPU recomputes log-probabilities


class TrainedAgents:
    """Select the agents of a rollout that are trained on, in self-play.

    By default these are the learner's agents. They are gathered once per epoch, so the opponents'
    rows have no effect. Number and size of the minibatches are the same as without opponents.

    With ``selfplay.train_on_opponents`` all agents are trained on, as in PufferLib 5.0. Opponents'
    rows use the log-probabilities that the opponents computed, and initial recurrent states.

    Args:
        config: A valid configuration.
        assignment: Assignment of policies to agents.

    Attributes:
        rows: (n,) int32, agents to train on. If minibatches take the agents in order, the list is
            repeated until minibatches would repeat.
    """

    def __init__(self, config: Config, assignment: PolicyAssignment) -> None:
        self._everybody = config.selfplay.train_on_opponents
        self._opponents = mx.array((assignment.policy > 0).tolist())
        rows = (
            np.arange(len(assignment.policy), dtype=np.int32)
            if self._everybody
            else assignment.learners
        )
        if config.facts.in_order:
            S = config.segments
            rows = np.resize(rows, min(config.minibatches * S, math.lcm(len(rows), S)))
        self.rows = rows
        self._at = mx.array(rows)

    @property
    def count(self) -> int:
        """Number of agents that are trained on, L or N."""
        return len(np.unique(self.rows))

    def fields(self, fields: Fields) -> Fields:
        """Return a rollout's arrays for the selected agents, (T, n, ...)."""
        T = fields["actions"].shape[0]
        return {
            name: None if array is None else take_rows(array, self._at, T)
            for name, array in fields.items()
        }

    def final_observations(self, final_observations: np.ndarray | None) -> np.ndarray | None:
        """Return ``RolloutBuffer.last_rows`` for the selected agents, (T + 1, n), or None."""
        return None if final_observations is None else final_observations[:, self.rows]

    def states(self, states: Any) -> Any:
        """Select the agents' initial recurrent states of a rollout from those of all N agents."""
        if self._everybody:
            theirs = self._opponents[:, None]
            states = tree_map(lambda a: mx.where(theirs, mx.zeros_like(a), a), states)
        return tree_map(lambda array: array[self._at], states)

    def of_learner(self, computed: mx.array, recorded: mx.array) -> mx.array:
        """Return ``computed`` (T, n), with ``recorded`` in the rows of opponents."""
        if not self._everybody:
            return computed
        return mx.where(self._opponents[self._at], recorded, computed)


class Reader:
    """Copy a rollout to the training device, and recompute its log-probabilities if necessary.

    Devices and types round differently, but the policy's ratios should only show the effect of
    training. If another device or type acted, the weights that acted therefore compute the
    log-probabilities again on the training device, from the rollout's initial recurrent states.

    Args:
        gather: the function ``gather`` of ``UpdateFunctions.steps``.
        logprobs: (weights, minibatch) -> log-probabilities (T, S), compiled.
        placement: Devices that act and train.
        config: Configuration. Sets the segments per call, and if rollouts start from initial
            recurrent states.
        trained_agents: Selection of the agents to train on; None for all.

    Attributes:
        copies: True if ``copy`` does anything.
        away: True if ``recompute`` does anything.
    """

    def __init__(
        self,
        gather: Callable[..., Any],
        logprobs: Callable[..., Any],
        placement: Placement,
        config: Config,
        trained_agents: TrainedAgents | None = None,
    ) -> None:
        self._gather = gather
        self._logprobs = logprobs
        self._trained_agents = trained_agents
        self.away = placement.needs_recompute
        # Shuffled minibatches may be smaller than a segment. A GPU needs large calls.
        self._segments = max(1, config.segments)
        if placement.learner == mx.gpu:
            self._segments = max(self._segments, AT_ONCE // config.train.horizon)
        self._carries = not config.base.reset_state
        # The GPU copies rollouts of the host once, instead of reading host memory.
        self._from_host = placement.rollout != placement.learner == mx.gpu
        self.copies = bool(self._from_host or trained_agents)

    def copy(self, fields: Fields) -> Fields:
        """Return a rollout's arrays for the agents to train on, in the training device's memory."""
        with building:
            fields = for_gpu(fields) if self._from_host else fields
            return fields if self._trained_agents is None else self._trained_agents.fields(fields)

    def recompute(
        self,
        fields: Fields,
        weights: Any,
        states: Any,
        functions: tuple[Callable[..., Any], Callable[..., Any]] | None = None,
    ) -> Fields:
        """Return a rollout's arrays with log-probabilities (T, N) as training computes them.

        Args:
            fields: The rollout's arrays by name.
            weights: The weights that acted.
            states: ``first_states`` of the rollout.
            functions: ``gather`` and ``logprobs``, not compiled, in the graph of an epoch. Outside
                a graph the GPU starts each part at once.
        """
        if not self.away:
            return fields
        gather, logprobs = functions or (self._gather, self._logprobs)
        N = fields["actions"].shape[1]
        S = self._segments
        parts = []
        for begin in range(0, N, S):
            first = max(0, min(begin, N - S))  # Equal sizes avoid another compilation.
            with building:
                rows = mx.arange(first, min(first + S, N), dtype=mx.int32)
                part = states and tree_map(lambda a, f=first: a[f : f + S], states)
                minibatch = gather(fields, rows)._replace(state=part, targets=None)
                parts.append(logprobs(weights, minibatch)[:, begin - first :])
            if functions is None:
                mx.async_eval(parts[-1])
        with building:
            joined = mx.concatenate(parts, axis=1)
            if self._trained_agents is not None:
                joined = self._trained_agents.of_learner(joined, fields["logprobs"])
            return {**fields, "logprobs": joined}

    def first_states(self, rollout: Rollout) -> Any:
        """Return the rollout's initial recurrent states (N, ...), or None if they are zeros."""
        if not self._carries:
            return None
        with building:
            states = concat_states(rollout.states, range(len(rollout.states)))
            if self._trained_agents is not None:
                states = self._trained_agents.states(states)
            return for_gpu(states) if self._from_host else states

    def behaviour(self, rollout: Rollout, states: Any, minibatch: Minibatch) -> Any:
        """Return log-probabilities (T, S) of a minibatch, computed by the weights that acted."""
        minibatch = minibatch._replace(state=states, targets=None)
        with building:
            return self._logprobs(rollout.weights, minibatch)
