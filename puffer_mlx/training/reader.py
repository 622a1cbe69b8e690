"""Prepare rollouts for training: select agents, copy arrays, recompute log-probabilities."""

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

GPU_SAMPLES_PER_CALL = 2**17  # samples per call when a GPU recomputes log-probabilities


class TrainedAgents:
    """Select the agents of a rollout that are trained on, in self-play.

    By default these are the learner's agents, gathered once per epoch. Number and size of the
    minibatches are the same as without opponents.

    With ``selfplay.train_on_opponents``, all agents are trained on, as in PufferLib 5.0. Opponents'
    agents use the log-probabilities that the opponents computed, and initial recurrent states.

    Args:
        config: A valid configuration.
        assignment: Assignment of policies to agents.

    Attributes:
        rows: (n,) int32, agents to train on. If the algorithm takes agents in order, the list
            contains several cycles, so that minibatches may continue after the last agent.
    """

    def __init__(self, config: Config, assignment: PolicyAssignment) -> None:
        self._trains_opponents = config.selfplay.train_on_opponents
        self._opponents = mx.array((assignment.policy > 0).tolist())
        rows = (
            np.arange(len(assignment.policy), dtype=np.int32)
            if self._trains_opponents
            else assignment.learners
        )
        if config.facts.in_order:
            S = config.segments
            rows = np.resize(rows, min(config.minibatches * S, math.lcm(len(rows), S)))
        self.rows = rows
        self._indices = mx.array(rows)

    @property
    def count(self) -> int:
        """Number of agents that are trained on, each counted once."""
        return len(np.unique(self.rows))

    def fields(self, fields: Fields) -> Fields:
        """Return a rollout's arrays for the selected agents, (T, n, ...)."""
        T = fields["actions"].shape[0]
        return {
            name: None if array is None else take_rows(array, self._indices, T)
            for name, array in fields.items()
        }

    def final_observations(self, final_observations: np.ndarray | None) -> np.ndarray | None:
        """Return a buffer's ``final_observation_rows`` for the selected agents.

        Returns:
            Array (T + 1, n), or None if the buffer has none.
        """
        return None if final_observations is None else final_observations[:, self.rows]

    def states(self, states: Any) -> Any:
        """Return the initial recurrent states of the selected agents, from those of all agents."""
        if self._trains_opponents:
            is_opponent = self._opponents[:, None]
            states = tree_map(lambda a: mx.where(is_opponent, mx.zeros_like(a), a), states)
        return tree_map(lambda array: array[self._indices], states)

    def with_recorded_opponents(self, computed: mx.array, recorded: mx.array) -> mx.array:
        """Return log-probabilities: the recorded ones for opponents, else the computed ones.

        The learner's weights compute other log-probabilities than the opponents' weights, which
        acted.

        Args:
            computed: log-probabilities computed with the learner's weights, (T, n).
            recorded: log-probabilities recorded in the rollout, (T, n).
        """
        if not self._trains_opponents:
            return computed
        return mx.where(self._opponents[self._indices], recorded, computed)


class Reader:
    """Copy a rollout to the training device, and recompute its log-probabilities if necessary.

    Devices and types round differently, but the ratios should only show the effect of training. If
    acting used another device or type, the log-probabilities are therefore computed again on the
    training device, with the weights that acted, from the rollout's initial recurrent states.

    Args:
        gather: the function ``gather`` of ``UpdateFunctions.steps``.
        logprobs: (weights, minibatch) -> log-probabilities (T, S), compiled.
        placement: Devices that act and train.
        config: Configuration of this process.
        trained_agents: Selection of the agents to train on; None for all.

    Attributes:
        copies: True if ``copy`` is necessary.
        recomputes: True if ``recompute`` is necessary.
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
        self.recomputes = placement.needs_recompute
        # Segments per call: at least one, and more on a GPU, which needs large calls.
        self._segments = max(1, config.segments)
        if placement.learner == mx.gpu:
            self._segments = max(self._segments, GPU_SAMPLES_PER_CALL // config.train.horizon)
        self._carries = not config.base.reset_state
        # A GPU copies rollouts from the host once, instead of reading host memory repeatedly.
        self._from_host = placement.rollout != placement.learner == mx.gpu
        self.copies = bool(self._from_host or trained_agents)

    def copy(self, fields: Fields) -> Fields:
        """Return a rollout's arrays for the agents to train on, copied to the training device."""
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
        """Replace a rollout's log-probabilities (T, N) by those that training would compute.

        Args:
            fields: The rollout's arrays by name.
            weights: The weights that acted.
            states: ``first_states`` of the rollout.
            functions: Uncompiled ``gather`` and ``logprobs`` for the graph of an epoch. None to use
                the compiled ones and to start each call immediately.

        Returns:
            The rollout's arrays by name.
        """
        if not self.recomputes:
            return fields
        gather, logprobs = functions or (self._gather, self._logprobs)
        N = fields["actions"].shape[1]
        S = self._segments
        shards = []
        for begin in range(0, N, S):
            first = max(0, min(begin, N - S))  # Calls of equal size compile only once.
            with building:
                rows = mx.arange(first, min(first + S, N), dtype=mx.int32)
                shard_states = states and tree_map(lambda a, f=first: a[f : f + S], states)
                minibatch = gather(fields, rows)._replace(state=shard_states, targets=None)
                shards.append(logprobs(weights, minibatch)[:, begin - first :])
            if functions is None:
                mx.async_eval(shards[-1])
        with building:
            joined = mx.concatenate(shards, axis=1)
            if self._trained_agents is not None:
                joined = self._trained_agents.with_recorded_opponents(joined, fields["logprobs"])
            return {**fields, "logprobs": joined}

    def first_states(self, rollout: Rollout) -> Any:
        """Return the rollout's initial recurrent states (N, ...), or None when they are zeros."""
        if not self._carries:
            return None
        with building:
            states = concat_states(rollout.states, range(len(rollout.states)))
            if self._trained_agents is not None:
                states = self._trained_agents.states(states)
            return for_gpu(states) if self._from_host else states

    def acted_logprobs(self, rollout: Rollout, states: Any, minibatch: Minibatch) -> Any:
        """Return a minibatch's log-probabilities (T, S), computed with the weights that acted."""
        minibatch = minibatch._replace(state=states, targets=None)
        with building:
            return self._logprobs(rollout.weights, minibatch)
