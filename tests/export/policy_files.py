"""What the tests of exports and imports share."""

from typing import Any

import numpy as np
from oracles import named

from puffer_mlx.config import Config


def configuration_of(settings: dict[str, str], **more: Any) -> Config:
    """A configuration with a file's settings."""
    config = Config("x")
    for key, text in {**settings, **more}.items():
        section, _, name = key.partition(".")
        part = getattr(config, section)
        setattr(part, name, type(getattr(part, name))(text))
    return config


def same(one: Any, other: Any) -> bool:
    """Whether two trees of weights have the same names and bits."""
    pairs = zip(named(one), named(other), strict=True)
    return all(a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in pairs)
