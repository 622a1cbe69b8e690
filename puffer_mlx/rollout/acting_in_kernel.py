"""Act on a GPU with one kernel launch per step and half of the agents, without copies.

The kernel (``policy/acting_on_gpu.py``) reads observations from the memory that environments write,
and writes actions, log-probabilities and values to the rollout's memory. All launch arguments are
prepared before the rollout.

In self-play several policies act in the same launch: their weights are one array, and each block of
agents uses the weights of one policy (``blocks_of_agents``).
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from puffer_mlx.ops.pack import pack_arrays
from puffer_mlx.policy.acting_on_gpu import PolicyBlocks, StepOnGPU
from puffer_mlx.profiling.phases import PhaseTimer
from puffer_mlx.rollout.acting_in_mlx import Streams, run_pipelined, shards_for_gpu, split_states
from puffer_mlx.rollout.buffer import RolloutBuffer, State
from puffer_mlx.rollout.policy_assignment import PolicyAssignment, WeightCache
from puffer_mlx.system.backend import kernel_substitute
from puffer_mlx.system.devices import building, unified
from puffer_mlx.vec.base import VecEnv

UNWRITTEN_LOGPROB = 12345.0  # value of a log-probability that isn't written yet


class ActingInKernel:
    """Collects rollouts in which a GPU kernel acts, by one launch per step: a ``RolloutBackend``.

    One half of the agents acts while the environments of the other half step.

    Args:
        kernel: Kernel of the policy's step, with float32 weights.
        streams: Returns the GPU's stream. Called in the thread that collects.
        timer: Measures the phases ``eval_copy_in``, ``eval_act`` (acting) and ``eval_env`` (waiting
            for environments).
        assignment: Policy of each agent in self-play. Weights are then a list: the
            learner's and each opponent's.

    Attributes:
        act: The kernel launch, compiled by ``mx.compile`` to build its graph without Python.
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
        self._blocks: dict[int, list[PolicyBlocks]] = {}  # of each shard, by number of shards
        self._packed_weights = WeightCache(kernel.pack_weights)
        self.act = mx.compile(kernel.act)

    def collect(
        self,
        buffer: RolloutBuffer,
        environments: VecEnv,
        weights: Any,
        states: list[State],
        noise: mx.array,
    ) -> list[State]:
        """Collect a rollout that acts by a GPU kernel: see ``RolloutBackend.collect``."""
        kernel = self._kernel
        timer = self._timer
        stream = self._streams()[0]
        T = buffer.horizon
        Q = len(buffer.groups)
        P = shards_for_gpu(Q)
        groups = buffer.groups_of(P)
        if not unified():
            buffer.keep_device_copy()
        arguments = [[arrays[:-1] for arrays in row] for row in buffer.step_arrays(P)]
        with building, mx.stream(stream):
            blocks = self._policy_blocks(P)
            packed = self._weights(weights)
            shard_states = []
            for indices, shard_blocks in zip(groups, blocks, strict=True):
                by_rows = kernel.pack_states(*(states[g] for g in indices))
                shard_states.append(kernel.to_slots(by_rows, shard_blocks))
            noises = mx.split(noise.reshape(-1, noise.shape[-1]), T * P)  # views
        mx.eval(packed, shard_states, noises)
        block_rows = [None if each is None else each.block_rows for each in blocks]
        buffer.views.logprobs[0, 0] = UNWRITTEN_LOGPROB
        timer.lap("eval_copy_in")

        def begin(t: int, shard: int) -> Any:
            state = shard_states[shard]
            step_noise = noises[t * P + shard]
            with building, mx.stream(stream):
                shard_states[shard] = self.act(
                    packed, state, step_noise, *arguments[t][shard], block_rows[shard]
                )
            mx.async_eval(shard_states[shard])
            return shard_states[shard]

        run_pipelined(buffer.steps(environments, P), groups, timer, begin)
        # A kernel that writes to a copy of the memory leaves the first element unwritten. Tests may
        # replace the kernel by a function that writes nothing.
        if buffer.views.logprobs[0, 0] == UNWRITTEN_LOGPROB and kernel_substitute() is None:
            raise RuntimeError("MLX copied the rollout's memory, so the chosen actions are lost")
        with building, mx.stream(stream):
            after = []
            for by_slots, shard_blocks in zip(shard_states, blocks, strict=True):
                by_rows = kernel.to_rows(by_slots, shard_blocks)
                after += split_states(kernel.unpack_state(by_rows), Q // P)
        mx.eval(after)
        timer.lap("eval_env")
        return after

    def _policy_blocks(self, shards: int) -> Sequence[PolicyBlocks | None]:
        """Return the thread blocks by policy for each shard of the agents, cached.

        Without self-play, None for each shard.
        """
        if self._assignment is None:
            return [None] * shards
        if shards not in self._blocks:
            policies = np.split(self._assignment.policy, shards)
            agents = self._kernel.agents_per_block(len(policies[0]))
            self._blocks[shards] = [blocks_of_agents(each, agents) for each in policies]
        return self._blocks[shards]

    def _weights(self, weights: Any) -> mx.array:
        """Pack the weights of all policies for the GPU kernel, cached per policy."""
        if self._assignment is None:
            return self._kernel.pack_weights(weights)
        packed = self._packed_weights(weights)
        return pack_arrays(packed)[0].reshape(len(packed), -1)


def blocks_of_agents(policies: np.ndarray, agents: int) -> PolicyBlocks:
    """Divide agents into thread blocks, such that one policy plays all agents of a block.

    Args:
        policies: (n,), policy of each agent. A policy may have no agents.
        agents: Number of agents per block.
    """
    return blocks_of_games(policies[:, None], agents)


def blocks_of_games(policies: np.ndarray, games: int) -> PolicyBlocks:
    """Divide environments ("games") of S agents into blocks in which the same policies play.

    For each block of games there are S policy blocks: block i contains agent i of each game.

    Args:
        policies: (E, S), policy of each agent; the agents of a game are contiguous.
        games: Number of games per block.

    Returns:
        The policy blocks; the S blocks of a block of games are adjacent.
    """
    S = policies.shape[1]
    lineups, indices = np.unique(policies, axis=0, return_inverse=True)
    blocks = []
    for index, lineup in enumerate(lineups):
        members = np.flatnonzero(indices.reshape(-1) == index)
        missing = -len(members) % games  # copies of the last game fill the last block
        in_blocks = np.pad(members, (0, missing), mode="edge").reshape(-1, 1, games)
        rows = S * in_blocks + np.arange(S)[:, None]  # (blocks, S, games)
        policy = np.broadcast_to(lineup[:, None], (len(rows), S, 1))
        blocks.append(np.concatenate([policy, rows], axis=2).reshape(-1, 1 + games))
    block_rows = np.concatenate(blocks).astype(np.int32)
    rows_of_slots = block_rows[:, 1:].reshape(-1)
    slots_of_rows = np.empty(policies.size, np.int32)
    slots_of_rows[rows_of_slots] = np.arange(len(rows_of_slots))
    return PolicyBlocks(mx.array(block_rows), mx.array(rows_of_slots), mx.array(slots_of_rows))
