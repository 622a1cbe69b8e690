"""Every part of a policy in bfloat16 and float16: dtypes, rounding, gradients, range.

What must be low and what must stay float32 is checked by dtype; where numbers are rounded, against
float64 oracles that round at the same places. Forms for a GPU are plain MLX and run here too: the
tests say that the default device is one. Its kernels are in ``test_low_kernels.py``.
"""

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from covering import pairs
from emulated_gpu import from_memory, to_memory
from kernel_oracles import EPSILON, LOW, gelu_oracle, gru_oracle, lstm_oracle, mingru_oracle
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from oracles import assert_close, f64, named, sigmoid

from puffer_mlx import config, ops
from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.gelu import gelu
from puffer_mlx.ops.implementation import Implementation, _of_extension
from puffer_mlx.ops.linear import linear
from puffer_mlx.ops.low_precision import in_float32
from puffer_mlx.policy import custom
from puffer_mlx.policy.encoders.impala import Impala, convolve
from puffer_mlx.policy.encoders.nature import Nature
from puffer_mlx.policy.networks.catalog import NETWORKS
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

LOW_TYPES, PATHS = [*EPSILON], ["fused", "pure"]
EVERY = pytest.mark.parametrize(
    ("path", "name", "dtype"), pairs(PATHS, NETWORKS, LOW_TYPES), indirect=["path"]
)
D, H, T, S = 6, 16, 5, 7

DISCRETE, MULTI = ActionSpec((4,)), ActionSpec((3, 2))
CONTINUOUS = ActionSpec((1, 1))


def normal(rng, *shape):
    return mx.array(rng.normal(size=shape).astype(np.float32))


def lower(tree, dtype):
    """As training casts its float32 weights."""
    return tree_map(lambda w: w.astype(dtype), tree)


def rounded(x, dtype):
    """A float64 array to the numbers that ``dtype`` has."""
    return f64(from_memory(to_memory(f64(x).astype(np.float32), dtype), dtype))


def keep_of(rng, *shape):
    return mx.array((rng.random(shape) > 0.2).astype(np.float32))


def make(network, action=DISCRETE, dialect="native", hidden=H):
    spec = EnvSpec("x", D, np.dtype(np.float32), action)
    policy = make_policy(
        spec, config.Policy(hidden_size=hidden, num_layers=2, dialect=dialect), parts(network)
    )
    weights = policy.init(mx.random.key(1))
    # biases and deviations start at 0, where nothing can be seen of them
    keys = iter(mx.random.split(mx.random.key(2), len(named(weights))))
    drawn = tree_map(lambda w: w + 0.1 * mx.random.normal(w.shape, key=next(keys)), weights)
    mx.eval(drawn)
    return policy, drawn


def parts(network):
    return config.Torch(network=network)


def flat(outputs):
    """A decoder's outputs as a list."""
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def assert_dtypes(tree, dtype):
    leaves: Any = tree_flatten(tree)
    wrong = {name: a.dtype for name, a in leaves if a.dtype != dtype}
    assert not wrong, wrong


# ---- the casts themselves ------------------------------------------------------------------------


@LOW
def test_in_float32(dtype):
    def both(tree, number, none):
        assert none is None and number == 3
        assert_dtypes(tree, mx.float32)
        return tree["a"] * number, tree["b"][0] / 3

    given = {"a": mx.array([1.0, 2.0]).astype(dtype), "b": [mx.array([1.0])]}
    product, third = in_float32(both, stay=[1])(given, 3, None)
    assert product.dtype == dtype and product.tolist() == [3.0, 6.0]
    assert third.dtype == mx.float32 and third.item() == np.float32(1 / 3)
    assert in_float32(lambda a: a / 3)(given["a"]).dtype == dtype
    assert in_float32(lambda a: a / 3, stay=[0])(given["a"]).dtype == mx.float32
    gradient = mx.grad(lambda a: in_float32(mx.sum)(a))(given["a"])
    assert gradient.dtype == dtype
    whole = [mx.array([1, 2]), mx.array([0.5])]
    assert in_float32(lambda a: a)(whole) is whole  # nothing low: nothing happens


# ---- whole policies ------------------------------------------------------------------------------


@pytest.fixture
def on_a_gpu(monkeypatch, extension):
    """Operations take their forms for a GPU; kernels are the extension, which rounds alike."""
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    monkeypatch.setattr(
        Implementation,
        "choose",
        lambda self, *_: self.gpu and self.cpu and _of_extension(self, extension),
    )


