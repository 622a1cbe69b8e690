"""Gymnasium's spaces as flat rows of observations and as heads of actions. NumPy only.

| space | in a row of observations | as actions |
| --- | --- | --- |
| Box | its numbers | continuous: one head per number, clipped to the bounds |
| Discrete | one-hot | a head of its choices |
| MultiDiscrete | one-hot, number for number | a head for each number |
| MultiBinary | its bits | a head of 2 for each bit |
| Dict, Tuple | their parts, in Gymnasium's order | their parts, all discrete or all continuous |

That is the order of ``gymnasium.spaces.flatten``, except that an image that comes as (channels,
height, width) is turned to (height, width, channels). Spaces are told apart by the names of their
classes: Gymnasium need not be there, and the spaces of its forks do as well.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.spec import ActionSpec, EnvSpec

__all__ = ["Layout", "kind_of"]

_KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")
_MAX_CHANNELS = 4  # of an image that is recognised by its channels coming first

Path = tuple[Any, ...]  # keys and indices that lead to a part of nested dicts and tuples


class Layout:
    """How one agent's observations and actions lie in rows.

    Args:
        name: the environment's, for ``spec`` and messages.
        observation_space: of one agent.
        action_space: of one agent. Heads of a single choice are left to the environment: they are
            no heads of ``spec.action``, and ``actions`` fills them in.
        mask: the environment tells which actions are legal.

    Attributes:
        spec: what a policy gets to know. Observations are uint8 if all parts are Boxes of uint8,
            else float32.

    Raises:
        UserError: there is no layout for one of the spaces; the message says which part.
    """

    def __init__(
        self, name: str, observation_space: Any, action_space: Any, mask: bool = False
    ) -> None:
        self._name = name
        self._observations = list(_seen(name, observation_space))
        self._single = self._observations[0].path == ()  # no Dict, no Tuple
        self._heads = list(_taken(name, action_space))
        self._spaces = observation_space, action_space
        action = _action(name, self._heads)
        if mask and action.continuous:
            raise UserError(
                f"{name}: it masks actions, but they are continuous",
                "leave the mask out; only choices can be illegal",
            )
        image = self._observations[0].image if self._single else ()
        self.spec = EnvSpec(
            name=name,
            observation_size=self._observations[-1].stop,
            observation_dtype=_dtype(self._observations),
            action=action,
            mask_size=action.logits if mask else 0,
            observation_shape=image,
        )

    def write(self, batch: Any, out: np.ndarray) -> None:
        """Write observations of n agents into their rows.

        Args:
            batch: as a vector environment of Gymnasium returns them: an array (n, ...), or nested
                dicts and tuples of arrays.
            out: (n, D), ``spec.observation_dtype``; written in place.

        Raises:
            UserError: observations don't have the shape or kind that the space promised.
        """
        for leaf in self._observations:
            values = batch
            try:
                for key in leaf.path:
                    values = values[key]
                leaf.write(values, out if self._single else out[:, leaf.start : leaf.stop])
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise self._mismatch(leaf, values, len(out)) from error

    def restore(self, rows: Any) -> Any:
        """The parts that rows are made of, nested as the space is.

        Args:
            rows: (n, D), a NumPy array or one of MLX: it is sliced, reshaped and transposed.

        Returns:
            What ``write`` took, with the dtype of ``rows``: an array, or nested dicts and tuples of
            arrays. Discrete and MultiDiscrete parts stay one-hot, (n, sum of their choices).
        """
        if self._single:
            return self._observations[0].restore(rows)
        parts = {
            leaf.path: leaf.restore(rows[:, leaf.start : leaf.stop]) for leaf in self._observations
        }
        return _nested(self._spaces[0], parts)

    def actions(self, rows: np.ndarray) -> Any:
        """What a vector environment takes.

        Args:
            rows: (n, heads) float32, as a policy chose them.

        Returns:
            An array (n, ...) of the space's dtype, or nested dicts and tuples of arrays.
        """
        if self._heads[0].path == ():
            return self._heads[0].convert(rows)
        parts = {
            head.path: head.convert(rows[:, head.start : head.start + len(head.sizes)])
            for head in self._heads
        }
        return _nested(self._spaces[1], parts)

    def _mismatch(self, leaf: "_Seen", values: Any, n: int) -> UserError:
        found = f"{values.dtype} {values.shape}" if hasattr(values, "shape") else repr(values)
        where = f" of {_words(leaf.path)}" if leaf.path else ""
        return UserError(
            f"{self._name}: observations{where} don't fit the space {leaf.space}: "
            f"found {found[:200]} for {n} agents",
            "the environment must return what its observation space describes",
        )


class _Seen(NamedTuple):
    """A part of observations: columns ``[start, stop)`` of a row."""

    path: Path
    start: int
    stop: int
    space: Any
    image: tuple[int, ...]  # (height, width, channels), if it is one
    write: Callable[[Any, np.ndarray], None]  # (n, ...) values into (n, stop - start) columns
    restore: Callable[[Any], Any]  # the other way; for arrays of MLX too


class _Taken(NamedTuple):
    """A part of actions: heads from ``start`` on, one for each of ``sizes``."""

    path: Path
    start: int
    sizes: tuple[int, ...]
    space: Any
    convert: Callable[[np.ndarray], np.ndarray]  # (n, len(sizes)) float32 into (n, ...) of its type


def kind_of(space: Any) -> str:
    """Which of the spaces this module knows it is, by the names of its classes; "" if none."""
    for cls in type(space).__mro__:
        if cls.__name__ in _KINDS:
            return cls.__name__
    return ""


def _leaves(name: str, space: Any, what: str, path: Path = ()) -> Iterator[tuple[Path, Any, str]]:
    """(path, space, kind) of every part that isn't a Dict or Tuple."""
    kind = kind_of(space)
    if not kind:
        where = f" at {_words(path)}" if path else ""
        raise UserError(
            f"{name}: its {what} space{where} is {type(space).__name__}, which has no fixed size",
            f"use one of {', '.join(_KINDS)}; a wrapper of Gymnasium can transform the others",
        )
    if kind in ("Dict", "Tuple"):
        for key, part in _parts(space):
            yield from _leaves(name, part, what, (*path, key))
    else:
        yield path, space, kind


