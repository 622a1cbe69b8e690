"""Whole rollouts on a GPU as one kernel: the steps of a policy, and of the environments between.

A block of threads takes some agents through all T steps: their observations stay in the memory
that the block shares, and their environments in its threads'. So a rollout is one launch and one
wait instead of one for each half of the agents and step. ``ops/gpu/acting/rollout.kernel.h`` is the
text; the network's part of it is that of ``acting_on_gpu.py``, whose arithmetic this has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import FEWEST, launch, nothing, numbers
from puffer_mlx.ops.gpu.text import Rules
from puffer_mlx.policy.acting_on_gpu import Layout, StepOnGPU, choose_layout, step_on_gpu
from puffer_mlx.policy.networks.catalog import forms_of
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec

BLOCKS = (8, 4)  # agents of a block to choose from: for all networks within a tenth of the best
MOST_NUMBERS = 2**31  # of an array that the kernel writes: it counts in 32 bits


@dataclass(frozen=True)
class Game:
    """An environment that a GPU steps: see ``vec/native/gpu_rules.py``.

    Attributes:
        rules: its text.
        words: of its struct, 4 bytes each.
        log: words before its log.
        logs: words of its log.
    """

    rules: Rules
    words: int
    log: int
    logs: int


class Arrived(NamedTuple):
    """What agents know before they act, at one time."""

    observations: mx.array  # (N, D)
    rewards: mx.array  # (N,)
    terminals: mx.array  # (N,)
    masks: mx.array | None  # (N, A) uint8


class OneLaunch(NamedTuple):
    """What a rollout's kernel returns, the rows as in ``rollout/buffer.py``."""

    observations: mx.array  # (T, N, D): without the last ones
    last_observations: mx.array  # (N, D)
    rewards: mx.array  # (T + 1, N)
    terminals: mx.array  # (T + 1, N)
    masks: mx.array | None  # (T + 1, N, A)
    actions: mx.array  # (T, N, heads)
    logprobs: mx.array  # (T, N)
    values: mx.array  # (T, N)
    structs: mx.array  # (N, words) int32
    states: mx.array  # the network's, as ``StepOnGPU.state`` packs them


def joined(launches: Sequence[OneLaunch]) -> OneLaunch:
    """One rollout of several, each of which began with what had arrived last in the one before."""
    if len(launches) == 1:
        return launches[0]
    *before, last = launches
    shared = "rewards", "terminals", "masks"  # of T + 1 times: the last is the next one's first
    fields: dict[str, mx.array | None] = last._asdict()
    for name in (*shared, "observations", "actions", "logprobs", "values"):
        if (end := fields[name]) is not None:
            rows = [getattr(each, name) for each in before]
            fields[name] = mx.concatenate([*(r[:-1] if name in shared else r for r in rows), end])
    return OneLaunch(**fields)  # type: ignore


def rollout_on_gpu(policy: Policy, spec: EnvSpec, game: Game) -> "RolloutOnGPU | None":
    """Rollouts of a policy and an environment as one kernel.

    None where the policy has a part that no kernel knows (``step_on_gpu``), or where not even few
    agents fit into a block's shared memory.
    """
    step = step_on_gpu(policy)
    if step is None or choose_rollout_layout(policy, spec, 1) is None:
        return None
    return RolloutOnGPU(policy, step, spec, game)


def choose_rollout_layout(policy: Policy, spec: EnvSpec, n: int) -> Layout | None:
    """``choose_layout``, for a block that has a row of each agent's arrays, too."""
    step = forms_of(policy.network).gpu_step
    assert step is not None
    row = spec.observation_size * spec.observation_dtype.itemsize
    row += 4 * (spec.action.heads + 2) + max(1, spec.mask_size)
    # each of five arrays at its own alignment
    return choose_layout(policy, step, n, BLOCKS, lambda layout: layout.agents * row + 64)


class RolloutOnGPU:
    """A policy's and an environment's rollouts.

    Args:
        policy: one that ``rollout_on_gpu`` takes.
        step: its step, which packs weights and states.
        spec: what an agent sees and does.
        game: the environment.
    """

    def __init__(self, policy: Policy, step: StepOnGPU, spec: EnvSpec, game: Game) -> None:
        self.step, self.game = step, game
        self._policy, self._spec = policy, spec

    def fits(self, horizon: int, agents: int) -> bool:
        """Whether the kernel can count the numbers of such a rollout, and Metal can write them."""
        row = max(self._spec.observation_size, self._spec.mask_size)
        return agents >= FEWEST and (horizon + 1) * agents * row < MOST_NUMBERS

    def launch(
        self,
        horizon: int,
        weights: mx.array,
        states: mx.array,
        noise: mx.array,
        structs: mx.array,
        arrived: Arrived,
    ) -> OneLaunch:
        """T steps of N agents.

        Args:
            horizon: T.
            weights: as ``StepOnGPU.weights`` packs them.
            states: as ``StepOnGPU.state`` packs them.
            noise: (T, N, heads) float32, from ``distribution.noise``.
            structs: (N, words) int32, the environments.
            arrived: before the first step.
        """
        spec, game, N, T = self._spec, self.game, len(structs), horizon
        layout = choose_rollout_layout(self._policy, spec, N)
        assert layout is not None
        masked, legal = arrived.masks is not None, max(1, spec.mask_size)
        heads, D = spec.action.heads, spec.observation_size
        gpu_step = forms_of(self._policy.network).gpu_step
        assert gpu_step is not None
        outputs = launch(
            gpu_step.layers,
            game.rules,
            {
                "first_observations": arrived.observations,
                "first_rewards": arrived.rewards,
                "first_terminals": arrived.terminals,
                "first_masks": nothing(mx.uint8) if arrived.masks is None else arrived.masks,
                "games": structs,
                "states_before": states,
                "all_noise": noise,
                "weights": weights,
                "sizes": self.step.sizes(layout, N, weights.size, masked, copied=True),
                "horizon": numbers(*[T] * FEWEST),
            },
            {
                "all_observations": (T, N, D),
                "last_observations": (N, D),
                "all_rewards": (T + 1, N),
                "all_terminals": (T + 1, N),
                "all_masks": (T + 1, N, legal) if masked else (FEWEST,),
                "all_actions": (T, N, heads),
                "all_logprobs": (T, N),
                "all_values": (T, N),
                "games_after": structs.shape,
                "after": states.shape,
            },
            **layout.launch(N),
            SEEN=D,
            HEADS=heads,
            LEGAL=legal,
            WORDS=game.words,
            LOG=game.log,
            LOGS=game.logs,
        )
        observations, last, rewards, terminals, masks, *others = outputs
        return OneLaunch(observations, last, rewards, terminals, masks if masked else None, *others)
