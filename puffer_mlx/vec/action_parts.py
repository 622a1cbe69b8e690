"""The parts of an action space, and how the values of heads become the actions of each."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import ActionSpec
from puffer_mlx.vec.spaces import Path, choices_of, leaves


class ActionPart(NamedTuple):
    """A part of actions: heads from ``start`` on, one for each of ``sizes``."""

    path: Path
    start: int
    sizes: tuple[int, ...]
    space: Any
    convert: Callable[[np.ndarray], np.ndarray]  # (n, len(sizes)) float32 into (n, ...) of its type


def action_parts(name: str, space: Any) -> Iterator[ActionPart]:
    """The parts of an action, each with its heads."""
    start = 0
    for path, part, kind in leaves(name, space, "action"):
        if kind == "Box":
            sizes, convert = (1,) * int(np.prod(part.shape)), _clipped(part)
        elif kind == "MultiBinary":
            sizes = (2,) * int(np.prod(part.shape))
            convert = _chosen(sizes, (0,) * len(sizes), part)
        else:
            sizes, starts = choices_of(part)
            convert = _chosen(sizes, starts, part)
            sizes = tuple(size for size in sizes if size > 1)
        yield ActionPart(path, start, sizes, part, convert)
        start += len(sizes)


def action_spec(name: str, parts: list[ActionPart]) -> ActionSpec:
    """The heads of all parts, which are of one kind."""
    sizes = tuple(size for part in parts for size in part.sizes)
    if not sizes:
        raise UserError(f"{name}: its action space leaves nothing to choose", "add an action")
    if 1 in sizes and max(sizes) > 1:
        spaces = ", ".join(str(part.space) for part in parts)
        raise UserError(
            f"{name}: its actions are partly discrete and partly continuous: {spaces}",
            "turn one kind into the other: a Box into choices, or Discrete into a Box",
        )
    return ActionSpec(sizes)


def _chosen(
    sizes: tuple[int, ...], starts: tuple[int, ...], space: Any
) -> Callable[[np.ndarray], np.ndarray]:
    """Choices of the heads that have some, the only one of the others."""
    dtype, shape = np.dtype(space.dtype), tuple(space.shape)
    open_ = [i for i, size in enumerate(sizes) if size > 1]
    whole = len(open_) == len(sizes)
    first = np.array(starts, dtype)
    shifted = bool(first.any())
    flat = shape == (len(sizes),)

    def convert(rows: np.ndarray) -> np.ndarray:
        chosen = rows.astype(dtype)
        if not whole:
            given, chosen = chosen, np.zeros((len(rows), len(sizes)), dtype)
            chosen[:, open_] = given
        if shifted:
            chosen += first
        return chosen if flat else chosen.reshape(-1, *shape)

    return convert


def _clipped(space: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Numbers within the bounds of a Box; infinite bounds let everything pass."""
    dtype, shape = np.dtype(space.dtype), tuple(int(n) for n in space.shape)
    low, high = np.asarray(space.low), np.asarray(space.high)
    bounded = bool((np.isfinite(low) | np.isfinite(high)).any())
    whole = np.issubdtype(dtype, np.integer)

    def convert(rows: np.ndarray) -> np.ndarray:
        values = rows.reshape(-1, *shape)
        if whole:
            return np.clip(np.rint(values.astype(np.float64)), low, high).astype(dtype)
        values = values.astype(dtype)
        return np.clip(values, low, high, out=values) if bounded else values

    return convert