@pytest.fixture(params=["fused", "pure", "gpu"])
def form(request):
    """All ways to compute a policy."""
    if request.param == "gpu":
        request.getfixturevalue("on_a_gpu")
    elif request.param == "pure":
        request.getfixturevalue("monkeypatch").setattr(cpu_extension, "load", lambda: None)


SPACES = [(DISCRETE, "native"), (MULTI, "torch"), (CONTINUOUS, "native"), (CONTINUOUS, "puffer3")]


@pytest.mark.parametrize(
    ("form", "name", "dtype", "space"),
    pairs(["fused", "pure", "gpu"], NETWORKS, LOW_TYPES, SPACES),
    indirect=["form"],
)
def test_what_is_low_and_what_is_not(form, name, dtype, space):
    """States, outputs, values, log-probabilities: float32. Gradients: as what they are by.

    Their directions are those of float32; measured: 1 - cosine is 2e-5 at most for bfloat16 and
    2e-6 for float16.
    """
    rng, (action, dialect) = np.random.default_rng(0), space
    policy, weights = make(name, action, dialect)
    low = lower(weights, dtype)
    observations, keep = normal(rng, T, S, D), keep_of(rng, T, S)
    state = policy.initial_state(S)
    assert_dtypes(state, mx.float32)
    noise = policy.distribution.noise(mx.random.key(3), (S,))

    outputs, values, after = policy.scan(low, observations, state, keep)
    assert_dtypes([*flat(outputs), values, after], mx.float32)
    exact, exact_values, exact_after = policy.scan(weights, observations, state, keep)
    for found, expected in zip(flat(outputs), flat(exact), strict=True):
        assert_close(found, expected, bound=6 * EPSILON[dtype])
    assert_close(values, exact_values, bound=6 * EPSILON[dtype])
    for (_, found), (_, expected) in zip(named(after), named(exact_after), strict=True):
        assert_close(found, expected, bound=6 * EPSILON[dtype])

    mask = None if action.continuous else mx.array(rng.integers(0, 2, (S, action.logits)) | 1)
    for m in (None, mask):
        acted = policy.act(low, observations[0], state, noise, m, keep[0])
        assert_dtypes(acted, mx.float32)

    def scalar(weights, state):
        outputs, values, _ = policy.scan(weights, observations, state, keep)
        return mx.sum(mx.square(values)) + sum(mx.sum(mx.sin(o)) for o in flat(outputs))

    gradient = mx.compile(mx.grad(scalar, argnums=(0, 1)))
    by_weights, by_state = gradient(low, state)
    exact, _ = gradient(weights, state)
    cast = mx.grad(lambda weights: scalar(lower(weights, dtype), state))(weights)
    assert_dtypes(by_weights, dtype)
    assert_dtypes([by_state, cast], mx.float32)
    limit = 1e-4 if dtype == mx.bfloat16 else 1e-5
    for found in (by_weights, cast):
        assert all(f64(g).any() for _, g in named(found))
        assert 1 - cosine(found, exact) < limit
        for (leaf, one), (_, other) in zip(named(found), named(exact), strict=True):
            assert 1 - cosine([one], [other]) < 10 * limit, leaf


@LOW
def test_only_legal_actions(path, dtype):
    """Masked logits are float32: float16 has no -1e4 whose softmax would be finite sums."""
    policy, weights = make("MinGRU", MULTI)
    mask = np.tile(np.array([0, 1, 0, 1, 0], np.uint8), (S, 1))
    noise = policy.distribution.noise(mx.random.key(0), (S,))
    actions, logprobs, _, _ = policy.act(
        lower(weights, dtype), mx.ones((S, D)), policy.initial_state(S), noise, mx.array(mask)
    )
    np.testing.assert_array_equal(np.array(actions), [[1, 0]] * S)
    np.testing.assert_allclose(np.array(logprobs), 0, atol=1e-6)


