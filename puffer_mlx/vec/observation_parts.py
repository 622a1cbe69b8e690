"""The parts of an observation space, and how each is written into its columns of a row."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.spaces import Path, choices_of, kind_of, leaves

_MAX_CHANNELS = 4  # of an image that is recognised by its channels coming first


class ObservationPart(NamedTuple):
    """A part of observations: columns ``[start, stop)`` of a row."""

    path: Path
    start: int
    stop: int
    space: Any
    image: tuple[int, ...]  # (height, width, channels), if it is one
    channels_first: bool  # of an image's columns
    write: Callable[[Any, np.ndarray], None]  # (n, ...) values into (n, stop - start) columns
    restore: Callable[[Any], Any]  # the other way; for arrays of MLX too

    def writer(self, row: np.ndarray) -> Callable[[np.ndarray], None]:
        """What writes one value, an array of the space's shape, into its columns of a row (D,)."""
        out = row[self.start : self.stop]
        if self.write is _copy:
            return partial(np.copyto, out.reshape(self.space.shape))
        return lambda value: self.write(value[None], out[None])


def observation_parts(name: str, space: Any) -> Iterator[ObservationPart]:
    """The parts of an observation, each with its columns."""
    start = 0
    single = kind_of(space) not in ("Dict", "Tuple")
    for path, part, kind in leaves(name, space, "observation"):
        image, first = image_of(part) if kind == "Box" else ((), False)
        turned = first and single
        if kind in ("Discrete", "MultiDiscrete"):
            sizes, starts = choices_of(part)
            size, write, restore = sum(sizes), _one_hot(sizes, starts), _unchanged
        else:
            shape = tuple(int(n) for n in part.shape)
            size = int(np.prod(shape))
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
    """Of rows: bytes if all that an agent sees are bytes."""
    bytes_only = all(kind_of(p.space) == "Box" and p.space.dtype == np.uint8 for p in parts)
    return np.dtype(np.uint8 if bytes_only else np.float32)


def image_of(space: Any) -> tuple[tuple[int, ...], bool]:
    """(height, width, channels) of a Box of bytes, () if it is none; do its channels come first?"""
    shape = tuple(int(n) for n in space.shape)
    if space.dtype != np.uint8 or len(shape) != 3 or not all(shape):
        return (), False
    if shape[0] <= _MAX_CHANNELS and shape[0] < min(shape[1:]):
        return (*shape[1:], shape[0]), True
    return shape, False


def _copy(values: Any, out: np.ndarray) -> None:
    """Numbers as they are, flat."""
    values = np.asarray(values)
    if values.shape != out.shape:
        values = values.reshape(out.shape)
    np.copyto(out, values)


def _turn(values: Any, out: np.ndarray) -> None:
    """Images with their channels first."""
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
