"""`policy/` against hand arithmetic, upstream's outputs and float64; sampling; initial weights."""

import mlx.core as mx
import numpy as np
import oracles
import pytest
from mlx.utils import tree_map
from oracles import f64, named

from puffer_mlx.errors import UserError
from puffer_mlx.policy.decoders import Discrete
from puffer_mlx.policy.networks import MinGRU, logistic, mingru, mingru_reference
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
    out, states = mingru_reference(mx.array(u).reshape(1, 1, 12), x, first)
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
def test_gradient(path, T):
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
    by_mlx = loss(lambda x, weight, first: mingru_reference(x @ weight.T, x, first))
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


class Upstream:
    """Upstream's torch policy, which has biases, around our network and decoder."""

    def __init__(self, folder):
        data = np.load(folder / "puffer4_breakout_mingru_weights.npz")
        self.w = {name.split(".", 1)[1]: mx.array(data[name]) for name in data}
        self.network = MinGRU(64, 2)
        self.decoder = Discrete(ActionSpec((3,)), 64)
        self.layers = [{"weight": self.w[f"layers.{i}.weight"]} for i in range(2)]

    def encode(self, observations):
        return observations @ self.w["encoder.weight"].T + self.w["encoder.bias"]

    def decode(self, h):
        """(n, H) -> logits (n, 3), values (n,): our fused product, and the biases."""
        rows = [self.w["decoder.weight"], self.w["value_function.weight"]]
        logits, values = self.decoder({"weight": mx.concatenate(rows)}, h)
        return logits.T + self.w["decoder.bias"], values + self.w["value_function.bias"]


def close(found, expected, rtol=1e-5, scale=None):
    """Within rtol of the largest number: a sum of large terms has their rounding errors."""
    scale = np.abs(expected).max() if scale is None else scale
    np.testing.assert_allclose(np.array(found), expected, rtol=rtol, atol=rtol * scale)


def test_upstream_step(path, fixtures):
    data = np.load(fixtures / "puffer4_breakout_mingru_forward.npz")
    upstream = Upstream(fixtures)
    h = upstream.encode(mx.array(data["obs"]))
    h, state = upstream.network.step(upstream.layers, h, list(mx.array(data["state0"])))
    logits, values = upstream.decode(h)
    assert np.abs(data["logits"]).max() > 20
    close(logits, data["logits"])
    close(values, data["value"][:, 0])
    close(mx.stack(state), data["state1"])


def test_upstream_sequences(path, fixtures):
    data = np.load(fixtures / "puffer4_breakout_mingru_forward.npz")
    upstream = Upstream(fixtures)
    observations = mx.array(data["seq_obs"].transpose(1, 0, 2))  # (T = 32, S = 16, D)
    encoded = upstream.encode(observations)
    h, state = upstream.network.scan(upstream.layers, encoded, upstream.network.initial_state(16))
    logits, values = upstream.decode(h.reshape(-1, 64))
    shaped = logits.reshape(32, 16, 3).transpose(1, 0, 2), values.reshape(32, 16).T
    for name in ("train", "eval"):
        close(shaped[0], data[f"seq_{name}_logits"])
        close(shaped[1], data[f"seq_{name}_values"])
    close(mx.stack(state), data["seq_eval_final_state"])

    state = upstream.network.initial_state(16)
    for t in range(32):
        h, state = upstream.network.step(upstream.layers, encoded[t], state)
        logits, values = upstream.decode(h)
        close(logits, data["seq_eval_logits"][:, t], scale=np.abs(data["seq_eval_logits"]).max())
        close(values, data["seq_eval_values"][:, t], scale=np.abs(data["seq_eval_values"]).max())
    close(mx.stack(state), data["seq_eval_final_state"])


