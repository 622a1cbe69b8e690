"""Compute a minibatch's gradients with fused GPU kernels: forward pass, loss, backward pass.

``minibatch.kernel.h`` computes the gradients of each thread block in one launch, and a second
launch sums them over the blocks. The kernel keeps all activations in shared memory. It needs a
network with kernels for matrix units, a linear encoder, fp32 or bf16, and enough shared memory.
``wide.kernel.h`` computes wider layers, up to 256 in bf16 on CUDA: it streams the weights and
stores the factors of their gradients, which another launch multiplies. ``ppo/gradients.py``
computes all other cases, and tests compare both kernels with it. On CUDA, fp32 products use TF32,
as in MLX, unless ``MLX_ENABLE_TF32=0``.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from puffer_mlx.ops.gpu.launch import (
    MIN_ARRAY_SIZE,
    THREADS,
    Shape,
    constant_array,
    exact_products,
    launch,
    placeholder,
    shared_pool_limits,
    tiles_side_by_side,
)
from puffer_mlx.ops.gpu.text import WALKS_FILE, ComposedKernel
from puffer_mlx.ops.implementation import Implementation, qualified_name
from puffer_mlx.ops.pack import BLOCK, PackedTree, launch_pack_as, packed_offsets
from puffer_mlx.policy.networks.catalog import network_facts
from puffer_mlx.policy.policy import Policy, training_functions
from puffer_mlx.policy.rollout_on_gpu import (
    MAX_ELEMENTS,
    MAX_MATRIX_LAYERS,
    has_linear_encoder_and_decoder,
    layer_arrays,
)
from puffer_mlx.ppo.advantage import Discounts
from puffer_mlx.ppo.closed_form import launch_moments, settings_of
from puffer_mlx.ppo.loss import METRICS, Coefficients, Targets
from puffer_mlx.ppo.sections import Minibatch
from puffer_mlx.system.backend import gpu_backend

# The only function of ``Algorithm.recompute`` that the kernels implement.
SUPPORTED_RECOMPUTE = "ppo.algorithms.puffer5:recompute_advantages"
SUM_FILE = Path(__file__).with_name("blocks.metal.h")
KERNEL_FILE = SUM_FILE.with_name("minibatch.kernel.h")
WIDE_KERNEL_FILE = SUM_FILE.with_name("wide.kernel.h")
MAX_BLOCKS = 128  # blocks per launch, because an H200 has 132 cores
BLOCK_ROWS = 64  # most rows that a block processes at a time
MAX_GRADIENTS = 96  # weight gradients per thread, for 512 threads
TILE = 128  # rows and columns of a block's tile in `wide_gradients`
STAGES = 3  # buffered stages of samples in `wide_gradients`
TILES_AT_ONCE = 264  # tiles that an H200 computes at the same time
# Largest hidden size of ``wide.kernel.h``: 64 rows of 3 gates fill half of an H200's shared memory.
MAX_WIDE_HIDDEN = 256


class LossSpec(NamedTuple):
    """Coefficients of PPO's loss and of advantages, for kernels that compute both.

    Attributes:
        coefficients: coefficients of PPO's loss.
        live: coefficients of "live" advantages, which are computed from the values of the same
            forward pass. None when the targets contain advantages.
        vtrace: True to clip live advantages by the ratios of the new to the old probabilities.
    """

    coefficients: Coefficients
    live: Discounts | None = None
    vtrace: bool = False


class MinibatchSizes(NamedTuple):
    """Sizes of a minibatch, of the network and of a thread block.

    A minibatch has T steps of S segments. D is the size of an observation, H the hidden size, L the
    number of layers, and A the number of logits. ``heads`` is 0 for A continuous actions. ``live``
    is True for live advantages (``LossSpec``), ``bf16`` for 16-bit weights and activations. A block
    has ``threads`` threads and ``shared_bytes`` bytes of shared memory.
    """

    T: int
    S: int
    D: int
    H: int
    L: int
    A: int
    heads: int
    live: bool
    bf16: bool
    threads: int
    shared_bytes: int


class MinibatchPlan(NamedTuple):
    """Division of a minibatch among thread blocks.

    Attributes:
        sizes: template constants of the kernel, by name.
        blocks: number of thread blocks.
        chunks: number of parts into which a block divides the steps of its segments.
        wide: True to use ``wide.kernel.h``, False to use ``minibatch.kernel.h``.
    """

    sizes: dict[str, int]
    blocks: int
    chunks: int = 1
    wide: bool = False


def supports_fused(
    policy: Policy, precision: str, spec: LossSpec | None, one_launch: bool | str = True
) -> bool:
    """Return True if the default device may compute a minibatch's gradients with fused kernels.

    The shapes of a minibatch may still prevent this.

    Args:
        policy: the policy to train.
        precision: ``train.precision``.
        spec: coefficients, or None for a custom loss or custom advantages.
        one_launch: ``train.one_launch``. ``auto`` means True on CUDA only (not measured on a Mac).
    """
    return bool(
        spec is not None
        and one_launch
        and precision in ("fp32", "bf16")
        and network_facts(policy.network).matrix_units is not None
        and has_linear_encoder_and_decoder(policy)
        and (one_launch != "auto" or gpu_backend() == "cuda")
        and GRADIENTS_IN_TWO.choose(*training_functions(policy))
    )


def kernels_support(loss: Callable[..., Any] | None, recompute: Callable[..., Any] | None) -> bool:
    """Return True if the minibatch kernels support an algorithm's loss and advantages.

    Args:
        loss: ``Algorithm.loss``. Only None, PPO's loss, is supported.
        recompute: ``Algorithm.recompute``. Only None and the function of ``puffer5`` are supported.
    """
    function = recompute.func if isinstance(recompute, partial) else recompute
    return loss is None and (function is None or qualified_name(function) == SUPPORTED_RECOMPUTE)


def with_fused_gradients(
    plain: Callable[..., tuple],
    policy: Policy,
    precision: str,
    spec: LossSpec | None,
    one_launch: bool | str = True,
) -> Callable[..., tuple]:
    """Return a function that computes a minibatch's gradients with fused kernels, if possible.

    Args:
        plain: (weights, minibatch, entropy coefficient, loss scale, scheduled coefficients) ->
            results of ``ppo.gradients.minibatch_loss``, and gradients. Called if the kernels can't
            compute a minibatch.
        policy: the policy to train.
        precision: ``train.precision``.
        spec: coefficients, or None for a custom loss or custom advantages.
        one_launch: ``train.one_launch``: see ``supports_fused``.
    """
    bf16 = precision == "bf16"

    def fused_or_plain(
        weights: Any,
        batch: Minibatch,
        ent_coef: mx.array,
        scale: mx.array,
        scheduled: Mapping[str, mx.array] = {},
    ) -> tuple:
        """Return a minibatch's results and gradients, from a fused kernel if possible.

        Otherwise calls ``plain``, which has the same arguments and results.
        """
        if not supports_fused(policy, precision, spec, one_launch):
            return plain(weights, batch, ent_coef, scale, scheduled)
        assert spec is not None
        # The kernels ignore the scale. Only fp16 needs it, which they don't support.
        observations = batch.observations
        network: Any = policy.network
        action = policy.decoder.action
        T, _, D = observations.shape
        threads, shared_bytes = shared_pool_limits()
        sizes = MinibatchSizes(
            T=T,
            S=len(batch.actions) // T,
            D=D,
            H=network.hidden,
            L=network.layers,
            A=action.logits,
            heads=0 if action.continuous else action.heads,
            live=spec.live is not None,
            bf16=bf16,
            threads=threads,
            shared_bytes=shared_bytes,
        )
        plan = choose_plan(sizes) or choose_wide_plan(sizes)
        if plan is None or observations.size >= MAX_ELEMENTS:
            return plain(weights, batch, ent_coef, scale, scheduled)
        current = spec._replace(coefficients=spec.coefficients._replace(**scheduled))
        return launch_minibatch(policy, current, plan, bf16, weights, batch, ent_coef)

    return fused_or_plain


def _round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple of a number that is at least n."""
    return -(-n // multiple) * multiple


@functools.cache
def choose_plan(minibatch: MinibatchSizes) -> MinibatchPlan | None:
    """Choose how ``minibatch.kernel.h`` divides a minibatch among blocks.

    A hidden size that isn't a multiple of 32 is rounded up. The first choice is the widest tile of
    complete segments that fits shared memory, with as many cached weights and activations as
    possible. The second choice is the widest tile with a fraction of the steps. In 16 bits, all
    weights must fit.

    Returns:
        The plan. None when no tile fits.
    """
    T, S, D, width, L, A, heads, live, bf16, threads, shared_bytes = minibatch
    # Sizes padded to complete tiles of matrix units: the kernel's H, SEEN, OUT, W and DY.
    H = _round_up(width, 32)
    seen = _round_up(D, 16 if bf16 else 8)
    out = _round_up(A + 1, 16)
    observation_row = _round_up(seen, 32)
    dy_row = 32 if out <= 32 else 64
    register_tiles = _register_tiles(seen, H, L, out, threads // 32)
    if out > 64 or register_tiles is None:
        return None
    for steps, segments, all_layers, cached in _candidates(T, S, bf16):
        if width < H and cached < 2:
            continue  # only weights in shared memory can be padded
        rows = steps * segments
        floats = _floats_of_rows(rows, out, heads or A, T * segments if live else None)
        if steps < T:
            floats += L * segments * H  # gradients of the states between two chunks
        # Numbers in the precision of the pass. A layer's gates and the observations share memory
        # unless all layers are cached.
        gates = 3 * H if all_layers else max(3 * H, observation_row)
        gates_and_states = (L if all_layers else 1) * (gates + H)
        numbers_per_row = (L + 1) * H + gates_and_states + dy_row + all_layers * observation_row
        weight_sizes = out * H, L * 3 * H * H, H * observation_row  # in the order of KEPT
        lows = rows * numbers_per_row + sum(weight_sizes[:cached])
        pool = _round_up(floats, 32) + ((lows + 1) // 2 if bf16 else lows)
        # Sums over the block store one float per thread in the memory of the gates.
        sums_fit = threads <= rows * gates // (2 if bf16 else 1)
        if 4 * pool <= shared_bytes and sums_fit:
            sizes = _constants(minibatch._replace(H=H), rows, segments, pool)
            sizes |= {"WIDTH": width, "STEPS": steps, "KEPT": cached, "ALL": all_layers}
            sizes |= register_tiles
            return MinibatchPlan(sizes, min(MAX_BLOCKS, S // segments), T // steps)
    return None


def _floats_of_rows(rows: int, out: int, actions: int, live_rows: int | None) -> int:
    """Return the number of float32 numbers that ``BlockRows`` in ``samples.metal.h`` stores.

    Args:
        rows: rows that a block processes at a time.
        out: outputs of the decoder, padded. Their rows are out + 1 numbers apart.
        actions: numbers per action.
        live_rows: rows of complete segments for live advantages; None for given advantages.
    """
    if live_rows is None:
        return rows * (out + 2 + actions + 4)
    return rows * (out + 2 + actions + 2) + 6 * live_rows


@functools.cache
def choose_wide_plan(minibatch: MinibatchSizes) -> MinibatchPlan | None:
    """Choose how ``wide.kernel.h`` divides a minibatch among blocks.

    The kernel streams the layers' weights. It needs bf16 and discrete actions, and a block
    processes 64 rows.

    Returns:
        The plan. None when the kernel doesn't support these sizes.
    """
    T, S, D, H, L, A, heads, live, bf16, threads, shared_bytes = minibatch
    out = _round_up(A + 1, 16)
    observation_row = _round_up(D, 32)
    if (
        not bf16
        or not heads
        or threads != 512
        or out > 64
        or H % 64
        or H > MAX_WIDE_HIDDEN
        or L > MAX_MATRIX_LAYERS
    ):
        return None
    segments = BLOCK_ROWS // T
    if BLOCK_ROWS % T or S % segments:
        return None
    # The observations and the encoder's weight share memory with the gates.
    if (BLOCK_ROWS + H) * observation_row > BLOCK_ROWS * 3 * H:
        return None
    floats = _floats_of_rows(BLOCK_ROWS, out, heads, BLOCK_ROWS if live else None)
    # A row has the input and output of a layer, the states, 3 gates, and dy, all in 16 bits.
    numbers_per_row = 6 * H + (32 if out <= 32 else 64)
    lows = BLOCK_ROWS * numbers_per_row + out * H  # with the decoder's weight
    pool = _round_up(floats, 32) + lows // 2
    if 4 * pool > shared_bytes:
        return None
    sizes = _constants(minibatch, BLOCK_ROWS, segments, pool)
    return MinibatchPlan(sizes, min(MAX_BLOCKS, S // segments), wide=True)


def _constants(minibatch: MinibatchSizes, rows: int, segments: int, pool: int) -> dict[str, int]:
    """Return the template constants that both minibatch kernels have.

    Args:
        minibatch: sizes of the minibatch.
        rows: rows that a block processes at a time.
        segments: segments that a block processes at a time.
        pool: floats of shared memory per block.
    """
    sizes = {name: int(getattr(minibatch, name)) for name in ("T", "D", "H", "L", "A")}
    threads = minibatch.threads
    columns = tiles_side_by_side(minibatch.H, rows, threads)
    block = {"SEGMENTS": segments, "THREADS": threads, "POOL": pool, "HIDDEN_C": columns}
    return {**sizes, "HEADS": minibatch.heads, "LIVE": int(minibatch.live), **block}


def _tiles(T: int, S: int) -> Iterator[tuple[int, int]]:
    """Yield the possible tiles of a minibatch as (steps, segments), the largest first."""
    for steps in (n for n in range(T, 0, -1) if T % n == 0 and (n % 8 == 0 or n <= 4)):
        for segments in (n for n in range(BLOCK_ROWS // steps, 0, -1) if S % n == 0):
            if steps * segments % 16 == 0:
                yield steps, segments


def _candidates(T: int, S: int, bf16: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield sizes to try for a thread block of the minibatch kernel, the fastest first.

    Each tuple has the kernel's constants STEPS and SEGMENTS (steps and segments that a block
    processes), ALL (1 to cache all layers' activations) and KEPT (which weights to cache).
    """
    caches = [(1, 3), (0, 3)]  # values of (ALL, KEPT)
    if not bf16:  # In 16 bits, all weights must be in shared memory.
        caches += [(0, 2), (0, 1), (0, 0)]
    for steps, segments in _tiles(T, S):
        for all_layers, cached in caches:
            yield steps, segments, all_layers, cached


def _register_tiles(seen: int, H: int, L: int, out: int, groups: int) -> dict[str, int] | None:
    """Choose how many tiles of the weights' gradients each group of 32 threads holds in registers.

    A tile has 16 rows and 8 columns, 4 numbers per thread.

    Args:
        seen: size of an observation, padded.
        H: hidden size, padded.
        L: number of layers.
        out: number of the decoder's outputs, padded.
        groups: groups of 32 threads in a block.

    Returns:
        Template constants by name. None when the registers are too few.
    """
    layers = _tiles_per_group(3 * H // 16, H // 8, groups)
    encoder = _tiles_per_group(H // 16, seen // 8, groups)
    decoder = _tiles_per_group(out // 16, H // 8, groups)
    if not (layers and encoder and decoder) or decoder[0] != 1:
        return None
    counts = L * layers[0] * layers[1], encoder[0] * encoder[1], decoder[1]
    if 4 * sum(counts) > MAX_GRADIENTS * 16 // groups:  # smaller blocks have more registers
        return None
    names = "GATE_R", "GATE_C", "INPUT_R", "INPUT_C", "OUTPUT_C"
    return dict(zip(names, (*layers, *encoder, decoder[1]), strict=True))


def _tiles_per_group(rows: int, columns: int, groups: int) -> tuple[int, int] | None:
    """Divide a matrix of tiles among groups of 32 threads.

    Args:
        rows: rows of tiles.
        columns: columns of tiles.
        groups: number of groups.

    Returns:
        (R, C), the rows and columns of tiles of each group: as few tiles as possible, and then the
        fewest loads. None when the groups are too few.
    """
    # A product of tiles loads 4 numbers per thread for each row, and 2 for each column.
    choices = [
        (R * C, 4 * R + 2 * C, R, C)
        for R in range(1, rows + 1)
        for C in range(1, columns + 1)
        if rows % R == 0 and columns % C == 0 and rows // R * (columns // C) <= groups
    ]
    return min(choices)[2:] if choices else None


def launch_minibatch(
    policy: Policy,
    spec: LossSpec,
    plan: MinibatchPlan,
    bf16: bool,
    weights: Any,
    batch: Minibatch,
    ent_coef: mx.array,
) -> tuple:
    """Compute a minibatch's results and gradients with ``minibatch.kernel.h`` or ``wide.kernel.h``.

    The kernel for wide layers needs another launch for the gradients of the weights.

    Args:
        policy: the policy to train.
        spec: coefficients of the loss and of the advantages.
        plan: division of the minibatch among thread blocks.
        bf16: True for 16-bit activations, False for float32.
        weights: the policy's weights, float32.
        batch: the minibatch.
        ent_coef: entropy coefficient, a scalar array.

    Returns:
        A tuple (None, metrics, ratios (T, S), values (T, S), advantages (T, S)), and the gradients.
    """
    folder = network_facts(policy.network).matrix_units
    assert folder is not None
    T, D, H, L, A = (plan.sizes[name] for name in "TDHLA")
    n = len(batch.actions)
    S = n // T
    by_name: Any = dict(tree_flatten(weights))
    layer_names = [f"network.{layer}.weight" for layer in range(L)]
    names = ["encoder.weight", "decoder.weight", *layer_names]
    names += ["decoder.logstd"] if "decoder.logstd" in by_name else []
    layers = [by_name[name] for name in layer_names]
    P = sum(by_name[name].size for name in names)
    dtype = mx.bfloat16 if bf16 else mx.float32
    inputs = _inputs(policy, spec, weights, batch, ent_coef)
    outputs: dict[str, Shape] = {"partial": (6, plan.blocks)}
    outputs |= dict.fromkeys(("ratio", "value", "adv"), (T, S))
    if plan.wide:
        zeros = placeholder(mx.float32)
        inputs["layers"] = launch_pack_as(dtype, layers)
        inputs["first"] = zeros if batch.state is None else mx.stack(batch.state)
        # xs, dus and dx have rows of H numbers, dys of 32 or 64: see ``Factors`` in wide.kernel.h.
        factors_per_sample = (4 * L + 2) * H + (32 if A < 32 else 64) + _round_up(D, 32)
        outputs["factors"] = (n * factors_per_sample,)
    else:
        inputs |= layer_arrays("first", batch.state or []) | layer_arrays("layer", layers)
        outputs["grads"] = (plan.blocks, P)
        outputs["begins"] = (plan.chunks, L, S, H) if plan.chunks > 1 else (MIN_ARRAY_SIZE,)
    file = WIDE_KERNEL_FILE if plan.wide else KERNEL_FILE
    kernel = ComposedKernel(file, folder / WALKS_FILE)
    name = f"{folder.name}_minibatch_wide" if plan.wide else f"{folder.name}_minibatch"
    threads = plan.sizes["THREADS"]
    grads, partial, ratio, value, adv, *_ = launch(
        kernel,
        name,
        inputs,
        outputs,
        threads=plan.blocks * threads,
        block=threads,
        shared=4 * plan.sizes["POOL"],
        **plan.sizes,
        BLOCKS=plan.blocks,
        Low=dtype,
        Observed=inputs["observations"].dtype,
        MASKED=int(batch.masks is not None),
        EXACT=exact_products(),
    )
    if plan.wide:
        grads = _multiply_factors(kernel, grads, n, P, {"D": D, "H": H, "L": L, "A": A})
    grads, metrics = _sum_blocks(inputs, grads, partial, n, by_name, names)
    return (None, metrics, ratio, value, adv), grads


def _multiply_factors(
    kernel: ComposedKernel, factors: mx.array, n: int, P: int, sizes: dict[str, int]
) -> mx.array:
    """Compute the gradients of all weights from the factors that ``wide.kernel.h`` has stored.

    The samples are divided into slices, each with separate sums. Their number is the largest one
    whose tiles the GPU computes at the same time.

    Args:
        kernel: text of ``wide.kernel.h``.
        factors: the stored factors: see ``Factors`` in ``wide.kernel.h``.
        n: number of samples.
        P: number of weights.
        sizes: the template constants D, H, L and A.

    Returns:
        Gradients of each slice, (slices, P).
    """
    columns = _round_up(sizes["H"], TILE) // TILE
    gate_rows = _round_up(3 * sizes["H"], TILE) // TILE
    encoder_rows = _round_up(sizes["D"], TILE) // TILE
    tiles = columns * (sizes["L"] * gate_rows + encoder_rows + 1)
    slices = 1
    while 2 * slices * tiles <= TILES_AT_ONCE and n // BLOCK_ROWS % (2 * slices) == 0:
        slices *= 2
    pool = STAGES * BLOCK_ROWS * TILE
    sizes = {**sizes, "SLICES": slices, "THREADS": THREADS, "RESIDENT": 2 * THREADS, "POOL": pool}
    inputs = [factors, {"n": n}]
    threads = tiles * slices * THREADS
    outputs = [(slices, P)]
    name = f"{kernel.network.parent.name}_wide_gradients"
    return launch(kernel, name, inputs, outputs, threads, shared=4 * pool, **sizes)[0]


def _inputs(
    policy: Policy, spec: LossSpec, weights: Any, batch: Minibatch, ent_coef: mx.array
) -> dict[str, Any]:
    """Return the inputs of both minibatch kernels by name, except layers and recurrent states."""
    observations, actions, masks, not_done, targets, state, view = batch
    T, N = observations.shape[:2]
    zeros = placeholder(mx.float32)
    final_observations = None if spec.live is None else targets.final_observations
    if spec.live is None:
        moments_or_final = _moments(targets)
        adv_or_rewards = targets.adv
        weight_or_terminals = targets.weight
        groups = moments_or_final.shape[-1]
        moments_shape = {"G": groups, "R": moments_or_final.size // (3 * groups)}
    else:
        moments_or_final = zeros if final_observations is None else final_observations
        adv_or_rewards = targets.rewards
        weight_or_terminals = targets.terminals
        moments_shape = {"G": 0, "R": 0}
    logstd = policy.decoder.logstd(weights["decoder"])
    dtype = mx.uint8 if observations.dtype == mx.uint8 else mx.float32
    return {
        "observations": observations.astype(dtype),
        "agents": constant_array(0) if view is None else view,
        "actions": actions,
        "masks": placeholder(mx.uint8) if masks is None else masks,
        "not_done": constant_array(*[1.0] * MIN_ARRAY_SIZE) if not_done is None else not_done,
        "old_logprob": targets.old_logprob,
        "old_value": targets.old_value,
        "adv_or_rewards": adv_or_rewards,
        "weight_or_terminals": weight_or_terminals,
        "moments_or_final": moments_or_final,
        "encoder": weights["encoder"]["weight"],
        "decoder": weights["decoder"]["weight"],
        "logstd": zeros if logstd is None else logstd,
        "ent_coef": ent_coef.reshape(1),
        "settings": _settings(policy, spec),
        "sizes": constant_array(*policy.decoder.action.sizes),
        "shape": {
            "S": len(actions) // T,
            "N": N,
            **moments_shape,
            "not_done_step": int(not_done is not None),
            "first_step": int(state is not None),
            "within_rho": int(spec.live is not None and spec.live.formula == "V"),
            "bootstrap": int(spec.live is not None and spec.live.bootstrap),
            "has_ratios": int(spec.vtrace),
            "has_final": int(final_observations is not None),
        },
    }


def _settings(policy: Policy, spec: LossSpec) -> dict[str, Any]:
    """Return the coefficients of the loss and of live advantages, under the kernels' names."""
    live = spec.live or Discounts(0.0, 0.0)  # any values, which the kernel doesn't read
    values = {
        "limit": policy.decoder.limits.for_kernels,
        "gamma": live.gamma,
        "gamma_lambda": live.gamma * live.gae_lambda,
        "rho_clip": live.rho_clip,
        "c_clip": live.c_clip,
        "reward_clip": live.reward_clip,
    }
    return settings_of(spec.coefficients) | {name: float(value) for name, value in values.items()}


def _sum_blocks(
    inputs: dict[str, Any],
    grads: mx.array,
    partial: mx.array,
    n: int,
    weights: dict[str, mx.array],
    names: list[str],
) -> tuple[Any, mx.array]:
    """Sum a minibatch's gradients and metrics over all thread blocks.

    Args:
        inputs: inputs of the minibatch kernel, by name.
        grads: gradients of each block or slice, (blocks, P).
        partial: sums of loss terms for each block, (6, blocks).
        n: number of samples.
        weights: the policy's weights by name.
        names: names of the weights, in the order of a block's gradients.

    Returns:
        The gradients, a ``PackedTree``, and the metrics.
    """
    sizes = {name: weights[name].size for name in names}
    sources = dict(zip(names, packed_offsets(tuple(sizes.values())).starts, strict=True))
    starts, total = packed_offsets(tuple(sizes[name] for name in weights), BLOCK)
    # For each tensor: its start in the sum, its size, and its start in a block's gradients.
    places: list[int] = []
    for name, start in zip(weights, starts, strict=True):
        places += start, sizes[name], sources[name]
    shape = {"P": sum(sizes.values()), "n": n, "tensors": len(weights)}
    shape |= {"blocks": partial.shape[1], "parts": len(grads)}
    arrays = {**inputs, "grads": grads, "partial": partial, "shape": shape}
    arrays["places"] = constant_array(*places)
    shapes = {"sum": (total,), "metrics": (len(METRICS),), "squares": (total // THREADS,)}
    packed, metrics, squares = launch(SUM_FILE, "add_blocks", arrays, shapes, total)
    return PackedTree(packed, tree_unflatten(list(weights.items())), squares), metrics


def _moments(targets: Targets) -> mx.array:
    """Return the moments that normalise advantages: all ranks' moments, else the minibatch's."""
    return launch_moments(targets.adv) if targets.moments is None else targets.moments


GRADIENTS_IN_TWO = Implementation(
    ("ppo.gradients", "ppo.closed_form", "ppo.advantage", "ppo.algorithms.puffer5"),
    "a minibatch's gradients in two launches",
    gpu=launch_minibatch,
)
