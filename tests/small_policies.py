"""Small policies for tests of acting, and weights that hide nothing."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx import config
from puffer_mlx.config.parts import facts
from puffer_mlx.policy.distributions import OPEN, Limits
from puffer_mlx.policy.policy import Policy, make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

PUFFER5 = Limits(*facts("puffer5").limits)


def policy_of(
    network="MinGRU",
    sizes=(3,),
    D=5,
    H=8,
    layers=2,
    dialect="native",
    reset=False,
    limits=OPEN,
    **others,
) -> Policy:
    """A policy of D observations, H wide, for these action heads; ``others``: of [policy]."""
    spec = EnvSpec("test", D, np.dtype(np.float32), ActionSpec(sizes))
    settings = config.Policy(H, layers, dialect, reset, **others)
    made = make_policy(spec, settings, config.Torch(network=network))
    return replace(made, decoder=replace(made.decoder, limits=limits))


def weights_of(policy: Policy, seed=0):
    """Three times those at the start, and no bias, norm or deviation as it is then."""
    rng = np.random.default_rng(seed)

    def draw(weight):
        return 3 * weight + 0.3 * mx.array(rng.normal(size=weight.shape).astype(np.float32))

    return tree_map(draw, policy.init(mx.random.key(seed)))


def beyond(weights) -> None:
    """Changes a native policy's weights for three continuous actions: out of PUFFER5's limits."""
    scale = mx.array([[3e6], [1.0], [1.0], [1.0]])  # the value's last
    weights["decoder"]["weight"] = weights["decoder"]["weight"] * scale
    weights["decoder"]["logstd"] = mx.array([[PUFFER5.highest + 3, np.nan, PUFFER5.lowest - 10]])
