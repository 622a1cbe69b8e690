"""Schedules of coefficients: constant, cosine, linear, and the adaptive learning rate.

All schedules but the adaptive one are functions of the epoch alone, so resuming needs no state. The
trainer stores the adaptive learning rate, and a checkpoint contains it.
"""

import math
from collections.abc import Callable

from puffer_mlx.errors import UserError

SCHEDULES: dict[str, Callable[[float, float, float], float]] = {
    # of the first number, the last one, and the progress from one to the other, 0 to 1
    "constant": lambda first, last, progress: first,
    "cosine": lambda first, last, progress: (
        last + 0.5 * (first - last) * (1 + math.cos(math.pi * progress))
    ),
    "linear": lambda first, last, progress: first + (last - first) * progress,
}
ADAPTIVE = "adaptive"
FACTOR = 1.5  # of the adaptive learning rate, down or up
LOWEST, HIGHEST = 0.01, 10  # of it, as parts of the first one: rsl_rl's 1e-5 and 1e-2 of its 1e-3


def annealed(schedule: str, first: float, ratio: float, epoch: int, epochs: int) -> float:
    """Return the value of a scheduled coefficient in an epoch.

    Args:
        schedule: ``constant``, ``cosine`` or ``linear``.
        first: value in epoch 0.
        ratio: value after the last epoch, as a fraction of ``first``.
        epoch: number of the epoch, from 0.
        epochs: number of epochs in the run. If it is 0, the result is ``first``.

    Raises:
        UserError: the schedule is adaptive, so it isn't a function of the epoch.
    """
    if schedule == ADAPTIVE:
        message = "train.lr_schedule adaptive needs the epochs before: there is none of the epoch"
        raise UserError(message, "--train.lr-schedule cosine or linear")
    if epochs == 0:
        return first
    return SCHEDULES[schedule](first, ratio * first, min(max(epoch / epochs, 0.0), 1.0))


def rate_at(schedule: Callable[[float], float], progress: float) -> float:
    """Return the learning rate from a custom schedule.

    Args:
        schedule: function of ``progress`` that returns the learning rate.
        progress: fraction of completed epochs, in [0, 1).

    Raises:
        UserError: the result is not a finite number of at least 0.
    """
    result = schedule(progress)
    try:
        rate = float(result)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 <= rate < math.inf:
        raise UserError(
            f"learning_rate({progress:g}) is {result!r}", "the function must return 0 or more"
        )
    return rate


def adapted(rate: float, first: float, kl: float, desired_kl: float) -> float:
    """The adaptive learning rate after an epoch: ``train.lr_schedule adaptive``.

    rl_games's AdaptiveScheduler and rsl_rl's: lower where the policy moved more than twice as far
    as desired, higher where it moved less than half as far. Theirs change it after each minibatch.

    Args:
        rate: learning rate of the epoch.
        first: learning rate at the start of the run.
        kl: mean KL between the rollout's policy and the policies of its minibatches. The learning
            rate stays the same if it is NaN, i.e. if no minibatch was finite.
        desired_kl: target of the KL: ``train.desired_kl``.
    """
    if kl > 2 * desired_kl:
        return max(rate / FACTOR, LOWEST * first)
    return min(rate * FACTOR, HIGHEST * first) if kl < desired_kl / 2 else rate
