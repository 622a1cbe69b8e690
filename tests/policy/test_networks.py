"""`policy/networks/catalog.py`: every network keeps the contract, with and without resets."""

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from oracles import f64, named, sigmoid

from puffer_mlx.policy.activations import logistic, orthogonal, tanh
from puffer_mlx.policy.networks.catalog import NETWORKS
from puffer_mlx.policy.networks.gru import gru, gru_reference
from puffer_mlx.policy.networks.lstm import lstm, lstm_reference
from puffer_mlx.policy.networks.mingru import mingru, mingru_reference

RECURRENT = pytest.mark.parametrize("name", ["MinGRU", "LSTM", "GRU"])
EVERY = pytest.mark.parametrize("name", list(NETWORKS))


def normal(rng, *shape):
    return mx.array(rng.normal(size=shape).astype(np.float32))


def network(name, hidden=8, layers=2, scale=1.5):
    """Return a network of a given name, and random weights without zeros."""
    made = NETWORKS[name](hidden, layers)
    rng = np.random.default_rng(hidden + layers)
    weights = made.init(mx.random.key(0))
    drawn = tree_map(lambda w: scale * normal(rng, *w.shape) / hidden**0.5, weights)
    return made, drawn


def state_of(made, rng, n):
    return tree_map(lambda a: mx.abs(normal(rng, *a.shape)), made.initial_state(n))


def random_not_done(rng, T, S, reset_fraction=0.3):
    return mx.array((rng.random((T, S)) > reset_fraction).astype(np.float32))


def close(found, expected, atol=3e-6):
    for (name, a), (_, b) in zip(named(found), named(expected), strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=0, atol=atol, err_msg=name)


@EVERY
@pytest.mark.parametrize(
    ("path", "T", "layers", "resets"),
    [("fused", 64, 3, True), ("pure", 11, 1, False)],
    indirect=["path"],
)
def test_steps_equal_scan(path, name, T, layers, resets):
    rng = np.random.default_rng(T)
    S = 5
    made, weights = network(name, layers=layers)
    h, state = normal(rng, T, S, 8), state_of(made, rng, S)
    not_done = random_not_done(rng, T, S) if resets else None
    out, last = made.scan(weights, h, state, not_done)
    assert out.shape == h.shape
    one, steps = state, []
    for t in range(T):
        x, one = made.step(weights, h[t], one, None if not_done is None else not_done[t])
        steps.append(x)
    close({"out": mx.stack(steps)}, {"out": out})
    close(one, last)


@RECURRENT
def test_reset_stops_outputs_and_gradients(name):
    rng = np.random.default_rng(1)
    T, S, at = 9, 4, 5
    made, weights = network(name)
    h, state = normal(rng, T, S, 8), state_of(made, rng, S)
    not_done = np.ones((T, S), np.float32)
    not_done[at, ::2] = 0  # agents 0 and 2 only
    out, _ = made.scan(weights, h, state, mx.array(not_done))
    plain, _ = made.scan(weights, h, state)
    fresh, _ = made.scan(weights, h[at:], made.initial_state(S))
    close({"before": out[:at], "others": out[:, 1::2]}, {"": plain[:at], "-": plain[:, 1::2]})
    close({"reset": out[at:, ::2]}, {"": fresh[:, ::2]})
    assert np.abs(np.array(plain[at:, ::2]) - np.array(out[at:, ::2])).max() > 0.01

    late = lambda h: mx.sum(made.scan(weights, h, state, mx.array(not_done))[0][at:])  # noqa: E731
    gradient = np.array(mx.grad(late)(h))
    assert not gradient[:at, ::2].any() and np.abs(gradient[:at, 1::2]).max() > 1e-3


