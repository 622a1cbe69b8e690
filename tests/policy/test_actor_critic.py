"""`policy/actor_critic.py`: a policy that is one module."""

import re

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_map
from oracles import named

from puffer_mlx import config
from puffer_mlx.errors import UserError
from puffer_mlx.policy.actor_critic import actor_critic, torch_section
from puffer_mlx.policy.policy import configured_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

D, A, H = 5, 3, 4
SPEC = EnvSpec("it", D, np.dtype(np.float32), ActionSpec((A,)))
IMAGES = EnvSpec("pictures", 12, np.dtype(np.uint8), ActionSpec((2,)), observation_shape=(2, 3, 2))


class Both(nn.Module):
    def __init__(self, inputs=D, outputs=A):
        super().__init__()
        self.body, self.head = nn.Linear(inputs, H), nn.Linear(H, outputs)
        self.value = nn.Linear(H, 1)

    def __call__(self, x):
        h = nn.tanh(self.body(x))
        return self.head(h), self.value(h)


class Remembering(Both):
    def initial_state(self, n):
        return {"h": mx.zeros((n, H))}

    def __call__(self, x, state):
        h = mx.tanh(self.body(x) + 0.5 * state["h"])
        return self.head(h), self.value(h)[:, 0], {"h": h}


def oracle(weights, x, h=0.0):
    """Compute a custom module's logits, values and states in float64."""
    w = {name: np.array(array, np.float64) for name, array in named(weights["network"])}
    h = np.tanh(x @ w["body.weight"].T + w["body.bias"] + 0.5 * h)
    return h @ w["head.weight"].T + w["head.bias"], (h @ w["value.weight"].T + w["value.bias"]), h


def test_policy_equals_its_module():
    module = Both()
    policy = actor_critic(module, SPEC, config.Config())
    weights = policy.init(mx.random.key(0))
    x = np.random.default_rng(0).normal(size=(6, D)).astype(np.float32)
    logits, values, _ = policy.scan(weights, mx.array(x).reshape(2, 3, D), None)
    expected = oracle(weights, x)
    np.testing.assert_allclose(np.array(logits), expected[0].T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.array(values), expected[1][:, 0], rtol=1e-5, atol=1e-6)
    assert not policy.is_recurrent and not named(policy.initial_state(2))
    before = np.array(module.body.weight)  # the policy computes with a copy
    policy.step(tree_map(lambda a: a + 1, weights), mx.zeros((1, D)), [])
    assert (np.array(module.body.weight) == before).all()


def test_recurrent_module_steps_like_scan_and_resets():
    policy = actor_critic(Remembering(), SPEC, config.Config())
    assert policy.is_recurrent
    weights, T, S = policy.init(mx.random.key(0)), 4, 2
    x = np.random.default_rng(1).normal(size=(T, S, D)).astype(np.float32)
    not_done = np.array([[1, 1], [1, 0], [0, 1], [1, 1]], np.float32)
    logits, values, after = policy.scan(weights, mx.array(x), None, mx.array(not_done))
    h, state = np.zeros((S, H)), policy.initial_state(S)
    for t in range(T):
        one, value, state = policy.step(weights, mx.array(x[t]), state, mx.array(not_done[t]))
        expected, v, h = oracle(weights, x[t], h * not_done[t][:, None])
        own = slice(t * S, (t + 1) * S)
        for found in (logits[:, own], one):
            np.testing.assert_allclose(np.array(found), expected.T, rtol=1e-4, atol=1e-5)
        for found in (values[own], value):
            np.testing.assert_allclose(np.array(found), v[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.array(after["h"]), h, rtol=1e-4, atol=1e-5)
    of_last = mx.grad(lambda x: mx.sum(policy.scan(weights, x, None)[1][-S:]))(mx.array(x))
    assert np.array(of_last[0]).any()  # the first observation matters by the state


def test_module_gets_images_in_their_shape_and_deviations_for_continuous_actions():
    class Sees(Both):
        def __init__(self):
            super().__init__(12, 2)

        def __call__(self, x):
            assert x.shape[1:] == (2, 3, 2) and x.dtype == mx.float32
            return super().__call__(x.reshape(len(x), -1) / 255)

    policy = actor_critic(Sees(), IMAGES, config.Config())
    seen = mx.full((3, 12), 255, mx.uint8)
    logits, _, _ = policy.step(policy.init(mx.random.key(0)), seen, [])
    assert logits.shape == (2, 3)
    moves = EnvSpec("moves", D, np.dtype(np.float32), ActionSpec((1, 1)))
    settings = config.Config(policy=config.Policy(log_std_init=-1))
    policy = actor_critic(Both(outputs=2), moves, settings)
    (means, deviations), _, _ = policy.step(policy.init(mx.random.key(0)), mx.zeros((3, D)), [])
    assert means.shape == (2, 3) and np.array(deviations).tolist() == [[-1], [-1]]


class Alone(Both):
    def __call__(self, x):
        return super().__call__(x)[0]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Both, "policy is the class Both\n  hint: expected an mlx.nn.Module, an object"),
        (Both(inputs=4), "Both can't take observations (2, 5) of it: "),
        (
            Both(outputs=2),
            "returned outputs (2, 2) and values (2, 1) of 2 agents\n  hint: it needs",
        ),
        (Alone(), "Alone returned array\n  hint: expected module(observations) -> outputs, values"),
    ],
)
def test_wrong_module_is_refused(module, message):
    with pytest.raises(UserError, match=re.escape(message)):
        actor_critic(module, SPEC, config.Config())


def test_configuration_without_the_module_is_refused():
    settings = config.Config(torch=torch_section(Both()))
    assert settings.torch.network == "MLP" and torch_section(Remembering()).network.endswith(
        "bering"
    )
    with pytest.raises(UserError, match=r"Policy\.load\(path, policy=module\)"):
        configured_policy(SPEC, settings)
