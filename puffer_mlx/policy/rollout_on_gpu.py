"""Complete rollouts on a GPU in one kernel: all steps of the policy and of the environments.

A thread block runs all T steps of its agents. Observations stay in shared memory, environments in
the threads' registers. A rollout is therefore one launch and one wait, instead of one per step and
half of the agents. The kernel's source is ``ops/gpu/acting/rollout.kernel.h``. It includes the same
network code as ``acting_on_gpu.py`` and has the same arithmetic. In environments with several
agents, several policies can act.

On CUDA some policies run on matrix units, many agents at a time, if a block has enough shared
memory. They round as in training (``acting/rows.kernel.h``, ``ppo/minibatch``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import mlx.core as mx

from puffer_mlx.ops.gpu.launch import (
    FEWEST,
    SHARED_BYTES,
    SHARED_ON_CUDA,
    backend,
    constant_array,
    exact_products,
    launch,
    placeholder,
    shared_pool_limits,
    tiles_side_by_side,
)
from puffer_mlx.ops.gpu.text import ROWS, EnvRules
from puffer_mlx.ops.pack import launch_pack_as, pack
from puffer_mlx.policy.acting_on_gpu import (
    BlockLayout,
    PolicyBlocks,
    StepOnGPU,
    choose_layout,
    step_on_gpu,
)
from puffer_mlx.policy.decoders import Fused
from puffer_mlx.policy.encoders.default import Linear
from puffer_mlx.policy.networks.catalog import network_facts
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec

MAX_MATRIX_LAYERS = (
    4  # maximum number of layers on matrix units. The kernel has an array per layer.
)
MATRIX_BLOCK_SIZES = (64, 32, 16)  # possible numbers of agents per block, on matrix units
TILE = 64  # columns read at a time if the layers' weights don't fit into shared memory
MIN_BLOCKS = 128  # keeps the cores of an H200 busy
BLOCK_SIZES = (
    8,
    4,
)  # possible numbers of agents per block; within 10 % of the best for all networks
REGISTERS = 255  # registers of a thread, 4 bytes each. Larger structs are stored in memory.
# Resident threads per CUDA core, which limit the registers of a thread. With more threads registers
# spill; with fewer the core waits for memory. Large structs are in memory and need more threads.
RESIDENT_THREADS = 512
RESIDENT_THREADS_LARGE = 1024
MAX_ELEMENTS = 2**31  # limit of an output array's size, because kernels have 32-bit indices


@dataclass(frozen=True)
class DeviceEnv:
    """Environment that a GPU steps: see ``vec/native/gpu_rules.py``.

    Attributes:
        rules: C text of the environment.
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
    def large(self) -> bool:
        """True if the struct exceeds the registers of a thread."""
        return self.words > REGISTERS


class EnvOutputs(NamedTuple):
    """Environment outputs of N agents before one action."""

    observations: mx.array  # (N, D)
    rewards: mx.array  # (N,)
    terminals: mx.array  # (N,)
    masks: mx.array | None  # (N, A) uint8


class DeviceRollout(NamedTuple):
    """T steps of a rollout, in the layout of ``rollout/buffer.py``."""

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
    """Join consecutive rollouts; each starts with the last outputs of the previous one."""
    if len(launches) == 1:
        return launches[0]
    *before, last = launches
    shared = "rewards", "terminals", "masks"  # T + 1 rows: consecutive rollouts share one
    fields: dict[str, mx.array | None] = last._asdict()
    for name in (*shared, "observations", "actions", "logprobs", "values"):
        if (end := fields[name]) is not None:
            rows = [getattr(each, name) for each in before]
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
    """Return the kernel for rollouts of a policy in an environment, or None when unsupported.

    Unsupported are policies without a kernel in ``step_on_gpu``, large structs of environments with
    several agents, and agents that exceed a block's shared memory.

    Args:
        policy: the acting policy; in self-play all policies have its shapes.
        spec: the environment's observations and actions.
        game: the environment's GPU code.
        precision: the precision of training, which the kernel may use, too; "" for float32.
        environments: the number of environments, E.
        policy_blocks: (agents per block) -> blocks with their policies. Required for environments
            with several agents.
    """
    step = step_on_gpu(policy)
    if step is None or (game.agents > 1 and (game.large or policy_blocks is None)):
        return None
    layout = choose_rollout_layout(policy, spec, environments, game.agents)
    if layout is None:
        return None
    blocks = policy_blocks and policy_blocks(layout.agents)
    return RolloutOnGPU(policy, step, spec, game, precision, blocks)


