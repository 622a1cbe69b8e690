"""A policy's step on a GPU in one kernel: encoder, network, decoder, choice of actions.

In MLX a step takes about 25 operations, and launching one costs more than computing it. The kernel
in ``ops/gpu/acting`` includes the network's layers (``layers.metal.h`` in the network's folder).
It computes the same as ``Policy.act``, in float32.

Weights are packed into one array once per rollout, with matrices transposed. The arrays of the
recurrent state are packed into one array too.

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

WIDEST = 256  # maximum H; for larger H MLX is faster
TOGETHER = 4  # R: agents for which a thread computes one channel
BLOCKS = (16, 8, 4)  # possible numbers of agents per block
ENOUGH_BLOCKS = 128  # keeps the cores of a large GPU busy
SEEN = 128  # numbers of an observation in shared memory at a time; H if H is larger


class ActingSizes(NamedTuple):
    """First elements of the acting kernels' ``sizes``, as in ``ops/gpu/acting/functions.metal.h``.

    The number of choices of each head follows.
    """

    D: int  # numbers of an observation
    H: int
    L: int
    A: int  # logits, or means
    HEADS: int  # actions per agent
    AGENTS: int
    CHUNK: int  # numbers of an observation in shared memory at a time
    RESETS: int  # 1 if states are multiplied by 1 - terminal first
    GELU: int  # 1 if a GELU follows the encoder's product
    HAS_MASK: int
    CONTINUOUS: int  # 1 if actions are continuous
    COPIES: int  # 1 if observations are copied to ``seen``
    LIMIT: int  # largest |action| and |mean| of continuous actions; 0: unbounded
    WEIGHTS: int  # numbers in one policy's weights


@dataclass(frozen=True)
class Layout:
    """Division of a block's threads and shared memory."""

    agents: int
    chunk: int  # numbers of an observation in shared memory at a time
    room: int  # shared memory, in groups of ``TOGETHER`` float32 numbers
    threads: int

    def launch(self, n: int) -> dict[str, int]:
        """Return the launch's thread counts and template constants for n agents."""
        return {
            "threads": -(-n // self.agents) * self.threads,
            "block": self.threads,
            "R": TOGETHER,
            "GROUPS": self.agents // TOGETHER,
            "THREADS": self.threads,
            "ROOM": self.room,
        }


def layout(policy: Policy, step: GPUStep, agents: int) -> Layout:
    """Return the layout for a policy and a number of agents per block."""
    D, H, A = policy.encoder.inputs, policy.network.hidden, policy.decoder.action.logits  # type: ignore
    chunk, groups = min(D, max(H, SEEN)), agents // TOGETHER
    width = A + 1 + H + max(chunk, H) + step.memory * H + TOGETHER  # TOGETHER: for sums
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
    """Return the layout for n agents, or None if shared memory is too small.

    Args:
        policy: the acting policy.
        step: the network's kernel.
        n: the number of agents. More agents get larger blocks.
        blocks: possible numbers of agents per block, in descending order.
        further: returns the additional bytes of shared memory that a block needs.
        most: maximum bytes of shared memory per block.
    """
    layouts = [layout(policy, step, agents) for agents in blocks]
    fitting = [each for each in layouts if 16 * each.room + further(each) <= most]
    enough = (each for each in fitting if each.agents * ENOUGH_BLOCKS <= n)
    return next(enough, fitting[-1] if fitting else None)


class PolicyBlocks(NamedTuple):
    """Assignment of n agents to blocks with one policy per block.

    A policy's last block is padded with copies of its last row, so slots can outnumber rows.
    """

    seats: mx.array  # (blocks, 1 + agents per block) int32: index of the policy, then rows
    order: mx.array  # (slots,) int32: row of each slot
    back: mx.array  # (n,) int32: slot of each row


def step_on_gpu(policy: Policy) -> "StepOnGPU | None":
    """Return the kernel for the policy's step, or None if the policy isn't supported.

    Unsupported are image encoders, activations other than GELU, a separate value network, custom
    classes, H above ``WIDEST``, and policies that exceed a block's shared memory. Such policies
    act through MLX.
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
        mx.eval(actions, logprobs, values)  # output memory of the kernel
        packed, held = step.weights(weights), step.state(state)
        arrived = observations, None, terminals
        after = step.act(packed, held, noise, *arrived, actions, logprobs, values, None)
        mx.eval(after)
        return [actions, logprobs, values, *leaves(step.state_after(after))]

    given = policy.init(keys[4]), observations, state, noise, terminals
    verification.verified(act, context=f"act {policy}", draws=True).verify(given)
    return not ON_GPU.is_refused


class StepOnGPU:
    """Runs a policy's step as a kernel, and packs its weights and states.

    Args:
        policy: a policy supported by ``step_on_gpu``.
        step: the network's kernel.
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
        """Pack the policy's weights for ``act`` into one array (size,)."""
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
        arrays.append(zeros(FEWEST))  # ensures the minimum size
        return pack([array.reshape(-1) for array in arrays])[0]

    def state(self, *groups: State) -> mx.array:
        """Pack the recurrent states of groups of agents into one array for ``act``.

        Returns:
            (arrays of a state, n, H), with the n agents of all groups.
        """
        arrays = [array for parts in zip(*map(leaves, groups), strict=True) for array in parts]
        shape = len(self._names), -1, self._policy.network.hidden
        return pack(arrays)[0].reshape(shape) if arrays else nothing(mx.float32)

    def in_blocks(self, states: mx.array, crews: PolicyBlocks | None) -> mx.array:
        """Reorder packed states (arrays, n, H) to the slots of the blocks: (arrays, slots, H)."""
        return mx.take(states, crews.order, axis=1) if crews and self._names else states

    def by_rows(self, states: mx.array, crews: PolicyBlocks | None) -> mx.array:
        """Reorder packed states from slots to rows, the inverse of ``in_blocks``."""
        return mx.take(states, crews.back, axis=1) if crews and self._names else states

    def state_after(self, states: mx.array) -> State:
        """Unpack states in the order of rows into the network's recurrent state."""
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
            weights: packed weights (size,); with ``seats`` those of all policies, (P, size).
            states: packed states, from ``state`` or the previous call; with ``seats`` in the order
                of ``in_blocks``.
            noise: (n, heads) float32, from ``distribution.noise``.
            observations: (n, D) float32 or uint8.
            mask: (n, A) uint8, non-zero where legal, or None.
            terminals: (n,) float32, 1 at an episode's end, where the state is reset if the policy
                resets on terminals.
            actions: output memory (n, heads) float32. The kernel writes it, though MLX treats it as
                an input. It must be evaluated and contiguous, and must not be read before the
                returned states are evaluated. This applies to the next three arrays, too.
            logprobs: output memory (n,) float32.
            values: output memory (n,) float32.
            seen: output memory (n, D) for a copy of the observations, or None for no copy.
            seats: ``PolicyBlocks.seats`` for blocks of ``block(n)`` agents; None if one policy acts
                for all agents.
            layout: layout of the launch; None for the layout of ``choose_layout``.

        Returns:
            The next packed states.
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
        """Return the kernel's ``sizes``: ``ActingSizes``, then the choices of each head."""
        policy = self._policy
        action = policy.decoder.action
        sizes = ActingSizes(
            D=policy.encoder.inputs,  # type: ignore
            H=policy.network.hidden,
            L=policy.network.layers,  # type: ignore
            A=action.logits,
            HEADS=action.heads,
            AGENTS=n,
            CHUNK=layout.chunk,
            RESETS=int(policy.reset_on_terminal),
            GELU=int(encoder_activation(policy.encoder) == "gelu"),
            HAS_MASK=int(masked),
            CONTINUOUS=int(action.continuous),
            COPIES=int(copied),
            LIMIT=int(policy.decoder.limits.for_kernels),
            WEIGHTS=size,
        )
        return numbers(*sizes, *action.sizes)


ON_GPU = implementation(("policy.policy",), "the policy's step as one kernel", gpu=StepOnGPU)
