"""Compute a policy's step on a GPU in one kernel: encoder, network, decoder, choice of actions.

In MLX a step takes about 25 operations, and launching an operation costs more than computing it.
The kernel's source in ``ops/gpu/acting`` includes ``layers.metal.h`` of the network's folder. It
computes the same as ``Policy.act``, in float32.

Weights are packed into one array once per rollout, with matrices transposed. The arrays of the
recurrent state are packed into another array.

In self-play one launch computes the steps of several policies of the same shapes. Each block of
agents reads its policy's weights, and recurrent states have the order of the blocks
(``PolicyBlocks``).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from puffer_mlx.ops import verification
from puffer_mlx.ops.gpu.launch import (
    MIN_ARRAY_SIZE,
    SHARED_BYTES,
    constant_array,
    launch,
    placeholder,
)
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.pack import pack_arrays
from puffer_mlx.policy.decoders import Fused, Separate
from puffer_mlx.policy.encoders.catalog import encoder_activation
from puffer_mlx.policy.networks import GPULayers
from puffer_mlx.policy.networks.catalog import network_facts
from puffer_mlx.policy.policy import Policy, acting_functions
from puffer_mlx.system.backend import backend
from puffer_mlx.trees import leaves

Weights = Any  # tree of mx.array
State = Any  # tree of mx.array

MAX_HIDDEN = 256  # largest H; for larger H MLX is faster
AGENTS_PER_THREAD = 4  # a thread computes one channel of 4 agents; R in the kernels
BLOCK_SIZES = (16, 8, 4)  # possible numbers of agents per block
MIN_BLOCKS = 128  # blocks that keep the cores of a large GPU busy
MIN_CHUNK = 128  # elements that a block reads of a longer observation at a time; H if larger


class ActingSizes(NamedTuple):
    """Size constants that the acting GPU kernels take as one argument, the array ``sizes``.

    The fields have the order of ``ops/gpu/acting/functions.metal.h``. After them, the array
    contains the number of choices of each action head.

    In the argument, the number of choices of each action head follows.
    """

    D: int  # elements of an observation
    H: int
    L: int
    A: int  # logits of discrete actions, or means of continuous actions
    HEADS: int  # actions per agent
    AGENTS: int
    CHUNK: int  # elements of an observation in shared memory at a time
    RESETS: int  # 1 to multiply states by 1 - terminal before the step
    GELU: int  # 1 if a GELU follows the encoder's product
    HAS_MASK: int
    CONTINUOUS: int  # 1 if actions are continuous
    COPIES: int  # 1 to copy observations to the kernel's argument ``seen``
    LIMIT: int  # largest |action| and |mean| of continuous actions; 0: unbounded
    WEIGHTS: int  # elements of one policy's weights


@dataclass(frozen=True)
class BlockLayout:
    """Numbers of agents, threads and shared values per thread block of a GPU kernel that acts."""

    agents: int  # agents that the block computes
    chunk: int  # elements of an observation in shared memory at a time
    shared: int  # shared memory, in units of ``AGENTS_PER_THREAD`` float32 values
    threads: int

    def launch_options(self, n: int) -> dict[str, int]:
        """Return the launch options of a GPU kernel for n agents: thread counts and constants."""
        return {
            "threads": -(-n // self.agents) * self.threads,
            "block": self.threads,
            "R": AGENTS_PER_THREAD,
            "GROUPS": self.agents // AGENTS_PER_THREAD,
            "THREADS": self.threads,
            "ROOM": self.shared,
        }


def block_layout(policy: Policy, layers: GPULayers, agents: int) -> BlockLayout:
    """Return threads and shared memory of a block in which a GPU kernel acts for ``agents`` agents.

    Args:
        policy: The acting policy.
        layers: The network's layers in the kernel.
        agents: Number of agents per block, a multiple of ``AGENTS_PER_THREAD``.
    """
    D = policy.encoder.inputs  # type: ignore
    H = policy.network.hidden
    A = policy.decoder.action.logits
    chunk = min(D, max(H, MIN_CHUNK))
    groups = agents // AGENTS_PER_THREAD
    outputs = A + 1  # logits or means, and the value
    layer_input = max(chunk, H)
    sums = AGENTS_PER_THREAD
    width = outputs + layer_input + H + layers.shared_arrays * H + sums  # of a group, in elements
    warps = math.ceil(H * groups / 32)
    threads = min(256, max(64, 32 * warps))
    return BlockLayout(agents, chunk, groups * width, threads)


def choose_layout(
    policy: Policy,
    layers: GPULayers,
    n: int,
    block_sizes: Sequence[int] = BLOCK_SIZES,
    agent_bytes: int = 0,
    max_bytes: int = SHARED_BYTES,
) -> BlockLayout | None:
    """Choose the largest thread block whose shared memory is enough for a policy to act on a GPU.

    Returns the block's layout, or None when shared memory is too small.

    Args:
        policy: The acting policy.
        layers: The network's layers in the kernel.
        n: Number of agents. More agents get larger blocks.
        block_sizes: Possible numbers of agents per block, in descending order.
        agent_bytes: Additional bytes of shared memory per agent of a block.
        max_bytes: Maximum bytes of shared memory per block.
    """
    smallest = None
    for agents in block_sizes:
        layout = block_layout(policy, layers, agents)
        shared_bytes = 4 * AGENTS_PER_THREAD * layout.shared + agents * agent_bytes
        if shared_bytes > max_bytes:
            continue
        if agents * MIN_BLOCKS <= n:
            return layout
        smallest = layout
    return smallest


class PolicyBlocks(NamedTuple):
    """Division of n agents into thread blocks, such that one policy plays all agents of a block.

    A row is an agent's index, a slot its position in the sequence of blocks. A policy's last block
    is filled with copies of its last row, so slots can outnumber rows.
    """

    block_rows: mx.array  # (blocks, 1 + agents per block) int32: index of the policy, then rows
    gather: mx.array  # (slots,) int32: row of each slot
    scatter: mx.array  # (n,) int32: slot of each row


def make_step_on_gpu(policy: Policy) -> "StepOnGPU | None":
    """Return an object that computes a policy's step in one GPU kernel, or None if unsupported.

    Unsupported are image encoders, activations other than GELU, a separate value network, custom
    classes, H above ``MAX_HIDDEN``, and policies that exceed a block's shared memory. Such policies
    act through MLX.
    """
    layers = network_facts(policy.network).gpu_layers
    if layers is None or not layers.fits(policy.network) or policy.separate_value:
        return None
    if encoder_activation(policy.encoder) not in ("", "gelu"):
        return None
    if type(policy.decoder) not in (Fused, Separate):
        return None
    if policy.network.hidden > MAX_HIDDEN or choose_layout(policy, layers, 1) is None:
        return None
    unchanged = ON_GPU.unchanged(*acting_functions(policy), report=backend() != "cpu")
    return StepOnGPU(policy, layers) if unchanged and not ON_GPU.is_refused else None


def step_agrees(policy: Policy, step: "StepOnGPU", agents: int) -> bool:
    """Return True if the kernel of a policy's step agrees with plain MLX.

    The first call on a machine compares their results; later calls return the stored answer.

    Args:
        policy: The acting policy.
        step: The policy's kernel.
        agents: Number of agents. At most 64 are compared.
    """
    if not verification.uses_gpu_kernels():
        return True
    n = min(agents, 64)
    keys = mx.random.split(mx.random.key(0), 5)
    noise = policy.distribution.noise(keys[0], (n,))
    observations = mx.random.normal((n, policy.encoder.inputs), key=keys[1])  # type: ignore
    state = tree_map(
        lambda a: mx.random.uniform(shape=a.shape, key=keys[2]), policy.initial_state(n)
    )
    terminals = (mx.random.uniform(shape=(n,), key=keys[3]) < 0.25).astype(mx.float32)

    def act(weights: Weights, observations, state, noise, terminals) -> list[mx.array]:
        # `Verified` calls this with ``ON_GPU`` set to plain MLX, and with the kernel.
        if ON_GPU.choose(*acting_functions(policy)) is None:
            not_done = policy.not_done(terminals)
            *chosen, after = policy.act(weights, observations, state, noise, None, not_done)
            return [*chosen, *leaves(after)]
        chosen: Any = [mx.zeros(noise.shape), mx.zeros(n), mx.zeros(n)]
        mx.eval(chosen)  # output memory of the kernel
        packed = step.pack_weights(weights), step.pack_states(state)
        arrays = noise, observations, None, terminals
        after = step.act(*packed, *arrays, chosen[0], chosen[1], chosen[2], None)
        mx.eval(after)
        return [*chosen, *leaves(step.unpack_state(after))]

    inputs = policy.init(keys[4]), observations, state, noise, terminals
    verification.Verified(act, context=f"act {policy}", draws=True).verify(inputs)
    return not ON_GPU.is_refused


@functools.cache
def _no_state() -> mx.array:
    """Return a cached array of zeros that stands for the missing state of non-recurrent networks.

    It isn't an array of ``launch.placeholder``. Compiled functions capture those arrays, and take
    this one as an argument; an array must not be both.
    """
    array = mx.zeros(MIN_ARRAY_SIZE)
    mx.eval(array)
    return array


class StepOnGPU:
    """Computes a policy's step in one GPU kernel, and packs weights and states for it.

    Args:
        policy: A policy that ``make_step_on_gpu`` supports.
        layers: The network's layers in the kernel.
    """

    def __init__(self, policy: Policy, layers: GPULayers) -> None:
        self._policy = policy
        self._layers = layers
        self._state_names = [name for name, _ in tree_flatten(policy.initial_state(1))]  # type: ignore

    def agents_per_block(self, n: int) -> int:
        """Return how many agents each thread block computes when a GPU kernel acts for n agents."""
        layout = choose_layout(self._policy, self._layers, n)
        assert layout is not None
        return layout.agents

    def pack_weights(self, weights: Weights) -> mx.array:
        """Pack a policy's weights into the flat array (size,) that its GPU kernel reads."""
        policy = self._policy
        encoder = weights["encoder"]
        decoder = weights["decoder"]
        heads = (
            [decoder] if type(policy.decoder) is Fused else [decoder["actions"], decoder["value"]]
        )
        zeros = functools.partial(placeholder, mx.float32)
        arrays = [encoder["weight"].T, encoder.get("bias", zeros(policy.network.hidden))]
        arrays.append(mx.concatenate([head["weight"] for head in heads]).T)
        arrays += [head.get("bias", zeros(len(head["weight"]))) for head in heads]
        logstd = policy.decoder.logstd(decoder)
        arrays.append(zeros(policy.decoder.action.heads) if logstd is None else logstd)
        arrays += self._layers.weights(weights["network"])
        arrays.append(zeros(MIN_ARRAY_SIZE))  # ensures the minimum size
        return pack_arrays([array.reshape(-1) for array in arrays])[0]

    def pack_states(self, *groups: State) -> mx.array:
        """Pack the recurrent states of groups of agents into one array that the GPU kernel reads.

        Returns:
            (arrays of a state, n, H), with the n agents of all groups.
        """
        leaves_of_groups = [leaves(state) for state in groups]
        by_leaf = zip(*leaves_of_groups, strict=True)  # a leaf's arrays of all groups are adjacent
        arrays = [array for arrays in by_leaf for array in arrays]
        shape = len(self._state_names), -1, self._policy.network.hidden
        return pack_arrays(arrays)[0].reshape(shape) if arrays else _no_state()

    def to_slots(self, states: mx.array, blocks: PolicyBlocks | None) -> mx.array:
        """Reorder recurrent states from the order of agents to that of thread blocks.

        (arrays, n, H) -> (arrays, slots, H). Blocks may repeat agents.

        ``blocks`` is None when a single policy acts; the order is then unchanged.
        """
        return mx.take(states, blocks.gather, axis=1) if blocks and self._state_names else states

    def to_rows(self, states: mx.array, blocks: PolicyBlocks | None) -> mx.array:
        """Reorder recurrent states from the order of thread blocks back to that of agents.

        The inverse of ``to_slots``.
        """
        return mx.take(states, blocks.scatter, axis=1) if blocks and self._state_names else states

    def unpack_state(self, states: mx.array) -> State:
        """Convert packed recurrent states of n agents to the tree that the network uses."""
        arrays = mx.split(states, len(self._state_names)) if self._state_names else []
        pairs = zip(self._state_names, arrays, strict=True)
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
        obs_copy: mx.array | None,
        block_rows: mx.array | None = None,
    ) -> mx.array:
        """Compute one step of a policy for n agents, in one launch of a GPU kernel.

        Args:
            weights: Packed weights (size,); with ``block_rows`` those of P policies, (P, size).
            states: Packed states, from ``pack_states`` or the previous call; with ``block_rows`` in
                the order of ``to_slots``.
            noise: (n, heads) float32, from ``distribution.noise``.
            observations: (n, D) float32 or uint8.
            mask: (n, A) uint8, non-zero where legal, or None.
            terminals: (n,) float32, 1 where an episode ended. A policy with ``reset_on_terminal``
                resets these agents' states.
            actions: (n, heads) float32, output. For MLX it is an input, although the kernel writes
                it: it must be evaluated and contiguous, and must not be read before the returned
                states are evaluated. The same applies to the next three arrays.
            logprobs: (n,) float32, output.
            values: (n,) float32, output.
            obs_copy: (n, D), output, a copy of the observations; None for no copy.
            block_rows: ``PolicyBlocks.block_rows`` for blocks of ``agents_per_block(n)`` agents;
                None for a single policy.

        Returns:
            The packed states after the step.
        """
        n = len(observations)
        layout = choose_layout(self._policy, self._layers, n)
        assert layout is not None
        if block_rows is not None:
            blocks, columns = block_rows.shape
            assert columns == 1 + layout.agents
            n = blocks * layout.agents
        size = weights.shape[-1]
        (after,) = launch(
            self._layers.file,
            self._layers.kernel,
            {
                "observations": observations,
                "terminals": terminals,
                "mask": placeholder(mx.uint8) if mask is None else mask,
                "noise": noise,
                "states": states,
                "weights": weights,
                "sizes": self.sizes(layout, n, size, mask is not None, obs_copy is not None),
                "actions": actions,
                "logprobs": logprobs,
                "values": values,
                "seen": placeholder(observations.dtype) if obs_copy is None else obs_copy,
                "block_rows": placeholder(mx.int32) if block_rows is None else block_rows,
            },
            {"after": states.shape},
            **layout.launch_options(n),
            PLAYERS=int(block_rows is not None),
        )
        return after

    def sizes(self, layout: BlockLayout, n: int, size: int, masked: bool, copied: bool) -> mx.array:
        """Return the sizes that the acting GPU kernel takes as an argument: see ``ActingSizes``.

        Args:
            layout: Layout of the thread blocks.
            n: Number of agents, or of slots with several policies.
            size: Elements of one policy's packed weights.
            masked: True if actions are masked.
            copied: True to copy the observations.
        """
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
        return constant_array(*sizes, *action.sizes)


ON_GPU = Implementation(("policy.policy",), "the policy's step as one kernel", gpu=StepOnGPU)
