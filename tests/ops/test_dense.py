"""`ops/dense`: a layer and its gradients against float64, in every form; shapes it refuses."""

import mlx.core as mx
import numpy as np
import pytest
from kernel_oracles import gelu_oracle
from oracles import f64

from puffer_mlx import ops

ACTIVATIONS = pytest.mark.parametrize("activation", ["tanh", "relu", "gelu"])
# (n, K, M), with the last more rows than a part has; and whether gradients are compiled
SIZES = [((1, 1, 1), True), ((5, 3, 7), False), ((64, 17, 64), False), ((1100, 6, 33), True)]


def functions(activation, z):
    """The activation of z and its slope there, float64."""
    if activation == "tanh":
        return np.tanh(z), 1 - np.tanh(z) ** 2
    if activation == "relu":
        return np.maximum(z, 0), (z > 0).astype(float)
    return [part.reshape(z.shape) for part in gelu_oracle(z.ravel())]


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def close(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        scale = max(1, np.abs(theirs).max())
        np.testing.assert_allclose(np.array(ours), theirs, rtol=0, atol=3e-6 * scale)


@ACTIVATIONS
@pytest.mark.parametrize(("sizes", "compiled"), SIZES)
def test_a_layer_and_its_gradients(products, sizes, activation, compiled):
    n, K, M = sizes
    x, weight, bias, dy = arrays((n, K), (M, K), (M,), (n, M))

    def loss(*given):
        return mx.sum(ops.dense(*given, activation=activation) * mx.array(dy))

    y, slope = functions(activation, f64(x) @ f64(weight).T + f64(bias))
    dz = f64(dy) * slope
    given = [mx.array(array) for array in (x, weight, bias)]
    gradients = mx.grad(loss, argnums=(0, 1, 2))
    gradients = mx.compile(gradients) if compiled else gradients
    close([ops.dense(*given, activation=activation)], [y])
    close(gradients(*given), [dz @ f64(weight), dz.T @ f64(x), dz.sum(0)])


@pytest.mark.parametrize(
    ("activation", "dtype"),
    [("tanh", mx.bfloat16), ("relu", mx.float16), ("gelu", mx.bfloat16)],
)
def test_low_weights(products, activation, dtype):
    x, weight, bias, dy = (mx.array(a) for a in arrays((9, 4), (6, 4), (6,), (9, 6)))
    low = [weight.astype(dtype), bias.astype(dtype)]
    wide = [w.astype(mx.float32) for w in low]

    def loss(*given):
        return mx.sum(
            ops.dense(x.astype(dtype), *given, activation=activation).astype(mx.float32) * dy
        )

    found = ops.dense(x, *low, activation=activation)
    assert found.dtype == dtype
    expected = ops.dense(x.astype(dtype).astype(mx.float32), *wide, activation=activation)
    np.testing.assert_allclose(f64(found.astype(mx.float32)), f64(expected), rtol=0.02, atol=0.02)
    assert {g.dtype for g in mx.grad(loss, argnums=(0, 1))(*low)} == {dtype}


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_numbers_that_are_none_stay_visible(products, activation):
    x = mx.array([[np.nan, 0.0], [1.0, 1.0]])
    y = np.array(ops.dense(x, mx.eye(2), mx.zeros(2), activation=activation))
    assert np.isnan(y[0]).any() and np.isfinite(y[1]).all()


def test_what_is_kept_stays(products):
    """Inputs that are needed later are never written to."""
    given = x, weight, bias = [mx.array(a) for a in arrays((70, 5), (6, 5), (6,))]
    before = [np.array(a) for a in given]
    dy = mx.ones((70, 6))

    def loss(*given):
        return mx.sum(ops.dense(*given, activation="tanh") * dy)

    mx.eval(
        mx.grad(loss, argnums=(0, 1, 2))(x, weight, bias),
        ops.dense(x, weight, bias, activation="relu"),
    )
    assert all(np.array_equal(a, b) for a, b in zip(given, before, strict=True))
    assert np.array(dy).min() == 1


def test_shapes_that_do_not_agree(extension):
    x, weight, bias = mx.zeros((3, 2)), mx.zeros((4, 2)), mx.zeros(4)
    for wrong in (mx.zeros((3, 5)), weight, bias), (x, weight, mx.zeros(3)):
        with pytest.raises(ValueError, match="dense"):
            extension.dense(*wrong, True)
    with pytest.raises(ValueError, match="dense"):
        extension.dense_gradients(x, mx.zeros((3, 4)), mx.zeros((3, 5)), True)
