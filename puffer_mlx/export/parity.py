"""One policy run by two programs: our outputs, PyTorch's, and how far apart they are.

Outputs are float32 arrays by name: ``logits`` (T, S, A), or ``mean`` and ``logstd`` (T, S, a);
``value`` (T, S); and the recurrent state after the last step, as ``dialects.stacked_state`` names
it. All start from the zero state. Observations are the environment's: whoever runs a policy of
normalised ones normalises them first. ``mean`` and ``logstd`` are in the environment's units:
whoever runs a policy whose actions are rescaled rescales them.
"""

import math
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx.checkpoint import normalization
from puffer_mlx.checkpoint.rescaling import in_units
from puffer_mlx.export.dialects import stacked_state
from puffer_mlx.policy.policy import Policy
from puffer_mlx.spec import EnvSpec

Weights = Any
Outputs = dict[str, np.ndarray]
NOTHING: normalization.Memory = {}
STEPS, AGENTS = 32, 16  # of random observations
LAST_PLACES = 2.0**-22  # four of a float32's, relative to it
MARGIN, MOST = 4.0, 1e-2  # of the resolution; of an output's scale, whatever the resolution is
SPREAD = 4.0  # deviations of random observations that are normalised: some are cut off at 10


def run(
    policy: Policy,
    weights: Weights,
    observations: np.ndarray,
    memory: normalization.Memory = NOTHING,
) -> Outputs:
    """Our outputs on observations (T, S, D), normalised first if there are statistics.

    Actions are rescaled if the policy's are.
    """
    T, S = observations.shape[:2]
    seen = mx.array(normalization.apply(memory, observations))
    outputs, values, state = policy.scan(weights, seen, policy.initial_state(S))
    arrays: Outputs = {"value": np.array(values).reshape(T, S)}
    if policy.decoder.action.continuous:
        action = policy.decoder.action
        mean, logstd = in_units(action, *(np.array(part).T for part in outputs))
        arrays["mean"] = mean.reshape(T, S, -1)
        arrays["logstd"] = np.broadcast_to(logstd, arrays["mean"].shape)
    else:
        arrays["logits"] = np.array(outputs).T.reshape(T, S, -1)
    return {**arrays, **stacked_state(policy, state)}


def compare(expected: Outputs, actual: Outputs) -> tuple[float, str]:
    """Return the largest difference and the output that has it.

    A difference is relative to the output's largest expected number, or to 1; infinite of an output
    that is missing or of another shape.
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
        if not difference <= worst[0]:  # NaN is worst of all
            worst = difference, name
        if math.isnan(difference):
            break
    return worst


class Comparison(NamedTuple):
    """What two programs made of the same observations.

    Args:
        difference: the largest of any output, relative to that output's largest number, or to 1.
        worst: the output that has it.
        tolerance: what ``difference`` may be.
    """

    difference: float
    worst: str
    tolerance: float

    @property
    def same(self) -> bool:
        """Whether it is the same policy."""
        return self.difference <= self.tolerance


def judge(
    policy: Policy,
    weights: Weights,
    observations: np.ndarray,
    memory: normalization.Memory,
    actual: Outputs,
    least: float,
) -> Comparison:
    """Compare another program's outputs with ours.

    Two programs that compute in float32 agree no better than float32 tells apart. On observations
    up to 1 that is well below ``least``; bytes up to 255 make it larger.

    Args:
        policy: and the next three: as of ``run``.
        weights: its weights.
        observations: (T, S, D).
        memory: the statistics that they are normalised by, if they are.
        actual: the other's outputs.
        least: a difference that is allowed in any case; 0 asks for the same bits.
    """
    expected = run(policy, weights, observations, memory)
    difference, worst = compare(expected, actual)
    if not least or difference <= least:
        return Comparison(difference, worst, least)
    moved = run(policy, _moved(weights), observations, memory)
    resolution = compare(expected, moved)[0]
    return Comparison(difference, worst, max(least, min(MARGIN * resolution, MOST)))


def _moved(weights: Weights) -> Weights:
    """Every weight moved up or down by ``LAST_PLACES``, at random.

    A sum of products that is taken in another order is off by about as much as if its weights were:
    in proportion to the sum of |w| |x|, whatever follows.
    """
    rng = np.random.default_rng(0)

    def move(w: mx.array) -> mx.array:
        return w * mx.array(rng.choice(np.array([1 - LAST_PLACES, 1 + LAST_PLACES], "f4"), w.shape))

    return tree_map(move, weights)


def random_observations(spec: EnvSpec, memory: normalization.Memory = NOTHING) -> np.ndarray:
    """Observations (T, S, D), always the same: bytes uniform, floats normal.

    On the scale that the policy's statistics tell of, if it has any, and some far beyond it.
    """
    rng = np.random.default_rng(0)
    shape = (STEPS, AGENTS, spec.observation_size)
    if spec.observation_dtype == np.uint8:
        return rng.integers(0, 256, shape, np.uint8)
    normal = rng.normal(size=shape).astype(np.float32)
    return normalization.undo(memory, SPREAD * normal if memory else normal)