def oracle(name, weights, observations, keep, dtype):
    """Logits (T S, A), values and last states in float64, rounded where memory is low."""
    r = lambda x: rounded(x, dtype)  # noqa: E731
    w = tree_map(lambda a: f64(a), lower(weights, dtype))
    head, zeros, last = np.zeros((T, S, H)), np.zeros((S, H)), []
    x = h = r(r(observations) @ w["encoder"]["weight"].T)
    for layer in w["network"]["layers"] if name == "GRU" else w["network"]:
        if name == "MLP":
            y = r(h @ layer["weight"].T + layer["bias"])
            h = r(gelu_oracle(y.ravel())[0].reshape(y.shape))
        elif name == "MinGRU":
            u = r(h @ layer["weight"].T)
            h, states = mingru_oracle(u, h, zeros, keep, head)[0]
            h = r(h)
            last.append(states[-1])
        elif name == "LSTM":
            bias = r(layer["bias_ih"] + layer["bias_hh"])
            z = r(h @ layer["weight_ih"].T + bias)
            h, c, _ = lstm_oracle(z, layer["weight_hh"], zeros, zeros, keep, head)[0]
            last.append({"h": h[-1], "c": c[-1]})
            h = r(h)
        else:
            z = r(h @ layer["weight_ih"].T + layer["bias_ih"])
            h = gru_oracle(z, layer["weight_hh"], layer["bias_hh"], zeros, keep, head)[0][0]
            last.append(h[-1])
            h = r(h)
    if name == "GRU":
        total = h + x
        h = r(
            total
            / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-7)
            * w["network"]["norm"]["weight"]
        )
    y = r(h.reshape(T * S, H) @ w["decoder"]["weight"].T)
    return y[:, :-1], y[:, -1], last


@EVERY
def test_rounding(path, name, dtype):
    """Memory is low exactly where it is said to be: nearer than one rounding more would be."""
    rng = np.random.default_rng(1)
    policy, weights = make(name)
    observations, keep = normal(rng, T, S, D), keep_of(rng, T, S)
    logits, values, state = policy.scan(
        lower(weights, dtype), observations, policy.initial_state(S), keep
    )
    expected = oracle(name, weights, np.array(observations), np.array(keep), dtype)
    # a float32 sum may fall to the other side of a rounding boundary, here and there
    differs = expected[0] != np.array(logits).T
    assert differs.mean() < 0.1
    assert_close(logits.T, expected[0], bound=2 * EPSILON[dtype])
    assert_close(values, expected[1], bound=2 * EPSILON[dtype])
    for (_, found), (_, other) in zip(named(state), named(expected[2]), strict=True):
        assert_close(found, other, bound=EPSILON[dtype] / 4)


def accumulating(dtype):
    """A layer 4 wide whose state goes from 0 to 1 with z = sigma(-7) at every step, and its z."""
    hidden, gate, projection = np.eye(4) / 2, -7 * np.eye(4), np.zeros((4, 4))
    weight = mx.array(np.concatenate([hidden, gate, projection]).astype(np.float32)).astype(dtype)
    return weight, sigmoid(np.float64(-7))


@LOW
def test_small_steps_add_up(path, dtype):
    """A state of 16 bits would stop at 0.5, or 0.75: further steps are less than half a unit."""
    network, (weight, z) = NETWORKS["MinGRU"](4, 1), accumulating(dtype)
    expected = 1 - (1 - z) ** 2000
    assert expected > 0.8
    _, (last,) = network.scan([{"weight": weight}], mx.ones((2000, 1, 4)), network.initial_state(1))
    np.testing.assert_allclose(np.array(last), expected, rtol=1e-5)
    state, x, step = network.initial_state(1), mx.ones((1, 4), dtype), mx.compile(network.step)
    for _ in range(2000):
        _, state = step([{"weight": weight}], x, state)
        mx.eval(state)
    np.testing.assert_allclose(np.array(state[0]), expected, rtol=1e-5)


# ---- gradients as training takes them ------------------------------------------------------------


def cosine(found, expected):
    """Of the angle between two arrays, or two trees of them."""
    a, b = (np.concatenate([f64(g).ravel() for _, g in named(t)]) for t in (found, expected))
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


# ---- what a GPU computes, by MLX's own operations on this CPU ------------------------------------


AFFINE = pytest.mark.parametrize(
    ("dtype", "columns", "biased"), pairs(LOW_TYPES, [False, True], [False, True])
)


@AFFINE
def test_linear(path, dtype, columns, biased):
    check_linear(dtype, columns, biased, rows=3)


@AFFINE
def test_linear_on_a_gpu(on_a_gpu, dtype, columns, biased):
    """Of many rows: 256 + 1 is 256 in bfloat16."""
    check_linear(dtype, columns, biased, rows=5000)


