"""Run a rollout on a GPU in one kernel: all steps of the policy and of the environments.

A thread block computes all T steps of its agents. Observations stay in shared memory, environments
in the threads' registers. A rollout is therefore one launch and one wait, instead of one per step
and half of the agents. The kernel is ``ops/gpu/acting/rollout.kernel.h``. It includes the same
network code as the kernel of ``acting_on_gpu.py`` and has the same arithmetic. In environments with
several agents, several policies can act.

On CUDA some policies run on matrix units, many agents at a time, if a block has enough shared
memory. They round as in training (``acting/rows.kernel.h``, ``ppo/minibatch``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import (
    CUDA_SHARED_BYTES,
    MIN_ARRAY_SIZE,
    SHARED_BYTES,
    constant_array,
    exact_products,
    kernel_backend,
    launch,
    placeholder,
    shared_pool_limits,
    tiles_side_by_side,
)
from puffer_mlx.ops.gpu.text import ROWS_FILE, EnvRules
from puffer_mlx.ops.pack import launch_pack_as, pack_arrays
from puffer_mlx.policy.acting_on_gpu import (
    BlockLayout,
    PolicyBlocks,
    StepOnGPU,
    choose_layout,
    make_step_on_gpu,
)
from puffer_mlx.policy.decoders import Fused
from puffer_mlx.policy.encoders.default import Linear
from puffer_mlx.policy.networks.catalog import network_facts
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec

MAX_MATRIX_LAYERS = 4  # layers on matrix units, as the kernel has one argument per layer
MATRIX_BLOCK_SIZES = (64, 32, 16)  # possible numbers of agents per block, on matrix units
TILE = 64  # columns of the layers' weights per read if they don't fit into shared memory
MIN_BLOCKS = 128  # blocks that keep the cores of an H200 busy
BLOCK_SIZES = (8, 4)  # possible numbers of agents per block; at most 10 % slower than the best
REGISTERS = 255  # of a thread, 4 bytes each; larger structs are stored in memory
# Resident threads per CUDA core. With more, a thread has too few registers; with fewer, the core
# waits for memory. Large structs are stored in memory and need more threads.
RESIDENT_THREADS = 512
RESIDENT_THREADS_LARGE = 1024
MAX_ELEMENTS = 2**31  # of an output array, because kernels have 32-bit indices


@dataclass(frozen=True)
class DeviceEnv:
    """Source code and struct sizes of an environment that a GPU steps: ``vec/native/gpu_rules.py``.

    Attributes:
        rules: Source code of the environment.
        words: Size of its struct, in units of 4 bytes.
        log: Offset of the log in the struct, in units of 4 bytes.
        logs: Size of the log, in units of 4 bytes.
        agents: Agents per environment.
    """

    rules: EnvRules
    words: int
    log: int
    logs: int
    agents: int = 1

    @property
    def exceeds_registers(self) -> bool:
        """True if the environment's struct exceeds the registers of a thread."""
        return self.words > REGISTERS


class EnvOutputs(NamedTuple):
    """Environments' outputs of a step: observations, rewards, terminals and masks of N agents."""

    observations: mx.array  # (N, D)
    rewards: mx.array  # (N,)
    terminals: mx.array  # (N,)
    masks: mx.array | None  # (N, A) uint8


class DeviceRollout(NamedTuple):
    """Arrays of a rollout of T steps on a GPU, in the layout of ``rollout/buffer.py``."""

    observations: mx.array  # (T, N, D), without the last observations
    last_observations: mx.array  # (N, D)
    rewards: mx.array  # (T + 1, N)
    terminals: mx.array  # (T + 1, N)
    masks: mx.array | None  # (T + 1, N, A)
    actions: mx.array  # (T, N, heads)
    logprobs: mx.array  # (T, N)
    values: mx.array  # (T, N)
    structs: mx.array  # (E, words) int32
    states: Any  # recurrent states, packed by ``RolloutOnGPU.state``


def join_rollouts(launches: Sequence[DeviceRollout]) -> DeviceRollout:
    """Concatenate the results of consecutive GPU launches, which together compute one rollout."""
    if len(launches) == 1:
        return launches[0]
    *previous, last = launches
    shared = "rewards", "terminals", "masks"  # have T + 1 rows; consecutive launches share a row
    fields: dict[str, mx.array | None] = last._asdict()
    for name in (*shared, "observations", "actions", "logprobs", "values"):
        if (end := fields[name]) is not None:
            rows = [getattr(each, name) for each in previous]
            fields[name] = mx.concatenate([*(r[:-1] if name in shared else r for r in rows), end])
    return DeviceRollout(**fields)  # type: ignore


