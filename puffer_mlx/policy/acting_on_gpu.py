"""A rollout's step on a GPU as one kernel: encoder, layers, decoder, choice.

Through MLX a step is some 25 operations, each of which costs the host more than the GPU. The kernel
is that of ``ops/gpu/acting`` around the network's layers (``layers.metal.h`` in its folder). It
computes what ``Policy.act`` does, in float32.

What stays the same during a rollout is made once: the weights are one array, whose products are
transposed, and so are all the arrays of the network's state.

One launch can also serve several policies of the same shapes: each block of agents reads its
policy's weights, and recurrent states are stored in the order of the blocks (``PolicyBlocks``).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from puffer_mlx.ops import verification
from puffer_mlx.ops.gpu.launch import FEWEST, SHARED_BYTES, launch, nothing, numbers
from puffer_mlx.ops.implementation import implementation
from puffer_mlx.ops.pack import pack
from puffer_mlx.policy.decoders import Fused, Separate
from puffer_mlx.policy.encoders.catalog import encoder_activation
from puffer_mlx.policy.networks import GPUStep
from puffer_mlx.policy.networks.catalog import forms_of
from puffer_mlx.policy.policy import Policy, acting_of
from puffer_mlx.system.backend import backend
from puffer_mlx.trees import leaves

Weights = Any  # a tree of mx.array
State = Any  # a tree of mx.array

WIDEST = 256  # H; beyond it MLX's products take less time than the launches that they cost
TOGETHER = 4  # agents that a thread computes a channel for, R
BLOCKS = (16, 8, 4)  # agents of a block to choose from
ENOUGH_BLOCKS = 128  # that keep a large GPU's cores busy
SEEN = 128  # numbers of an observation that are in shared memory at a time, if H isn't more


@dataclass(frozen=True)
class Layout:
    """Division of a block's threads and shared memory."""

    agents: int
    chunk: int  # numbers of an observation at a time
    room: int  # in shared memory, numbers of ``TOGETHER`` agents each
    threads: int

    def launch(self, n: int) -> dict[str, int]:
        """Threads of a launch for n agents, and those numbers of the text's template."""
        return {
            "threads": -(-n // self.agents) * self.threads,
            "block": self.threads,
            "R": TOGETHER,
            "GROUPS": self.agents // TOGETHER,
            "THREADS": self.threads,
            "ROOM": self.room,
        }


def layout(policy: Policy, step: GPUStep, agents: int) -> Layout:
    """That of a policy, for so many agents in a block."""
    D, H, A = policy.encoder.inputs, policy.network.hidden, policy.decoder.action.logits  # type: ignore
    chunk, groups = min(D, max(H, SEEN)), agents // TOGETHER
    width = A + 1 + H + max(chunk, H) + step.memory * H + TOGETHER  # for sums over features, too
    threads = min(256, max(64, -(-H * groups // 32) * 32))
    return Layout(agents, chunk, groups * width, threads)


def choose_layout(
    policy: Policy,
    step: GPUStep,
    n: int,
    blocks: Sequence[int] = BLOCKS,
    further: Callable[[Layout], int] = lambda layout: 0,
    most: int = SHARED_BYTES,
) -> Layout | None:
    """That for n agents: many in a block, if there are many; None if nothing fits on any GPU.

    ``further``: bytes of shared memory that a block needs besides. ``most``: that it may have.
    """
    layouts = [layout(policy, step, agents) for agents in blocks]
    fitting = [each for each in layouts if 16 * each.room + further(each) <= most]
    enough = (each for each in fitting if each.agents * ENOUGH_BLOCKS <= n)
    return next(enough, fitting[-1] if fitting else None)


class PolicyBlocks(NamedTuple):
    """Assignment of n agents to blocks, each of which one policy acts for.

    A policy's last block is padded by repeating its last row, so there can be more slots than rows.
    """

    seats: mx.array  # (blocks, 1 + agents of a block) int32: a policy's number, and its rows
    order: mx.array  # (slots,) int32: each slot's row
    back: mx.array  # (n,) int32: a slot of each row


def step_on_gpu(policy: Policy) -> "StepOnGPU | None":
    """The policy's step as one kernel.

    None where it has a part that no kernel knows (images, activations but GELU, values with a
    network of their own, classes of the user's own), is wider than pays (``WIDEST``), or where not
    even few agents fit into a block's shared memory. It acts through MLX then.
    """
    step = forms_of(policy.network).gpu_step
    if step is None or not step.fits(policy.network) or policy.separate_value:
        return None
    if encoder_activation(policy.encoder) not in ("", "gelu"):
        return None
    if type(policy.decoder) not in (Fused, Separate):
        return None
    if policy.network.hidden > WIDEST or choose_layout(policy, step, 1) is None:
        return None
    unchanged = ON_GPU.unchanged(*acting_of(policy), report=backend() != "cpu")
    return StepOnGPU(policy, step) if unchanged and not ON_GPU.is_refused else None


def agrees(policy: Policy, step: "StepOnGPU", agents: int) -> bool:
    """Return True if the kernel acts as plain MLX does; this is verified once on a machine.

    Args:
        policy: the acting policy.
        step: the policy's kernel.
        agents: number of agents; at most 64 are compared.
    """
    if not verification.applies():
        return True
    n = min(agents, 64)
    keys = mx.random.split(mx.random.key(0), 5)
    noise = policy.distribution.noise(keys[0], (n,))
    observations = mx.random.normal((n, policy.encoder.inputs), key=keys[1])  # type: ignore
    state = tree_map(
        lambda a: mx.random.uniform(shape=a.shape, key=keys[2]), policy.initial_state(n)
    )
    terminals = (mx.random.uniform(shape=(n,), key=keys[3]) < 0.25).astype(mx.float32)

    def act(weights: Weights, *given: Any) -> list[mx.array]:
        if ON_GPU.choose(*acting_of(policy)) is None:
            seen, before, drawn, ended = given
            *chosen, after = policy.act(weights, seen, before, drawn, None, policy.keep(ended))
            return [*chosen, *leaves(after)]
        actions, logprobs, values = mx.zeros(noise.shape), mx.zeros(n), mx.zeros(n)
        mx.eval(actions, logprobs, values)  # memory that the kernel fills
        packed, held = step.weights(weights), step.state(state)
        arrived = observations, None, terminals
        after = step.act(packed, held, noise, *arrived, actions, logprobs, values, None)
        mx.eval(after)
        return [actions, logprobs, values, *leaves(step.state_after(after))]

    given = policy.init(keys[4]), observations, state, noise, terminals
    verification.verified(act, context=f"act {policy}", draws=True).verify(given)
    return not ON_GPU.is_refused


class StepOnGPU:
    """A policy's step, and what it takes of weights and of states.

    Args:
        policy: one that ``step_on_gpu`` takes.
        step: its network's kernel.
    """

    def __init__(self, policy: Policy, step: GPUStep) -> None:
        self._policy, self._step = policy, step
        self._names = [name for name, _ in tree_flatten(policy.initial_state(1))]  # type: ignore

    def block(self, n: int) -> int:
        """Return the number of agents per block for n agents."""
        layout = choose_layout(self._policy, self._step, n)
        assert layout is not None
        return layout.agents

    def weights(self, weights: Weights) -> mx.array:
        """What ``act`` takes of the policy's weights: (size,), as the kernel finds them."""
        policy = self._policy
        action, H = policy.decoder.action, policy.network.hidden
        encoder, decoder = weights["encoder"], weights["decoder"]
        heads = (
            [decoder] if type(policy.decoder) is Fused else [decoder["actions"], decoder["value"]]
        )
        zeros = functools.partial(nothing, mx.float32)
        arrays = [encoder["weight"].T, encoder.get("bias", zeros(H))]
        arrays.append(mx.concatenate([head["weight"] for head in heads]).T)
        arrays += [head.get("bias", zeros(len(head["weight"]))) for head in heads]
        logstd = policy.decoder.logstd(decoder)
        arrays.append(zeros(action.heads) if logstd is None else logstd)
        arrays += self._step.weights(weights["network"])
        arrays.append(zeros(FEWEST))  # so that there are no fewer
        return pack([array.reshape(-1) for array in arrays])[0]

    def state(self, *groups: State) -> mx.array:
        """What ``act`` takes of the network's states of groups of agents: one array.

        (arrays of a state, n, H), n agents of all groups.
        """
        arrays = [array for parts in zip(*map(leaves, groups), strict=True) for array in parts]
        shape = len(self._names), -1, self._policy.network.hidden
        return pack(arrays)[0].reshape(shape) if arrays else nothing(mx.float32)

    def in_blocks(self, states: mx.array, crews: PolicyBlocks | None) -> mx.array:
        """What ``act`` takes with these crews of what ``state`` made: (arrays, slots, H)."""
        return mx.take(states, crews.order, axis=1) if crews and self._names else states

    def by_rows(self, states: mx.array, crews: PolicyBlocks | None) -> mx.array:
        """The inverse of ``in_blocks``."""
        return mx.take(states, crews.back, axis=1) if crews and self._names else states

    def state_after(self, states: mx.array) -> State:
        """The network's state of what ``act`` returned, by rows."""
        arrays = mx.split(states, len(self._names)) if self._names else []
        pairs = zip(self._names, arrays, strict=True)
        return tree_unflatten([(name, array.squeeze(0)) for name, array in pairs])

    def act(
        self,
        weights: mx.array,
        states: mx.array,
        noise: mx.array,
        observations: mx.array,
        mask: mx.array | None,
        terminals: mx.array,
        actions: mx.array,
        logprobs: mx.array,
        values: mx.array,
        seen: mx.array | None,
        seats: mx.array | None = None,
        layout: Layout | None = None,
    ) -> mx.array:
        """Choose actions for one step of n agents, in one launch.

        Args:
            weights: what ``weights`` made; with ``seats`` those of policy 0, 1, ..., (P, size).
            states: what ``state`` made (with ``seats``: ``in_blocks``), or this returned for the
                step before.
            noise: (n, heads) float32, from ``distribution.noise``.
            observations: (n, D) float32 or uint8.
            mask: (n, A) uint8, non-zero where legal, or None.
            terminals: (n,) float32, 1 where the state is to be forgotten, if the policy does.
            actions: (n, heads) float32. This one and those below are memory that the kernel fills,
                though to MLX they are inputs: evaluated and contiguous, and nobody reads them
                before what this returns is evaluated.
            logprobs: (n,) float32.
            values: (n,) float32.
            seen: (n, D), a copy of the observations; None if it isn't wanted.
            seats: ``PolicyBlocks.seats`` for blocks of ``block(n)`` agents; None if one policy acts
                for all agents.
            layout: of the launch; None is the best one.

        Returns:
            The next states.
        """
        n = len(observations)
        layout = layout or choose_layout(self._policy, self._step, n)
        assert layout is not None
        if seats is not None:
            blocks, numbers_of_block = seats.shape
            assert numbers_of_block == 1 + layout.agents
            n = blocks * layout.agents
        size = weights.shape[-1]
        (after,) = launch(
            self._step.layers,
            self._step.kernel,
            {
                "observations": observations,
                "terminals": terminals,
                "mask": nothing(mx.uint8) if mask is None else mask,
                "noise": noise,
                "states": states,
                "weights": weights,
                "sizes": self.sizes(layout, n, size, mask is not None, seen is not None),
                "actions": actions,
                "logprobs": logprobs,
                "values": values,
                "seen": nothing(observations.dtype) if seen is None else seen,
                "seats": nothing(mx.int32) if seats is None else seats,
            },
            {"after": states.shape},
            **layout.launch(n),
            SEATS=int(seats is not None),
        )
        return after

    def sizes(self, layout: Layout, n: int, size: int, masked: bool, copied: bool) -> mx.array:
        """The kernels' ``sizes``: see ``ops/gpu/acting/functions.metal.h``."""
        policy = self._policy
        action, H = policy.decoder.action, policy.network.hidden
        D, L = policy.encoder.inputs, policy.network.layers  # type: ignore
        flags = (
            policy.reset_on_terminal,
            encoder_activation(policy.encoder) == "gelu",
            masked,
            action.continuous,
            copied,
        )
        sizes = (D, H, L, action.logits, action.heads, n, layout.chunk)
        limit = int(policy.decoder.limits.for_kernels)
        return numbers(*sizes, *map(int, flags), limit, size, *action.sizes)


ON_GPU = implementation(("policy.policy",), "the policy's step as one kernel", gpu=StepOnGPU)