@pytest.mark.parametrize(
    ("path", "name"),
    [("fused", "MinGRU"), ("pure", "MinGRU"), ("fused", "LSTM"), ("fused", "GRU")],
    indirect=["path"],
)
def test_last_state_has_no_gradient(path, name):
    rng = np.random.default_rng(3)
    made, weights = network(name)
    h, state = normal(rng, 4, 3, 8), state_of(made, rng, 3)

    def scalar(weights, h):
        _, last = made.scan(weights, h, state)
        return sum((mx.sum(a) for _, a in named(last)), mx.array(0.0))

    for gradient in mx.grad(scalar, argnums=(0, 1))(weights, h):
        assert not any(np.array(g).any() for _, g in named(gradient))


@pytest.mark.parametrize(
    ("products", "name"),
    [
        *(("split", "MinGRU"), ("split", "LSTM"), ("split", "GRU")),
        *(("whole", "LSTM"), ("MLX's", "GRU"), ("pure", "MinGRU")),
    ],
    indirect=["products"],
)
def test_fused_gradients_equal_those_of_the_reference(products, name):
    rng, T = np.random.default_rng(31), 11
    S, H, gates = 5, 4, {"LSTM": 4, "GRU": 3, "MinGRU": 3}[name]
    layer = {
        "weight_ih": normal(rng, gates * H, H),
        "weight_hh": normal(rng, gates * H, H),
        "bias_ih": normal(rng, gates * H),
        "bias_hh": normal(rng, gates * H),
    }
    x, h, c = normal(rng, T, S, H), mx.abs(normal(rng, S, H)), normal(rng, S, H)
    not_done, direction = random_not_done(rng, T, S), normal(rng, T, S, H)

    def ours(x, layer, h, c):
        if name == "MinGRU":
            return mingru(x, layer["weight_hh"], h, not_done)[0]
        if name == "GRU":
            return gru(x, layer, h, not_done)[0]
        return lstm(x, layer, {"h": h, "c": c}, not_done)[0]

    def reference(x, layer, h, c):
        if name == "MinGRU":
            parts = mx.split(x @ layer["weight_hh"].T, 3, axis=-1)
            return mingru_reference(parts, x, h, not_done)[0]  # type: ignore
        z = x @ layer["weight_ih"].T + layer["bias_ih"]
        if name == "GRU":
            return gru_reference(z, layer["weight_hh"], layer["bias_hh"], h, not_done)[0]
        return lstm_reference(z + layer["bias_hh"], layer["weight_hh"], h, c, not_done)[0]

    def gradients(function):
        scalar = lambda *a: mx.sum(function(*a) * direction)  # noqa: E731
        return mx.grad(scalar, argnums=(0, 1, 2, 3))(x, layer, h, c)

    close({"out": ours(x, layer, h, c)}, {"out": reference(x, layer, h, c)})
    found, expected = gradients(ours), gradients(reference)
    assert np.abs(np.array(expected[1]["weight_hh"])).max() > 0.05
    close(list(found), list(expected), atol=2e-5)


@pytest.mark.parametrize(("ours", "oracle"), [(tanh, np.tanh), (logistic, sigmoid)])
def test_activations_equal_numpy(ours, oracle):
    x = np.concatenate([np.linspace(-30, 30, 4001), [-1e4, 1e4, 0, -1e38, 1e38]]).astype(np.float32)
    np.testing.assert_allclose(np.array(ours(mx.array(x))), oracle(f64(x)), rtol=0, atol=5e-7)


@pytest.mark.parametrize("shape", [(8, 3), (3, 8)])
def test_orthogonal_weights_have_no_preferred_sign(shape):
    w = f64(orthogonal(mx.random.key(1), shape, gain=2.0))
    product = w.T @ w if shape[0] > shape[1] else w @ w.T
    np.testing.assert_allclose(product, 4 * np.eye(min(shape)), atol=1e-5)
    # no sign is preferred: the diagonals of many draws have both
    signs = [np.sign(f64(orthogonal(mx.random.key(k), shape))[0, 0]) for k in range(20)]
    assert {-1, 1} <= set(signs)
