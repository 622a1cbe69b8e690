"""Convert Gymnasium's spaces to columns of observation rows and to action heads. NumPy only.

Spaces are recognised by the names of their classes, so Gymnasium needn't be installed, and spaces
of its forks work too. Spaces can also be written to and read from checkpoints as text.
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
# Values of vec.image_channels: which images have channels first.
CHANNELS_SMALLEST = "smallest"
CHANNELS_UP_TO_4 = "up_to_4"
CHANNELS_LAST_ATTRIBUTE = "channels_last"  # attribute of a Box whose images have channels last

Path = tuple[Any, ...]  # keys and indices of a value in nested dicts and tuples


def kind_of(space: Any) -> str:
    """Return the kind of a Gymnasium space, such as "Box"; "" for an unsupported kind."""
    for cls in type(space).__mro__:
        if cls.__name__ in _SPACE_KINDS:
            return cls.__name__
    return ""


def leaf_spaces(
    name: str, space: Any, what: str, path: Path = ()
) -> Iterator[tuple[Path, Any, str]]:
    """Yield (path, space, kind) of each innermost space of a nested Dict or Tuple space."""
    kind = kind_of(space)
    if not kind:
        location = f" at {path_text(path)}" if path else ""
        raise UserError(
            f"{name}: its {what} space{location} is {type(space).__name__}, which has no fixed"
            " size",
            f"use one of {', '.join(_SPACE_KINDS)}; a wrapper of Gymnasium can transform others",
        )
    if kind in ("Dict", "Tuple"):
        for key, component in subspaces(space):
            yield from leaf_spaces(name, component, what, (*path, key))
    else:
        yield path, space, kind


def subspaces(space: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (key or index, space) for each space in a Dict or Tuple, in Gymnasium's order."""
    yield from space.spaces.items() if kind_of(space) == "Dict" else enumerate(space.spaces)