def check_linear(dtype, columns, biased, rows):
    rng = np.random.default_rng(5)
    x, weight, bias = normal(rng, rows, 3), normal(rng, 4, 3), normal(rng, 4)
    given = [x, *(lower(a, dtype) for a in (weight, bias)[: 1 + biased])]
    function = ops.linear_columns if columns else linear

    def scalar(*a):
        y = function(*a)
        assert y.dtype == dtype
        return mx.sum(y.astype(mx.float32)), y

    (_, y), gradients = mx.value_and_grad(scalar, argnums=list(range(len(given))))(*given)
    x64, weight64, *bias64 = (rounded(f64(a), dtype) for a in given)
    expected = x64 @ weight64.T + sum(bias64)
    assert_close(y.T if columns else y, expected, bound=2 * EPSILON[dtype])
    assert [g.dtype for g in gradients] == [a.dtype for a in given]
    ones = np.ones((rows, 4))
    for found, other in zip(gradients, (ones @ weight64, ones.T @ x64, ones.sum(0)), strict=False):
        assert_close(found, other, bound=2 * EPSILON[dtype])


def dtypes_of_sums(function, weights):
    """Of what is summed in the graph of a function of a tree; MLX's own gradients included."""
    leaves: Any = tree_flatten(weights)
    seen: list[Any] = []

    def of_leaves(*arrays):
        named = zip((name for name, _ in leaves), arrays, strict=True)
        return [a for _, a in tree_flatten(function(tree_unflatten(list(named))))]

    export: Any = mx.export_function
    export(seen.append, of_leaves, *(a for _, a in leaves))
    reductions = [node for node in seen if node.get("name") == "Reduce"]
    return [node["inputs"][0][2] for node in reductions if node["arguments"][0] == SUM]


SUM = 2  # mlx::core::Reduce::Sum


def test_the_number_of_sums():
    x = {"x": mx.ones((2, 3), mx.float16)}
    assert dtypes_of_sums(lambda t: mx.sum(t["x"]), x) == [mx.float16]
    assert dtypes_of_sums(lambda t: mx.max(t["x"]), x) == []


@LOW
@pytest.mark.parametrize("columns", [False, True])
def test_sums_of_a_bias(on_a_gpu, dtype, columns):
    """In float32: in CUDA each thread of MLX's sums adds up in the type that it is given."""
    function = ops.linear_columns if columns else linear

    given = [mx.ones(shape, dtype) for shape in ((5, 3), (4, 3), (4,))]
    scalar = lambda a: mx.sum(function(*a).astype(mx.float32))  # noqa: E731
    found = dtypes_of_sums(mx.grad(scalar), given)
    assert found and all(d == mx.float32 for d in found)


# ---- range ---------------------------------------------------------------------------------------


