"""Every part of a policy in bfloat16 and float16: types, rounding, gradients, range.

Operations for a GPU in plain MLX run here too. Its kernels are in ``tests/ops``.
"""

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from covering import pairs
from kernel_oracles import EPSILON
from mlx.utils import tree_flatten, tree_map
from oracles import assert_close, f64, named, sigmoid

from puffer_mlx import config, ops
from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.gelu import gelu
from puffer_mlx.ops.implementation import Implementation, _of_extension
from puffer_mlx.ops.linear import linear
from puffer_mlx.policy import custom
from puffer_mlx.policy.encoders.impala import Impala, convolve
from puffer_mlx.policy.encoders.nature import Nature
from puffer_mlx.policy.networks.catalog import NETWORKS
from puffer_mlx.policy.policy import make_policy
from puffer_mlx.spec import ActionSpec, EnvSpec

LOW_TYPES, PATHS = [*EPSILON], ["fused", "pure"]
D, H, T, S = 6, 16, 5, 7

DISCRETE, MULTI = ActionSpec((4,)), ActionSpec((3, 2))
CONTINUOUS = ActionSpec((1, 1))


def normal(rng, *shape):
    return mx.array(rng.normal(size=shape).astype(np.float32))


def lower(tree, dtype):
    """Cast a tree of weights to a dtype, as training in low precision does."""
    return tree_map(lambda w: w.astype(dtype), tree)


def random_not_done(rng, *shape):
    return mx.array((rng.random(shape) > 0.2).astype(np.float32))


def make(network, action=DISCRETE, dialect="native"):
    spec = EnvSpec("x", D, np.dtype(np.float32), action)
    settings = config.Policy(hidden_size=H, num_layers=2, dialect=dialect)
    policy = make_policy(spec, settings, config.Torch(network=network))
    weights = policy.init(mx.random.key(1))
    # biases and deviations start at 0, where nothing can be seen of them
    keys = iter(mx.random.split(mx.random.key(2), len(named(weights))))
    drawn = tree_map(lambda w: w + 0.1 * mx.random.normal(w.shape, key=next(keys)), weights)
    mx.eval(drawn)
    return policy, drawn


def flat(outputs):
    """Return a decoder's outputs (one array or a tuple) as a list."""
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def assert_dtypes(tree, dtype):
    leaves: Any = tree_flatten(tree)
    wrong = {name: a.dtype for name, a in leaves if a.dtype != dtype}
    assert not wrong, wrong


# ---- whole policies ------------------------------------------------------------------------------


@pytest.fixture
def on_a_gpu(monkeypatch, extension):
    """Let operations choose GPU implementations, whose kernels the CPU extension stands in for."""
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu))
    monkeypatch.setattr(
        Implementation,
        "choose",
        lambda self, *_: self.gpu and self.cpu and _of_extension(self, extension),
    )


@pytest.fixture(params=["fused", "pure", "gpu"])
def form(request):
    """Run a test with each implementation of a policy: GPU stand-in, extension, plain MLX."""
    if request.param == "gpu":
        request.getfixturevalue("on_a_gpu")
    elif request.param == "pure":
        request.getfixturevalue("monkeypatch").setattr(
            cpu_extension, "load_extension", lambda: None
        )


@pytest.mark.parametrize(
    ("form", "name", "dtype", "action", "dialect"),
    [
        ("fused", "MinGRU", mx.bfloat16, DISCRETE, "native"),
        ("fused", "GRU", mx.float16, MULTI, "torch"),
        ("pure", "LSTM", mx.float16, MULTI, "torch"),
        ("pure", "MinGRU", mx.float16, CONTINUOUS, "native"),
        ("gpu", "GRU", mx.bfloat16, CONTINUOUS, "native"),
        ("gpu", "MLP", mx.float16, CONTINUOUS, "puffer3"),
        ("gpu", "LSTM", mx.bfloat16, DISCRETE, "native"),
        ("gpu", "MinGRU", mx.float16, MULTI, "torch"),
    ],
    indirect=["form"],
)
def test_results_are_float32_and_gradients_have_their_weights_type(
    form, name, dtype, action, dialect
):
    """Measured 1 - cosine between gradients and those of float32: bf16 2e-5, fp16 2e-6 at most."""
    rng = np.random.default_rng(0)
    policy, weights = make(name, action, dialect)
    low = lower(weights, dtype)
    observations, not_done = normal(rng, T, S, D), random_not_done(rng, T, S)
    state = policy.initial_state(S)
    assert_dtypes(state, mx.float32)
    noise = policy.distribution.noise(mx.random.key(3), (S,))

    outputs, values, after = policy.scan(low, observations, state, not_done)
    assert_dtypes([*flat(outputs), values, after], mx.float32)
    exact, exact_values, exact_after = policy.scan(weights, observations, state, not_done)
    for found, expected in zip(flat(outputs), flat(exact), strict=True):
        assert_close(found, expected, bound=6 * EPSILON[dtype])
    assert_close(values, exact_values, bound=6 * EPSILON[dtype])
    for (_, found), (_, expected) in zip(named(after), named(exact_after), strict=True):
        assert_close(found, expected, bound=6 * EPSILON[dtype])

    mask = None if action.continuous else mx.array(rng.integers(0, 2, (S, action.logits)) | 1)
    for m in (None, mask):
        acted = policy.act(low, observations[0], state, noise, m, not_done[0])
        assert_dtypes(acted, mx.float32)

    def scalar(weights, state):
        outputs, values, _ = policy.scan(weights, observations, state, not_done)
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


