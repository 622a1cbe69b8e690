"""How a number changes over a run: constant, or along a cosine or a line to its last value.

A schedule is a function of the epoch alone, so a run that goes on needs none of its past.
"""

import math
from collections.abc import Callable

Schedule = Callable[[float, float, int, int], float]


def constant(start: float, end: float, epoch: int, epochs: int) -> float:
    """Always start."""
    return start


def cosine(start: float, end: float, epoch: int, epochs: int) -> float:
    """Cosine schedule from start (epoch 0) to end (epoch = epochs); start if epochs = 0."""
    if epochs == 0:
        return start
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * _progress(epoch, epochs)))


def _progress(epoch: int, epochs: int) -> float:
    return min(max(epoch / epochs, 0.0), 1.0)