def test_upstream_log_probabilities(fixtures):
    data = np.load(fixtures / "puffer4_breakout_mingru_forward.npz")
    logits = mx.array(data["seq_train_logits"].reshape(-1, 3).T)
    decoder = Discrete(ActionSpec((3,)), 64)
    logprob, entropy = decoder.log_prob_entropy(
        logits, mx.array(data["seq_actions"].reshape(-1, 1))
    )
    np.testing.assert_allclose(np.array(logprob), data["seq_logprob"], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(np.array(entropy), data["seq_entropy"], rtol=1e-5, atol=2e-6)


# ---- the whole policy ----------------------------------------------------------------------------


def test_initial_weights():
    weights = make_policy(BREAKOUT, 64, 2).init(mx.random.key(3))
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
    other = make_policy(BREAKOUT, 64, 2).init(mx.random.key(4))
    same = make_policy(BREAKOUT, 64, 2).init(mx.random.key(3))
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
    weights = make_policy(spec, H, L).init(mx.random.key(0))
    assert sum(w.size for _, w in named(weights)) == elements


def test_policy_forward(path):
    """scan and act against float64, uint8 observations taken as they are."""
    rng = np.random.default_rng(2)
    T, S, D = 6, 5, 9
    spec = EnvSpec("x", D, np.dtype(np.uint8), ActionSpec((3, 2)))
    policy = make_policy(spec, 8, 2)
    weights = policy.init(mx.random.key(1))
    observations = rng.integers(0, 4, (T, S, D)).astype(np.uint8)
    observations[0, 0, 0] = 255
    logits, values, state = policy.scan(weights, mx.array(observations), policy.initial_state(S))
    assert logits.shape == (5, T * S) and values.shape == (T * S,)
    expected = oracles.policy(tree_map(f64, weights), observations)
    np.testing.assert_allclose(np.array(logits).T.reshape(T, S, 5), expected[0], atol=2e-5)
    np.testing.assert_allclose(np.array(values).reshape(T, S), expected[1], atol=2e-5)

    noise = policy.decoder.noise(mx.random.key(5), (T, S))
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


# ---- sampling ------------------------------------------------------------------------------------


def test_noise():
    decoder = Discrete(ActionSpec((3, 2)), 8)
    noise = np.array(decoder.noise(mx.random.key(0), (50, 1000)))
    assert noise.shape == (50, 1000, 2) and noise.min() > 0 and noise.max() <= 1
    np.testing.assert_allclose(noise.mean(axis=(0, 1)), 0.5, atol=0.01)
    assert abs(np.corrcoef(noise[..., 0].ravel(), noise[..., 1].ravel())[0, 1]) < 0.02


@HEADS
def test_frequencies(sizes):
    n = 40_000
    decoder = Discrete(ActionSpec(sizes), 8)
    logits = np.random.default_rng(sum(sizes)).normal(size=sum(sizes))
    actions, _ = decoder.sample(
        mx.array(np.tile(logits[:, None], n), mx.float32), decoder.noise(mx.random.key(7), (n,))
    )
    for head, logp in enumerate(oracles.head_log_probs(logits, sizes)):
        counts = np.bincount(np.array(actions)[:, head].astype(int), minlength=sizes[head])
        expected = n * np.exp(logp)
        chi_square = ((counts - expected) ** 2 / expected).sum()
        freedom = sizes[head] - 1
        assert chi_square < freedom + 5 * (2 * freedom) ** 0.5, (counts, expected)


def legal_masks(rng, n, sizes):
    """(n, A): half of the actions legal, at least one of each head; any non-zero byte is legal."""
    mask = (rng.random((n, sum(sizes))) < 0.5).astype(np.uint8) * 3
    stops = np.cumsum(sizes)
    for start, stop in zip(stops - sizes, stops, strict=True):
        mask[np.arange(n), rng.integers(start, stop, n)] = 1
    return mask


@pytest.mark.parametrize("masked", [False, True])
@HEADS
def test_inverse_of_the_distribution(sizes, masked):
    rng = np.random.default_rng(len(sizes))
    n = 4000
    logits, uniforms = (
        normal(rng, n, sum(sizes)) * 2,
        (1 - rng.random((n, len(sizes)))).astype(np.float32),
    )
    uniforms[:40], uniforms[40:80] = 1.0, 1e-7
    mask = legal_masks(rng, n, sizes) if masked else None
    decoder = Discrete(ActionSpec(sizes), 8)
    actions, logprobs = decoder.sample(
        mx.array(logits.T), mx.array(uniforms), None if mask is None else mx.array(mask)
    )
    actions = np.array(actions)
    assert actions.shape == (n, len(sizes))
    starts = np.cumsum(sizes) - sizes
    for head, logp in enumerate(oracles.head_log_probs(f64(logits), sizes, mask)):
        cdf, u = np.cumsum(np.exp(logp), axis=-1), f64(uniforms[:, head, None])
        clear = (np.abs(cdf - u) > 1e-6).all(axis=-1)  # away from ties
        assert clear.mean() > 0.9
        first = np.argmax(cdf > u, axis=-1)  # the first whose running sum exceeds the uniform
        np.testing.assert_array_equal(actions[clear, head], first[clear])
        if mask is not None:
            assert mask[np.arange(n), starts[head] + actions[:, head].astype(int)].all()
            legal = mask[:40, starts[head] : starts[head] + sizes[head]] != 0
            likely = (np.exp(logp[:40]) > 1e-5) | ~legal
            last = sizes[head] - 1 - np.argmax(legal[:, ::-1], axis=-1)
            whole = likely.all(axis=-1)
            np.testing.assert_array_equal(actions[:40, head][whole], last[whole])  # at u = 1
    expected, _ = oracles.log_prob_entropy(f64(logits), actions, sizes, mask)
    np.testing.assert_allclose(np.array(logprobs), expected, rtol=2e-6, atol=4e-6)
    again, _ = decoder.log_prob_entropy(
        mx.array(logits.T), mx.array(actions), None if mask is None else mx.array(mask)
    )
    np.testing.assert_array_equal(np.array(again), np.array(logprobs))


def test_the_last_legal_action_takes_what_rounding_leaves():
    decoder = Discrete(ActionSpec((6,)), 8)
    mask = mx.array([[0, 1, 1, 1, 0, 0]], mx.uint8)
    for seed in range(30):
        logits = mx.array(normal(np.random.default_rng(seed), 6, 1))
        actions, _ = decoder.sample(logits, mx.array([[1.0]]), mask)
        assert actions.item() == 3
        actions, _ = decoder.sample(logits, mx.array([[1.0]]))
        assert actions.item() == 5


def test_only_one_legal_action():
    decoder = Discrete(ActionSpec((4, 2)), 8)
    mask = mx.array([[0, 0, 1, 0, 1, 0]] * 100, mx.uint8)
    logits = mx.array(normal(np.random.default_rng(0), 6, 100) * 50)
    actions, logprobs = decoder.sample(logits, decoder.noise(mx.random.key(0), (100,)), mask)
    np.testing.assert_array_equal(np.array(actions), [[2, 0]] * 100)
    np.testing.assert_array_equal(np.array(logprobs), 0)
    _, entropy = decoder.log_prob_entropy(logits, actions, mask)
    np.testing.assert_array_equal(np.array(entropy), 0)


def test_logits_that_are_not_finite():
    nan, inf = np.nan, np.inf
    logits = mx.array([[nan, 5, -inf, nan, inf], [0, inf, 0, nan, inf], [0, 0, -inf, nan, -inf]])
    decoder = Discrete(ActionSpec((3,)), 8)

    def chosen(u):
        actions, logprobs = decoder.sample(logits, mx.full((5, 1), u))
        assert np.isfinite(np.array(logprobs)).all()
        return np.array(actions)[:, 0].tolist()

    # nan counts as 0: uniform over three in the first and fourth columns. inf takes all, -inf
    # nothing. Of two infinities the first takes all, as upstream: log(2) is lost beside 3.4e38, so
    # both have probability 1
    assert chosen(0.2) == [0, 1, 1, 0, 0]
    assert chosen(0.6) == [1, 1, 1, 1, 0]
    assert chosen(0.9) == [2, 1, 1, 2, 0]


def test_continuous_spaces_are_refused():
    with pytest.raises(UserError, match="continuous"):
        make_policy(EnvSpec("x", 3, np.dtype(np.float32), ActionSpec((1, 1))), 8, 1)
