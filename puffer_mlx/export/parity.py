"""Run a policy in our program and compare the outputs with another program's.

Outputs are float32 arrays by name: ``logits`` (T, S, A), or ``mean`` and ``logstd`` (T, S, a);
``value`` (T, S); and the recurrent state after the last step, named as in
``weight_layouts.stacked_state``. All runs start from the zero state. Observations are raw, so the
program that runs the policy normalizes them. ``mean`` and ``logstd`` are in the environment's
units, so it also rescales actions.
"""

import math
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.checkpoint import normalization
from puffer_mlx.checkpoint.rescaling import to_environment_units
from puffer_mlx.export.weight_layouts import stacked_state
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec

Weights = Any
Outputs = dict[str, np.ndarray]
NOTHING: normalization.Statistics = {}
STEPS, AGENTS = 32, 16  # size of random observations
LAST_PLACES = 2.0**-22  # four units in the last place of a float32
MARGIN, MOST = 4.0, 1e-2  # factor of the resolution; largest tolerance
SPREAD = 4.0  # standard deviations of random observations; some exceed the clip limit 10


def run(
    policy: Policy,
    weights: Weights,
    observations: np.ndarray,
    statistics: normalization.Statistics = NOTHING,
) -> Outputs:
    """Return our outputs on raw observations, with actions rescaled if the policy's are.

    Args:
        policy: Policy to run.
        weights: Weights of the policy.
        observations: (T, S, D).
        statistics: Statistics to normalize the observations with; empty for no normalization.
    """
    T, S = observations.shape[:2]
    seen = mx.array(normalization.normalize_observations(statistics, observations))
    outputs, values, state = policy.scan(weights, seen, policy.initial_state(S))
    arrays: Outputs = {"value": np.array(values).reshape(T, S)}
    if policy.decoder.action.continuous:
        action = policy.decoder.action
        mean, logstd = to_environment_units(action, *(np.array(part).T for part in outputs))
        arrays["mean"] = mean.reshape(T, S, -1)
        arrays["logstd"] = np.broadcast_to(logstd, arrays["mean"].shape)
    else:
        arrays["logits"] = np.array(outputs).T.reshape(T, S, -1)
    return {**arrays, **stacked_state(policy, state)}


def compare(expected: Outputs, actual: Outputs) -> tuple[float, str]:
    """Return the largest difference and the name of the output with it.

    A difference is divided by the output's largest expected value or 1, whichever is larger. It is
    infinite if an output is missing or has another shape.
    """
    if names := set(expected) ^ set(actual):
        return math.inf, min(names)
    worst = (-1.0, "")
    for name, one in expected.items():
        other = actual[name]
        if one.shape != other.shape:
            return math.inf, name
        scale = max(1.0, float(np.abs(one).max(initial=0)))
        difference = float(np.abs(one - other).max(initial=0)) / scale
        if not difference <= worst[0]:  # NaN counts as the worst
            worst = difference, name
        if math.isnan(difference):
            break
    return worst


class Comparison(NamedTuple):
    """Difference between two programs' outputs on the same observations.

    Args:
        difference: Largest relative difference, as in ``compare``.
        worst: Name of the output with that difference.
        tolerance: Largest allowed difference.
    """

    difference: float
    worst: str
    tolerance: float

    @property
    def same(self) -> bool:
        """True if the difference is within the tolerance."""
        return self.difference <= self.tolerance


def compare_outputs(
    policy: Policy,
    weights: Weights,
    observations: np.ndarray,
    statistics: normalization.Statistics,
    actual: Outputs,
    least: float,
) -> Comparison:
    """Compare another program's outputs with ours.

    Two float32 programs agree only up to float32's resolution. For observations up to 1 that is
    well below ``least``. For bytes up to 255 it can be larger, and then the tolerance grows.

    Args:
        policy: Policy in our program.
        weights: Weights of the policy.
        observations: (T, S, D), raw.
        statistics: Statistics to normalize the observations with; empty for no normalization.
        actual: The other program's outputs.
        least: Smallest tolerance; 0 requires equal bits.
    """
    expected = run(policy, weights, observations, statistics)
    difference, worst = compare(expected, actual)
    if not least or difference <= least:
        return Comparison(difference, worst, least)
    moved = run(policy, _perturb(weights), observations, statistics)
    resolution = compare(expected, moved)[0]
    return Comparison(difference, worst, max(least, min(MARGIN * resolution, MOST)))


def _perturb(weights: Weights) -> Weights:
    """Return weights changed by ``LAST_PLACES`` up or down at random.

    Summing products in another order has an error proportional to the sum of |w| |x|. Changing the
    weights has a similar effect.
    """
    rng = np.random.default_rng(0)

    def move(w: mx.array) -> mx.array:
        return w * mx.array(rng.choice(np.array([1 - LAST_PLACES, 1 + LAST_PLACES], "f4"), w.shape))

    return tree_map(move, weights)


def random_observations(
    spec: EnvSpec, statistics: normalization.Statistics = NOTHING
) -> np.ndarray:
    """Return observations (T, S, D), the same in every call: uniform bytes or normal floats.

    With statistics, floats have their mean and four times their standard deviation.
    """
    rng = np.random.default_rng(0)
    shape = (STEPS, AGENTS, spec.observation_size)
    if spec.observation_dtype == np.uint8:
        return rng.integers(0, 256, shape, np.uint8)
    normal = rng.normal(size=shape).astype(np.float32)
    return normalization.denormalize_observations(
        statistics, SPREAD * normal if statistics else normal
    )
