"""How a number changes over a run: constant, or along a cosine or a line to its last value.

A schedule is a function of the epoch alone, so a run that goes on needs none of its past.
"""

import math
from collections.abc import Callable

from puffer_mlx.config import Train

Schedule = Callable[[float, float, int, int], float]


def constant(start: float, end: float, epoch: int, epochs: int) -> float:
    """Always start."""
    return start


def cosine(start: float, end: float, epoch: int, epochs: int) -> float:
    """Cosine schedule from start (epoch 0) to end (epoch = epochs); start if epochs = 0."""
    if epochs == 0:
        return start
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * _progress(epoch, epochs)))


def linear(start: float, end: float, epoch: int, epochs: int) -> float:
    """Straight line from start (epoch 0) to end (epoch = epochs); start if epochs = 0."""
    if epochs == 0:
        return start
    return start + (end - start) * _progress(epoch, epochs)


SCHEDULES: dict[str, Schedule] = {"cosine": cosine, "linear": linear}


def learning_rate(train: Train, epoch: int, epochs: int) -> float:
    """An epoch's, of a run of so many."""
    schedule = SCHEDULES[train.lr_schedule] if train.anneal_lr else constant
    return schedule(train.learning_rate, train.min_lr_ratio * train.learning_rate, epoch, epochs)


def entropy_coefficient(train: Train, epoch: int, epochs: int) -> float:
    """An epoch's, of a run of so many."""
    schedule = cosine if train.anneal_ent_coef else constant
    return schedule(train.ent_coef, train.min_ent_coef_ratio * train.ent_coef, epoch, epochs)


def _progress(epoch: int, epochs: int) -> float:
    return min(max(epoch / epochs, 0.0), 1.0)
