"""The sb3 dialect against PyTorch, and separate value networks in all dialects."""

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from oracles import named
from small_policies import policy_of, weights_of

from puffer_mlx import config
from puffer_mlx.errors import UserError
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

T, S, D = 6, 7, 5
KEY = mx.random.key(3)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# ---- what it computes ----------------------------------------------------------------------------


def twin(weights, observations, activation, separate):
    """Compute Stable-Baselines3's MlpPolicy in PyTorch: outputs (n, A) and values (n,)."""
    import torch
    from torch.nn import functional

    tensors = {name: torch.from_numpy(np.array(w)) for name, w in named(weights)}

    def product(x, name):
        return functional.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def features(prefix):
        x, layers = torch.from_numpy(observations), ["encoder", "network.0", "network.1"]
        for layer in layers:
            x = activate(product(x, prefix + layer))
        return x

    activate = {"tanh": torch.tanh, "relu": torch.relu, "gelu": functional.gelu}[activation]
    outputs = product(features(""), "decoder.actions")
    values = product(features("critic." if separate else ""), "decoder.value")
    return outputs.numpy(), values.squeeze(-1).numpy()


@pytest.mark.parametrize(
    ("path", "activation", "sizes", "separate"),
    [
        ("fused", "tanh", (3, 2), False),
        ("pure", "tanh", (1, 1, 1), True),
        ("fused", "relu", (1, 1, 1), True),
        ("fused", "gelu", (3, 2), False),
    ],
    indirect=["path"],
)
def test_sb3_policy_equals_its_twin_in_torch(path, activation, sizes, separate):
    import torch
    from torch.distributions import Categorical, Normal

    how = {"activation": activation, "separate_value": separate}
    policy = policy_of("MLP", sizes, D, H=16, dialect="sb3", **how)
    weights, observations = weights_of(policy), normal(1, S, D)
    expected, values = twin(weights, observations, activation, separate)
    outputs, found, _ = policy.step(weights, mx.array(observations), policy.initial_state(S))
    first = outputs[0] if policy.decoder.action.continuous else outputs
    np.testing.assert_allclose(np.array(first).T, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.array(found), values, rtol=1e-5, atol=1e-5)

    noise = policy.distribution.noise(mx.random.key(0), (S,))
    actions, logprobs = policy.distribution.sample(outputs, noise)
    chosen, logits = torch.from_numpy(np.array(actions)), torch.from_numpy(expected)
    if policy.decoder.action.continuous:
        std = torch.from_numpy(np.array(weights["decoder"]["logstd"])).exp()
        theirs = Normal(logits, std).log_prob(chosen)
    else:
        heads = zip(logits.split(sizes, 1), chosen.T, strict=True)
        theirs = torch.stack([Categorical(logits=own).log_prob(a) for own, a in heads], 1)
    np.testing.assert_allclose(np.array(logprobs), theirs.sum(1).numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("network", "dialect"), [("MinGRU", "native"), ("GRU", "puffer3"), ("LSTM", "sb3")]
)
def test_steps_of_separate_networks_equal_scan(network, dialect):
    policy = policy_of(network, (1, 1), D, dialect=dialect, reset=True, separate_value=True)
    weights, observations = weights_of(policy), mx.array(normal(0, T, S, D))
    not_done = mx.array((np.random.default_rng(1).random((T, S)) > 0.3).astype(np.float32))
    state = tree_map(lambda a: a + 0.5, policy.initial_state(S))
    (means, _), values, last = policy.scan(weights, observations, state, not_done)
    found = []
    for t in range(T):
        (mean, _), value, state = policy.step(weights, observations[t], state, not_done[t])
        found.append((np.array(mean).T, np.array(value)))
    by_step = [np.concatenate(rows) for rows in zip(*found, strict=True)]
    np.testing.assert_allclose(np.array(means).T, by_step[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.array(values), by_step[1], rtol=0, atol=1e-5)
    for (name, one), (other, two) in zip(named(last), named(state), strict=True):
        assert name == other
        np.testing.assert_allclose(np.array(one), np.array(two), rtol=0, atol=1e-5, err_msg=name)
    assert len(named(last)) == 2 * len(named(policy.network.initial_state(1)))


def test_separate_networks_share_no_gradient():
    policy = policy_of("MLP", (3,), D, dialect="sb3", separate_value=True)
    weights, observations = weights_of(policy), mx.array(normal(0, T, S, D))

    def gradients(row):
        def scalar(weights):
            y, _ = policy.product(weights, observations, None)
            return mx.sum(mx.square(y[row]))

        return {name: np.array(gradient) for name, gradient in named(mx.grad(scalar)(weights))}

    value, action = gradients(3), gradients(1)
    own = [name for name in value if not name.startswith("decoder.")]
    assert len({name.startswith("critic.") for name in own}) == 2
    for name in own:
        assert value[name].any() == name.startswith("critic."), name
        assert action[name].any() != name.startswith("critic."), name


# ---- where it begins -----------------------------------------------------------------------------


def test_initial_weights_are_orthogonal():
    spec = EnvSpec("x", 17, np.dtype(np.float32), ActionSpec((1,) * 6))
    settings = config.Policy(64, 2, "sb3", separate_value=True, log_std_init=-0.5)
    weights = make_policy(spec, settings, config.Torch(network="MLP")).init(mx.random.key(0))
    tensors = {name: np.array(w) for name, w in named(weights)}
    hidden = ["encoder", "network.0", "network.1"]
    hidden += [f"critic.{name}" for name in hidden]
    heads = {"decoder.actions": 0.01, "decoder.value": 1.0}
    gains = {**dict.fromkeys(hidden, 2**0.5), **heads}
    assert {name.rpartition(".")[0] for name in tensors} == {*gains, "decoder"}
    for layer, gain in gains.items():
        weight, bias = tensors[f"{layer}.weight"], tensors[f"{layer}.bias"]
        assert bias.shape == weight.shape[:1] and not bias.any()
        few = weight if weight.shape[0] <= weight.shape[1] else weight.T
        square = few @ few.T / gain**2
        np.testing.assert_allclose(square, np.eye(len(few)), rtol=0, atol=2e-6, err_msg=layer)
    assert tensors["decoder.logstd"].tolist() == [[-0.5] * 6]
    drawn = {tensors[f"{name}.weight"].tobytes() for name in gains}
    assert len(drawn) == len(gains)  # no two layers alike


@pytest.mark.parametrize(
    ("network", "dialect"),
    [("MinGRU", "native"), ("LSTM", "torch"), ("GRU", "puffer3"), ("MLP", "sb3")],
)
def test_initial_actor_is_the_same_with_a_critic(network, dialect):
    shared, separate = (
        dict(named(policy_of(network, dialect=dialect, separate_value=value).init(KEY)))
        for value in (False, True)
    )
    assert all(np.array_equal(w, separate[name]) for name, w in shared.items())
    critic = {name.removeprefix("critic.") for name in separate if name.startswith("critic.")}
    assert critic == {name for name in shared if not name.startswith("decoder.")}
    weights = policy_of("MLP", (1, 1), dialect=dialect, log_std_init=-2.0).init(KEY)
    assert weights["decoder"]["logstd"].tolist() == [[-2.0, -2.0]]


# ---- what is refused, and what acts otherwise ----------------------------------------------------


@pytest.mark.parametrize("dialect", ["native", "torch", "puffer3"])
def test_activation_of_another_dialect_is_refused(dialect):
    message = f"activation tanh.*dialect {dialect} uses gelu"
    with pytest.raises(UserError, match=message) as caught:
        policy_of("MLP", dialect=dialect, activation="tanh")
    assert "policy.dialect sb3" in str(caught.value.hint)
    policy_of("MLP", dialect=dialect, activation="gelu")
