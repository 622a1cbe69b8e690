"""Muon with upstream's coefficients.

The update of a tensor with two or more dimensions is orthogonalised. 1-d tensors get plain Nesterov
momentum. The only decay rate is ``beta1``: upstream accepts ``beta2`` and ``eps`` but uses neither.
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
    """Orthogonalise a matrix approximately: its singular values move close to 1.

    Applies five quintic Newton-Schulz steps to x / max(norm, 1e-7).

    Args:
        x: matrix, (R, C).

    Returns:
        Matrix, (R, C).
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
    """Make one step.

        m = beta m + g
        u = g + beta m
        w = w (1 - lr wd) - lr scale orthogonalise(u)

    A tensor is reshaped to a matrix (R, C), where R is the first dimension, and
    scale = sqrt(max(1, R / C)). For 1-d tensors, u replaces scale orthogonalise(u).

    Args:
        weights: tree of arrays.
        grads: clipped gradients, a tree of the same structure.
        momentum: momentum from ``init`` or the previous step, a tree of the same structure.
        lr: learning rate. Pass a scalar array if it changes.
        beta: decay rate of the momentum (upstream's ``beta1``).
        weight_decay: weight decay wd; 0 upstream.

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
    """Return the initial state."""
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

    The CPU extension, if it is built with a BLAS, does this in one operation. A GPU needs few
    launches. For a small network, a graph of many operations would take longer to submit than to
    compute.

    Args:
        weights: tree of float32 arrays.
        grads: gradients, a tree of the same structure. A GPU packs weights, gradients and momentum
            into one array. It skips this if all three are ``PackedTree``, as returned by the fused
            gradients and the previous step.
        state: state from ``init`` or the previous step, with the key ``momentum``.
        loss: loss of the minibatch, a scalar array.
        lr: learning rate, a scalar array.
        max_grad_norm: largest L2 norm of all gradients.
        beta1: decay rate of the momentum.
        weight_decay: weight decay: see ``muon``.
        low: True to let a GPU round factors of products: to bf16, or to TF32 for small matrices.

    Returns:
        The weights, the state and a scalar flag. The flag is true if the step was made.
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
TILE = 64  # rows and columns of one block's tile of a product

# The largest matrix that one block orthogonalises. Shared memory limits the rows. 256 columns take
# 12 million multiplications, about 0.1 ms of one GPU core.
ROWS_OF_A_BLOCK, COLUMNS_OF_A_BLOCK = TILE, 256
ROWS_OF_A_CLUSTER, COLUMNS_OF_A_CLUSTER = 256, 1024  # the largest matrix of a cluster of blocks
TILES_OF_GRAM = 136  # (16, 16) tiles on and above the diagonal of a matrix (256, 256)

Shapes = tuple[tuple[int, ...], ...]
GRAM, POLY, NEXT = range(3)  # results of muon_product


class Matrix(NamedTuple):
    """Shape of a tensor's matrix for orthogonalisation; (0, 0) for a 1-d tensor."""

    r: int  # the smaller dimension
    c: int
    tall: bool  # the matrix is transposed, so that r <= c


class Layout(NamedTuple):
    """Offsets of a network's tensors in the flat arrays: see ``muon.metal.h``."""

    starts: tuple[int, ...]
    total: int
    grams: int  # size of all Gram matrices together
    tensors: mx.array
    flat: dict[str, int]  # number of blocks, and offsets in the flat arrays
    owners: mx.array
    tiles: dict[int, mx.array]  # tiles of GRAM, POLY and NEXT; empty without a matrix
    small: bool  # one block can orthogonalise each tensor
    middling: bool  # a cluster of blocks can orthogonalise each tensor
    columns: int  # columns of the widest matrix


def matrix_of(shape: tuple[int, ...]) -> Matrix:
    """Return a tensor's matrix shape: the first dimension by the product of the others."""
    if len(shape) < 2:
        return Matrix(0, 0, False)
    R, C = shape[0], math.prod(shape[1:])
    return Matrix(min(R, C), max(R, C), R > C)


def fits_a_block(matrix: Matrix) -> bool:
    """Return True if one block can orthogonalise the matrix."""
    return matrix.r <= ROWS_OF_A_BLOCK and matrix.c <= COLUMNS_OF_A_BLOCK


