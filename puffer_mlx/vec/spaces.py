"""What a space of Gymnasium is and consists of. NumPy only.

Spaces are told apart by the names of their classes: Gymnasium need not be there, and the spaces of
its forks do as well.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError

_KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")

Path = tuple[Any, ...]  # keys and indices that lead to a part of nested dicts and tuples


def kind_of(space: Any) -> str:
    """Which of the spaces this module knows it is, by the names of its classes; "" if none."""
    for cls in type(space).__mro__:
        if cls.__name__ in _KINDS:
            return cls.__name__
    return ""


def leaves(name: str, space: Any, what: str, path: Path = ()) -> Iterator[tuple[Path, Any, str]]:
    """(path, space, kind) of every part that isn't a Dict or Tuple."""
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
    """(key or index, space) of the parts of a Dict or Tuple, in Gymnasium's order."""
    yield from space.spaces.items() if kind_of(space) == "Dict" else enumerate(space.spaces)


def choices_of(space: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of choices and first choices of a Discrete or MultiDiscrete, flat."""
    sizes = np.atleast_1d(space.n if kind_of(space) == "Discrete" else space.nvec).ravel()
    starts = np.broadcast_to(np.ravel(getattr(space, "start", 0)), sizes.shape)
    return tuple(sizes.tolist()), tuple(starts.tolist())


def nested(space: Any, parts: dict[Path, Any], path: Path = ()) -> Any:
    """The dicts and tuples of a space around its parts."""
    kind = kind_of(space)
    if kind == "Dict":
        return {key: nested(part, parts, (*path, key)) for key, part in parts_of(space)}
    if kind == "Tuple":
        return tuple(nested(part, parts, (*path, key)) for key, part in parts_of(space))
    return parts[path]


def path_text(path: Path) -> str:
    """A path for messages: ``outer.inner.0``."""
    return ".".join(str(key) for key in path)
