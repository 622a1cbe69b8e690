"""Act on a GPU with one kernel: one launch per step and half of the agents, without copies.

The kernel (``policy/acting_on_gpu.py``) reads observations where the environments wrote them, and
writes actions, log-probabilities and values to the rollout's memory. All launch arguments are
prepared before the rollout.

Several policies act in the same launch: their weights are one array, and each block of agents
uses the weights of one policy (``crews_of``).
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.ops.pack import pack
from puffer_mlx.policy.acting_on_gpu import PolicyBlocks, StepOnGPU
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting_in_mlx import Streams, few_parts, run_pipelined, split_states
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.policy_assignment import PolicyAssignment, WeightCache
from puffer_mlx.system.backend import kernel_substitute
from puffer_mlx.system.devices import building, unified
from puffer_mlx.vec.base import VecEnv

UNTOUCHED = 12345.0  # a log-probability that no action has


class ActingInKernel:
    """Act for one half of the agents while the environments of the other half step.

    Args:
        kernel: Kernel of the policy's step, with float32 weights.
        streams: Returns the GPU's stream. Called in the thread that collects.
        timer: Measures the phases ``eval_copy_in``, ``eval_act`` (acting) and ``eval_env`` (waiting
            for environments).
        assignment: Assignment of policies to agents in self-play. Weights are then a list: the
            learner's and each opponent's.

    Attributes:
        act: The kernel launch, compiled by ``mx.compile`` so that MLX builds the graph without
            Python.
    """

    in_c = False

    def __init__(
        self,
        kernel: StepOnGPU,
        streams: Streams,
        timer: PhaseTimer,
        assignment: PolicyAssignment | None = None,
    ) -> None:
        self._kernel = kernel
        self._streams = streams
        self._timer = timer
        self._assignment = assignment
        self._crews: dict[int, list[PolicyBlocks]] = {}  # policy blocks, by number of parts
        self._packed = WeightCache(kernel.weights)
        self.act = mx.compile(kernel.act)

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: VecEnv,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """See ``RolloutBackend``."""
        kernel = self._kernel
        timer = self._timer
        stream = self._streams()[0]
        T = buffer.horizon
        Q = len(buffer.groups)
        P = few_parts(Q)
        groups = buffer.groups_of(P)
        if not unified():
            buffer.enable_device_copy()
        given = [[part[:-1] for part in row] for row in buffer.parts(P)]
        with building, mx.stream(stream):
            crews = self._crews_of(P)
            packed = self._weights(weights)
            held = [kernel.state(*(states[g] for g in of)) for of in groups]
            held = [kernel.in_blocks(*each) for each in zip(held, crews, strict=True)]
            noises = mx.split(noise.reshape(-1, noise.shape[-1]), T * P)  # views
        mx.eval(packed, held, noises)
        block_rows = [None if each is None else each.block_rows for each in crews]
        buffer.views.logprobs[0, 0] = UNTOUCHED
        timer.lap("eval_copy_in")

        def begin(t: int, p: int) -> Any:
            with building, mx.stream(stream):
                held[p] = self.act(packed, held[p], noises[t * P + p], *given[t][p], block_rows[p])
            mx.async_eval(held[p])
            return held[p]

        run_pipelined(buffer.steps(environments, P), groups, timer, begin)
        # A substitute need not write.
        if buffer.views.logprobs[0, 0] == UNTOUCHED and kernel_substitute() is None:
            raise RuntimeError("MLX copied the rollout's memory, so what was chosen is lost")
        with building, mx.stream(stream):
            rows = (kernel.by_rows(*each) for each in zip(held, crews, strict=True))
            parts = (kernel.state_after(packed_state) for packed_state in rows)
            after = [each for state in parts for each in split_states(state, Q // P)]
        mx.eval(after)
        timer.lap("eval_env")
        return after

    def _crews_of(self, parts: int) -> Sequence[PolicyBlocks | None]:
        """Return the policy blocks of each part, or None for each if one policy acts."""
        if self._assignment is None:
            return [None] * parts
        if parts not in self._crews:
            of_parts = np.split(self._assignment.policy, parts)
            agents = self._kernel.block(len(of_parts[0]))
            self._crews[parts] = [crews_of(policies, agents) for policies in of_parts]
        return self._crews[parts]

    def _weights(self, weights: Any) -> mx.array:
        """Return all weights in the kernel's layout, cached per policy."""
        if self._assignment is None:
            return self._kernel.weights(weights)
        each = self._packed(weights)
        return pack(each)[0].reshape(len(each), -1)


def crews_of(policies: np.ndarray, agents: int) -> PolicyBlocks:
    """Divide agents into blocks, such that one policy acts in each block.

    Args:
        policies: (n,), policy of each agent. A policy may have no agents.
        agents: Number of agents per block.
    """
    return crews_of_games(policies[:, None], agents)


def crews_of_games(policies: np.ndarray, games: int) -> PolicyBlocks:
    """Divide games of S agents into blocks of games with the same policies.

    Args:
        policies: (E, S), policy of each agent; the agents of a game are contiguous.
        games: Number of games per block.

    Returns:
        Policy blocks. Each block of games has S of them, one per agent of a game.
    """
    S = policies.shape[1]
    alike, kinds = np.unique(policies, axis=0, return_inverse=True)
    crews = []
    for kind, acting in enumerate(alike):
        chosen = np.flatnonzero(kinds.reshape(-1) == kind)  # the last one as often as it takes
        filled = np.pad(chosen, (0, -len(chosen) % games), mode="edge").reshape(-1, 1, games)
        rows = S * filled + np.arange(S)[:, None]  # (blocks, S, games)
        who = np.broadcast_to(acting[:, None], (len(rows), S, 1))
        crews.append(np.concatenate([who, rows], axis=2).reshape(-1, 1 + games))
    block_rows = np.concatenate(crews).astype(np.int32)
    order = block_rows[:, 1:].reshape(-1)
    back = np.empty(policies.size, np.int32)
    back[order] = np.arange(len(order))
    return PolicyBlocks(mx.array(block_rows), mx.array(order), mx.array(back))
