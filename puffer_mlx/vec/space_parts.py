"""Parts of observation and action spaces: their columns in a row, and the heads of actions."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import MAX_LOGITS, ActionSpec, rescaling
from puffer_mlx.vec.spaces import Path, choices_of, kind_of, leaves

SMALLEST, UP_TO_4 = "smallest", "up_to_4"  # values of vec.image_channels
CHANNELS_LAST = "channels_last"  # attribute of a Box whose images have channels last


class ObservationPart(NamedTuple):
    """A part of observations: columns ``[start, stop)`` of a row."""

    path: Path
    start: int
    stop: int
    space: Any
    image: tuple[int, ...]  # (height, width, channels) of an image
    channels_first: bool  # of an image's columns
    write: Callable[[Any, np.ndarray], None]  # (n, ...) values into (n, stop - start) columns
    restore: Callable[[Any], Any]  # the inverse; also for arrays of MLX

    def writer(self, row: np.ndarray) -> Callable[[np.ndarray], None]:
        """Return a function that writes one value into its columns of a row (D,)."""
        out = row[self.start : self.stop]
        if self.write is _copy:
            return partial(np.copyto, out.reshape(self.space.shape))
        return lambda value: self.write(value[None], out[None])


def observation_parts(name: str, space: Any, channels: str = SMALLEST) -> Iterator[ObservationPart]:
    """Yield the parts of an observation, each with its columns; ``channels`` as in `image_of`."""
    start = 0
    single = kind_of(space) not in ("Dict", "Tuple")
    for path, part, kind in leaves(name, space, "observation"):
        image, first = image_of(part, channels) if kind == "Box" else ((), False)
        turned = first and single
        if kind in ("Discrete", "MultiDiscrete"):
            sizes, starts = choices_of(part)
            size, write, restore = sum(sizes), _one_hot(sizes, starts), _unchanged
        else:
            shape = tuple(int(n) for n in part.shape)
            size = math.prod(shape)
            write, restore = (_turn, _turn_back(image)) if turned else (_copy, _reshape(shape))
        if size == 0:
            raise UserError(f"{name}: the space {part} holds no number", "leave it out")
        yield ObservationPart(
            path, start, start + size, part, image, first and not turned, write, restore
        )
        start += size
    if start == 0:
        raise UserError(f"{name}: the observation space {space} is empty", "add a part to it")


def row_dtype(parts: list[ObservationPart]) -> np.dtype:
    """Return the dtype of rows: uint8 if all observations are bytes, else float32."""
    bytes_only = all(kind_of(p.space) == "Box" and p.space.dtype == np.uint8 for p in parts)
    return np.dtype(np.uint8 if bytes_only else np.float32)


def exact_dtype(parts: list[ObservationPart]) -> np.dtype:
    """Return the dtype of rows that hold observations exactly: float64 where float32 rounds."""
    wide = any(
        kind_of(p.space) == "Box" and not np.can_cast(p.space.dtype, np.float32) for p in parts
    )
    return np.dtype(np.float64) if wide else row_dtype(parts)


def image_of(space: Any, channels: str = SMALLEST) -> tuple[tuple[int, ...], bool]:
    """Return the layout of the images of a Box.

    Args:
        space: A Box.
        channels: ``vec.image_channels``: channels come first if the first dimension is the
            smallest, with ``UP_TO_4`` only if it is also at most 4; else they come last.

    Returns:
        (height, width, channels), or () without images of bytes; and True if channels come first.
    """
    shape = tuple(int(n) for n in space.shape)
    if space.dtype != np.uint8 or len(shape) != 3 or not all(shape):
        return (), False
    few = channels == SMALLEST or shape[0] <= 4
    if few and shape[0] < min(shape[1:]) and not hasattr(space, CHANNELS_LAST):
        return (*shape[1:], shape[0]), True
    return shape, False


def _copy(values: Any, out: np.ndarray) -> None:
    """Copy numbers, flattened."""
    values = np.asarray(values)
    if values.shape != out.shape:
        values = values.reshape(out.shape)
    np.copyto(out, values)


def _turn(values: Any, out: np.ndarray) -> None:
    """Copy images with channels first, transposed to channels last."""
    _, channels, height, width = values.shape
    np.copyto(out.reshape(-1, height, width, channels), values.transpose(0, 2, 3, 1))


def _turn_back(image: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda rows: rows.reshape(-1, *image).transpose(0, 3, 1, 2)


def _reshape(shape: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda rows: rows.reshape(-1, *shape)


def _unchanged(rows: Any) -> Any:
    return rows


def _one_hot(sizes: tuple[int, ...], starts: tuple[int, ...]) -> Callable[[Any, np.ndarray], None]:
    """Write 1 in the column of each number's choice, 0 in its others."""
    offsets = np.cumsum((0, *sizes[:-1])) - starts
    bounds = np.array(starts), np.array(starts) + sizes

    def write(values: Any, out: np.ndarray) -> None:
        values = np.asarray(values).reshape(len(out), len(sizes))
        if (values < bounds[0]).any() or (values >= bounds[1]).any():
            raise ValueError("outside of the space")
        out[...] = 0
        np.put_along_axis(out, (values + offsets).astype(np.intp), 1, axis=1)

    return write