def test_no_needless_overflow(path):
    """Squares, exponentials and polynomials of numbers that float16 has, and they have not."""
    x = mx.array([[300.0, -6e4, 2.0, 1e-4]]).astype(mx.float16)
    weight = mx.ones(4, mx.float16)
    total = f64(x) + f64(x)
    found = ops.add_rms_norm(x, x, weight)
    expected = total / np.sqrt((total**2).mean())
    assert found.dtype == mx.float16
    np.testing.assert_allclose(f64(found), expected, rtol=1e-3, atol=1e-6)
    for slope in mx.grad(lambda *a: mx.sum(ops.add_rms_norm(*a)), argnums=(0, 1, 2))(x, x, weight):
        assert slope.dtype == mx.float16 and np.isfinite(f64(slope)).all()

    y, slope = gelu(x), mx.grad(lambda x: mx.sum(gelu(x)))(x)
    assert y.dtype == slope.dtype == mx.float16
    np.testing.assert_allclose(f64(y)[0], [300, 0, 1.9545, 5e-5], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(f64(slope)[0], [1, 0, 1.0852, 0.5], rtol=1e-3, atol=1e-6)


# ---- images --------------------------------------------------------------------------------------


def check_images(encoder, dtype, weights, bound, angle):
    """Features and gradients against float32 with the same weights.

    Gradients go other ways where two numbers of a window, or one and 0, are a rounding apart.
    """
    pixels = pixels_of(encoder)
    low = lower(weights, dtype)
    same = lower(low, mx.float32)
    direction = normal(np.random.default_rng(7), len(pixels), 24)

    def scalar(weights):
        out = encoder(weights, pixels)
        return mx.sum(out.astype(mx.float32) * direction), out

    (_, found), gradients = mx.value_and_grad(scalar)(low)
    (_, exact), expected = mx.value_and_grad(scalar)(same)
    assert found.dtype == dtype and exact.dtype == mx.float32
    assert_dtypes(gradients, dtype)
    assert_close(found, exact, bound=bound * EPSILON[dtype])
    for (leaf, one), (_, other) in zip(named(gradients), named(expected), strict=True):
        assert 1 - cosine([one], [other]) < angle, leaf


def pixels_of(encoder):
    size = math.prod(encoder.shape)
    return mx.array(np.random.default_rng(8).integers(0, 256, (3, size)).astype(np.uint8))


IMAGES = pairs([Nature((36, 36, 2), 24), Impala((9, 7, 2), 24)], LOW_TYPES, PATHS)


@pytest.mark.parametrize(("encoder", "dtype", "path"), IMAGES, indirect=["path"])
def test_images(path, encoder, dtype):
    """On a CPU they are float32 between the casts of weights and features."""
    weights = encoder.init(mx.random.key(0))
    check_images(encoder, dtype, weights, bound=2, angle=1e-4)


@pytest.mark.parametrize(("encoder", "dtype"), [case[:2] for case in IMAGES])
def test_images_on_a_gpu(on_a_gpu, encoder, dtype):
    check_images(encoder, dtype, encoder.init(mx.random.key(0)), bound=8, angle=0.03)


def test_sums_of_a_convolution_s_bias():
    layer = {"weight": mx.ones((2, 3, 3, 1), mx.bfloat16), "bias": mx.ones(2, mx.bfloat16)}
    x = mx.ones((2, 5, 5, 1), mx.bfloat16)
    gradient = mx.grad(lambda layer: mx.sum(convolve(layer, x).astype(mx.float32)))
    assert dtypes_of_sums(gradient, layer) == [mx.float32]


@pytest.mark.parametrize("encoder", [Nature((36, 36, 2), 24), Impala((9, 7, 2), 24)])
def test_small_weights_keep_their_digits(on_a_gpu, encoder):
    """A weight of 1e-4, divided by 255, has one digit left in float16."""
    biased = encoder.init(mx.random.key(0))
    weights = tree_map(lambda w: w if w.ndim > 1 else mx.zeros_like(w), biased)
    first = weights["convs"][0] if "convs" in weights else weights["blocks"][0]["conv"]
    first["weight"] = first["weight"] * 0.002
    check_images(encoder, mx.float16, weights, bound=8, angle=0.03)


# ---- a user's own classes ------------------------------------------------------------------------


@LOW
def test_an_mlx_module(dtype):
    """It gets weights and observations of one dtype; what it returns goes on as it is."""
    from mlx import nn

    seen = []

    class Own(nn.Module):
        def __init__(self, inputs, hidden):
            super().__init__()
            self.linear = nn.Linear(inputs, hidden)

        def __call__(self, x):
            seen.append((x.dtype, self.linear.weight.dtype))
            return self.linear(x).astype(mx.float32)  # whatever it likes

    policy, weights = make("GRU")
    encoder = custom.Module(Own, (D, H))
    policy = type(policy)(encoder, policy.network, policy.decoder)
    weights = lower({**weights, "encoder": encoder.init(mx.random.key(0))}, dtype)
    observations = mx.ones((T, S, D), mx.uint8)
    gradient = mx.grad(lambda w: mx.sum(policy.scan(w, observations, policy.initial_state(S))[1]))(
        weights
    )
    assert seen[0] == (dtype, dtype)
    assert_dtypes(gradient, dtype)


@EVERY
def test_features_are_cast_to_the_weights_dtype(path, name, dtype):
    """Float32 features of an encoder of one's own count as rounded ones."""
    rng = np.random.default_rng(9)
    network = NETWORKS[name](H, 1)
    low, h = lower(network.init(mx.random.key(0)), dtype), normal(rng, T, S, H)
    state = network.initial_state(S)
    out, _ = network.scan(low, h, state)
    same, _ = network.scan(low, h.astype(dtype), state)
    assert out.dtype == dtype
    np.testing.assert_array_equal(out.astype(mx.float32), same.astype(mx.float32))