def rollout_on_gpu(
    policy: Policy,
    spec: EnvSpec,
    game: DeviceEnv,
    precision: str = "",
    environments: int = 1,
    policy_blocks: Callable[[int], PolicyBlocks] | None = None,
) -> "RolloutOnGPU | None":
    """Return an object that runs rollouts in one GPU kernel, or None when that is unsupported.

    Unsupported are policies without a kernel in ``make_step_on_gpu``, large structs of environments
    with several agents, and agents that exceed a block's shared memory.

    Args:
        policy: The acting policy; in self-play all policies have the same shapes.
        spec: Observations and actions of the environment.
        game: Code of the environment for the GPU.
        precision: Precision of training, in which the kernel may act; "" for float32.
        environments: Number of environments E.
        policy_blocks: Maps the number of environments per block to the blocks and their policies.
            Required for environments with several agents.
    """
    step = make_step_on_gpu(policy)
    if step is None or (game.agents > 1 and (game.exceeds_registers or policy_blocks is None)):
        return None
    layout = choose_rollout_layout(policy, spec, environments, game.agents)
    if layout is None:
        return None
    blocks = policy_blocks and policy_blocks(layout.agents)
    return RolloutOnGPU(policy, step, spec, game, precision, blocks)


def has_linear_encoder_and_decoder(policy: Policy) -> bool:
    """Return True if GPU matrix-unit kernels support a policy's encoder, decoder and layers."""
    return (
        type(policy.encoder) is Linear
        and policy.network.layers <= MAX_MATRIX_LAYERS  # type: ignore
        and type(policy.decoder) is Fused
        and not policy.separate_value
    )


def layer_arrays(name: str, arrays: Sequence[mx.array]) -> dict[str, mx.array]:
    """Name one array per layer as kernel arguments ``name0`` to ``name3``.

    Missing layers get placeholders.
    """
    zeros = [placeholder(mx.float32)] * (MAX_MATRIX_LAYERS - len(arrays))
    return {f"{name}{n}": array for n, array in enumerate([*arrays, *zeros])}


