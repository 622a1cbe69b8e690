"""Muon with upstream's coefficients.

Every tensor with two or more dimensions is orthogonalised, 1-d tensors get plain Nesterov momentum.
Its one decay is ``beta1``: upstream accepts ``beta2`` and ``eps`` but uses neither.
"""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ops.gpu import launch as gpu
from puffer_mlx.ops.gpu.launch import THREADS, launch, numbers, pool_block
from puffer_mlx.ops.implementation import implementation
from puffer_mlx.ops.pack import BLOCK, PackedTree, launch_pack, places
from puffer_mlx.ppo.optimizers import Optimizer, step_if_finite, step_in_one
from puffer_mlx.system.plain_functions import record
from puffer_mlx.trees import Tree, leaves

COEFFICIENTS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def orthogonalise(x: mx.array) -> mx.array:
    """Five quintic Newton-Schulz steps on x / max(norm, 1e-7): singular values move close to 1.

    Args:
        x: (R, C).

    Returns:
        (R, C).
    """
    tall = x.shape[0] > x.shape[1]
    x = x / mx.maximum(mx.sqrt(mx.sum(mx.square(x))), 1e-7)
    for a, b, c in COEFFICIENTS:
        gram = x.T @ x if tall else x @ x.T
        poly = mx.addmm(b * gram, gram, gram, alpha=c)
        x = mx.addmm(a * x, x, poly) if tall else mx.addmm(a * x, poly, x)
    return x


def muon(
    weights: Tree,
    grads: Tree,
    momentum: Tree,
    *,
    lr: mx.array | float,
    beta: float,
    weight_decay: float = 0.0,
) -> tuple[Tree, Tree]:
    """One step: m = beta m + g, u = g + beta m, w = w (1 - lr wd) - lr scale orthogonalise(u).

    A tensor is viewed as a matrix (R, C), R its first dimension; scale = sqrt(max(1, R / C)). 1-d
    tensors take u itself.

    Args:
        weights: tree of arrays.
        grads: tree of the same structure, already clipped.
        momentum: tree from ``init`` or the last step.
        lr: learning rate, a scalar array where it changes.
        beta: momentum (upstream's ``beta1``).
        weight_decay: part of a weight that a step takes away, times lr; 0 upstream.

    Returns:
        New weights and momentum.
    """
    momentum = tree_map(lambda m, g: beta * m + g, momentum, grads)

    def update(w: mx.array, g: mx.array, m: mx.array) -> mx.array:
        u = g + beta * m
        if u.ndim >= 2:
            matrix = u.reshape(u.shape[0], -1)
            scale = math.sqrt(max(1.0, matrix.shape[0] / matrix.shape[1]))
            u = scale * orthogonalise(matrix).reshape(u.shape)
        return w * (1 - lr * weight_decay) - lr * u

    return tree_map(update, weights, grads, momentum), momentum


def init(weights: Tree) -> Tree:
    """The state before the first step."""
    return {"momentum": tree_map(mx.zeros_like, weights)}


def step(
    weights: Tree,
    grads: Tree,
    state: Tree,
    loss: mx.array,
    lr: mx.array,
    *,
    max_grad_norm: float,
    beta1: float,
    weight_decay: float,
    low: bool = False,
) -> tuple[Tree, Tree, mx.array]:
    """Clip the gradients and make Muon's step, unless the loss or a gradient is not finite.

    With a BLAS the CPU's extension has one operation for it, and a GPU needs few launches: for a
    small network's minibatch the graph of many operations would take longer than the numbers.

    Args:
        weights: tree of float32 arrays.
        grads: tree of the same structure. A GPU packs weights, gradients and momentum into one
            array, unless all three are ``PackedTree``, as the fused gradients and the step before
            return them.
        state: ``momentum``, from ``init`` or the last step.
        loss: a scalar array.
        lr: learning rate, a scalar array.
        max_grad_norm: what the gradients' norm is clipped to.
        beta1: momentum.
        weight_decay: as of ``muon``.
        low: True if a GPU may round factors: to bf16, and those of small matrices to TF32.

    Returns:
        New weights and state, and whether (a scalar) they are new.
    """
    trees = weights, grads, state["momentum"]
    coefficients = max_grad_norm, beta1, weight_decay, COEFFICIENTS
    fused = STEP.choose()
    if fused is launch_step:
        weights, momentum, ok = launch_step(*trees, lr, loss, *coefficients, low)
        return weights, {"momentum": momentum}, ok
    if fused is not None:
        return step_in_one(fused, trees, weights, state, lr, loss, *coefficients)

    def update(weights: Tree, grads: Tree, state: Tree) -> tuple[Tree, Tree]:
        momentum = state["momentum"]
        weights, momentum = muon(
            weights, grads, momentum, lr=lr, beta=beta1, weight_decay=weight_decay
        )
        return weights, {"momentum": momentum}

    return step_if_finite(update, weights, grads, state, loss, max_grad_norm)


