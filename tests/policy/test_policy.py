"""`policy/` against hand arithmetic, upstream's outputs and float64; sampling; initial weights."""

import mlx.core as mx
import numpy as np
import oracles
import pytest
from mlx.utils import tree_map
from oracles import f64, named

from puffer_mlx.config import Policy
from puffer_mlx.policy.activations import logistic
from puffer_mlx.policy.distributions import Categorical
from puffer_mlx.policy.networks.mingru import MinGRU, mingru, mingru_reference
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

BREAKOUT = EnvSpec("breakout", 118, np.dtype(np.float32), ActionSpec((3,)))
HEADS = pytest.mark.parametrize("sizes", [(4,), (3, 2, 5)])


def normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


# ---- network -------------------------------------------------------------------------------------


def test_mingru_golden():
    # channel 0: g = .3 + .5 = .8, z = sigma(.5) = .6224593: state = 0 + z * .8 = .4979675;
    #            q = sigma(1) = .7310586: out = q * .4979675 + (1 - q) * -.5 = .2295727
    # channel 1: g = sigma(-.4) = .4013123, z = sigma(-1) = .2689414:
    #            state = .7310586 * .2 + .2689414 * .4013123 = .2541412
    u = [[0.3, -0.4, 2, -3], [0.5, -1, 2, 0], [1, -1, 0, 3]]  # hidden, gate, projection
    x, first = mx.array([[[-0.5, 0.5, 1.5, -2]]]), mx.array([[0, 0.2, 1, 0.5]])
    out, states = mingru_reference(mx.split(mx.array(u).reshape(1, 1, 12), 3, axis=-1), x, first)  # type: ignore
    expected = [0.4979675, 0.2541412, 2.3211956, 0.2737129]
    np.testing.assert_allclose(np.array(states)[0, 0], expected, rtol=0, atol=5e-7)
    expected = [0.2295727, 0.4338784, 1.9105978, 0.1658801]
    np.testing.assert_allclose(np.array(out)[0, 0], expected, rtol=0, atol=5e-7)


def test_logistic():
    x = np.concatenate([np.linspace(-30, 30, 4001), [-1e4, 1e4, 0, -1e38, 1e38]]).astype(np.float32)
    found = np.array(logistic(mx.array(x)))
    np.testing.assert_allclose(found, oracles.sigmoid(f64(x)), rtol=0, atol=5e-7)
    assert found.min() >= 0 and found.max() <= 1


@pytest.mark.parametrize(("T", "layers"), [(1, 1), (7, 1), (11, 3), (64, 2)])
def test_steps_equal_scan(path, T, layers):
    rng = np.random.default_rng(T)
    S, H = 5, 8
    network = MinGRU(H, layers)
    weights = tree_map(lambda w: w * 2, network.init(mx.random.key(T)))
    x = mx.array(normal(rng, T, S, H))
    state = [mx.array(np.abs(normal(rng, S, H))) for _ in range(layers)]
    out, last = network.scan(weights, x, state)
    one, steps = state, []
    for t in range(T):
        h, one = network.step(weights, x[t], one)
        steps.append(h)
    np.testing.assert_allclose(np.array(mx.stack(steps)), np.array(out), rtol=0, atol=2e-6)
    np.testing.assert_allclose(np.array(mx.stack(one)), np.array(mx.stack(last)), rtol=0, atol=2e-6)

    h = f64(x)
    for layer, first, end in zip(weights, state, last, strict=True):
        h, states = oracles.mingru(h, f64(layer["weight"]), f64(first))
        np.testing.assert_allclose(np.array(end), states[-1], rtol=0, atol=5e-6)
    np.testing.assert_allclose(np.array(out), h, rtol=0, atol=5e-6)
    # which is not what a zero state would have given
    assert np.abs(np.array(network.scan(weights, x, network.initial_state(S))[0]) - h).max() > 0.01


@pytest.mark.parametrize("T", [1, 6, 11])
def test_gradient(products, T):
    """By x, weight and first: MLX through the reference, and float64 finite differences."""
    rng = np.random.default_rng(10 + T)
    S, H = 3, 4
    x, weight, first = normal(rng, T, S, H), normal(rng, 3 * H, H), np.abs(normal(rng, S, H))
    direction = normal(rng, T, S, H)

    def loss(layer):
        def scalar(x, weight, first):
            return mx.sum(layer(x, weight, first)[0] * mx.array(direction))

        found = mx.grad(scalar, argnums=(0, 1, 2))(*map(mx.array, (x, weight, first)))
        return [np.array(g) for g in found]

    found = loss(mingru)

    def by_parts(x, weight, first):
        parts: list[mx.array] = list(mx.split(x @ weight.T, 3, axis=-1))  # type: ignore
        return mingru_reference(parts, x, first)

    by_mlx = loss(by_parts)
    arguments = [f64(a) for a in (x, weight, first)]

    def scalar():
        return float((oracles.mingru(*arguments)[0] * direction).sum())

    for ours, reference, argument in zip(found, by_mlx, arguments, strict=True):
        expected = oracles.numerical_gradient(scalar, argument)
        assert ours.shape == expected.shape and np.abs(expected).max() > 0.1
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(ours, reference, rtol=0, atol=3e-6 * scale)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5 * scale)


