"""Small policies for tests of acting, and weights that hide nothing."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from puffer_mlx import config
from puffer_mlx.config.components import facts
from puffer_mlx.policy.distributions import UNBOUNDED, ActionBounds
from puffer_mlx.policy.networks.mingru import MinGRU
from puffer_mlx.policy.policy import Policy, make_policy
from puffer_mlx.ppo import algorithms
from puffer_mlx.ppo.gradients import minibatch_logprobs
from puffer_mlx.ppo.update import compile_update
from puffer_mlx.rollout.act_functions import compile_act
from puffer_mlx.spec import ActionSpec, EnvSpec

PUFFER5 = ActionBounds(*facts("puffer5").limits)


def policy_of(
    network="MinGRU",
    sizes=(3,),
    D=5,
    H=8,
    layers=2,
    dialect="native",
    reset=False,
    limits=UNBOUNDED,
    **others,
) -> Policy:
    """Make a small policy: D observations, H features, action heads of given sizes.

    ``others``: keys of [policy].
    """
    spec = EnvSpec("test", D, np.dtype(np.float32), ActionSpec(sizes))
    settings = config.Policy(H, layers, dialect, reset, **others)
    made = make_policy(spec, settings, config.Torch(network=network))
    return replace(made, decoder=replace(made.decoder, limits=limits))


def unknown_policies() -> tuple[Policy, Policy]:
    """Return two policies that have no kernels: one for images, one with a custom network."""
    image = EnvSpec("image", 48 * 48, np.dtype(np.uint8), ActionSpec((3,)), 0, (48, 48, 1))
    parts = config.Torch(encoder="NatureEncoder")

    class Network(MinGRU):  # it may do anything
        pass

    own = replace(policy_of(), network=Network(8, 1))
    return make_policy(image, config.Policy(hidden_size=8), parts), own


def weights_of(policy: Policy, seed=0):
    """Return random weights for a policy, none of them at an initial value like 0 or 1."""
    rng = np.random.default_rng(seed)

    def draw(weight):
        return 3 * weight + 0.3 * mx.array(rng.normal(size=weight.shape).astype(np.float32))

    return tree_map(draw, policy.init(mx.random.key(seed)))


def compiled(policy: Policy, train: config.Train) -> Any:
    """Compile all functions of a policy and its training algorithm; return them by name."""
    settings = config.Config(train=train)
    made = compile_update(policy, settings, algorithms.make(policy, settings))
    named = {name: getattr(made, name) for name in ("gradients", "optimise")}
    named |= {name: step.function for name, step in made.steps.items()}
    named["logprobs"] = mx.compile(partial(minibatch_logprobs, policy, train.precision))
    return SimpleNamespace(act=compile_act(policy), **named)


def beyond(weights) -> None:
    """Scale weights so that a policy's continuous outputs exceed PUFFER5's limits."""
    scale = mx.array([[3e6], [1.0], [1.0], [1.0]])  # the value's last
    weights["decoder"]["weight"] = weights["decoder"]["weight"] * scale
    weights["decoder"]["logstd"] = mx.array([[PUFFER5.highest + 3, np.nan, PUFFER5.lowest - 10]])
