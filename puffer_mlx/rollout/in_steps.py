"""Collect rollouts on a GPU with a few kernel launches per step.

This supports policies that don't fit in one kernel, and large environments with several agents.
Each step runs the policy's compiled MLX function, with the same arithmetic as training, and then
one kernel that steps all environments (``ops/gpu/acting/environments.kernel.h``). The host submits
steps without waiting for results; all data between steps stays in GPU memory.
"""

import math
from functools import partial
from typing import Any

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import MIN_ARRAY_SIZE, constant_array, launch, placeholder
from puffer_mlx.ops.gpu.text import ENVIRONMENTS_FILE
from puffer_mlx.policy.policy import Policy
from puffer_mlx.policy.rollout_on_gpu import MAX_ELEMENTS, DeviceEnv, DeviceRollout, EnvOutputs
from puffer_mlx.rollout.act_functions import compile_act
from puffer_mlx.rollout.acting_in_mlx import concat_states, step_by_policy
from puffer_mlx.rollout.buffer import State
from puffer_mlx.rollout.policy_assignment import PolicyAssignment
from puffer_mlx.spec import EnvSpec

BLOCK_THREADS = 64  # threads per block
MAX_SPREAD_WARPS = 512  # warps among which few environments are spread; they fill a large GPU


class RolloutInSteps:
    """Runs rollouts on a GPU in a few launches per step, with the interface of ``RolloutOnGPU``.

    Args:
        policy: The acting policy.
        spec: Observations and actions of the environment.
        game: Rules of the environment for the GPU.
        precision: Type of the weights in acting and training.
        assignment: Policy of each agent in self-play; weights are then a list, one item
            per policy.
    """

    description = "in a few launches a step"

    def __init__(
        self,
        policy: Policy,
        spec: EnvSpec,
        game: DeviceEnv,
        precision: str = "",
        assignment: PolicyAssignment | None = None,
    ) -> None:
        self.game = game
        self._spec = spec
        self.acting_precision = precision or "fp32"
        act = compile_act(policy, assignment)
        if assignment is not None:
            act = step_by_policy(act, assignment.policy)
        self._step = mx.compile(partial(self._step_once, act))

    def precision(self, n: int) -> str:
        """Return the precision of the weights of the acting policy: "fp32", "bf16" or "fp16"."""
        return self.acting_precision

    def pack_weights(self, weights: Any, n: int) -> Any:
        """Return a policy's weights unchanged, as rollouts in steps need no other layout."""
        return weights

    def pack_states(self, *groups: State) -> State:
        """Concatenate the recurrent states of groups of agents, as ``launch`` takes them."""
        return concat_states([*groups], range(len(groups)))

    def unpack_state(self, states: State) -> State:
        """Return the agents' recurrent states unchanged, as rollouts in steps don't pack them."""
        return states

    def nbytes(self, horizon: int, agents: int) -> int:
        """Return a lower bound of a GPU rollout's memory, in bytes.

        It includes each row twice, as a step's output and in the stacked result, and the
        environments before and after a step.
        """
        spec = self._spec
        row_floats = 2 * spec.action.heads + 6
        row = spec.observation_size * spec.observation_dtype.itemsize + spec.mask_size
        structs = agents // self.game.agents * self.game.words
        return 2 * (horizon + 1) * agents * row + 4 * (horizon * agents * row_floats + 2 * structs)

    def fits(self, horizon: int, agents: int) -> bool:
        """Return True if a step has enough environments for Metal, and 32-bit indices suffice."""
        environments = agents // self.game.agents
        row = max(self._spec.observation_size, self._spec.mask_size)
        elements = max(agents * row, environments * self.game.words)
        return environments >= MIN_ARRAY_SIZE and elements < MAX_ELEMENTS

    def launch(
        self,
        horizon: int,
        weights: Any,
        states: State,
        noise: mx.array,
        structs: mx.array,
        arrived: EnvOutputs,
    ) -> DeviceRollout:
        """Run a GPU rollout of T steps of N agents, step by step: see ``RolloutOnGPU.launch``."""
        log = self.game.log
        end = log + self.game.logs
        # Logs begin empty in each call, because the host adds up the logs of all calls.
        columns = [structs[:, :log], mx.zeros_like(structs[:, log:end]), structs[:, end:]]
        games = mx.contiguous(mx.concatenate(columns, axis=1).T)  # (words, E)
        observations = []
        choices = []
        last = arrived
        rewards = [arrived.rewards]
        terminals = [arrived.terminals]
        masks = [arrived.masks]
        for t in range(horizon):
            step_noise = mx.take(noise, t, 0)  # doesn't copy, unlike noise[t]
            observations.append(last.observations)
            choice, states, games, outputs = self._step(weights, states, step_noise, games, last)
            mx.async_eval(choice, states, games, outputs)  # the GPU starts at once
            last = EnvOutputs(*outputs, *([None] if arrived.masks is None else []))
            choices.append(choice)
            rewards.append(last.rewards)
            terminals.append(last.terminals)
            masks.append(last.masks)
        stacked = mx.stack(choices)  # (T, heads + 2, N)
        return DeviceRollout(
            observations=mx.stack(observations),
            last_observations=last.observations,
            rewards=mx.stack(rewards),
            terminals=mx.stack(terminals),
            masks=None if arrived.masks is None else mx.stack(masks),  # type: ignore
            actions=mx.contiguous(stacked[:, :-2].swapaxes(1, 2)),
            logprobs=mx.contiguous(stacked[:, -2]),
            values=mx.contiguous(stacked[:, -1]),
            structs=mx.contiguous(games.T),
            states=states,
        )

    def _step_once(
        self, act: Any, weights: Any, states: State, noise: mx.array, games: mx.array, last: Any
    ) -> Any:
        """Compute one step of the policy and one step of all environments on the GPU.

        Args:
            act: The policy's step, from ``compile_act``.
            weights: Weights of the policy; in self-play a list, one item per policy.
            states: Recurrent states of all agents.
            noise: (N, heads), random numbers for sampling.
            games: (words, E), environment structs.
            last: ``EnvOutputs`` of the previous step.

        Returns:
            Actions with log-probabilities and values (heads + 2, N), recurrent states, environment
            structs (words, E), and the environments' outputs.
        """
        observations, _, terminals, mask = last
        chosen, states = act(weights, observations, states, noise, mask, terminals)
        games, *outputs = self._step_environments(chosen[:-2].T, games, observations, mask)
        return chosen, states, games, outputs

    def _step_environments(
        self, actions: mx.array, games: mx.array, observations: mx.array, mask: mx.array | None
    ) -> list[mx.array]:
        """Step all environments on the GPU, in one launch.

        Args:
            actions: (N, heads).
            games: (words, E), environment structs.
            observations: (N, D), observations before the step.
            mask: (N, A), legal actions before the step, or None.

        Returns:
            Structs after the step, observations, rewards, terminals, and, if used, masks.
        """
        spec = self._spec
        words, E = games.shape
        N = len(actions)
        D = spec.observation_size
        legal = max(1, spec.mask_size)
        stride = 1  # threads per environment, of which one steps it: see the kernel
        while 2 * stride <= 32 and 2 * stride * E <= 32 * MAX_SPREAD_WARPS:
            stride *= 2
        inputs = {
            "observations_before": observations,
            "masks_before": placeholder(mx.uint8) if mask is None else mask,
            "actions": actions,
            "games": games,
            "count": constant_array(*[E] * MIN_ARRAY_SIZE),
        }
        outputs = {
            "observations": (N, D),
            "rewards": (N,),
            "terminals": (N,),
            "masks": (MIN_ARRAY_SIZE,) if mask is None else (N, legal),
            "games_after": games.shape,
        }
        *rows, masks, games = launch(
            ENVIRONMENTS_FILE,
            self.game.rules,
            inputs,
            outputs,
            threads=math.ceil(E * stride / BLOCK_THREADS) * BLOCK_THREADS,
            block=BLOCK_THREADS,
            APART=stride,
            PLAYERS=self.game.agents,
            SEEN=D,
            HEADS=spec.action.heads,
            LEGAL=legal,
            WORDS=words,
            LARGE=int(self.game.exceeds_registers),
            THREADS=BLOCK_THREADS,
        )
        return [games, *rows, *([] if mask is None else [masks])]
