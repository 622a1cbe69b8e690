"""`policy/` against upstream's outputs and float64; initial weights."""

import mlx.core as mx
import numpy as np
import oracles
import pytest
from mlx.utils import tree_map
from oracles import assert_close, f64, named

from puffer_mlx.config import Policy
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

BREAKOUT = EnvSpec("breakout", 118, np.dtype(np.float32), ActionSpec((3,)))


# ---- upstream's breakout policy ------------------------------------------------------------------


def upstream(folder):
    """Return upstream's recorded torch policy with its weights in this package's layout."""
    data = np.load(folder / "puffer4_breakout_mingru_weights.npz")
    w = {name: mx.array(data[name]) for name in data}
    part = lambda name: {kind: w[f"{name}.{kind}"] for kind in ("weight", "bias")}  # noqa: E731
    weights = {
        "encoder": part("encoder.encoder"),
        "decoder": {"actions": part("decoder.decoder"), "value": part("decoder.value_function")},
        "network": [{"weight": w[f"network.layers.{i}.weight"]} for i in range(2)],
    }
    size = Policy(hidden_size=64, num_layers=2, dialect="torch")
    return make_policy(BREAKOUT, size), weights


def test_step_and_scan_equal_upstream(path, fixtures):
    data = np.load(fixtures / "puffer4_breakout_mingru_forward.npz")
    policy, weights = upstream(fixtures)
    logits, values, state = policy.step(weights, mx.array(data["obs"]), [*mx.array(data["state0"])])
    assert np.abs(data["logits"]).max() > 20
    assert_close(logits.T, data["logits"])
    assert_close(values, data["value"][:, 0])
    assert_close(mx.stack(state), data["state1"])

    observations = mx.array(data["seq_obs"].transpose(1, 0, 2))  # (T = 32, S = 16, D)
    logits, values, state = policy.scan(weights, observations, policy.initial_state(16))
    shaped = logits.T.reshape(32, 16, 3).transpose(1, 0, 2), values.reshape(32, 16).T
    for name in ("train", "eval"):
        assert_close(shaped[0], data[f"seq_{name}_logits"])
        assert_close(shaped[1], data[f"seq_{name}_values"])
    assert_close(mx.stack(state), data["seq_eval_final_state"])


# ---- the whole policy ----------------------------------------------------------------------------


def test_initial_weights_are_uniform_and_in_upstreams_order():
    def drawn(seed):
        return make_policy(BREAKOUT, Policy(hidden_size=64, num_layers=2)).init(mx.random.key(seed))

    shapes = {  # in the order of upstream's flat file, its table 5.3
        "encoder.weight": (64, 118),
        "decoder.weight": (4, 64),
        "network.0.weight": (192, 64),
        "network.1.weight": (192, 64),
    }
    weights, same, other = (dict(named(drawn(seed))) for seed in (3, 3, 4))
    assert {name: w.shape for name, w in weights.items()} == shapes and [*weights] == [*shapes]
    assert 4 * sum(w.size for w in weights.values()) == 129536
    bounds = [(2 / 118) ** 0.5, 0.125, 0.125, 0.125]  # gain / sqrt(columns)
    for (name, w), bound in zip(weights.items(), bounds, strict=True):
        assert mx.array_equal(w, same[name]) and not mx.array_equal(w, other[name])
        w = np.array(w)
        assert w.dtype == np.float32 and 0.97 * bound < np.abs(w).max() <= bound, name
        # uniform: the standard deviation is bound / sqrt(3), the mean 0
        assert w.std() == pytest.approx(bound / 3**0.5, rel=0.1), name
        assert abs(w.mean()) < 4 * bound / (3 * w.size) ** 0.5, name


def test_scan_and_act_equal_float64(path):
    rng = np.random.default_rng(2)
    T, S, D = 6, 5, 9
    spec = EnvSpec("x", D, np.dtype(np.uint8), ActionSpec((3, 2)))
    policy = make_policy(spec, Policy(hidden_size=8, num_layers=2))
    weights = policy.init(mx.random.key(1))
    observations = rng.integers(0, 4, (T, S, D)).astype(np.uint8)
    observations[0, 0, 0] = 255
    logits, values, state = policy.scan(weights, mx.array(observations), policy.initial_state(S))
    assert logits.shape == (5, T * S) and values.shape == (T * S,)
    expected = oracles.policy(tree_map(f64, weights), observations)
    np.testing.assert_allclose(np.array(logits).T.reshape(T, S, 5), expected[0], atol=2e-5)
    np.testing.assert_allclose(np.array(values).reshape(T, S), expected[1], atol=2e-5)

    noise = policy.distribution.noise(mx.random.key(5), (T, S))
    acting = policy.initial_state(S)
    for t in range(T):
        actions, logprobs, value, acting = policy.act(
            weights, mx.array(observations[t]), acting, noise[t]
        )
        assert actions.shape == (S, 2) and actions.dtype == mx.float32
        np.testing.assert_allclose(np.array(value), expected[1][t], atol=2e-5)
        logprob, _ = oracles.log_prob_entropy(expected[0][t], np.array(actions), (3, 2))
        np.testing.assert_allclose(np.array(logprobs), logprob, atol=2e-5)
    for one, other in zip(acting, state, strict=True):
        np.testing.assert_allclose(np.array(one), np.array(other), rtol=0, atol=2e-6)