def choices_of(space: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a discrete space's numbers of choices and first choices, as two tuples.

    Each is a flat tuple with one entry per discrete value.
    """
    sizes = np.atleast_1d(space.n if kind_of(space) == "Discrete" else space.nvec).ravel()
    starts = np.broadcast_to(np.ravel(getattr(space, "start", 0)), sizes.shape)
    return tuple(sizes.tolist()), tuple(starts.tolist())


def nested(space: Any, components: dict[Path, Any], path: Path = ()) -> Any:
    """Arrange values by path in nested dicts and tuples, in the structure of a nested space."""
    kind = kind_of(space)
    if kind == "Dict":
        return {
            key: nested(component, components, (*path, key)) for key, component in subspaces(space)
        }
    if kind == "Tuple":
        return tuple(
            nested(component, components, (*path, key)) for key, component in subspaces(space)
        )
    return components[path]


def path_text(path: Path) -> str:
    """Format the path to an inner space of a nested space as text: ``outer.inner.0``."""
    return ".".join(str(key) for key in path)


# ---- Observations --------------------------------------------------------------------------------


class ObservationComponent(NamedTuple):
    """An inner space of an observation space, and its columns ``[start, stop)`` in a row."""

    path: Path
    start: int
    stop: int
    space: Any
    image: tuple[int, ...]  # (height, width, channels) of an image, () for other spaces
    channels_first: bool  # True if an image's columns have channels first
    write: Callable[[Any, np.ndarray], None]  # writes (n, ...) values to (n, stop - start) columns
    restore: Callable[[Any], Any]  # inverse of ``write``; also for MLX arrays

    def writer(self, row: np.ndarray) -> Callable[[np.ndarray], None]:
        """Return a function that writes a value of this space into its columns of a row (D,)."""
        out = row[self.start : self.stop]
        if self.write is _copy:
            return partial(np.copyto, out.reshape(self.space.shape))
        return lambda value: self.write(value[None], out[None])


def observation_components(
    name: str, space: Any, channels: str = CHANNELS_SMALLEST
) -> Iterator[ObservationComponent]:
    """Yield each inner space of an observation space, with its columns in a flat row.

    Args:
        name: Name of the environment, for messages.
        space: Observation space of one agent.
        channels: ``vec.image_channels``, see `image_of`.
    """
    start = 0
    single = kind_of(space) not in ("Dict", "Tuple")
    for path, component, kind in leaf_spaces(name, space, "observation"):
        image, first = image_of(component, channels) if kind == "Box" else ((), False)
        transposed = first and single
        if kind in ("Discrete", "MultiDiscrete"):
            sizes, starts = choices_of(component)
            size, write, restore = sum(sizes), _one_hot(sizes, starts), _unchanged
        else:
            shape = tuple(int(n) for n in component.shape)
            size = math.prod(shape)
            write, restore = (
                (_copy_transposed, _transpose_back(image))
                if transposed
                else (_copy, _reshape(shape))
            )
        if size == 0:
            raise UserError(f"{name}: the space {component} contains no number", "leave it out")
        yield ObservationComponent(
            path, start, start + size, component, image, first and not transposed, write, restore
        )
        start += size
    if start == 0:
        raise UserError(f"{name}: the observation space {space} is empty", "add a space to it")


def row_dtype(components: list[ObservationComponent]) -> np.dtype:
    """Return the dtype of observation rows: uint8 if all observations are bytes, else float32."""
    bytes_only = all(kind_of(p.space) == "Box" and p.space.dtype == np.uint8 for p in components)
    return np.dtype(np.uint8 if bytes_only else np.float32)


def exact_dtype(components: list[ObservationComponent]) -> np.dtype:
    """Return the dtype that represents observations exactly: float64 where float32 would round."""
    rounds = any(
        kind_of(p.space) == "Box" and not np.can_cast(p.space.dtype, np.float32) for p in components
    )
    return np.dtype(np.float64) if rounds else row_dtype(components)


def image_of(space: Any, channels: str = CHANNELS_SMALLEST) -> tuple[tuple[int, ...], bool]:
    """Return the size of the image that a Box describes, and where its channels are.

    Args:
        space: A Box.
        channels: ``vec.image_channels``. Channels come first if the first dimension is the
            smallest, with ``CHANNELS_UP_TO_4`` only if it is also at most 4; else they come last.

    Returns:
        (height, width, channels), or () if the Box isn't an image of bytes; and True if channels
            come first.
    """
    shape = tuple(int(n) for n in space.shape)
    if space.dtype != np.uint8 or len(shape) != 3 or not all(shape):
        return (), False
    may_be_first = channels == CHANNELS_SMALLEST or shape[0] <= 4
    if may_be_first and shape[0] < min(shape[1:]) and not hasattr(space, CHANNELS_LAST_ATTRIBUTE):
        return (*shape[1:], shape[0]), True
    return shape, False


def _copy(values: Any, out: np.ndarray) -> None:
    """Copy observations into columns of rows: an array of another shape and the same size."""
    values = np.asarray(values)
    if values.shape != out.shape:
        values = values.reshape(out.shape)
    np.copyto(out, values)


def _copy_transposed(values: Any, out: np.ndarray) -> None:
    """Copy images with channels first to rows with channels last."""
    _, channels, height, width = values.shape
    np.copyto(out.reshape(-1, height, width, channels), values.transpose(0, 2, 3, 1))


def _transpose_back(image: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda rows: rows.reshape(-1, *image).transpose(0, 3, 1, 2)


def _reshape(shape: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda rows: rows.reshape(-1, *shape)


def _unchanged(rows: Any) -> Any:
    return rows


def _one_hot(sizes: tuple[int, ...], starts: tuple[int, ...]) -> Callable[[Any, np.ndarray], None]:
    """Return a function that writes discrete values one-hot: 1 in the column of the choice."""
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
    """An inner space of an action space, and the heads of the policy that choose its values."""

    path: Path
    start: int
    sizes: tuple[int, ...]
    space: Any
    convert: Callable[[np.ndarray], np.ndarray]  # (n, len(sizes)) float32 to (n, ...) of the space
    bounds: tuple[tuple[float, float], ...]  # for each of ``sizes``: values that -1 and 1 map to


def action_components(name: str, space: Any, rescale: bool = False) -> Iterator[ActionComponent]:
    """Yield each inner space of an action space, with the heads that choose its values.

    Args:
        name: Name of the environment, for messages.
        space: Action space of one agent.
        rescale: Map -1 to 1 to the bounds of a Box.
    """
    start = 0
    for path, component, kind in leaf_spaces(name, space, "action"):
        bounds = ()
        if kind == "Box":
            sizes = (1,) * _checked_logits(name, component, math.prod(component.shape))
            bounds = _bounds_of_box(component) if rescale else ((-1.0, 1.0),) * len(sizes)
            convert = _box_converter(component, bounds)
        elif kind == "MultiBinary":
            sizes = (2,) * (_checked_logits(name, component, 2 * math.prod(component.shape)) // 2)
            convert = _choice_converter(sizes, (0,) * len(sizes), component)
        else:
            sizes, starts = choices_of(component)
            _checked_logits(name, component, sum(sizes))
            convert = _choice_converter(sizes, starts, component)
            sizes = tuple(size for size in sizes if size > 1)
        yield ActionComponent(path, start, sizes, component, convert, bounds)
        start += len(sizes)


def _checked_logits(name: str, space: Any, logits: int) -> int:
    """Return the number of logits of an action space if a policy can have that many.

    Raises:
        UserError: There are too many.
    """
    if logits > MAX_LOGITS:
        raise UserError(
            f"{name}: its action space {str(space)[:200]} needs {logits:,} action logits, one for"
            f" each choice or number, and a policy has at most {MAX_LOGITS:,}",
            "make the action space smaller, for example with several choices instead of one",
        )
    return logits


def action_spec(name: str, components: list[ActionComponent]) -> ActionSpec:
    """Return the ``ActionSpec`` of an action space: its heads, all discrete or all continuous."""
    sizes = tuple(size for component in components for size in component.sizes)
    _checked_logits(name, "of several spaces", sum(sizes))
    if not sizes:
        raise UserError(f"{name}: its action space leaves nothing to choose", "add an action")
    if 1 in sizes and max(sizes) > 1:
        spaces = ", ".join(str(component.space) for component in components)
        raise UserError(
            f"{name}: its actions are partly discrete and partly continuous: {spaces}",
            "turn one kind into the other: a Box into choices, or Discrete into a Box",
        )
    bounds = tuple(each for component in components for each in component.bounds)
    return ActionSpec(sizes, bounds if any(each != (-1, 1) for each in bounds) else ())


def _choice_converter(
    sizes: tuple[int, ...], starts: tuple[int, ...], space: Any
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that converts a policy's choices, (n, heads), to actions of a space.

    Discrete values with a single choice have no head; the function fills them in.
    """
    dtype, shape = np.dtype(space.dtype), tuple(space.shape)
    heads = [i for i, size in enumerate(sizes) if size > 1]
    all_have_heads = len(heads) == len(sizes)
    first = np.array(starts, dtype)
    has_offset = bool(first.any())
    flat = shape == (len(sizes),)

    def convert(rows: np.ndarray) -> np.ndarray:
        actions = rows.astype(dtype)
        if not all_have_heads:
            choices = actions
            actions = np.zeros((len(rows), len(sizes)), dtype)
            actions[:, heads] = choices
        if has_offset:
            actions += first
        return actions if flat else actions.reshape(-1, *shape)

    return convert


def _bounds_of_box(space: Any) -> tuple[tuple[float, float], ...]:
    """Return the values that actions -1 and 1 of each number of a Box map to: its finite bounds.

    The values are -1 and 1 for infinite or equal bounds, or if float32 can't represent the width.
    """
    low, high = (np.asarray(bound, np.float32).ravel() for bound in (space.low, space.high))
    with np.errstate(over="ignore", invalid="ignore"):
        width = high - low
    usable = np.isfinite(width) & (width > 0)
    pairs = zip(np.where(usable, low, -1), np.where(usable, high, 1), strict=True)
    return tuple((float(low_value), float(max_elements)) for low_value, max_elements in pairs)


def _box_converter(
    space: Any, bounds: tuple[tuple[float, float], ...]
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that converts continuous actions, (n, numbers), to values of a Box.

    Actions from -1 to 1 are mapped to ``bounds``, then clipped to the finite bounds of the Box.
    """
    dtype, shape = np.dtype(space.dtype), tuple(int(n) for n in space.shape)
    low, high = np.asarray(space.low), np.asarray(space.high)
    bounded = bool((np.isfinite(low) | np.isfinite(high)).any())
    is_integer = np.issubdtype(dtype, np.integer)
    centre, half = rescaling(bounds)
    is_rescaled = bool(centre.any() or (half != 1).any())

    def convert(rows: np.ndarray) -> np.ndarray:
        if is_rescaled:
            rows = centre + rows.astype(np.float64) * half
        values = rows.reshape(-1, *shape)
        if is_integer:
            return np.clip(np.rint(values.astype(np.float64)), low, high).astype(dtype)
        values = values.astype(dtype)
        return np.clip(values, low, high, out=values) if bounded else values

    return convert


# ---- Texts of checkpoints ------------------------------------------------------------------------


def to_text(*spaces: Any) -> str:
    """Convert Gymnasium spaces to JSON text for a checkpoint; "" if a Dict has unusual keys.

    Keys must be texts or integers.
    """
    try:
        return json.dumps([_space_data(space) for space in spaces])
    except TypeError:
        return ""


def from_text(text: str, max_elements: int) -> list[Any]:
    """Read Gymnasium spaces from a checkpoint's JSON text, as objects that don't need Gymnasium.

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
        components = dict(subspaces(space))
        if any(type(key) not in (str, int) for key in components):
            raise TypeError("a key that JSON doesn't have")
        return {
            "kind": kind,
            "parts": [[key, _space_data(component)] for key, component in components.items()],
        }
    data: dict[str, Any] = {"kind": kind, "dtype": np.dtype(space.dtype).name}
    data["shape"] = [int(size) for size in space.shape]
    if kind == "Box":
        data |= {name: _bounds_data(np.asarray(getattr(space, name))) for name in ("low", "high")}
    elif kind != "MultiBinary":
        data["sizes"], data["starts"] = choices_of(space)
    return data


def _bounds_data(bounds: np.ndarray) -> Any:
    """Convert the bounds of a Box space for JSON: to a list, or to one number if all are equal."""
    first = bounds.ravel()[:1]
    return first.item() if bounds.size and (bounds == first).all() else bounds.ravel().tolist()


def _space_from_data(data: dict[str, Any], max_elements: int) -> Any:
    kind = data["kind"]
    if kind not in _SPACE_KINDS:
        raise ValueError(f"a space of kind {kind!r}")
    if kind in ("Dict", "Tuple"):
        components = [
            (key, _space_from_data(component, max_elements)) for key, component in data["parts"]
        ]
        fields = {
            "spaces": dict(components)
            if kind == "Dict"
            else [component for _, component in components]
        }
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
    """A Gymnasium space read from a checkpoint. Its class is named after the kind of space."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _read_space, (type(self).__name__, vars(self))


def _read_space(kind: str, fields: dict[str, Any]) -> Any:
    return type(kind, (_ReadSpace,), {})(**fields)
