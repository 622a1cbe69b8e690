"""Gymnasium's spaces: their parts, columns of rows, heads of actions, and texts. NumPy only.

Spaces are recognised by the names of their classes, so Gymnasium may be missing, and spaces of its
forks work too.
"""

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import MAX_LOGITS, ActionSpec, rescaling

_SPACE_KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")
CHANNELS_SMALLEST, CHANNELS_UP_TO_4 = "smallest", "up_to_4"  # values of vec.image_channels
CHANNELS_LAST_ATTRIBUTE = "channels_last"  # attribute of a Box whose images have channels last

Path = tuple[Any, ...]  # keys and indices that lead to a part of nested dicts and tuples


def kind_of(space: Any) -> str:
    """Return the kind of a space, by the names of its classes; "" for an unknown kind."""
    for cls in type(space).__mro__:
        if cls.__name__ in _SPACE_KINDS:
            return cls.__name__
    return ""


def leaf_spaces(
    name: str, space: Any, what: str, path: Path = ()
) -> Iterator[tuple[Path, Any, str]]:
    """Yield (path, space, kind) of every part that isn't a Dict or Tuple."""
    kind = kind_of(space)
    if not kind:
        where = f" at {path_text(path)}" if path else ""
        raise UserError(
            f"{name}: its {what} space{where} is {type(space).__name__}, which has no fixed size",
            f"use one of {', '.join(_SPACE_KINDS)}; a wrapper of Gymnasium can transform the others",
        )
    if kind in ("Dict", "Tuple"):
        for key, part in subspaces(space):
            yield from leaf_spaces(name, part, what, (*path, key))
    else:
        yield path, space, kind


