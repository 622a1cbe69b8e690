"""Muon with the clip on a GPU: ``muon.metal.h``, a few launches whatever the network."""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from puffer_mlx.ops.gpu import launch, text
from puffer_mlx.ops.gpu.launch import THREADS, numbers
from puffer_mlx.ops.pack import BLOCK, launch_pack, places, unpack

TEXT = Path(__file__).with_name("muon.metal.h")
TILE = 64  # rows and columns of a block's part of a product

# Up to which sizes one block does all of a matrix: the rows are those of its shared memory, and
# with that many columns it multiplies 12 million times, about 0.1 ms of a GPU's core.
ROWS_OF_A_BLOCK, COLUMNS_OF_A_BLOCK = TILE, 256

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
def layout(shapes: Shapes) -> Layout:
    """Where tensors of these shapes are."""
    sizes = tuple(math.prod(shape) for shape in shapes)
    starts, total = places(sizes, BLOCK)
    matrices = [matrix_of(shape) for shape in shapes]
    table, grams = [total, total // BLOCK, *[0] * 6], 0
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
    )


def _tiles(matrices: Sequence[Matrix]) -> dict[int, mx.array]:
    """Of each kind of product, all tiles: tensor, first row, first column."""
    squares, whole = [], []
    for t, (r, c, _) in enumerate(matrices):
        for i in range(0, r, TILE):
            squares += [number for j in range(0, i + 1, TILE) for number in (t, i, j)]
            whole += [number for j in range(0, c, TILE) for number in (t, i, j)]
    if not whole:
        return {}
    return {GRAM: numbers(*squares), POLY: numbers(*squares), NEXT: numbers(*whole)}


def step(
    weights: list[mx.array],
    grads: list[mx.array],
    momentum: list[mx.array],
    lr: mx.array,
    loss: mx.array,
    max_norm: float,
    beta: float,
    decay: float,
    coefficients: tuple[tuple[float, float, float], ...],
) -> list[mx.array]:
    """One step, with the arguments of the CPU extension's ``muon_step``.

    Returns:
        The new weights, the new momenta, and whether they are new: 1 or 0, a float32 scalar.
    """
    shapes = tuple(tuple(array.shape) for array in weights)
    at = layout(shapes)
    packed, squares = launch_pack([*weights, *grads, *momentum], BLOCK)
    given = {
        "tensors": at.tensors,
        "packed": packed,
        "squares": squares,
        "settings": numbers(float(beta), float(decay), float(max_norm)),
        "owners": at.owners,
        "coefficients": numbers(*(number for line in coefficients for number in line)),
        "loss": loss.reshape(1),
        "lr": lr.reshape(1),
    }
    form = _in_one_launch if at.small else _in_groups
    *new, ok = form(at, given)
    return [*(array for kind in new for array in unpack(kind, shapes, BLOCK)), ok]


def _in_one_launch(at: Layout, given: dict[str, mx.array]) -> tuple[mx.array, ...]:
    """New weights and momentum, flat, and whether they are new: a block for each tensor."""
    flat, grams = (at.total,), (max(1, at.grams),)
    shapes = {"weights": flat, "momentum": flat, "x": flat, "gram": grams, "poly": grams, "ok": ()}
    weights, momentum, *_, ok = _launch("muon_step", given, shapes, len(at.starts))
    return weights, momentum, ok


def _in_groups(at: Layout, given: dict[str, mx.array]) -> tuple[mx.array, ...]:
    """The same of tensors of any size, each launch for all of them."""
    flat, blocks = (at.total,), at.total // BLOCK
    shapes = {"momentum": flat, "x": flat, "sums": (blocks,), "ok": ()}
    momentum, u, sums, ok = _launch("muon_momentum", given, shapes, blocks)

    def product(line: int, what: int, left: mx.array, right: mx.array) -> mx.array:
        tiles, shape = at.tiles[what], flat if what == NEXT else (at.grams,)
        here = {"tiles": tiles, "now": numbers(line, what), "left": left, "right": right}
        inputs = {**given, **here, "sums": sums}
        return _launch("muon_product", inputs, {"out": shape}, tiles.size // 3)[0]

    x = u
    for line in range(given["coefficients"].size // 3 if at.tiles else 0):
        gram = product(line, GRAM, x, x)
        x = product(line, NEXT, product(line, POLY, gram, gram), x)
    given = {**given, "u": u, "x": x, "ok": ok.reshape(1)}
    return _launch("muon_apply", given, {"weights": flat}, blocks)[0], momentum, ok


def _launch(
    name: str, given: dict[str, mx.array], outputs: dict[str, tuple[int, ...]], blocks: int
) -> list[mx.array]:
    """Launch a kernel with those of the arrays that it reads."""
    inputs = {key: given[key] for key in text.kernels(TEXT, launch.backend())[name].inputs}
    return launch.launch(TEXT, name, inputs, outputs, threads=blocks * THREADS)