def choose_rows(policy: Policy, spec: EnvSpec, n: int, low: bool) -> dict[str, int] | None:
    """Choose block size and shared memory of the kernel that runs rollouts with matrix units.

    Returns template constants of acting/rows.kernel.h, or None when the policy doesn't fit.

    Blocks have as many agents as possible without leaving cores unused. Shared memory contains all
    weights if they fit. Otherwise each step reads the encoder's weights from device memory, in bf16
    also the layers' weights.

    Args:
        policy: The acting policy.
        spec: Observations and actions of the environment.
        n: Number of agents.
        low: True for bf16, False for float32.
    """
    if network_facts(policy.network).matrix_units is None or not has_linear_encoder_and_decoder(
        policy
    ):
        return None
    H = policy.network.hidden
    if H % 32:
        return None
    L = policy.network.layers  # type: ignore
    A = spec.action.logits
    wide = -(-spec.observation_size // 32) * 32
    out = -(-(A + 1) // 16) * 16
    threads, shared_bytes = shared_pool_limits()
    for rows in MATRIX_BLOCK_SIZES:
        if rows > MATRIX_BLOCK_SIZES[-1] and -(-n // rows) < MIN_BLOCKS:
            continue
        observations = -(-rows * spec.observation_size * spec.observation_dtype.itemsize // 4)
        row_floats = rows * (out + 1 + L * H + 1 + spec.action.heads + 2)
        floats = -(-(observations + row_floats) // 32) * 32
        for shared_weights in (2, 1, 0):  # all, all but the encoder's, none
            lows = rows * 5 * H + out * H
            if shared_weights:
                lows += rows * wide + L * 3 * H * H + (H * wide if shared_weights > 1 else 0)
                possible = shared_weights > 1 or not low
            else:  # the encoder's weight uses the memory of both tiles
                lows += 2 * H * TILE
                possible = low and H % 128 == 0 and rows <= 32 and wide <= 2 * TILE
            pool = floats + (-(-lows // 2) if low else lows)
            if possible and 4 * pool + rows * max(1, spec.mask_size) <= shared_bytes:
                columns = tiles_side_by_side(H, rows, threads)
                sizes = {"M": rows, "THREADS": threads, "KEPT": shared_weights, "POOL": pool}
                return {**sizes, "HIDDEN_C": columns, "H": H, "L": L, "A": A}
    return None


def choose_rollout_layout(
    policy: Policy, spec: EnvSpec, n: int, each: int = 1
) -> BlockLayout | None:
    """Choose the thread block's size for a rollout in one GPU kernel.

    Returns the block's layout, or None when shared memory is too small.

    Besides the memory of ``choose_layout``, a block needs one row of each agent's arrays.

    Args:
        policy: The acting policy.
        spec: Observations and actions of the environment.
        n: Number of environments.
        each: Agents per environment. A block acts for one agent of each environment at a time.
    """
    step = network_facts(policy.network).gpu_layers
    assert step is not None
    row = spec.observation_size * spec.observation_dtype.itemsize
    row += 4 * (spec.action.heads + 2) + max(1, spec.mask_size)
    limits = (SHARED_BYTES, CUDA_SHARED_BYTES) if kernel_backend() == "cuda" else (SHARED_BYTES,)
    for limit in limits:  # 64 bytes align five arrays
        if layout := choose_layout(policy, step, n, BLOCK_SIZES, each * row, limit - 64):
            return layout
    return None


@dataclass(eq=False)
class RolloutOnGPU:
    """Runs rollouts of a policy in an environment on a GPU, in one kernel.

    Args:
        policy: A policy that ``rollout_on_gpu`` supports.
        step: The policy's step, which packs weights and states.
        spec: Observations and actions of the environment.
        game: Code of the environment for the GPU.
        training: Precision of training, "fp32" or "bf16"; "" to act in float32.
        blocks: Blocks and their policies, for environments with several agents. In self-play the
            weights are a list with one item per policy.
    """

    policy: Policy
    step: StepOnGPU
    spec: EnvSpec
    game: DeviceEnv
    training: str = ""
    blocks: PolicyBlocks | None = None
    description: ClassVar[str] = "in one launch"
    acting_precision: ClassVar[str] = "fp32"  # precision of the weights passed in

    def rows(self, n: int) -> dict[str, int] | None:
        """Return the constants of the matrix-unit rollout kernel, or None if it can't be used.

        Args:
            n: Number of agents.
        """
        if self.training not in ("fp32", "bf16") or self.blocks:
            return None
        return choose_rows(self.policy, self.spec, n, self.training == "bf16")

    def precision(self, n: int) -> str:
        """Return the precision in which a policy acts on the GPU for n agents: "fp32" or "bf16"."""
        return "fp32" if self.rows(n) is None else self.training

    def pack_weights(self, weights: Any, n: int) -> Any:
        """Pack a policy's weights into the layout that the rollout kernel expects for n agents."""
        if self.rows(n) is not None:
            return weights
        if not isinstance(weights, list):
            return self.step.pack_weights(weights)
        packed = [self.step.pack_weights(policy_weights) for policy_weights in weights]
        return pack_arrays(packed)[0].reshape(len(packed), -1)

    def pack_states(self, *groups: Any) -> mx.array:
        """Pack the recurrent states of groups of agents into one array for the rollout kernel."""
        return self.step.to_slots(self.step.pack_states(*groups), self.blocks)

    def unpack_state(self, states: mx.array) -> Any:
        """Convert the recurrent state of all agents from the rollout kernel's array to a tree."""
        return self.step.unpack_state(self.step.to_rows(states, self.blocks))

    def fits(self, horizon: int, agents: int) -> bool:
        """Return True if a rollout's arrays are large enough for Metal and have 32-bit indices."""
        row = max(self.spec.observation_size, self.spec.mask_size)
        return agents >= MIN_ARRAY_SIZE and (horizon + 1) * agents * row < MAX_ELEMENTS

    def launch(
        self,
        T: int,
        weights: Any,
        states: mx.array,
        noise: mx.array,
        structs: mx.array,
        first: EnvOutputs,
    ) -> DeviceRollout:
        """Run a rollout of T steps of N agents in one launch.

        Args:
            T: Number of steps.
            weights: Result of the method ``weights``.
            states: Recurrent states, result of the method ``state``.
            noise: (T, N, heads) float32, from ``distribution.noise``.
            structs: The environments' structs, (E, words) int32.
            first: Outputs of the environments at the start.
        """
        spec = self.spec
        game = self.game
        N = len(first.rewards)
        heads = spec.action.heads
        legal = max(1, spec.mask_size)
        masked = first.masks is not None
        inputs = {
            "first_observations": first.observations,
            "first_rewards": first.rewards,
            "first_terminals": first.terminals,
            "first_masks": placeholder(mx.uint8) if first.masks is None else first.masks,
            "games": structs,
            "states_before": states,
            "all_noise": noise,
            "horizon": constant_array(T, N, *[0] * (MIN_ARRAY_SIZE - 2)),
        }
        outputs = {
            "all_observations": (T, N, spec.observation_size),
            "last_observations": (N, spec.observation_size),
            "all_rewards": (T + 1, N),
            "all_terminals": (T + 1, N),
            "all_masks": (T + 1, N, legal) if masked else (MIN_ARRAY_SIZE,),
            "all_actions": (T, N, heads),
            "all_logprobs": (T, N),
            "all_values": (T, N),
            "games_after": structs.shape,
            "after": states.shape,
        }
        constants: dict[str, Any] = {"SEEN": spec.observation_size, "HEADS": heads, "LEGAL": legal}
        constants |= {"WORDS": game.words, "LARGE": int(game.exceeds_registers)}
        constants |= {"LOG": game.log, "LOGS": game.logs}
        constants |= {"Observed": first.observations.dtype, "EXACT": exact_products()}
        rows = self.rows(N)
        if rows is None:
            file, kernel_inputs, options = self._thread_kernel(weights, N, len(structs), masked)
        else:
            file, kernel_inputs, options = self._matrix_kernel(rows, weights, N, masked)
        arrays = launch(
            file, game.rules, {**inputs, **kernel_inputs}, outputs, **options, **constants
        )
        observations, last, rewards, terminals, masks, *rest = arrays
        return DeviceRollout(
            observations, last, rewards, terminals, masks if masked else None, *rest
        )

    def _thread_kernel(
        self, weights: mx.array, N: int, environments: int, masked: bool
    ) -> tuple[Path, dict[str, mx.array], dict[str, Any]]:
        """Return how to launch the kernel that computes a rollout in float32, without matrix units.

        Returns:
            The kernel's source file, its inputs besides those of ``launch``, and launch options.
        """
        game = self.game
        layout = choose_rollout_layout(self.policy, self.spec, environments, game.agents)
        gpu_layers = network_facts(self.policy.network).gpu_layers
        assert layout is not None and gpu_layers is not None
        block_rows = self.blocks.block_rows if self.blocks else placeholder(mx.int32)
        slots = len(block_rows) * layout.agents if self.blocks else N
        sizes = self.step.sizes(layout, slots, weights.shape[-1], masked, copied=True)
        options: dict[str, Any] = layout.launch_options(slots // game.agents)
        options["PLAYERS"] = game.agents if self.blocks else 0
        options["RESIDENT"] = RESIDENT_THREADS_LARGE if game.exceeds_registers else RESIDENT_THREADS
        inputs = {"weights": weights, "block_rows": block_rows, "sizes": sizes}
        return gpu_layers.file, inputs, options

    def _matrix_kernel(
        self, rows: dict[str, int], weights: Any, N: int, masked: bool
    ) -> tuple[Path, dict[str, mx.array], dict[str, Any]]:
        """Return how to launch the kernel that computes a rollout with a GPU's matrix units.

        Returns:
            The kernel's source file, its inputs besides those of ``launch``, and launch options.
        """
        logstd = self.policy.decoder.logstd(weights["decoder"])
        layout = choose_rollout_layout(self.policy, self.spec, N)
        gpu_layers = network_facts(self.policy.network).gpu_layers
        assert layout is not None and gpu_layers is not None
        layers = [layer["weight"] for layer in weights["network"]]
        low = mx.bfloat16 if self.training == "bf16" else mx.float32
        inputs = {
            "encoder": weights["encoder"]["weight"],
            "decoder": weights["decoder"]["weight"],
            "logstd": placeholder(mx.float32) if logstd is None else logstd,
            **layer_arrays("layer", layers),
            "layers": placeholder(low) if rows["KEPT"] else launch_pack_as(low, layers),
            "sizes": self.step.sizes(layout, N, 0, masked, copied=True),
        }
        block = rows["THREADS"]
        threads = -(-N // rows["M"]) * block
        options = {"threads": threads, "block": block, "shared": 4 * rows["POOL"], "Low": low}
        return gpu_layers.file.with_name(ROWS_FILE), inputs, {**options, **rows}
