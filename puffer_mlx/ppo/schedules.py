"""How a number changes over a run: constant, or along a cosine or a line to its last value.

Such a schedule is a function of the epoch alone, so a run that goes on needs none of its past. The
adaptive learning rate isn't: the trainer keeps it, and a checkpoint has it.
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
    """A number in an epoch of a run.

    Args:
        schedule: ``constant``, ``cosine`` or ``linear``.
        first: the number in epoch 0.
        ratio: of the number after the last epoch to the first.
        epoch: from 0.
        epochs: of the run; of one without any, it is the first.

    Raises:
        UserError: the schedule is the adaptive one, which the epoch doesn't tell.
    """
    if schedule == ADAPTIVE:
        message = "train.lr_schedule adaptive needs the epochs before: there is none of the epoch"
        raise UserError(message, "--train.lr-schedule cosine or linear")
    if epochs == 0:
        return first
    return SCHEDULES[schedule](first, ratio * first, min(max(epoch / epochs, 0.0), 1.0))


def rate_at(schedule: Callable[[float], float], progress: float) -> float:
    """What a person's own function gives for a part of the run's epochs, from 0 to below 1.

    Raises:
        UserError: it is no learning rate.
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
        rate: the epoch's.
        first: the rate that the run began with.
        kl: the mean KL between the rollout's policy and those of its minibatches. NaN, none having
            been finite: the rate stays.
        desired_kl: the KL that is desired.
    """
    if kl > 2 * desired_kl:
        return max(rate / FACTOR, LOWEST * first)
    return min(rate * FACTOR, HIGHEST * first) if kl < desired_kl / 2 else rate