def test_the_last_state_carries_no_gradient(path):
    rng = np.random.default_rng(0)
    arguments = [mx.array(normal(rng, *shape)) for shape in ((4, 3, 2), (6, 2), (3, 2))]

    def scalar(x, weight, first):
        return mx.sum(mingru(x, weight, first)[1])

    gradients = mx.grad(scalar, argnums=(0, 1, 2))(*arguments)
    assert not any(np.array(g).any() for g in gradients)


# ---- upstream's breakout policy ------------------------------------------------------------------


def upstream(folder):
    """Upstream's torch policy and its weights, in ours."""
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


def close(found, expected, rtol=1e-5, scale=None):
    """Within rtol of the largest number: a sum of large terms has their rounding errors."""
    scale = np.abs(expected).max() if scale is None else scale
    np.testing.assert_allclose(np.array(found), expected, rtol=rtol, atol=rtol * scale)


def test_upstream_step(path, fixtures):
    data = np.load(fixtures / "puffer4_breakout_mingru_forward.npz")
    policy, weights = upstream(fixtures)
    state = list(mx.array(data["state0"]))
    logits, values, state = policy.step(weights, mx.array(data["obs"]), state)
    assert np.abs(data["logits"]).max() > 20
    close(logits.T, data["logits"])
    close(values, data["value"][:, 0])
    close(mx.stack(state), data["state1"])


def test_upstream_sequences(path, fixtures):
    data = np.load(fixtures / "puffer4_breakout_mingru_forward.npz")
    policy, weights = upstream(fixtures)
    observations = mx.array(data["seq_obs"].transpose(1, 0, 2))  # (T = 32, S = 16, D)
    logits, values, state = policy.scan(weights, observations, policy.initial_state(16))
    shaped = logits.T.reshape(32, 16, 3).transpose(1, 0, 2), values.reshape(32, 16).T
    for name in ("train", "eval"):
        close(shaped[0], data[f"seq_{name}_logits"])
        close(shaped[1], data[f"seq_{name}_values"])
    close(mx.stack(state), data["seq_eval_final_state"])

    state = policy.initial_state(16)
    for t in range(32):
        logits, values, state = policy.step(weights, observations[t], state)
        close(logits.T, data["seq_eval_logits"][:, t], scale=np.abs(data["seq_eval_logits"]).max())
        close(values, data["seq_eval_values"][:, t], scale=np.abs(data["seq_eval_values"]).max())
    close(mx.stack(state), data["seq_eval_final_state"])


def test_upstream_log_probabilities(fixtures):
    data = np.load(fixtures / "puffer4_breakout_mingru_forward.npz")
    logits = mx.array(data["seq_train_logits"].reshape(-1, 3).T)
    decoder = Categorical(ActionSpec((3,)))
    logprob, entropy = decoder.log_prob_entropy(
        logits, mx.array(data["seq_actions"].reshape(-1, 1))
    )
    np.testing.assert_allclose(np.array(logprob), data["seq_logprob"], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(np.array(entropy), data["seq_entropy"], rtol=1e-5, atol=2e-6)


# ---- the whole policy ----------------------------------------------------------------------------


def test_initial_weights():
    weights = make_policy(BREAKOUT, Policy(hidden_size=64, num_layers=2)).init(mx.random.key(3))
    shapes = {  # in the order of upstream's flat file, its table 5.3
        "encoder.weight": (64, 118),
        "decoder.weight": (4, 64),
        "network.0.weight": (192, 64),
        "network.1.weight": (192, 64),
    }
    leaves = named(weights)
    assert [(name, w.shape) for name, w in leaves] == list(shapes.items())
    assert 4 * sum(w.size for _, w in leaves) == 129536
    bounds = [(2 / 118) ** 0.5, 0.125, 0.125, 0.125]  # gain / sqrt(columns)
    for (name, w), bound in zip(leaves, bounds, strict=True):
        assert w.dtype == mx.float32
        w = np.array(w)
        assert 0.97 * bound < np.abs(w).max() <= bound, name
        # uniform: the standard deviation is bound / sqrt(3), the mean 0
        assert w.std() == pytest.approx(bound / 3**0.5, rel=0.1), name
        assert abs(w.mean()) < 4 * bound / (3 * w.size) ** 0.5, name
    layers = [np.array(w) for _, w in leaves[2:]]
    assert not np.array_equal(layers[0], layers[1])
    other = make_policy(BREAKOUT, Policy(hidden_size=64, num_layers=2)).init(mx.random.key(4))
    same = make_policy(BREAKOUT, Policy(hidden_size=64, num_layers=2)).init(mx.random.key(3))
    assert not np.array_equal(other["encoder"]["weight"], weights["encoder"]["weight"])
    assert np.array_equal(same["encoder"]["weight"], weights["encoder"]["weight"])


@pytest.mark.parametrize(
    ("D", "H", "L", "sizes", "elements"),
    [
        (121, 128, 1, (5,), 65408),
        (16, 512, 4, (4,), 3156480),
        (4, 32, 2, (2,), 6368),
        (7, 8, 1, (2, 3), 296),
    ],
)
def test_number_of_weights(D, H, L, sizes, elements):
    # H * D + (A + 1) * H + 3 * L * H * H
    spec = EnvSpec("x", D, np.dtype(np.uint8), ActionSpec(sizes))
    weights = make_policy(spec, Policy(hidden_size=H, num_layers=L)).init(mx.random.key(0))
    assert sum(w.size for _, w in named(weights)) == elements


def test_policy_forward(products):
    """scan and act against float64, uint8 observations taken as they are."""
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
