"""A minibatch's gradients in two launches on a GPU: forward pass, loss and backward pass.

``minibatch.kernel.h`` keeps all activations in a block's shared memory. It needs a network with
kernels for matrix units, a linear encoder, fp32 or bf16, and enough shared memory. For
wider layers, up to 256 in bf16 on CUDA, a block of ``wide.kernel.h`` streams the weights and stores
the factors of their gradients. ``ppo/gradients.py`` computes all other cases, and the tests compare
both kernels with it. On CUDA, fp32 products use TF32, as in MLX, unless ``MLX_ENABLE_TF32=0``.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten

from puffer_mlx.ops.gpu.launch import (
    FEWEST,
    THREADS,
    Shape,
    constant_array,
    exact_products,
    launch,
    placeholder,
    shared_pool_limits,
    tiles_side_by_side,
)
from puffer_mlx.ops.gpu.text import WALKS, ComposedKernel
from puffer_mlx.ops.implementation import Implementation, name_of
from puffer_mlx.ops.pack import BLOCK, PackedTree, launch_pack_as, places
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

RECOMPUTE = "ppo.algorithms.puffer5:recompute_advantages"
TEXT = Path(__file__).with_name("blocks.metal.h")
KERNEL, WIDE = TEXT.with_name("minibatch.kernel.h"), TEXT.with_name("wide.kernel.h")
BLOCKS = 128  # largest number of blocks per launch; an H200 has 132 cores
ROWS = 64  # largest number of rows that a block processes at a time
GRADIENTS = 96  # largest number of weight gradients per thread, for 512 threads
TILE, STAGES = 128, 3  # tile size and buffered stages of a block in `wide_gradients`
TILES_AT_ONCE = 264  # number of tiles that an H200 computes at the same time
WIDEST = 256  # largest H of wide layers: 64 rows of 3 gates fill half an H200's shared memory


class LossSpec(NamedTuple):
    """Coefficients of the loss and of live advantages.

    Attributes:
        numbers: coefficients of PPO's loss.
        live: coefficients of live advantages, computed from the values of the same forward pass.
            None if advantages are computed beforehand.
        vtrace: True to clip live advantages by the ratios of the new to the old probabilities.
    """

    numbers: Coefficients
    live: Discounts | None = None
    vtrace: bool = False


class MinibatchSizes(NamedTuple):
    """Sizes of a minibatch and a block.

    A minibatch has T steps of S segments. D is the size of an observation, H the hidden size, L the
    number of layers, and A the number of logits. ``heads`` is 0 for A continuous actions. If
    ``low``, weights and activations have 16 bits. A block has ``threads`` threads and ``room``
    bytes of shared memory.
    """

    T: int
    S: int
    D: int
    H: int
    L: int
    A: int
    heads: int
    live: bool
    low: bool
    threads: int
    room: int


class MinibatchPlan(NamedTuple):
    """Division of a minibatch: the kernel's template constants, numbers of blocks and chunks."""

    sizes: dict[str, int]
    blocks: int
    chunks: int = 1
    wide: bool = False  # True for ``wide.kernel.h``


def supports_fused(
    policy: Policy, kind: str, spec: LossSpec | None, wanted: bool | str = True
) -> bool:
    """Return True if the default device computes minibatches in one launch, if shapes allow it.

    Args:
        policy: the policy to train.
        kind: ``train.precision``.
        spec: coefficients, or None for a custom loss or custom advantages.
        wanted: ``train.one_launch``; auto is True on CUDA only (not measured on a Mac).
    """
    return bool(
        spec is not None
        and wanted
        and kind in ("fp32", "bf16")
        and network_facts(policy.network).matrix_units is not None
        and has_linear_encoder_and_decoder(policy)
        and (wanted != "auto" or gpu_backend() == "cuda")
        and GRADIENTS_IN_TWO.choose(*training_functions(policy))
    )