class ActionPart(NamedTuple):
    """A part of actions: heads from ``start`` on, one for each of ``sizes``."""

    path: Path
    start: int
    sizes: tuple[int, ...]
    space: Any
    convert: Callable[[np.ndarray], np.ndarray]  # (n, len(sizes)) float32 into (n, ...) of its type
    bounds: tuple[tuple[float, float], ...]  # values of -1 and 1, for each of ``sizes``


def action_parts(name: str, space: Any, rescale: bool = False) -> Iterator[ActionPart]:
    """Yield the parts of an action with their heads.

    Args:
        name: Name of the environment, for messages.
        space: Action space of one agent.
        rescale: Map -1 to 1 to the bounds of a Box.
    """
    start = 0
    for path, part, kind in leaves(name, space, "action"):
        bounds = ()
        if kind == "Box":
            sizes = (1,) * _count(name, part, math.prod(part.shape))
            bounds = _bounds(part) if rescale else ((-1.0, 1.0),) * len(sizes)
            convert = _clipped(part, bounds)
        elif kind == "MultiBinary":
            sizes = (2,) * (_count(name, part, 2 * math.prod(part.shape)) // 2)
            convert = _chosen(sizes, (0,) * len(sizes), part)
        else:
            sizes, starts = choices_of(part)
            _count(name, part, sum(sizes))
            convert = _chosen(sizes, starts, part)
            sizes = tuple(size for size in sizes if size > 1)
        yield ActionPart(path, start, sizes, part, convert, bounds)
        start += len(sizes)


def _count(name: str, space: Any, logits: int) -> int:
    """Return an action space's number of logits.

    Raises:
        UserError: There are too many.
    """
    if logits > MAX_LOGITS:
        raise UserError(
            f"{name}: its action space {str(space)[:200]} needs {logits:,} action logits, one for"
            f" each choice or number, and a policy has at most {MAX_LOGITS:,}",
            "make the action space smaller: several choices instead of one, say",
        )
    return logits


def action_spec(name: str, parts: list[ActionPart]) -> ActionSpec:
    """Return the heads of all parts, which must be all discrete or all continuous."""
    sizes = tuple(size for part in parts for size in part.sizes)
    _count(name, "of several parts", sum(sizes))
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
    """Return a function from choices of heads to actions; a head with one choice is filled in."""
    dtype, shape = np.dtype(space.dtype), tuple(space.shape)
    open_ = [i for i, size in enumerate(sizes) if size > 1]
    whole = len(open_) == len(sizes)
    first = np.array(starts, dtype)
    shifted = bool(first.any())
    flat = shape == (len(sizes),)

    def convert(rows: np.ndarray) -> np.ndarray:
        chosen = rows.astype(dtype)
        if not whole:
            some, chosen = chosen, np.zeros((len(rows), len(sizes)), dtype)
            chosen[:, open_] = some
        if shifted:
            chosen += first
        return chosen if flat else chosen.reshape(-1, *shape)

    return convert


def _bounds(space: Any) -> tuple[tuple[float, float], ...]:
    """Return the values of actions -1 and 1 for each number of a Box: its bounds, if finite.

    Elsewhere they are -1 and 1, also for equal bounds or a width that float32 can't hold.
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
    """Return a function that maps -1 to 1 to ``bounds`` and clips to the bounds of a Box.

    Infinite bounds don't clip.
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
