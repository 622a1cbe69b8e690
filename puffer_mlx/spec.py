"""Describe an environment's observations and actions: shapes, dtypes and kinds.

Symbols in array shapes, used in the entire package:

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
from functools import cached_property
from typing import NamedTuple

import numpy as np

MAX_LOGITS = 2**24  # actions are stored as float32, which represents integers up to this exactly
IMAGES_KEY = "image_parts"  # key of EnvSpec.image_parts in files


@dataclass(frozen=True)
class ActionSpec:
    """Describe an action space: the sizes of its heads, and bounds of rescaled actions.

    As in PufferLib, heads of size 1 are continuous actions, and larger heads are discrete actions
    (several heads: multidiscrete). Mixed heads are invalid.

    Args:
        sizes: Size of each head: number of choices, or 1 for a continuous dimension.
        bounds: (low, high) of each continuous dimension, float32: actions of the environment for
            the policy's -1 and 1. (-1, 1) doesn't change a dimension. Empty without rescaling.

    Raises:
        ValueError: Sizes are missing or mixed, there are more than ``MAX_LOGITS`` choices, or the
            bounds don't fit the heads.
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

    @cached_property
    def continuous(self) -> bool:
        """True if every head is one continuous dimension."""
        return max(self.sizes) == 1

    @cached_property
    def heads(self) -> int:
        """Number of actions that an agent takes in a step."""
        return len(self.sizes)

    @cached_property
    def logits(self) -> int:
        """Number A of policy outputs that describe the action distribution."""
        return sum(self.sizes)


def rescaling(bounds: tuple[tuple[float, float], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the centres and half widths of action bounds, each (a,) float64.

    A rescaled action is centre + half width * the policy's action. The bounds (-1, 1) give 0 and 1,
    which don't change a bit of the action.
    """
    low, high = np.array(bounds, np.float64).reshape(-1, 2).T
    return (low + high) / 2, (high - low) / 2


class ImageSlice(NamedTuple):
    """Position and shape of a uint8 image in a flat observation that also has other entries.

    Args:
        start: First column of the image.
        shape: Height, width, channels.
        channels_first: True if columns are in the order channel, height, width.
    """

    start: int
    shape: tuple[int, ...]
    channels_first: bool

    @property
    def stop(self) -> int:
        """Column after the image's last one."""
        return self.start + math.prod(self.shape)


@dataclass(frozen=True)
class EnvSpec:
    """Describe the observations and actions of one agent of an environment.

    Args:
        name: Name of the environment, for messages and file paths.
        observation_size: Flat size D.
        observation_dtype: ``uint8`` or ``float32``.
        action: Action space.
        mask_size: Bytes of the action mask per agent (sum of the head sizes), or 0 without a mask.
        observation_shape: (height, width, channels) of image observations, flattened in this order;
            empty for other observations.
        spaces: Gymnasium spaces of one agent as ``vec.layout.saved_layout`` reads them; empty for C
            environments. Ignored in comparisons.
        image_parts: Images in a Dict or Tuple observation, in column order. Ignored in comparisons,
            because rows don't depend on them.

    Raises:
        ValueError: ``observation_shape`` isn't three positive numbers with the product
            ``observation_size``, or ``image_parts`` are out of order or range.
    """

    name: str
    observation_size: int
    observation_dtype: np.dtype
    action: ActionSpec
    mask_size: int = 0
    observation_shape: tuple[int, ...] = ()
    spaces: str = field(default="", compare=False, repr=False)
    image_parts: tuple[ImageSlice, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        columns = [0, *(n for image in self.image_parts for n in (image.start, image.stop))]
        sizes = [size for image in self.image_parts for size in image.shape]
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

    def matches(self, other: "EnvSpec") -> bool:
        """Return True if two specs have equal observations and actions; names may differ."""
        return replace(self, name="") == replace(other, name="")

    def described(self) -> str:
        """Return a description of observations and actions for messages."""
        shape = f" of shape {self.observation_shape}" if self.observation_shape else ""
        mask = ", masked" if self.mask_size else ""
        if self.action.bounds:
            mask += f", -1 to 1 rescaled to {self.action.bounds}"
        return (
            f"{self.observation_size} {self.observation_dtype} observations{shape}"
            f" and action sizes {self.action.sizes}{mask}"
        )

    def to_json(self) -> str:
        """Return the spec as JSON text, to be stored in a file."""
        fields = {
            **asdict(self),
            "observation_dtype": self.observation_dtype.name,
            "action": self.action.sizes,
        }
        if self.action.bounds:
            fields["action_bounds"] = self.action.bounds
        for name in "spaces", IMAGES_KEY:
            if not fields[name]:
                del fields[name]
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> "EnvSpec":
        """Read a spec from the JSON text that ``to_json`` returned.

        Raises:
            ValueError: The text isn't a valid spec.
        """
        try:
            fields = json.loads(text)
            sizes = [fields["observation_size"], fields["mask_size"]]
            sizes += [*fields["action"], *fields["observation_shape"]]
            bounds = tuple((low, high) for low, high in fields.pop("action_bounds", ()))
            if any(type(bound) not in (int, float) for pair in bounds for bound in pair):
                raise ValueError("action bounds that aren't numbers")
            image_entries = fields.get(IMAGES_KEY, ())
            images = [
                ImageSlice(start, tuple(shape), first) for start, shape, first in image_entries
            ]
            sizes += [size for image in images for size in (image.start, *image.shape)]
            fields[IMAGES_KEY] = tuple(images)
            fields["action"] = ActionSpec(tuple(fields["action"]), bounds)
            fields["observation_shape"] = tuple(fields["observation_shape"])
            if fields["observation_dtype"] not in ("uint8", "float32"):
                raise ValueError(f"observations of type {fields['observation_dtype']!r}")
            fields["observation_dtype"] = np.dtype(fields["observation_dtype"])
            texts = fields["name"], fields.setdefault("spaces", "")
            if any(not isinstance(text, str) for text in texts) or any(
                type(n) is not int for n in sizes
            ):
                raise ValueError("a text where a number is expected, or vice versa")
            if fields["observation_size"] < 1 or fields["mask_size"] < 0:
                raise ValueError("sizes that aren't positive")
            return cls(**fields)
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