def subspaces(space: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (key or index, space) of the parts of a Dict or Tuple, in Gymnasium's order."""
    yield from space.spaces.items() if kind_of(space) == "Dict" else enumerate(space.spaces)


def choices_of(space: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of choices and the first choices of a Discrete or MultiDiscrete, flat."""
    sizes = np.atleast_1d(space.n if kind_of(space) == "Discrete" else space.nvec).ravel()
    starts = np.broadcast_to(np.ravel(getattr(space, "start", 0)), sizes.shape)
    return tuple(sizes.tolist()), tuple(starts.tolist())


def nested(space: Any, parts: dict[Path, Any], path: Path = ()) -> Any:
    """Return parts nested in the dicts and tuples of a space."""
    kind = kind_of(space)
    if kind == "Dict":
        return {key: nested(part, parts, (*path, key)) for key, part in subspaces(space)}
    if kind == "Tuple":
        return tuple(nested(part, parts, (*path, key)) for key, part in subspaces(space))
    return parts[path]


def path_text(path: Path) -> str:
    """Return a path for messages: ``outer.inner.0``."""
    return ".".join(str(key) for key in path)


# ---- Observations --------------------------------------------------------------------------------


class ObservationComponent(NamedTuple):
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


def observation_components(
    name: str, space: Any, channels: str = CHANNELS_SMALLEST
) -> Iterator[ObservationComponent]:
    """Yield the parts of an observation, each with its columns; ``channels`` as in `image_of`."""
    start = 0
    single = kind_of(space) not in ("Dict", "Tuple")
    for path, part, kind in leaf_spaces(name, space, "observation"):
        image, first = image_of(part, channels) if kind == "Box" else ((), False)
        turned = first and single
        if kind in ("Discrete", "MultiDiscrete"):
            sizes, starts = choices_of(part)
            size, write, restore = sum(sizes), _one_hot(sizes, starts), _unchanged
        else:
            shape = tuple(int(n) for n in part.shape)
            size = math.prod(shape)
            write, restore = (
                (_copy_transposed, _transpose_back(image)) if turned else (_copy, _reshape(shape))
            )
        if size == 0:
            raise UserError(f"{name}: the space {part} holds no number", "leave it out")
        yield ObservationComponent(
            path, start, start + size, part, image, first and not turned, write, restore
        )
        start += size
    if start == 0:
        raise UserError(f"{name}: the observation space {space} is empty", "add a part to it")


def row_dtype(parts: list[ObservationComponent]) -> np.dtype:
    """Return the dtype of rows: uint8 if all observations are bytes, else float32."""
    bytes_only = all(kind_of(p.space) == "Box" and p.space.dtype == np.uint8 for p in parts)
    return np.dtype(np.uint8 if bytes_only else np.float32)


def exact_dtype(parts: list[ObservationComponent]) -> np.dtype:
    """Return the dtype of rows that hold observations exactly: float64 where float32 rounds."""
    wide = any(
        kind_of(p.space) == "Box" and not np.can_cast(p.space.dtype, np.float32) for p in parts
    )
    return np.dtype(np.float64) if wide else row_dtype(parts)


def image_of(space: Any, channels: str = CHANNELS_SMALLEST) -> tuple[tuple[int, ...], bool]:
    """Return the layout of the images of a Box.

    Args:
        space: A Box.
        channels: ``vec.image_channels``: channels come first if the first dimension is the
            smallest, with ``CHANNELS_UP_TO_4`` only if it is also at most 4; else they come last.

    Returns:
        (height, width, channels), or () without images of bytes; and True if channels come first.
    """
    shape = tuple(int(n) for n in space.shape)
    if space.dtype != np.uint8 or len(shape) != 3 or not all(shape):
        return (), False
    few = channels == CHANNELS_SMALLEST or shape[0] <= 4
    if few and shape[0] < min(shape[1:]) and not hasattr(space, CHANNELS_LAST_ATTRIBUTE):
        return (*shape[1:], shape[0]), True
    return shape, False


def _copy(values: Any, out: np.ndarray) -> None:
    """Copy numbers, flattened."""
    values = np.asarray(values)
    if values.shape != out.shape:
        values = values.reshape(out.shape)
    np.copyto(out, values)


def _copy_transposed(values: Any, out: np.ndarray) -> None:
    """Copy images with channels first, transposed to channels last."""
    _, channels, height, width = values.shape
    np.copyto(out.reshape(-1, height, width, channels), values.transpose(0, 2, 3, 1))


def _transpose_back(image: tuple[int, ...]) -> Callable[[Any], Any]:
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


# ---- Actions -------------------------------------------------------------------------------------


class ActionComponent(NamedTuple):
    """A part of actions: heads from ``start`` on, one for each of ``sizes``."""

    path: Path
    start: int
    sizes: tuple[int, ...]
    space: Any
    convert: Callable[[np.ndarray], np.ndarray]  # (n, len(sizes)) float32 into (n, ...) of its type
    bounds: tuple[tuple[float, float], ...]  # values of -1 and 1, for each of ``sizes``


def action_components(name: str, space: Any, rescale: bool = False) -> Iterator[ActionComponent]:
    """Yield the parts of an action with their heads.

    Args:
        name: Name of the environment, for messages.
        space: Action space of one agent.
        rescale: Map -1 to 1 to the bounds of a Box.
    """
    start = 0
    for path, part, kind in leaf_spaces(name, space, "action"):
        bounds = ()
        if kind == "Box":
            sizes = (1,) * _checked_logits(name, part, math.prod(part.shape))
            bounds = _bounds_of_box(part) if rescale else ((-1.0, 1.0),) * len(sizes)
            convert = _box_converter(part, bounds)
        elif kind == "MultiBinary":
            sizes = (2,) * (_checked_logits(name, part, 2 * math.prod(part.shape)) // 2)
            convert = _choice_converter(sizes, (0,) * len(sizes), part)
        else:
            sizes, starts = choices_of(part)
            _checked_logits(name, part, sum(sizes))
            convert = _choice_converter(sizes, starts, part)
            sizes = tuple(size for size in sizes if size > 1)
        yield ActionComponent(path, start, sizes, part, convert, bounds)
        start += len(sizes)


def _checked_logits(name: str, space: Any, logits: int) -> int:
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


def action_spec(name: str, parts: list[ActionComponent]) -> ActionSpec:
    """Return the heads of all parts, which must be all discrete or all continuous."""
    sizes = tuple(size for part in parts for size in part.sizes)
    _checked_logits(name, "of several parts", sum(sizes))
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


def _choice_converter(
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


def _bounds_of_box(space: Any) -> tuple[tuple[float, float], ...]:
    """Return the values of actions -1 and 1 for each number of a Box: its bounds, if finite.

    Elsewhere they are -1 and 1, also for equal bounds or a width that float32 can't hold.
    """
    low, high = (np.asarray(bound, np.float32).ravel() for bound in (space.low, space.high))
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low
    usable = np.isfinite(width) & (width > 0)
    pairs = zip(np.where(usable, low, -1), np.where(usable, high, 1), strict=True)
    return tuple((float(least), float(max_elements)) for least, max_elements in pairs)


def _box_converter(
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


# ---- Texts of checkpoints ------------------------------------------------------------------------


def to_text(*spaces: Any) -> str:
    """Return spaces as JSON, or "" if a Dict has keys other than texts and integers."""
    try:
        return json.dumps([_space_data(space) for space in spaces])
    except TypeError:
        return ""


def from_text(text: str, max_elements: int) -> list[Any]:
    """Read spaces that ``to_text`` wrote, as objects that work without Gymnasium.

    Args:
        text: Text of a file, untrusted.
        max_elements: Maximum number of elements of one space.

    Raises:
        ValueError: The text is damaged.
    """
    try:
        return [_space_from_data(data, max_elements) for data in json.loads(text)]
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _space_data(space: Any) -> dict[str, Any]:
    kind = kind_of(space)
    if kind in ("Dict", "Tuple"):
        parts = dict(subspaces(space))
        if any(type(key) not in (str, int) for key in parts):
            raise TypeError("a key that JSON doesn't have")
        return {"kind": kind, "parts": [[key, _space_data(part)] for key, part in parts.items()]}
    data: dict[str, Any] = {"kind": kind, "dtype": np.dtype(space.dtype).name}
    data["shape"] = [int(size) for size in space.shape]
    if kind == "Box":
        data |= {name: _bounds_data(np.asarray(getattr(space, name))) for name in ("low", "high")}
    elif kind != "MultiBinary":
        data["sizes"], data["starts"] = choices_of(space)
    return data


def _bounds_data(bounds: np.ndarray) -> Any:
    """Return a Box's bounds: a list, or one number if all are equal."""
    first = bounds.ravel()[:1]
    return first.item() if bounds.size and (bounds == first).all() else bounds.ravel().tolist()


def _space_from_data(data: dict[str, Any], max_elements: int) -> Any:
    kind = data["kind"]
    if kind not in _SPACE_KINDS:
        raise ValueError(f"a space of kind {kind!r}")
    if kind in ("Dict", "Tuple"):
        parts = [(key, _space_from_data(part, max_elements)) for key, part in data["parts"]]
        fields = {"spaces": dict(parts) if kind == "Dict" else [part for _, part in parts]}
    else:
        dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
        if dtype.kind not in "biuf" or min(shape, default=0) < 0:
            raise ValueError(f"{dtype} numbers of shape {shape}")
        fields = {"dtype": dtype, "shape": shape}
        if kind in ("Discrete", "MultiDiscrete"):
            choices = (np.array(data[name], np.int64) for name in ("sizes", "starts"))
            sizes, starts = (each.reshape(shape) for each in choices)
            fields |= {"n": sizes, "nvec": sizes, "start": starts}
        elif math.prod(shape) > max_elements:
            raise ValueError(f"{shape} numbers, more than {max_elements}")
        elif kind == "Box":
            bounds = (np.array(data[name], dtype) for name in ("low", "high"))
            low, high = (each.reshape(shape if each.ndim else ()) for each in bounds)
            fields |= {"low": np.broadcast_to(low, shape), "high": np.broadcast_to(high, shape)}
    return _read_space(kind, fields)


class _ReadSpace(SimpleNamespace):
    """Space read from a file. A subclass is named after the kind of space."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _read_space, (type(self).__name__, vars(self))


def _read_space(kind: str, fields: dict[str, Any]) -> Any:
    return type(kind, (_ReadSpace,), {})(**fields)