OPTIMIZER = Optimizer(init, step, reads=("beta1", "weight_decay"), supports_bf16=True)

# ---- on a GPU: ``muon.metal.h`` ------------------------------------------------------------------

TEXT = Path(__file__).with_name("muon.metal.h")
TILE = 64  # rows and columns of a block's part of a product

# Up to which sizes one block does all of a matrix: the rows are those of its shared memory, and
# with that many columns it multiplies 12 million times, about 0.1 ms of a GPU's core.
ROWS_OF_A_BLOCK, COLUMNS_OF_A_BLOCK = TILE, 256
ROWS_OF_A_CLUSTER, COLUMNS_OF_A_CLUSTER = 256, 1024  # the same of a cluster of blocks
TILES_OF_GRAM = 136  # (16, 16), on one side of the diagonal of ROWS_OF_A_CLUSTER rows and on it

Shapes = tuple[tuple[int, ...], ...]
GRAM, POLY, NEXT = range(3)  # what muon_product makes


class Matrix(NamedTuple):
    """A tensor as it is orthogonalised; (0, 0) if it isn't."""

    r: int
    c: int
    tall: bool  # it is transposed for that: r <= c


class Layout(NamedTuple):
    """Where a network's tensors are in the flat arrays: see ``muon.metal.h``."""

    starts: tuple[int, ...]
    total: int
    grams: int  # numbers of all Gram matrices
    tensors: mx.array
    owners: mx.array
    tiles: dict[int, mx.array]  # by what is made of them; empty without a matrix
    small: bool  # one block does all of a tensor
    middling: bool  # or a cluster of blocks does
    columns: int  # of the widest matrix


def matrix_of(shape: tuple[int, ...]) -> Matrix:
    """A tensor's matrix: its first dimension by all others."""
    if len(shape) < 2:
        return Matrix(0, 0, False)
    R, C = shape[0], math.prod(shape[1:])
    return Matrix(min(R, C), max(R, C), R > C)


def fits_a_block(matrix: Matrix) -> bool:
    """Whether one block orthogonalises it."""
    return matrix.r <= ROWS_OF_A_BLOCK and matrix.c <= COLUMNS_OF_A_BLOCK


