"""Muon (Jordan et al. 2024) with PufferLib's coefficients.

The update of a tensor with two or more dimensions is orthogonalised. 1-d tensors use plain Nesterov
momentum. As upstream, ``beta1`` is the only decay rate; ``beta2`` and ``eps`` are unused.
"""

import functools
import math
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from puffer_mlx.ops.gpu import launch as gpu
from puffer_mlx.ops.gpu.launch import THREADS, constant_array, launch, shared_pool_limits
from puffer_mlx.ops.implementation import Implementation
from puffer_mlx.ops.pack import BLOCK, PackedTree, launch_pack, packed_offsets
from puffer_mlx.ppo.optimizers import Optimizer, fused_step, step_if_finite
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
    """Orthogonalise a matrix approximately, so that its singular values are close to 1.

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
    """Apply Muon's equations to all weights, as one step.

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
    """Return Muon's initial state: momentum 0 for all weights."""
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
    """Clip the gradients and make Muon's step, unless the loss or a gradient isn't finite.

    This is one operation on a CPU, if the extension has a BLAS, and a few launches on a GPU. A
    small network's graph of many operations would take longer to submit than to compute.

    Args:
        weights: tree of float32 arrays.
        grads: gradients, a tree of the same structure. A GPU packs weights, gradients and momentum
            into one array, unless all three are ``PackedTree``: results of the fused gradients and
            of the previous step.
        state: state from ``init`` or the previous step, with the key ``momentum``.
        loss: loss of the minibatch, a scalar array.
        lr: learning rate, a scalar array.
        max_grad_norm: largest L2 norm of all gradients.
        beta1: decay rate of the momentum.
        weight_decay: weight decay: see ``muon``.
        low: True if a GPU may round factors of products: to bf16, or to TF32 for small matrices.

    Returns:
        Weights, state, and a scalar flag, true if the weights were updated.
    """
    trees = weights, grads, state["momentum"]
    coefficients = max_grad_norm, beta1, weight_decay, COEFFICIENTS
    fused = STEP.choose()
    if fused is launch_step:
        weights, momentum, ok = launch_step(*trees, lr, loss, *coefficients, low)
        return weights, {"momentum": momentum}, ok
    if fused is not None:
        return fused_step(fused, trees, weights, state, lr, loss, *coefficients)

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
BLOCK_ROWS = TILE
BLOCK_COLUMNS = 256
CLUSTER_ROWS = 256  # the largest matrix that a cluster of blocks orthogonalises
CLUSTER_COLUMNS = 1024

Shapes = tuple[tuple[int, ...], ...]


class Product(IntEnum):
    """One of the three matrix products in a Newton-Schulz step of Muon, each a launch on a GPU."""

    GRAM = 0
    POLY = 1
    NEXT = 2


class Matrix(NamedTuple):
    """Shape of the matrix as which a tensor's update is orthogonalised; (0, 0) for a 1-d tensor."""

    r: int  # the smaller dimension
    c: int
    tall: bool  # True if the matrix is transposed, so that r <= c


class TensorLayout(NamedTuple):
    """Positions of a network's tensors in flat arrays, and the tiles of its matrices."""

    starts: tuple[int, ...]
    total: int
    grams: int  # total size of the Gram matrices
    tensors: mx.array
    flat: dict[str, int]  # number of blocks, and offsets in the flat arrays
    owners: mx.array
    tiles: dict[Product, mx.array]  # tiles of each product; empty if all tensors are 1-d
    fits_block: bool  # True if one block can orthogonalise each tensor
    fits_cluster: bool  # True if a cluster of blocks can orthogonalise each tensor
    columns: int  # columns of the widest matrix


def matrix_of(shape: tuple[int, ...]) -> Matrix:
    """Return the matrix as which Muon orthogonalises a tensor, its smaller dimension first.

    Its sizes are the tensor's first dimension and the product of the others; 0 for 1-d tensors.
    """
    if len(shape) < 2:
        return Matrix(0, 0, False)
    R = shape[0]
    C = math.prod(shape[1:])
    return Matrix(min(R, C), max(R, C), R > C)


