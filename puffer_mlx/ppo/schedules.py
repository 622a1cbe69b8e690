"""How a number changes over a run: constant, or along a cosine or a line to its last value.

Such a schedule is a function of the epoch alone, so a run that goes on needs none of its past. The
adaptive learning rate isn't: the trainer keeps it, and a checkpoint has it.
"""

import math
from collections.abc import Callable, Mapping

from puffer_mlx.config import Train
from puffer_mlx.errors import UserError

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
ADAPTIVE = "adaptive"
FACTOR = 1.5  # of the adaptive learning rate, down or up
LOWEST, HIGHEST = 0.01, 10  # of it, as parts of the first one: rsl_rl's 1e-5 and 1e-2 of its 1e-3


def learning_rate(train: Train, epoch: int, epochs: int) -> float:
    """An epoch's, of a run of so many.

    Raises:
        UserError: it is the adaptive one, which the epoch doesn't tell.
    """
    if train.lr_schedule == ADAPTIVE:
        message = "train.lr_schedule adaptive needs the epochs before: there is none of the epoch"
        raise UserError(message, f"--train.lr-schedule {' or '.join(SCHEDULES)}")
    schedule = SCHEDULES[train.lr_schedule] if train.anneal_lr else constant
    return schedule(train.learning_rate, train.min_lr_ratio * train.learning_rate, epoch, epochs)


def rate_at(schedule: Callable[[float], float], progress: float) -> float:
    """What a person's own function gives for a part of the run's epochs, from 0 to below 1.

    Raises:
        UserError: it is no learning rate.
    """
    found = schedule(progress)
    try:
        rate = float(found)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise UserError(
            f"learning_rate({progress:g}) is {found!r}", "the function must return 0 or more"
        )
    return rate


def adapted(train: Train, rate: float, losses: Mapping[str, float]) -> float:
    """The adaptive learning rate after an epoch: ``train.lr_schedule adaptive``.

    rl_games's AdaptiveScheduler and rsl_rl's: lower where the policy moved more than twice as far
    as desired, higher where it moved less than half as far. Theirs change it after each minibatch.

    Args:
        train: the rate it began with, and the KL that is desired.
        rate: the epoch's.
        losses: the epoch's, with the mean ``kl`` between the rollout's policy and those of its
            minibatches; without it, none having been finite, the rate stays.
    """
    first, kl = train.learning_rate, losses.get("kl", math.nan)
    if kl > 2 * train.desired_kl:
        return max(rate / FACTOR, LOWEST * first)
    return min(rate * FACTOR, HIGHEST * first) if kl < train.desired_kl / 2 else rate


def entropy_coefficient(train: Train, epoch: int, epochs: int) -> float:
    """An epoch's, of a run of so many."""
    schedule = cosine if train.anneal_ent_coef else constant
    return schedule(train.ent_coef, train.min_ent_coef_ratio * train.ent_coef, epoch, epochs)


def _progress(epoch: int, epochs: int) -> float:
    return min(max(epoch / epochs, 0.0), 1.0)