def accumulating(dtype):
    """Return weights (12, 4) of a MinGRU layer whose state grows slowly to 1.

    Returns also its z, sigma(-7).
    """
    hidden, gate, projection = np.eye(4) / 2, -7 * np.eye(4), np.zeros((4, 4))
    weight = mx.array(np.concatenate([hidden, gate, projection]).astype(np.float32)).astype(dtype)
    return weight, sigmoid(np.float64(-7))


@pytest.mark.parametrize(
    ("path", "dtype"), [("fused", mx.bfloat16), ("pure", mx.float16)], indirect=["path"]
)
def test_small_changes_of_a_state_add_up(path, dtype):
    """A state of 16 bits would stop at 0.5 or 0.75."""
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
    """Return the cosine of the angle between two trees of arrays, flattened."""
    a, b = (np.concatenate([f64(g).ravel() for _, g in named(t)]) for t in (found, expected))
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


# ---- what a GPU computes, by MLX's own operations on this CPU ------------------------------------


def convolution(x, weight, bias):
    return convolve({"weight": weight, "bias": bias}, x)


MATRICES, IMAGES_OF_ONE = ((5, 3), (4, 3)), ((2, 5, 5, 1), (4, 3, 3, 1))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(linear, MATRICES), (ops.linear_columns, MATRICES), (convolution, IMAGES_OF_ONE)],
)
def test_sums_of_a_bias_are_float32(on_a_gpu, function, shapes):
    nodes: list[Any] = []
    given = [mx.ones(shape, mx.bfloat16) for shape in (*shapes, (4,))]

    def scalar(*arrays):
        return mx.sum(function(*arrays).astype(mx.float32))

    export: Any = mx.export_function
    export(nodes.append, mx.grad(scalar, argnums=2), *given)
    sums = [n for n in nodes if n.get("name") == "Reduce" and n["arguments"][0] == SUM]
    assert sums and all(node["inputs"][0][2] == mx.float32 for node in sums)


SUM = 2  # mlx::core::Reduce::Sum


# ---- range ---------------------------------------------------------------------------------------


def test_squares_beyond_float16_do_not_overflow(path):
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
    """Check an image encoder's features and gradients in 16 bits against float32.

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


ENCODERS = [Nature((36, 36, 2), 24), Impala((9, 7, 2), 24)]


@pytest.mark.parametrize(
    ("encoder", "dtype", "path"), pairs(ENCODERS, LOW_TYPES, PATHS), indirect=["path"]
)
def test_image_encoders_in_16_bits_are_close_to_float32(path, encoder, dtype):
    weights = encoder.init(mx.random.key(0))
    check_images(encoder, dtype, weights, bound=2, angle=1e-4)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("share", [1, 0.002])
def test_image_encoders_in_fp16_on_gpu_are_close_to_float32(on_a_gpu, encoder, share):
    """Small weights aren't divided by 255 in 16 bits."""
    weights = encoder.init(mx.random.key(0))
    if share < 1:
        weights = tree_map(lambda w: w if w.ndim > 1 else mx.zeros_like(w), weights)
    first = weights["convs"][0] if "convs" in weights else weights["blocks"][0]["conv"]
    first["weight"] = first["weight"] * share
    check_images(encoder, mx.float16, weights, bound=8, angle=0.03)


# ---- a user's own classes ------------------------------------------------------------------------


def test_mlx_module_gets_weights_and_observations_of_one_type():
    from mlx import nn

    dtype, seen = mx.bfloat16, []

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