def _parts(space: Any) -> Iterator[tuple[Any, Any]]:
    """(key or index, space) of the parts of a Dict or Tuple, in Gymnasium's order."""
    yield from space.spaces.items() if kind_of(space) == "Dict" else enumerate(space.spaces)


def _seen(name: str, space: Any) -> Iterator[_Seen]:
    """The parts of an observation, each with its columns."""
    start = 0
    single = kind_of(space) not in ("Dict", "Tuple")
    for path, part, kind in _leaves(name, space, "observation"):
        image, turned = _image(part) if single and kind == "Box" else ((), False)
        if kind in ("Discrete", "MultiDiscrete"):
            sizes, starts = _choices(part)
            size, write, restore = sum(sizes), _one_hot(sizes, starts), _unchanged
        else:
            shape = tuple(int(n) for n in part.shape)
            size = int(np.prod(shape))
            write, restore = (_turn, _turn_back(image)) if turned else (_copy, _reshape(shape))
        if size == 0:
            raise UserError(f"{name}: the space {part} holds no number", "leave it out")
        yield _Seen(path, start, start + size, part, image, write, restore)
        start += size
    if start == 0:
        raise UserError(f"{name}: the observation space {space} is empty", "add a part to it")


def _taken(name: str, space: Any) -> Iterator[_Taken]:
    """The parts of an action, each with its heads."""
    start = 0
    for path, part, kind in _leaves(name, space, "action"):
        if kind == "Box":
            sizes, convert = (1,) * int(np.prod(part.shape)), _clipped(part)
        elif kind == "MultiBinary":
            sizes = (2,) * int(np.prod(part.shape))
            convert = _chosen(sizes, (0,) * len(sizes), part)
        else:
            sizes, starts = _choices(part)
            convert = _chosen(sizes, starts, part)
            sizes = tuple(size for size in sizes if size > 1)
        yield _Taken(path, start, sizes, part, convert)
        start += len(sizes)


def _action(name: str, parts: list[_Taken]) -> ActionSpec:
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


def _dtype(parts: list[_Seen]) -> np.dtype:
    """Of rows: bytes if all that an agent sees are bytes."""
    bytes_only = all(kind_of(p.space) == "Box" and p.space.dtype == np.uint8 for p in parts)
    return np.dtype(np.uint8 if bytes_only else np.float32)


def _image(space: Any) -> tuple[tuple[int, ...], bool]:
    """(height, width, channels) of a Box of bytes, and whether its channels come first."""
    shape = tuple(int(n) for n in space.shape)
    if space.dtype != np.uint8 or len(shape) != 3 or not all(shape):
        return (), False
    if shape[0] <= _MAX_CHANNELS and shape[0] < min(shape[1:]):
        return (*shape[1:], shape[0]), True
    return shape, False


def _choices(space: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of choices and first choices of a Discrete or MultiDiscrete, flat."""
    sizes = np.atleast_1d(space.n if kind_of(space) == "Discrete" else space.nvec).ravel()
    starts = np.broadcast_to(np.ravel(getattr(space, "start", 0)), sizes.shape)
    return tuple(sizes.tolist()), tuple(starts.tolist())


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


def _nested(space: Any, parts: dict[Path, Any], path: Path = ()) -> Any:
    """The dicts and tuples of a space around its parts."""
    kind = kind_of(space)
    if kind == "Dict":
        return {key: _nested(part, parts, (*path, key)) for key, part in _parts(space)}
    if kind == "Tuple":
        return tuple(_nested(part, parts, (*path, key)) for key, part in _parts(space))
    return parts[path]


def _words(path: Path) -> str:
    return ".".join(str(key) for key in path)
