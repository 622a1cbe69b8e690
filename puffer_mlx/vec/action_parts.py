"""The parts of an action space, and how the values of heads become the actions of each."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import ActionSpec, rescaling
from puffer_mlx.vec.spaces import Path, choices_of, leaves


class ActionPart(NamedTuple):
    """A part of actions: heads from ``start`` on, one for each of ``sizes``."""

    path: Path
    start: int
    sizes: tuple[int, ...]
    space: Any
    convert: Callable[[np.ndarray], np.ndarray]  # (n, len(sizes)) float32 into (n, ...) of its type
    bounds: tuple[tuple[float, float], ...]  # what -1 and 1 are, for each of ``sizes``


def action_parts(name: str, space: Any, rescale: bool = False) -> Iterator[ActionPart]:
    """The parts of an action, each with its heads; ``rescale``: -1 to 1 is a Box's low to high."""
    start = 0
    for path, part, kind in leaves(name, space, "action"):
        bounds = ()
        if kind == "Box":
            sizes = (1,) * int(np.prod(part.shape))
            bounds = _bounds(part) if rescale else ((-1.0, 1.0),) * len(sizes)
            convert = _clipped(part, bounds)
        elif kind == "MultiBinary":
            sizes = (2,) * int(np.prod(part.shape))
            convert = _chosen(sizes, (0,) * len(sizes), part)
        else:
            sizes, starts = choices_of(part)
            convert = _chosen(sizes, starts, part)
            sizes = tuple(size for size in sizes if size > 1)
        yield ActionPart(path, start, sizes, part, convert, bounds)
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
    bounds = tuple(each for part in parts for each in part.bounds)
    return ActionSpec(sizes, bounds if any(each != (-1, 1) for each in bounds) else ())


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


def _bounds(space: Any) -> tuple[tuple[float, float], ...]:
    """What -1 and 1 are for each number of a Box: its bounds, where both are finite.

    Elsewhere -1 and 1, also where there is nothing to choose, or float32 can't hold the width.
    """
    low, high = (np.asarray(bound, np.float32).ravel() for bound in (space.low, space.high))
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low
    usable = np.isfinite(width) & (width > 0)
    pairs = zip(np.where(usable, low, -1), np.where(usable, high, 1), strict=True)
    return tuple((float(least), float(most)) for least, most in pairs)


def _clipped(
    space: Any, bounds: tuple[tuple[float, float], ...]
) -> Callable[[np.ndarray], np.ndarray]:
    """Numbers moved from -1 to 1 to ``bounds``, then within the bounds of a Box.

    Infinite bounds let everything pass.
    """
    dtype, shape = np.dtype(space.dtype), tuple(int(n) for n in space.shape)
    low, high = np.asarray(space.low), np.asarray(space.high)
    bounded = bool((np.isfinite(low) | np.isfinite(high)).any())
    whole = np.issubdtype(dtype, np.integer)
    centre, half = rescaling(bounds)
    moved = bool(centre.any() or (half != 1).any())

    def convert(rows: np.ndarray) -> np.ndarray:
        if moved:
            rows = centre + rows.astype(np.float64) * half
        values = rows.reshape(-1, *shape)
        if whole:
            return np.clip(np.rint(values.astype(np.float64)), low, high).astype(dtype)
        values = values.astype(dtype)
        return np.clip(values, low, high, out=values) if bounded else values

    return convert