@functools.cache
def layout(shapes: Shapes, apart: bool = False) -> Layout:
    """Return the layout of tensors.

    Args:
        shapes: shapes of the tensors.
        apart: True if weights, gradients and momentum are three arrays, False if they are one.
    """
    sizes = tuple(math.prod(shape) for shape in shapes)
    starts, total = places(sizes, BLOCK)
    matrices = [matrix_of(shape) for shape in shapes]
    blocks, grams = total // BLOCK, 0
    names, table = ("gradients", "momenta", "squares", "sums"), []
    others = [0, 0, 0, BLOCK // THREADS] if apart else [total, 2 * total, blocks, 1]
    for start, size, (r, c, tall) in zip(starts, sizes, matrices, strict=True):
        table += start, size, r, c, int(tall), grams, 0, 0
        grams += -(-r * r // 16) * 16
    owners = [t for t, size in enumerate(sizes) for _ in range(-(-size // BLOCK))]
    return Layout(
        starts=starts,
        total=total,
        grams=grams,
        tensors=numbers(*table),
        flat={"blocks": blocks, **dict(zip(names, others, strict=True))},
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
    """Return the tiles of each kind of product, as (tensor, first row, first column)."""
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
        The weights, the momentum and a float32 scalar: 1 if the step was made, else 0.
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
        "flat": at.flat,
        **dict(zip(("weights_before", "gradients", "momenta"), flat, strict=True)),
        "squares": squares,
        "settings": {"beta": float(beta), "decay": float(decay), "max_norm": float(max_norm)},
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
    """Make the step in one launch with one block per tensor.

    Returns:
        The flat weights, the flat momentum, and 1 if the step was made, else 0.
    """
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
    """Make the step in one launch with ``cluster`` blocks per tensor: see ``_by_blocks``."""
    flat, grams, blocks = (at.total,), (max(1, at.grams),), len(at.starts) * cluster
    shapes = {"weights": flat, "momentum": flat, "sums": (blocks,), "ok": ()}
    shapes |= {"even": flat, "odd": flat, "gram": grams, "poly": grams}
    sizes = {"Low": _kind(low), "EXACT": int(not low), "CLUSTER": cluster}
    weights, momentum, _, ok, *_ = _launch("muon_step", inputs, shapes, blocks, **sizes)
    return weights, momentum, ok


def _room_of(at: Layout) -> tuple[int, int] | None:
    """Return the sizes for ``_spread``, or None if x doesn't fit shared memory.

    Returns:
        Columns of x per block, and the size of a block's shared memory in float32 values.
    """
    cluster, (block, room) = gpu.cluster_blocks(), pool_block()
    columns = max(1, -(-at.columns // (32 * cluster))) * 32
    pool = ROWS_OF_A_CLUSTER * (ROWS_OF_A_CLUSTER + columns) // 2 + block
    return (columns, pool) if 32 * cluster >= ROWS_OF_A_CLUSTER and 4 * pool <= room else None


def _spread(
    at: Layout, inputs: dict[str, mx.array], low: bool, cluster: int
) -> tuple[mx.array, ...]:
    """Make the step in bf16, with x divided among the shared memories of a cluster's blocks.

    Returns:
        The same as ``_by_blocks``.
    """
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
    """Make the step for tensors of any size. Each launch computes one product of all tensors.

    Args:
        at: layout of the tensors.
        inputs: arrays for the kernels, by name.
        low: True to compute in bf16.

    Returns:
        The same as ``_by_blocks``.
    """
    flat, blocks = (at.total,), at.total // BLOCK
    shapes = {"momentum": flat, "u": flat, "sums": (blocks,), "ok": (), "x": flat}
    momentum, u, sums, ok, x = _launch("muon_momentum", inputs, shapes, blocks, Low=_kind(low))

    def product(line: int, what: int, square: mx.array, x: mx.array) -> mx.array:
        tiles, shape = at.tiles[what], flat if what == NEXT else (at.grams,)
        of = {"tiles": tiles, "now": {"line": line, "what": what}, "square": square, "x": x}
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