def computes(loss: Callable[..., Any] | None, recompute: Callable[..., Any] | None) -> bool:
    """Return True if the kernels compute this loss.

    Args:
        loss: ``Algorithm.loss``. The kernels compute only PPO's, for which this is None.
        recompute: ``Algorithm.recompute``. The kernels compute only the one of ``puffer5``.
    """
    function = recompute.func if isinstance(recompute, partial) else recompute
    return loss is None and (function is None or name_of(function) == RECOMPUTE)


def with_fused_gradients(
    plain: Callable[..., tuple],
    policy: Policy,
    kind: str,
    spec: LossSpec | None,
    wanted: bool | str = True,
) -> Callable[..., tuple]:
    """Return a function that computes gradients in two launches if possible, else by ``plain``.

    Args:
        plain: function of weights, minibatch, entropy coefficient, loss scale and scheduled
            coefficients that returns the results of ``ppo.gradients.minibatch_loss`` and its
            gradients.
        policy: the policy to train.
        kind: ``train.precision``.
        spec: coefficients, or None for a custom loss or custom advantages.
        wanted: ``train.one_launch``: see ``supports_fused``.
    """

    def step(
        weights: Any,
        batch: Minibatch,
        ent_coef: mx.array,
        scale: mx.array,
        scheduled: Mapping[str, mx.array] = {},
    ) -> tuple:
        if not supports_fused(policy, kind, spec, wanted):
            return plain(weights, batch, ent_coef, scale, scheduled)
        assert spec is not None
        # The kernels don't support fp16, which needs the scale.
        whole, actions = batch.observations, batch.actions
        network, action, low = policy.network, policy.decoder.action, kind == "bf16"
        T, _, D = whole.shape
        sizes = MinibatchSizes(
            *(T, len(actions) // T, D, network.hidden, network.layers),  # type: ignore
            *(action.logits, 0 if action.continuous else action.heads),
            *(spec.live is not None, low, *shared_pool_limits()),
        )
        plan = choose_plan(sizes) or choose_wide(sizes)
        if plan is None or whole.size >= MAX_ELEMENTS:
            return plain(weights, batch, ent_coef, scale, scheduled)
        varied = spec._replace(numbers=spec.numbers._replace(**scheduled))
        return launch_minibatch(policy, varied, plan, low, weights, batch, ent_coef)

    return step


@functools.cache
def choose_plan(given: MinibatchSizes) -> MinibatchPlan | None:
    """Return the division of a minibatch among blocks, or None if it doesn't fit.

    A hidden size that isn't a multiple of 32 is rounded up. The first choice is the widest tile of
    complete segments that fits shared memory, with as many weights and activations as possible, so
    that fewer are recomputed. The second choice is the widest tile of some of the steps. In 16
    bits, all weights must fit.
    """
    T, S, D, width, L, A, heads, live, low, threads, room = given
    H = -(-width // 32) * 32
    seen, out = -(-D // (16 if low else 8)) * (16 if low else 8), -(-(A + 1) // 16) * 16
    gradients = _gradients(seen, H, L, out, threads // 32)
    if out > 64 or gradients is None:
        return None
    wide, dy = -(-seen // 32) * 32, 32 if out <= 32 else 64
    for steps, segments, every, kept in _ways(T, S, low):
        if width < H and kept < 2:
            continue
        rows = steps * segments
        floats = rows * (out + 2 + (heads or A) + (2 if live else 4)) + (
            6 * T * segments if live else 0
        )
        floats += L * segments * H if steps < T else 0
        u = 3 * H if every else max(3 * H, wide)
        held = u + H
        lows = rows * ((L + 1) * H + (L if every else 1) * held + dy + every * wide)
        sizes_of_weights = out * H, L * 3 * H * H, H * wide
        lows += sum(sizes_of_weights[:kept])
        pool = -(-floats // 32) * 32 + (-(-lows // 2) if low else lows)
        if 4 * pool <= room and threads <= rows * u // (2 if low else 1):
            sizes = _constants(given._replace(H=H), rows, segments, pool)
            sizes |= {"WIDTH": width, "STEPS": steps, "KEPT": kept, "ALL": every, **gradients}
            return MinibatchPlan(sizes, min(BLOCKS, S // segments), T // steps)
    return None


@functools.cache
def choose_wide(given: MinibatchSizes) -> MinibatchPlan | None:
    """Return the division for ``wide.kernel.h``, or None if it doesn't fit: see ``choose_plan``.

    This kernel streams the layers' weights. It needs bf16 and discrete actions, and a block
    processes 64 rows.
    """
    T, S, D, H, L, A, heads, live, low, threads, room = given
    out, wide = -(-(A + 1) // 16) * 16, -(-D // 32) * 32
    if (
        not low
        or not heads
        or threads != 512
        or out > 64
        or H % 64
        or H > WIDEST
        or L > MAX_MATRIX_LAYERS
    ):
        return None
    if ROWS % T or S % (ROWS // T) or (ROWS + H) * wide > ROWS * 3 * H:
        return None
    segments, dy = ROWS // T, 32 if out <= 32 else 64
    floats = ROWS * (out + 2 + heads + (2 if live else 4)) + (6 * ROWS if live else 0)
    lows = ROWS * (6 * H + dy) + out * H
    pool = -(-floats // 32) * 32 + lows // 2
    if 4 * pool > room:
        return None
    sizes = _constants(given, ROWS, segments, pool)
    return MinibatchPlan(sizes, min(BLOCKS, S // segments), wide=True)


def _constants(given: MinibatchSizes, rows: int, segments: int, pool: int) -> dict[str, int]:
    """Return the template constants of both kernels for a block of rows and segments."""
    names = {name: int(getattr(given, name)) for name in ("T", "D", "H", "L", "A")}
    columns = tiles_side_by_side(given.H, rows, given.threads)
    block = {"SEGMENTS": segments, "THREADS": given.threads, "POOL": pool, "HIDDEN_C": columns}
    return {**names, "HEADS": given.heads, "LIVE": int(given.live), **block}


def _tiles(T: int, S: int) -> Iterator[tuple[int, int]]:
    """Yield steps and segments of tiles, with most steps first, then with most segments first."""
    for steps in (n for n in range(T, 0, -1) if T % n == 0 and (n % 8 == 0 or n <= 4)):
        for segments in (n for n in range(ROWS // steps, 0, -1) if S % n == 0):
            if steps * segments % 16 == 0:
                yield steps, segments


def _ways(T: int, S: int, low: bool) -> Iterator[tuple[int, int, int, int]]:
    """Yield STEPS, SEGMENTS, ALL and KEPT of the kernel's template, the best first."""
    ways = ((1, 3), (0, 3), (0, 2), (0, 1), (0, 0))[: 2 if low else 5]
    for tile in _tiles(T, S):
        yield from ((*tile, *way) for way in ways)


def _gradients(seen: int, H: int, L: int, out: int, groups: int) -> dict[str, int] | None:
    """Return the tiles of weight gradients per 32 threads, or None if they don't fit registers."""
    layers = _share(3 * H // 16, H // 8, groups)
    encoder, decoder = _share(H // 16, seen // 8, groups), _share(out // 16, H // 8, groups)
    if not (layers and encoder and decoder) or decoder[0] != 1:
        return None
    counts = L * layers[0] * layers[1], encoder[0] * encoder[1], decoder[1]
    if 4 * sum(counts) > GRADIENTS * 16 // groups:
        return None
    names = "GATE_R", "GATE_C", "INPUT_R", "INPUT_C", "OUTPUT_C"
    return dict(zip(names, (*layers, *encoder, decoder[1]), strict=True))


def _share(rows: int, columns: int, groups: int) -> tuple[int, int] | None:
    """Return a group's tiles (R, C) that cover all rows and columns with the fewest loads."""
    shares = [
        (R * C, 4 * R + 2 * C, R, C)
        for R in range(1, rows + 1)
        for C in range(1, columns + 1)
        if rows % R == 0 and columns % C == 0 and rows // R * (columns // C) <= groups
    ]
    return min(shares)[2:] if shares else None


def launch_minibatch(
    policy: Policy,
    spec: LossSpec,
    plan: MinibatchPlan,
    low: bool,
    weights: Any,
    batch: Minibatch,
    ent_coef: mx.array,
) -> tuple:
    """Compute a minibatch by ``minibatch.kernel.h`` or ``wide.kernel.h``.

    The kernel for wide layers needs an extra launch for the gradients of the weights.

    Returns:
        None, metrics, ratios, values and advantages (T, S) in a tuple; and gradients.
    """
    folder = network_facts(policy.network).matrix_units
    assert folder is not None
    T, D, H, L, A = (plan.sizes[name] for name in "TDHLA")
    n = len(batch.actions)
    S = n // T
    named: Any = dict(tree_flatten(weights))
    of_layers = [f"network.{layer}.weight" for layer in range(L)]
    names = ["encoder.weight", "decoder.weight", *of_layers]
    names += ["decoder.logstd"] if "decoder.logstd" in named else []
    layers = [named[name] for name in of_layers]
    P = sum(named[name].size for name in names)
    dtype = mx.bfloat16 if low else mx.float32
    inputs = _inputs(policy, spec, weights, batch, ent_coef)
    outputs: dict[str, Shape] = {"partial": (6, plan.blocks)}
    outputs |= dict.fromkeys(("ratio", "value", "adv"), (T, S))
    if plan.wide:
        dy = 32 if A < 32 else 64
        zeros = placeholder(mx.float32)
        inputs["layers"] = launch_pack_as(dtype, layers)
        inputs["first"] = zeros if batch.state is None else mx.stack(batch.state)
        outputs["factors"] = (n * ((4 * L + 2) * H + dy + -(-D // 32) * 32),)
    else:
        inputs |= layer_arrays("first", batch.state or []) | layer_arrays("layer", layers)
        outputs["grads"] = (plan.blocks, P)
        outputs["begins"] = (plan.chunks, L, S, H) if plan.chunks > 1 else (FEWEST,)
    text = ComposedKernel(WIDE if plan.wide else KERNEL, folder / WALKS)
    threads = plan.sizes["THREADS"]
    grads, partial, ratio, value, adv, *_ = launch(
        *(text, f"{folder.name}_minibatch{'_wide' * plan.wide}", inputs, outputs),
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
        grads = _products(text, grads, n, P, {"D": D, "H": H, "L": L, "A": A})
    grads, metrics = _finished(inputs, grads, partial, n, named, names)
    return (None, metrics, ratio, value, adv), grads


def _products(
    text: ComposedKernel, factors: mx.array, n: int, P: int, sizes: dict[str, int]
) -> mx.array:
    """Return the gradients of P weights for equal parts of the n samples, (parts, P).

    The number of parts is the largest one whose tiles the GPU computes at the same time.
    """
    across, down, seen = (-(-k // TILE) for k in (sizes["H"], 3 * sizes["H"], sizes["D"]))
    tiles, parts = across * (sizes["L"] * down + seen + 1), 1
    while 2 * parts * tiles <= TILES_AT_ONCE and n // ROWS % (2 * parts) == 0:
        parts *= 2
    pool = STAGES * ROWS * TILE
    sizes = {**sizes, "SLICES": parts, "THREADS": THREADS, "RESIDENT": 2 * THREADS, "POOL": pool}
    inputs, threads = [factors, {"n": n}], tiles * parts * THREADS
    outputs = [(parts, P)]
    name = f"{text.network.parent.name}_wide_gradients"
    return launch(text, name, inputs, outputs, threads, shared=4 * pool, **sizes)[0]


def _inputs(
    policy: Policy, spec: LossSpec, weights: Any, batch: Minibatch, ent_coef: mx.array
) -> dict[str, Any]:
    """Return the inputs of both kernels by name, without layers and states."""
    observations, actions, masks, not_done, targets, state, view = batch
    T, N = observations.shape[:2]
    zeros = placeholder(mx.float32)
    final_observations = None if spec.live is None else targets.final_observations
    if spec.live is None:
        last = _moments(targets)
        given, further = targets.adv, targets.weight
        groups = {"G": last.shape[-1], "R": last.size // (3 * last.shape[-1])}
    else:
        last = zeros if final_observations is None else final_observations
        given, further = targets.rewards, targets.terminals
        groups = {"G": 0, "R": 0}
    logstd = policy.decoder.logstd(weights["decoder"])
    dtype = mx.uint8 if observations.dtype == mx.uint8 else mx.float32
    return {
        "observations": observations.astype(dtype),
        "strip": constant_array(0) if view is None else view,
        "actions": actions,
        "masks": placeholder(mx.uint8) if masks is None else masks,
        "not_done": constant_array(*[1.0] * FEWEST) if not_done is None else not_done,
        "old_logprob": targets.old_logprob,
        "old_value": targets.old_value,
        "given": given,
        "further": further,
        "last": last,
        "encoder": weights["encoder"]["weight"],
        "decoder": weights["decoder"]["weight"],
        "logstd": zeros if logstd is None else logstd,
        "ent_coef": ent_coef.reshape(1),
        "settings": _settings(policy, spec),
        "sizes": constant_array(*policy.decoder.action.sizes),
        "shape": {
            **{"S": len(actions) // T, "N": N, **groups},
            **{"not_done_step": int(not_done is not None), "first_step": int(state is not None)},
            "within_rho": int(spec.live is not None and spec.live.form == "V"),
            "bootstrap": int(spec.live is not None and spec.live.bootstrap),
            **{
                "has_ratios": int(spec.vtrace),
                "has_final": int(final_observations is not None),
            },
        },
    }


def _settings(policy: Policy, spec: LossSpec) -> dict[str, Any]:
    """Return the coefficients of the loss and of live advantages, by the kernels' names."""
    live = spec.live or Discounts(0.0, 0.0)
    values = {"limit": policy.decoder.limits.for_kernels, "gamma": live.gamma}
    values |= {"gamma_lambda": live.gamma * live.gae_lambda, "rho_clip": live.rho_clip}
    values |= {"c_clip": live.c_clip, "reward_clip": live.reward_clip}
    return settings_of(spec.numbers) | {name: float(value) for name, value in values.items()}


def _finished(
    inputs: dict[str, Any],
    grads: mx.array,
    partial: mx.array,
    n: int,
    named: dict[str, mx.array],
    names: list[str],
) -> tuple[Any, mx.array]:
    """Return the sums of the blocks' gradients, a ``PackedTree``, and the metrics.

    ``names`` lists the tensors in the order of a block's gradients.
    """
    sizes = {name: named[name].size for name in names}
    sources = dict(zip(names, places(tuple(sizes.values())).starts, strict=True))
    starts, total = places(tuple(sizes[name] for name in named), BLOCK)
    where = ((start, sizes[name], sources[name]) for name, start in zip(named, starts, strict=True))
    shape = {"P": sum(sizes.values()), "n": n, "tensors": len(named)}
    shape |= {"blocks": partial.shape[1], "parts": len(grads)}
    arrays = {**inputs, "grads": grads, "partial": partial, "shape": shape}
    arrays["places"] = constant_array(*(number for place in where for number in place))
    shapes = {"sum": (total,), "metrics": (len(METRICS),), "squares": (total // THREADS,)}
    found, metrics, squares = launch(TEXT, "add_blocks", arrays, shapes, total)
    return PackedTree(found, tree_unflatten(list(named.items())), squares), metrics


def _moments(targets: Targets) -> mx.array:
    """Return the moments of the advantages: of all ranks if present, else of this minibatch."""
    return launch_moments(targets.adv) if targets.moments is None else targets.moments


GRADIENTS_IN_TWO = Implementation(
    ("ppo.gradients", "ppo.closed_form", "ppo.advantage", "ppo.algorithms.puffer5"),
    "a minibatch's gradients in two launches",
    gpu=launch_minibatch,
)
