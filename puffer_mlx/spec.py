"""Shapes, dtypes and kinds of observations and actions: what an environment tells a policy.

| symbol | meaning |
| --- | --- |
| T | horizon: steps of one rollout, and the length of a training segment |
| N | agents |
| D | observation size, flat |
| A | action logits (discrete: sum of the head sizes; continuous: number of dimensions) |
| H, L | hidden size, recurrent layers |
| S | segments (agents) of a minibatch |
"""

import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

import numpy as np

# An action is stored as float32, which holds all whole numbers up to here.
MAX_LOGITS = 2**24
PARTS = "image_parts"  # of an EnvSpec, in files


@dataclass(frozen=True)
class ActionSpec:
    """The heads of an action space.

    Upstream's rule: a space whose head sizes are all 1 is continuous, one with no head of size 1 is
    discrete (several heads: multidiscrete), and nothing else is legal.

    Args:
        sizes: one entry per head: its number of choices, or 1 for a continuous dimension.
        bounds: of continuous actions that an environment rescales: for each dimension what a
            policy's -1 and 1 are there, float32 numbers. (-1, 1) is a dimension that is taken as it
            is; empty if all are.

    Raises:
        ValueError: there is no head, heads are of both kinds, there are more than ``MAX_LOGITS``
            choices, or the bounds aren't of these heads.
    """

    sizes: tuple[int, ...]
    bounds: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"action heads need sizes of at least 1, got {self.sizes}")
        if 1 in self.sizes and not self.continuous:
            raise ValueError(f"discrete and continuous heads can't be mixed: sizes {self.sizes}")
        if self.logits > MAX_LOGITS:
            raise ValueError(f"{self.logits:,} action logits, more than {MAX_LOGITS:,}")
        widths = [float(high) - float(low) for low, high in self.bounds]
        wrong = self.bounds and (len(self.bounds) != self.heads or not self.continuous)
        if wrong or not all(0 < width < math.inf for width in widths):
            raise ValueError(f"bounds {self.bounds} aren't those of actions of sizes {self.sizes}")

    @property
    def continuous(self) -> bool:
        """True if every head is one continuous dimension."""
        return max(self.sizes) == 1

    @property
    def heads(self) -> int:
        """Number of actions an agent takes in a step."""
        return len(self.sizes)

    @property
    def logits(self) -> int:
        """A: number of policy outputs that describe the action distribution."""
        return sum(self.sizes)


def rescaling(bounds: tuple[tuple[float, float], ...]) -> tuple[np.ndarray, np.ndarray]:
    """(centre, half the width) of bounds, (a,) float64: an action is centre + half * the policy's.

    Of (-1, 1) they are 0 and 1, which change nothing, to the bit.
    """
    low, high = np.array(bounds, np.float64).reshape(-1, 2).T
    return (low + high) / 2, (high - low) / 2


class ImagePart(NamedTuple):
    """An image of bytes beside other numbers of an observation, in columns ``[start, stop)``.

    Args:
        start: its first column in a row.
        shape: height, width, channels.
        channels_first: the columns are in the order channel, height, width.
    """

    start: int
    shape: tuple[int, ...]
    channels_first: bool

    @property
    def stop(self) -> int:
        """The column after its last one."""
        return self.start + math.prod(self.shape)


@dataclass(frozen=True)
class EnvSpec:
    """What one agent sees and does.

    Args:
        name: the environment's name, for messages and file paths.
        observation_size: D, flat.
        observation_dtype: ``uint8`` or ``float32``.
        action: the action space.
        mask_size: bytes of the action mask per agent (the sum of the head sizes), 0 without one.
        observation_shape: (height, width, channels) of observations that are images, which are flat
            in this order; empty if they are none.
        spaces: Gymnasium's spaces of one agent, as ``vec.layout.saved_layout`` reads them; empty
            of an environment in C. It is no part of what is compared.
        image_parts: the images among the parts of a Dict or Tuple, in the order of their columns.
            No part of what is compared either: rows are the same without.

    Raises:
        ValueError: ``observation_shape`` isn't three positive numbers with the product
            ``observation_size``, or ``image_parts`` aren't in order within it.
    """

    name: str
    observation_size: int
    observation_dtype: np.dtype
    action: ActionSpec
    mask_size: int = 0
    observation_shape: tuple[int, ...] = ()
    spaces: str = field(default="", compare=False, repr=False)
    image_parts: tuple[ImagePart, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        columns = [0, *(n for part in self.image_parts for n in (part.start, part.stop))]
        sizes = [size for part in self.image_parts for size in part.shape]
        if len(sizes) != 3 * len(self.image_parts) or min(sizes, default=1) < 1:
            raise ValueError(f"images {self.image_parts} without height, width and channels")
        if columns != sorted(columns) or columns[-1] > self.observation_size:
            raise ValueError(f"images {self.image_parts} aren't beside each other in a row")
        shape = self.observation_shape
        if not shape:
            return
        if len(shape) != 3 or min(shape) < 1 or math.prod(shape) != self.observation_size:
            raise ValueError(
                f"an image of shape {shape} doesn't have {self.observation_size} elements"
            )

    def is_like(self, other: "EnvSpec") -> bool:
        """Whether both environments show and take the same; their names don't count."""
        return replace(self, name="") == replace(other, name="")

    def described(self) -> str:
        """What the environment shows and takes, in words."""
        shape = f" of shape {self.observation_shape}" if self.observation_shape else ""
        mask = ", masked" if self.mask_size else ""
        if self.action.bounds:
            mask += f", -1 to 1 rescaled to {self.action.bounds}"
        return (
            f"{self.observation_size} {self.observation_dtype} observations{shape}"
            f" and action sizes {self.action.sizes}{mask}"
        )

    def to_json(self) -> str:
        """All of it as text, for files."""
        fields = {
            **asdict(self),
            "observation_dtype": self.observation_dtype.name,
            "action": self.action.sizes,
        }
        if self.action.bounds:
            fields["action_bounds"] = self.action.bounds
        for name in "spaces", PARTS:
            if not fields[name]:
                del fields[name]
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> "EnvSpec":
        """What ``to_json`` wrote.

        Raises:
            ValueError: it isn't that.
        """
        try:
            fields = json.loads(text)
            numbers = [fields["observation_size"], fields["mask_size"]]
            numbers += [*fields["action"], *fields["observation_shape"]]
            bounds = tuple((low, high) for low, high in fields.pop("action_bounds", ()))
            if any(type(bound) not in (int, float) for pair in bounds for bound in pair):
                raise ValueError("bounds of actions that aren't numbers")
            parts = [ImagePart(at, tuple(hwc), first) for at, hwc, first in fields.get(PARTS, ())]
            numbers += [size for part in parts for size in (part.start, *part.shape)]
            fields[PARTS] = tuple(parts)
            fields["action"] = ActionSpec(tuple(fields["action"]), bounds)
            fields["observation_shape"] = tuple(fields["observation_shape"])
            if fields["observation_dtype"] not in ("uint8", "float32"):
                raise ValueError(f"observations of type {fields['observation_dtype']!r}")
            fields["observation_dtype"] = np.dtype(fields["observation_dtype"])
            texts = fields["name"], fields.setdefault("spaces", "")
            if any(not isinstance(text, str) for text in texts) or any(
                type(n) is not int for n in numbers
            ):
                raise ValueError("a text where a number is expected, or the other way round")
            if fields["observation_size"] < 1 or fields["mask_size"] < 0:
                raise ValueError("sizes that aren't positive")
            return cls(**fields)
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
