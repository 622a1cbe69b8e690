"""Compute scheduled coefficients: constant, cosine, linear, and the adaptive learning rate.

Only the adaptive learning rate has a state, which checkpoints contain. The other schedules depend
on the epoch alone.
"""

import math
from collections.abc import Callable

from puffer_mlx.errors import UserError

ADAPTIVE = "adaptive"  # value of train.lr_schedule: the rate follows the KL
# Keys of [train] that accept a function of the fraction of completed epochs, a custom schedule.
SCHEDULED_KEYS = ("learning_rate", "ent_coef", "clip_coef", "vf_coef", "vf_clip_coef")
RATE_FACTOR = 1.5  # one change multiplies or divides the adaptive learning rate by this
# Bounds of the adaptive learning rate, divided by the first one. rsl_rl has the same bounds: 1e-5
# and 1e-2 for a first learning rate of 1e-3.
MIN_RATE_RATIO = 0.01
MAX_RATE_RATIO = 10


def annealed(schedule: str, first: float, ratio: float, epoch: int, epochs: int) -> float:
    """Return the value of a coefficient in an epoch with a built-in schedule of the epoch alone.

    Args:
        schedule: ``constant``, ``cosine`` or ``linear``.
        first: value in epoch 0.
        ratio: value after the last epoch, as a fraction of ``first``.
        epoch: number of the epoch, from 0.
        epochs: number of epochs in the run. If it is 0, the result is ``first``.

    Raises:
        UserError: If the schedule is adaptive, which isn't a function of the epoch.
    """
    if schedule == ADAPTIVE:
        message = "train.lr_schedule adaptive depends on earlier epochs, not on the epoch alone"
        raise UserError(message, "--train.lr-schedule cosine or linear")
    if epochs == 0 or schedule == "constant":
        return first
    last = ratio * first
    progress = min(max(epoch / epochs, 0.0), 1.0)
    if schedule == "cosine":
        return last + 0.5 * (first - last) * (1 + math.cos(math.pi * progress))
    return first + (last - first) * progress


def value_at(schedule: Callable[[float], float], progress: float, name: str) -> float:
    """Call a custom schedule and check the coefficient that it returns.

    Args:
        schedule: function of ``progress`` that returns the coefficient.
        progress: fraction of completed epochs, in [0, 1).
        name: name of the coefficient for the error.

    Raises:
        UserError: If the result is not a finite number of at least 0.
    """
    result = schedule(progress)
    try:
        value = float(result)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise UserError(f"{name}({progress:g}) is {result!r}", "the function must return 0 or more")
    return value


def adapted_rate(rate: float, first: float, kl: float, desired_kl: float) -> float:
    """Return the next epoch's learning rate with ``train.lr_schedule adaptive``.

    The rate decreases if the KL exceeds twice its target, and increases if the KL is below half of
    it. Source: rl_games's AdaptiveScheduler and rsl_rl, which adapt after each minibatch.

    Args:
        rate: learning rate of the previous epoch.
        first: learning rate at the start of the run.
        kl: mean KL between the rollout's policy and the policies of its minibatches. If it is NaN
            (no minibatch was finite), the rate doesn't change.
        desired_kl: target of the KL (``train.desired_kl``).
    """
    if kl > 2 * desired_kl:
        return max(rate / RATE_FACTOR, MIN_RATE_RATIO * first)
    return min(rate * RATE_FACTOR, MAX_RATE_RATIO * first) if kl < desired_kl / 2 else rate
