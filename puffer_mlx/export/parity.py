"""Run a policy in our program and compare the outputs with another program's.

Outputs are float32 arrays by name, for T steps of S agents:

- ``logits`` (T, S, A) for A discrete actions, or ``mean`` and ``logstd`` (T, S, heads);
- ``value`` (T, S);
- the recurrent state after the last step, named as in ``weight_layouts.stacked_state``.

Each program starts from the zero state, normalizes the raw observations, and rescales ``mean`` and
``logstd`` to the environment's units.
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
NamedOutputs = dict[str, np.ndarray]
NO_STATISTICS: normalization.Statistics = {}
RANDOM_STEPS = 32  # steps T of random observations
RANDOM_AGENTS = 16  # agents S of random observations
WEIGHT_CHANGE = 2.0**-22  # relative change of a weight: two to four times float32's resolution
RESOLUTION_FACTOR = 4.0  # tolerance as a multiple of float32's resolution
MAX_TOLERANCE = 1e-2
OBSERVATION_DEVIATION = 4.0  # makes some normalized observations exceed the clip limit 10


def policy_outputs(
    policy: Policy,
    weights: Weights,
    observations: np.ndarray,
    statistics: normalization.Statistics = NO_STATISTICS,
) -> NamedOutputs:
    """Compute a policy's outputs for raw observations, in the environment's units.

    Args:
        policy: Policy to run.
        weights: Weights of the policy.
        observations: Raw observations (T, S, D).
        statistics: Statistics to normalize the observations with; empty for no normalization.
    """
    T, S = observations.shape[:2]
    normalized = mx.array(normalization.normalize_observations(statistics, observations))
    outputs, values, state = policy.scan(weights, normalized, policy.initial_state(S))
    arrays: NamedOutputs = {"value": np.array(values).reshape(T, S)}
    if policy.decoder.action.continuous:
        action = policy.decoder.action
        mean, logstd = to_environment_units(action, *(np.array(output).T for output in outputs))
        arrays["mean"] = mean.reshape(T, S, -1)
        arrays["logstd"] = np.broadcast_to(logstd, arrays["mean"].shape)
    else:
        arrays["logits"] = np.array(outputs).T.reshape(T, S, -1)
    return {**arrays, **stacked_state(policy, state)}


def largest_difference(expected: NamedOutputs, actual: NamedOutputs) -> tuple[float, str]:
    """Return the largest difference between two policies' outputs, and the output's name.

    A difference is divided by the output's largest expected value or 1, whichever is larger. It is
    infinite if an output is missing or has another shape.
    """
    if unmatched_names := set(expected) ^ set(actual):
        return math.inf, min(unmatched_names)
    worst = (-1.0, "")
    for name, expected_output in expected.items():
        actual_output = actual[name]
        if expected_output.shape != actual_output.shape:
            return math.inf, name
        scale = max(1.0, float(np.abs(expected_output).max(initial=0)))
        difference = float(np.abs(expected_output - actual_output).max(initial=0)) / scale
        if math.isnan(difference):
            return difference, name
        if difference > worst[0]:
            worst = difference, name
    return worst


class Comparison(NamedTuple):
    """Difference between two programs' outputs of a policy for the same observations.

    Args:
        difference: Largest relative difference, as in ``largest_difference``.
        worst: Name of the output with that difference.
        tolerance: Largest allowed difference.
    """

    difference: float
    worst: str
    tolerance: float

    @property
    def matches(self) -> bool:
        """True if the outputs of the two programs differ by no more than the tolerance."""
        return self.difference <= self.tolerance


def compare_outputs(
    policy: Policy,
    weights: Weights,
    observations: np.ndarray,
    statistics: normalization.Statistics,
    actual: NamedOutputs,
    min_tolerance: float,
) -> Comparison:
    """Run a policy in our program, and compare another program's outputs with ours.

    Two float32 programs agree only up to float32's resolution. For observations up to 1 that is
    well below ``min_tolerance``. For bytes up to 255 it can be larger, and then the tolerance
    grows.

    Args:
        policy: Policy in our program.
        weights: Weights of the policy.
        observations: Raw observations (T, S, D).
        statistics: Statistics to normalize the observations with; empty for no normalization.
        actual: The other program's outputs.
        min_tolerance: Smallest tolerance; 0 requires equal bits.
    """
    expected = policy_outputs(policy, weights, observations, statistics)
    difference, worst = largest_difference(expected, actual)
    if not min_tolerance or difference <= min_tolerance:
        return Comparison(difference, worst, min_tolerance)
    changed_weights_outputs = policy_outputs(policy, _perturb(weights), observations, statistics)
    resolution = largest_difference(expected, changed_weights_outputs)[0]
    return Comparison(
        difference, worst, max(min_tolerance, min(RESOLUTION_FACTOR * resolution, MAX_TOLERANCE))
    )


def _perturb(weights: Weights) -> Weights:
    """Return a policy's weights, each changed by ``WEIGHT_CHANGE`` up or down at random.

    Summing products in another order has an error proportional to the sum of |w| |x|. Changing the
    weights has a similar effect, so it shows float32's resolution.
    """
    rng = np.random.default_rng(0)

    factors = np.array([1 - WEIGHT_CHANGE, 1 + WEIGHT_CHANGE], np.float32)
    return tree_map(lambda w: w * mx.array(rng.choice(factors, w.shape)), weights)


def random_observations(
    spec: EnvSpec, statistics: normalization.Statistics = NO_STATISTICS
) -> np.ndarray:
    """Return random observations (T, S, D), the same in every call: uniform bytes or normal floats.

    With statistics, floats have their mean and four times their standard deviation.
    """
    rng = np.random.default_rng(0)
    shape = (RANDOM_STEPS, RANDOM_AGENTS, spec.observation_size)
    if spec.observation_dtype == np.uint8:
        return rng.integers(0, 256, shape, np.uint8)
    normal = rng.normal(size=shape).astype(np.float32)
    return normalization.denormalize_observations(
        statistics, OBSERVATION_DEVIATION * normal if statistics else normal
    )
