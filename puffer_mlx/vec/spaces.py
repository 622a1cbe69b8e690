"""Gymnasium's spaces and their parts. NumPy only.

Spaces are recognised by the names of their classes, so Gymnasium may be missing, and spaces of its
forks work too.
"""

import json
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError

_KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")

Path = tuple[Any, ...]  # keys and indices that lead to a part of nested dicts and tuples


def kind_of(space: Any) -> str:
    """Return the kind of a space, by the names of its classes; "" for an unknown kind."""
    for cls in type(space).__mro__:
        if cls.__name__ in _KINDS:
            return cls.__name__
    return ""


def leaves(name: str, space: Any, what: str, path: Path = ()) -> Iterator[tuple[Path, Any, str]]:
    """Yield (path, space, kind) of every part that isn't a Dict or Tuple."""
    kind = kind_of(space)
    if not kind:
        where = f" at {path_text(path)}" if path else ""
        raise UserError(
            f"{name}: its {what} space{where} is {type(space).__name__}, which has no fixed size",
            f"use one of {', '.join(_KINDS)}; a wrapper of Gymnasium can transform the others",
        )
    if kind in ("Dict", "Tuple"):
        for key, part in parts_of(space):
            yield from leaves(name, part, what, (*path, key))
    else:
        yield path, space, kind


def parts_of(space: Any) -> Iterator[tuple[Any, Any]]:
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
        return {key: nested(part, parts, (*path, key)) for key, part in parts_of(space)}
    if kind == "Tuple":
        return tuple(nested(part, parts, (*path, key)) for key, part in parts_of(space))
    return parts[path]


def to_text(*spaces: Any) -> str:
    """Return spaces as JSON, or "" if a Dict has keys other than texts and integers."""
    try:
        return json.dumps([_data(space) for space in spaces])
    except TypeError:
        return ""


def from_text(text: str, most: int) -> list[Any]:
    """Read spaces that ``to_text`` wrote, as objects that work without Gymnasium.

    Args:
        text: Text of a file, untrusted.
        most: Largest number of elements of a part.

    Raises:
        ValueError: The text is damaged.
    """
    try:
        return [_space(data, most) for data in json.loads(text)]
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _data(space: Any) -> dict[str, Any]:
    kind = kind_of(space)
    if kind in ("Dict", "Tuple"):
        parts = dict(parts_of(space))
        if any(type(key) not in (str, int) for key in parts):
            raise TypeError("a key that JSON doesn't have")
        return {"kind": kind, "parts": [[key, _data(part)] for key, part in parts.items()]}
    data: dict[str, Any] = {"kind": kind, "dtype": np.dtype(space.dtype).name}
    data["shape"] = [int(size) for size in space.shape]
    if kind == "Box":
        data |= {name: _numbers(np.asarray(getattr(space, name))) for name in ("low", "high")}
    elif kind != "MultiBinary":
        data["sizes"], data["starts"] = choices_of(space)
    return data


def _numbers(bounds: np.ndarray) -> Any:
    """Return a Box's bounds: a list, or one number if all are equal."""
    first = bounds.ravel()[:1]
    return first.item() if bounds.size and (bounds == first).all() else bounds.ravel().tolist()


def _space(data: dict[str, Any], most: int) -> Any:
    kind = data["kind"]
    if kind not in _KINDS:
        raise ValueError(f"a space of kind {kind!r}")
    if kind in ("Dict", "Tuple"):
        parts = [(key, _space(part, most)) for key, part in data["parts"]]
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
        elif math.prod(shape) > most:
            raise ValueError(f"{shape} numbers, more than {most}")
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


def path_text(path: Path) -> str:
    """Return a path for messages: ``outer.inner.0``."""
    return ".".join(str(key) for key in path)