@functools.cache
def tensor_layout(shapes: Shapes, separate_buffers: bool = False) -> TensorLayout:
    """Return the layout of a network's tensors in the flat arrays of Muon's kernels.

    Args:
        shapes: shapes of the tensors.
        separate_buffers: True if weights, gradients and momentum are three arrays, False if they
            share one array.
    """
    sizes = tuple(math.prod(shape) for shape in shapes)
    starts, total = packed_offsets(sizes, BLOCK)
    matrices = [matrix_of(shape) for shape in shapes]
    blocks = total // BLOCK
    grams = 0
    offsets = [0, 0, 0, BLOCK // THREADS] if separate_buffers else [total, 2 * total, blocks, 1]
    flat = dict(zip(("gradients", "momenta", "squares", "sums"), offsets, strict=True))
    table = []
    for start, size, (r, c, tall) in zip(starts, sizes, matrices, strict=True):
        table += start, size, r, c, int(tall), grams, 0, 0
        grams += -(-r * r // 16) * 16
    owners = [t for t, size in enumerate(sizes) for _ in range(-(-size // BLOCK))]
    return TensorLayout(
        starts=starts,
        total=total,
        grams=grams,
        tensors=constant_array(*table),
        flat={"blocks": blocks, **flat},
        owners=constant_array(*owners),
        tiles=_tiles(matrices),
        fits_block=all(m.r <= BLOCK_ROWS and m.c <= BLOCK_COLUMNS for m in matrices),
        fits_cluster=all(m.r <= CLUSTER_ROWS and m.c <= CLUSTER_COLUMNS for m in matrices),
        columns=max((matrix.c for matrix in matrices), default=0),
    )


def _tiles(matrices: Sequence[Matrix]) -> dict[Product, mx.array]:
    """Return, for each matrix product of Muon, its tiles as (tensor, first row, first column)."""
    square: list[int] = []  # tiles of gram and poly, on and below the diagonal
    full: list[int] = []  # tiles of x
    for t, (r, c, tall) in enumerate(matrices):
        for i in range(0, r, TILE):
            square += [number for j in range(0, i + 1, TILE) for number in (t, i, j)]
        rows, columns = (c, r) if tall else (r, c)
        for i in range(0, rows, TILE):
            full += [number for j in range(0, columns, TILE) for number in (t, i, j)]
    if not full:
        return {}
    squares = constant_array(*square)
    return {Product.GRAM: squares, Product.POLY: squares, Product.NEXT: constant_array(*full)}


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
    """Make Muon's step on a GPU, in a few launches for all tensors: see ``step``.

    Returns:
        Weights, momentum, and a float32 scalar: 1 if the weights were updated, else 0.
    """
    trees = weights, grads, momentum
    flat = [tree.packed if isinstance(tree, PackedTree) else None for tree in trees]
    squares = grads.squares if isinstance(grads, PackedTree) else None
    separate = squares is not None and all(packed is not None for packed in flat)
    at = tensor_layout(tuple(tuple(array.shape) for array in leaves(weights)), separate)
    if not separate:
        packed, squares = launch_pack([array for tree in trees for array in leaves(tree)], BLOCK)
        flat = [packed] * len(trees)
    inputs: Any = {
        "tensors": at.tensors,
        "flat": at.flat,
        **dict(zip(("weights_before", "gradients", "momenta"), flat, strict=True)),
        "squares": squares,
        "settings": {"beta": float(beta), "decay": float(decay), "max_norm": float(max_norm)},
        "owners": at.owners,
        "coefficients": constant_array(*(number for line in coefficients for number in line)),
        "loss": loss.reshape(1),
        "lr": lr.reshape(1),
    }
    cluster = gpu.cluster_blocks()
    if at.fits_block:
        *flat, ok = _by_block(at, inputs, low)
    elif at.fits_cluster and cluster > 1:
        *flat, ok = _by_cluster(at, inputs, low, cluster)
    else:
        *flat, ok = _by_products(at, inputs, low)
    return PackedTree(flat[0], weights), PackedTree(flat[1], momentum), ok


def _by_block(at: TensorLayout, inputs: dict[str, mx.array], low: bool) -> tuple[mx.array, ...]:
    """Make Muon's step in one launch with one block per tensor.

    Returns:
        Flat weights, flat momentum, and a scalar: 1 if the weights were updated, else 0.
    """
    columns = -(-at.columns // TILE) * TILE
    block, shared_bytes = shared_pool_limits()
    pool = TILE * columns + 2 * TILE * TILE + block
    if not columns or 4 * pool > shared_bytes:
        return _by_cluster(at, inputs, low, 1)
    shapes = {"weights": (at.total,), "momentum": (at.total,), "ok": ()}
    sizes = {"COLUMNS": columns, "THREADS": block, "POOL": pool, "EXACT": int(not low)}
    threads = len(at.starts) * block
    weights, momentum, ok = launch(
        TEXT, "muon_by_block", inputs, shapes, threads, block, 4 * pool, **sizes
    )
    return weights, momentum, ok


def _by_cluster(
    at: TensorLayout, inputs: dict[str, mx.array], low: bool, cluster: int
) -> tuple[mx.array, ...]:
    """Make Muon's step in one launch with ``cluster`` blocks per tensor.

    Returns flat weights, flat momentum, and a scalar: 1 if the weights were updated, else 0.
    """
    flat = (at.total,)
    grams = (max(1, at.grams),)
    blocks = len(at.starts) * cluster
    shapes = {"weights": flat, "momentum": flat, "sums": (blocks,), "ok": ()}
    shapes |= {"even": flat, "odd": flat, "gram": grams, "poly": grams}
    sizes = {"Low": mx.bfloat16 if low else mx.float32, "EXACT": int(not low), "CLUSTER": cluster}
    threads = blocks * THREADS
    weights, momentum, _, ok, *_ = launch(TEXT, "muon_by_cluster", inputs, shapes, threads, **sizes)
    return weights, momentum, ok


def _by_products(at: TensorLayout, inputs: dict[str, mx.array], low: bool) -> tuple[mx.array, ...]:
    """Make Muon's step for tensors of any size. Each launch computes one product of all tensors.

    Args:
        at: layout of the tensors.
        inputs: arrays for the kernels, by name.
        low: True to compute in bf16.

    Returns:
        Flat weights, flat momentum, and a scalar: 1 if the weights were updated, else 0.
    """
    flat = (at.total,)
    blocks = at.total // BLOCK
    threads = blocks * THREADS
    dtype = mx.bfloat16 if low else mx.float32
    shapes = {"momentum": flat, "u": flat, "sums": (blocks,), "ok": (), "x": flat}
    momentum, u, sums, ok, x = launch(TEXT, "muon_momentum", inputs, shapes, threads, Low=dtype)

    def product(line: int, what: Product, square: mx.array, x: mx.array) -> mx.array:
        tiles = at.tiles[what]
        now = {"line": line, "what": int(what)}
        arrays = {**inputs, "tiles": tiles, "now": now, "square": square, "x": x, "sums": sums}
        shapes = {"out": flat if what == Product.NEXT else (at.grams,)}
        sizes = {"EXACT": int(not low), "THREADS": THREADS, "RESIDENT": 2 * THREADS}
        return launch(TEXT, "muon_product", arrays, shapes, tiles.size // 3 * THREADS, **sizes)[0]

    for line in range(inputs["coefficients"].size // 3 if at.tiles else 0):
        gram = product(line, Product.GRAM, x, x)
        x = product(line, Product.NEXT, product(line, Product.POLY, gram, gram), x)
    arrays = {**inputs, "u": u, "x": x, "ok": ok.reshape(1)}
    (weights,) = launch(TEXT, "muon_apply", arrays, {"weights": flat}, threads)
    return weights, momentum, ok


STEP = Implementation(
    ("ppo.optimizers.muon",), "Muon in one call", cpu="muon_step", gpu=launch_step, gemm=True
)

record(__name__)