@functools.cache
def layout(shapes: Shapes, apart: bool = False) -> Layout:
    """Where tensors of these shapes are, in one array or three (``apart``)."""
    sizes = tuple(math.prod(shape) for shape in shapes)
    starts, total = places(sizes, BLOCK)
    matrices = [matrix_of(shape) for shape in shapes]
    blocks, grams = total // BLOCK, 0
    others = [0, 0, 0, BLOCK // THREADS] if apart else [total, 2 * total, blocks, 1]
    table = [total, blocks, *others, 0, 0]
    for start, size, (r, c, tall) in zip(starts, sizes, matrices, strict=True):
        table += start, size, r, c, int(tall), grams, 0, 0
        grams += -(-r * r // 16) * 16
    owners = [t for t, size in enumerate(sizes) for _ in range(-(-size // BLOCK))]
    return Layout(
        starts=starts,
        total=total,
        grams=grams,
        tensors=numbers(*table),
        owners=numbers(*owners),
        tiles=_tiles(matrices),
        small=all(fits_a_block(matrix) for matrix in matrices),
        middling=all(
            matrix.r <= ROWS_OF_A_CLUSTER and matrix.c <= COLUMNS_OF_A_CLUSTER
            for matrix in matrices
        ),
        columns=max((matrix.c for matrix in matrices), default=0),
    )


def _tiles(matrices: Sequence[Matrix]) -> dict[int, mx.array]:
    """Of each kind of product, all tiles: tensor, first row, first column."""
    squares, whole = [], []
    for t, (r, c, tall) in enumerate(matrices):
        for i in range(0, r, TILE):
            squares += [number for j in range(0, i + 1, TILE) for number in (t, i, j)]
        rows, columns = (c, r) if tall else (r, c)
        for i in range(0, rows, TILE):
            whole += [number for j in range(0, columns, TILE) for number in (t, i, j)]
    if not whole:
        return {}
    return {GRAM: numbers(*squares), POLY: numbers(*squares), NEXT: numbers(*whole)}


def launch_step(
    weights: Tree,
    grads: Tree,
    momentum: Tree,
    lr: mx.array,
    loss: mx.array,
    max_norm: float,
    beta: float,
    decay: float,
    coefficients: tuple[tuple[float, float, float], ...],
    low: bool = False,
) -> tuple[PackedTree, PackedTree, mx.array]:
    """Make one step on a GPU, in a few launches for any network: see ``step``.

    Returns:
        New weights and momentum, and whether they are new: 1 or 0, a float32 scalar.
    """
    trees = weights, grads, momentum
    flat = [tree.packed if isinstance(tree, PackedTree) else None for tree in trees]
    squares = grads.squares if isinstance(grads, PackedTree) else None
    apart = squares is not None and all(packed is not None for packed in flat)
    at = layout(tuple(tuple(array.shape) for array in leaves(weights)), apart)
    if not apart:
        packed, squares = launch_pack([array for tree in trees for array in leaves(tree)], BLOCK)
        flat = [packed] * len(trees)
    inputs: Any = {
        "tensors": at.tensors,
        **dict(zip(("weights_before", "gradients", "momenta"), flat, strict=True)),
        "squares": squares,
        "settings": numbers(float(beta), float(decay), float(max_norm)),
        "owners": at.owners,
        "coefficients": numbers(*(number for line in coefficients for number in line)),
        "loss": loss.reshape(1),
        "lr": lr.reshape(1),
    }
    if at.small:
        *flat, ok = _by_blocks(at, inputs, low)
    elif at.middling and gpu.cluster_blocks() > 1:
        by = _spread if low and _room_of(at) else _by_clusters
        *flat, ok = by(at, inputs, low, gpu.cluster_blocks())
    else:
        *flat, ok = _in_groups(at, inputs, low)
    return PackedTree(flat[0], weights), PackedTree(flat[1], momentum), ok


def _by_blocks(at: Layout, inputs: dict[str, mx.array], low: bool) -> tuple[mx.array, ...]:
    """New weights and momentum, flat, and whether they are new: in one launch."""
    columns = -(-at.columns // TILE) * TILE
    block, room = pool_block()
    pool = TILE * columns + 2 * TILE * TILE + block
    if not columns or 4 * pool > room:
        return _by_clusters(at, inputs, low, 1)
    shapes = {"weights": (at.total,), "momentum": (at.total,), "ok": ()}
    sizes = {"COLUMNS": columns, "THREADS": block, "POOL": pool, "EXACT": int(not low)}
    threads = len(at.starts) * block
    weights, momentum, ok = launch(
        TEXT, "muon_kept", inputs, shapes, threads, block, 4 * pool, **sizes
    )
    return weights, momentum, ok


def _by_clusters(
    at: Layout, inputs: dict[str, mx.array], low: bool, cluster: int
) -> tuple[mx.array, ...]:
    """The same by so many blocks for each tensor."""
    flat, grams, blocks = (at.total,), (max(1, at.grams),), len(at.starts) * cluster
    shapes = {"weights": flat, "momentum": flat, "sums": (blocks,), "ok": ()}
    shapes |= {"even": flat, "odd": flat, "gram": grams, "poly": grams}
    sizes = {"Low": _kind(low), "EXACT": int(not low), "CLUSTER": cluster}
    weights, momentum, _, ok, *_ = _launch("muon_step", inputs, shapes, blocks, **sizes)
    return weights, momentum, ok


def _room_of(at: Layout) -> tuple[int, int] | None:
    """Of the bf16 form: columns of x that a block keeps, numbers of its memory; None: no room."""
    cluster, (block, room) = gpu.cluster_blocks(), pool_block()
    columns = max(1, -(-at.columns // (32 * cluster))) * 32
    pool = ROWS_OF_A_CLUSTER * (ROWS_OF_A_CLUSTER + columns) // 2 + block
    return (columns, pool) if 32 * cluster >= ROWS_OF_A_CLUSTER and 4 * pool <= room else None


def _spread(
    at: Layout, inputs: dict[str, mx.array], low: bool, cluster: int
) -> tuple[mx.array, ...]:
    """The same in bf16, each block with a part of x in its shared memory."""
    columns, pool = _room_of(at) or (0, 0)
    block, count, r = pool_block()[0], len(at.starts), ROWS_OF_A_CLUSTER
    shapes = {"weights": (at.total,), "momentum": (at.total,), "sums": (count * cluster,), "ok": ()}
    shapes |= {"partial": (count, cluster, TILES_OF_GRAM, 16 * 16), "gram": (count, r, r)}
    sizes = {"Low": _kind(low), "COLUMNS": columns, "THREADS": block, "POOL": pool}
    sizes["CLUSTER"] = cluster
    threads = count * cluster * block
    weights, momentum, _, ok, *_ = launch(
        TEXT, "muon_spread", inputs, shapes, threads, block, 4 * pool, **sizes
    )
    return weights, momentum, ok


def _kind(low: bool) -> mx.Dtype:
    return mx.bfloat16 if low else mx.float32


def _in_groups(at: Layout, inputs: dict[str, mx.array], low: bool) -> tuple[mx.array, ...]:
    """The same of tensors of any size, each launch for all of them; if low, of bf16."""
    flat, blocks = (at.total,), at.total // BLOCK
    shapes = {"momentum": flat, "u": flat, "sums": (blocks,), "ok": (), "x": flat}
    momentum, u, sums, ok, x = _launch("muon_momentum", inputs, shapes, blocks, Low=_kind(low))

    def product(line: int, what: int, square: mx.array, x: mx.array) -> mx.array:
        tiles, shape = at.tiles[what], flat if what == NEXT else (at.grams,)
        of = {"tiles": tiles, "now": numbers(line, what), "square": square, "x": x}
        arrays, shapes = {**inputs, **of, "sums": sums}, {"out": shape}
        sizes = {"EXACT": int(not low), "THREADS": THREADS, "RESIDENT": 2 * THREADS}
        return _launch("muon_product", arrays, shapes, tiles.size // 3, **sizes)[0]

    for line in range(inputs["coefficients"].size // 3 if at.tiles else 0):
        gram = product(line, GRAM, x, x)
        x = product(line, NEXT, product(line, POLY, gram, gram), x)
    arrays = {**inputs, "u": u, "x": x, "ok": ok.reshape(1)}
    return _launch("muon_apply", arrays, {"weights": flat}, blocks)[0], momentum, ok


def _launch(
    name: str,
    inputs: dict[str, mx.array],
    outputs: dict[str, tuple[int, ...]],
    blocks: int,
    **sizes: Any,
) -> list[mx.array]:
    return launch(TEXT, name, inputs, outputs, threads=blocks * THREADS, **sizes)


STEP = implementation(
    ("ppo.optimizers.muon",), "Muon in one call", cpu="muon_step", gpu=launch_step, gemm=True
)

record(__name__)