def has_linear_encoder_and_decoder(policy: Policy) -> bool:
    """Return True if the matrix-unit kernels support the encoder, the decoder and the layers."""
    return (
        type(policy.encoder) is Linear
        and policy.network.layers <= MAX_MATRIX_LAYERS  # type: ignore
        and type(policy.decoder) is Fused
        and not policy.separate_value
    )


def layer_arrays(name: str, arrays: Sequence[mx.array]) -> dict[str, mx.array]:
    """Return the kernel's arrays ``name0`` to ``name3``, with a placeholder for missing layers."""
    zeros = [placeholder(mx.float32)] * (MAX_MATRIX_LAYERS - len(arrays))
    return {f"{name}{n}": array for n, array in enumerate([*arrays, *zeros])}


def choose_rows(policy: Policy, spec: EnvSpec, n: int, low: bool) -> dict[str, int] | None:
    """Return the template constants of acting/rows.kernel.h for n agents, or None when none fit.

    Blocks have as many agents as possible without leaving cores idle. Shared memory holds all
    weights if they fit. Otherwise in float32 the encoder's weights are read from memory at every
    step, and in bf16 (``low``) the layers' too.
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
        numbers_of_rows = rows * (out + 1 + L * H + 1 + spec.action.heads + 2)
        floats = -(-(observations + numbers_of_rows) // 32) * 32
        for kept in (2, 1, 0):
            lows = rows * 5 * H + out * H
            if kept:
                lows += rows * wide + L * 3 * H * H + (H * wide if kept > 1 else 0)
                possible = kept > 1 or not low
            else:  # the encoder's weight uses the memory of both tiles
                lows += 2 * H * TILE
                possible = low and H % 128 == 0 and rows <= 32 and wide <= 2 * TILE
            pool = floats + (-(-lows // 2) if low else lows)
            if possible and 4 * pool + rows * max(1, spec.mask_size) <= shared_bytes:
                columns = tiles_side_by_side(H, rows, threads)
                sizes = {"M": rows, "THREADS": threads, "KEPT": kept, "POOL": pool}
                return {**sizes, "HIDDEN_C": columns, "H": H, "L": L, "A": A}
    return None


def choose_rollout_layout(
    policy: Policy, spec: EnvSpec, n: int, each: int = 1
) -> BlockLayout | None:
    """Return the layout of a rollout's blocks, or None when shared memory is too small.

    Besides the memory of ``choose_layout`` a block needs one row of each agent's arrays.

    Args:
        policy: the acting policy.
        spec: the environment's observations and actions.
        n: the number of environments.
        each: agents per environment. A block acts for one agent of each environment at a time.
    """
    step = network_facts(policy.network).gpu_step
    assert step is not None
    row = spec.observation_size * spec.observation_dtype.itemsize
    row += 4 * (spec.action.heads + 2) + max(1, spec.mask_size)
    limits = (SHARED_BYTES, SHARED_ON_CUDA) if backend() == "cuda" else (SHARED_BYTES,)
    for limit in limits:  # less 64: alignment of five arrays
        if layout := choose_layout(policy, step, n, BLOCK_SIZES, each * row, limit - 64):
            return layout
    return None


@dataclass(eq=False)
class RolloutOnGPU:
    """The kernel that runs a policy's rollouts in an environment.

    Args:
        policy: a policy supported by ``rollout_on_gpu``.
        step: the policy's step, which packs weights and states.
        spec: the environment's observations and actions.
        game: the environment's GPU code.
        training: the precision of training, "fp32" or "bf16"; "" to act in float32.
        blocks: the blocks with their policies, for environments with several agents. In self-play
            the weights are a list with one entry per policy.
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
        """Return the constants of the matrix-unit kernel for n agents, or None to not use it."""
        if self.training not in ("fp32", "bf16") or self.blocks:
            return None
        return choose_rows(self.policy, self.spec, n, self.training == "bf16")

    def precision(self, n: int) -> str:
        """Return the precision in which n agents act, "fp32" or "bf16"."""
        return "fp32" if self.rows(n) is None else self.training

    def weights(self, weights: Any, n: int) -> Any:
        """Return the policy's weights in the form that ``launch`` expects for n agents."""
        if self.rows(n) is not None:
            return weights
        if not isinstance(weights, list):
            return self.step.weights(weights)
        packed = [self.step.weights(policy_weights) for policy_weights in weights]
        return pack(packed)[0].reshape(len(packed), -1)

    def state(self, *groups: Any) -> mx.array:
        """Pack the recurrent states of groups of agents for ``launch``."""
        return self.step.in_blocks(self.step.state(*groups), self.blocks)

    def state_after(self, states: mx.array) -> Any:
        """Unpack the recurrent state that ``launch`` returned."""
        return self.step.state_after(self.step.by_rows(states, self.blocks))

    def fits(self, horizon: int, agents: int) -> bool:
        """Return True if array sizes are within the limits of 32-bit indices and Metal."""
        row = max(self.spec.observation_size, self.spec.mask_size)
        return agents >= FEWEST and (horizon + 1) * agents * row < MAX_ELEMENTS

    def launch(
        self,
        T: int,
        weights: Any,
        states: mx.array,
        noise: mx.array,
        structs: mx.array,
        first: EnvOutputs,
    ) -> DeviceRollout:
        """Run T steps of N agents.

        Args:
            T: the number of steps.
            weights: weights returned by the method ``weights``.
            states: recurrent states returned by the method ``state``.
            noise: (T, N, heads) float32, from ``distribution.noise``.
            structs: the environments' structs, (E, words) int32.
            first: outputs of the environments when the rollout starts.
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
            "horizon": constant_array(T, N, *[0] * (FEWEST - 2)),
        }
        outputs = {
            "all_observations": (T, N, spec.observation_size),
            "last_observations": (N, spec.observation_size),
            "all_rewards": (T + 1, N),
            "all_terminals": (T + 1, N),
            "all_masks": (T + 1, N, legal) if masked else (FEWEST,),
            "all_actions": (T, N, heads),
            "all_logprobs": (T, N),
            "all_values": (T, N),
            "games_after": structs.shape,
            "after": states.shape,
        }
        constants: dict[str, Any] = {"SEEN": spec.observation_size, "HEADS": heads, "LEGAL": legal}
        constants |= {"WORDS": game.words, "LARGE": int(game.large)}
        constants |= {"LOG": game.log, "LOGS": game.logs}
        constants |= {"Observed": first.observations.dtype, "EXACT": exact_products()}
        rows = self.rows(N)
        if rows is None:
            path, more, options = self._by_threads(weights, N, len(structs), masked)
        else:
            path, more, options = self._by_rows(rows, weights, N, masked)
        found = launch(path, game.rules, {**inputs, **more}, outputs, **options, **constants)
        observations, last, rewards, terminals, masks, *others = found
        return DeviceRollout(
            observations, last, rewards, terminals, masks if masked else None, *others
        )

    def _by_threads(
        self, weights: mx.array, N: int, environments: int, masked: bool
    ) -> tuple[Path, dict[str, mx.array], dict[str, Any]]:
        """Return the float32 kernel's path, further inputs, and options of its launch."""
        game = self.game
        layout = choose_rollout_layout(self.policy, self.spec, environments, game.agents)
        gpu_step = network_facts(self.policy.network).gpu_step
        assert layout is not None and gpu_step is not None
        block_rows = self.blocks.block_rows if self.blocks else placeholder(mx.int32)
        slots = len(block_rows) * layout.agents if self.blocks else N
        sizes = self.step.sizes(layout, slots, weights.shape[-1], masked, copied=True)
        options: dict[str, Any] = layout.launch(slots // game.agents)
        options["PLAYERS"] = game.agents if self.blocks else 0
        options["RESIDENT"] = RESIDENT_THREADS_LARGE if game.large else RESIDENT_THREADS
        inputs = {"weights": weights, "block_rows": block_rows, "sizes": sizes}
        return gpu_step.layers, inputs, options

    def _by_rows(
        self, rows: dict[str, int], weights: Any, N: int, masked: bool
    ) -> tuple[Path, dict[str, mx.array], dict[str, Any]]:
        """Return the matrix-unit kernel's path, further inputs, and options of its launch."""
        logstd = self.policy.decoder.logstd(weights["decoder"])
        layout = choose_rollout_layout(self.policy, self.spec, N)
        gpu_step = network_facts(self.policy.network).gpu_step
        assert layout is not None and gpu_step is not None
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
        launched = {"threads": threads, "block": block, "shared": 4 * rows["POOL"], "Low": low}
        return gpu_step.layers.with_name(ROWS), inputs, {**launched, **rows}
