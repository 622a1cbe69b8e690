"""Linear layers and their gradients, on all paths: products split or whole, and plain MLX."""

import mlx.core as mx
import numpy as np
import pytest
from kernel_oracles import assert_close, gelu_oracle, random_not_done
from oracles import f64

from puffer_mlx import ops
from puffer_mlx.ops.linear import linear
from puffer_mlx.system.blas import take_over_gemm

SIZES = 2060, 7, 19  # n, K, M: these rows have three runs of partial sums and five parts


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("products", "columns", "biased"),
    [
        *(("split", False, True), ("whole", True, True)),
        *(("MLX's", True, False), ("pure", False, False), ("pure", True, True)),
    ],
    indirect=["products"],
)
def test_linear_and_its_gradients_equal_numpy(products, columns, biased):
    n, K, M = SIZES
    x, weight, bias, dy = arrays((n, K), (M, K), (M,), (n, M))
    function = ops.linear_columns if columns else linear
    given = [x, weight, bias][: 2 + biased]
    dy_given = dy.T.copy() if columns else dy

    def loss(*a):
        return mx.sum(function(*a) * mx.array(dy_given))

    y = f64(x) @ f64(weight).T + (f64(bias) if biased else 0)
    gradients = [f64(dy) @ f64(weight), f64(dy).T @ f64(x), f64(dy).sum(0)][: 2 + biased]
    found = function(*map(mx.array, given))
    assert_close([found], [y.T if columns else y])
    assert_close(mx.grad(loss, argnums=list(range(len(given))))(*map(mx.array, given)), gradients)


def test_recurrent_weight_gradient_equals_numpy(products):
    T, S, H, M = 5, 411, 3, 8
    dy, states, first = arrays((T, S, M), (T, S, H), (S, H))
    not_done = random_not_done(np.random.default_rng(1), T, S)
    expected = np.zeros((M, H))
    for t in range(T):
        before = f64(states[t - 1] if t else first) * not_done[t, :, None]
        expected += f64(dy[t]).T @ before
    given = map(mx.array, (dy, states, first, not_done))
    assert_close([ops.recurrent_weight_gradient(*given)], [expected])


@pytest.mark.parametrize("shape", [(2060, 19), (7, 64)])
def test_add_rms_norm_and_its_gradients_equal_numpy(path, shape):
    H = shape[1]
    x, residual, weight, dy = arrays(shape, shape, (H,), shape)
    total = f64(x) + f64(residual)
    rms = np.sqrt((total**2).mean(axis=1, keepdims=True) + ops.EPSILON)
    expected = total / rms * f64(weight)
    slope = f64(dy) * f64(weight)
    by_sum = slope / rms - total * (slope * total).mean(axis=1, keepdims=True) / rms**3

    def loss(*a):
        return mx.sum(ops.add_rms_norm(*a) * mx.array(dy))

    given = list(map(mx.array, (x, residual, weight)))
    assert_close([ops.add_rms_norm(*given)], [expected])
    found = mx.compile(mx.grad(loss, argnums=(0, 1, 2)))(*given)
    assert_close(found, [by_sum, by_sum, (f64(dy) * total / rms).sum(axis=0)])


def test_results_do_not_depend_on_threads(extension):
    if not extension.has_gemm():
        pytest.skip("MLX's own products are used here")
    n, K, M = SIZES
    x, weight, bias, dy = map(mx.array, arrays((n, K), (M, K), (M,), (n, M)))
    results = []
    for threads in (1, 2, 5):
        extension.set_threads(threads)
        found = [ops.weight_gradient(dy, x), ops.bias_gradient(dy), ops.input_gradient(dy, weight)]
        for function in (linear, ops.linear_columns):
            found.append(function(x, weight, bias))
        found += mx.grad(lambda x, r, w: mx.sum(ops.add_rms_norm(x, r, w)), argnums=(0, 2))(
            dy, dy, bias
        )
        results.append([np.array(a) for a in found])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_weight_gradient_of_more_rows_than_its_buffer_is_right(extension):
    """The buffer of an unsplit recurrent product has 32,768 rows."""
    found = take_over_gemm()
    if not found.address:
        pytest.skip("the extension has no BLAS here")
    rows = 3 * 2**14
    dy, x = arrays((1, rows, 2), (1, rows, 3))
    expected = f64(dy[0]).T @ np.concatenate([np.ones((rows, 3))])
    extension.set_gemm(found.address, False)
    try:
        ones = mx.ones((rows, 3))
        ours = extension.recurrent_weight_gradient(
            mx.array(dy), mx.array(x), ones, mx.ones((1, rows))
        )
        np.testing.assert_allclose(np.array(ours), expected, rtol=0, atol=2e-3)
    finally:
        extension.set_gemm(*found)


def test_input_gradient_leaves_the_added_array_unchanged(extension):
    if not extension.has_gemm():
        pytest.skip("MLX's own products are used here")
    dy, weight, add = map(mx.array, arrays((40, 3), (3, 4), (40, 4)))
    kept = np.array(add)
    found = ops.input_gradient(dy, weight, add)
    again = ops.input_gradient(dy, weight, add + 0)
    mx.eval(found, again)
    np.testing.assert_array_equal(np.array(add), kept)
    np.testing.assert_array_equal(np.array(again), np.array(found))


# ---- with an activation --------------------------------------------------------------------------


def functions(activation, z):
    """Return an activation function's values and derivatives at z, in float64."""
    if activation == "tanh":
        return np.tanh(z), 1 - np.tanh(z) ** 2
    if activation == "relu":
        return np.maximum(z, 0), (z > 0).astype(float)
    return [part.reshape(z.shape) for part in gelu_oracle(z.ravel())]


LARGE = 1100, 6, 33  # more rows than a part has


@pytest.mark.parametrize(
    ("products", "sizes", "activation"),
    [
        *(("split", LARGE, "gelu"), ("split", LARGE, "tanh"), ("whole", (64, 17, 64), "relu")),
        *(("MLX's", LARGE, "gelu"), ("pure", LARGE, "tanh"), ("pure", LARGE, "relu")),
    ],
    indirect=["products"],
)
def test_dense_and_its_gradients_equal_numpy(products, sizes, activation):
    n, K, M = sizes
    x, weight, bias, dy = arrays((n, K), (M, K), (M,), (n, M))

    def loss(*given):
        return mx.sum(ops.dense(*given, activation=activation) * mx.array(dy))

    y, slope = functions(activation, f64(x) @ f64(weight).T + f64(bias))
    dz = f64(dy) * slope
    given = [mx.array(array) for array in (x, weight, bias)]
    gradients = mx.compile(mx.grad(loss, argnums=(0, 1, 2)))
    assert_close([ops.dense(*given, activation=activation)], [y])
    assert_close(gradients(*given), [dz @ f64(weight), dz.T @ f64(x), dz.sum(0)])


@pytest.mark.parametrize(("activation", "dtype"), [("tanh", mx.bfloat16), ("gelu", mx.float16)])
def test_dense_in_16_bits_is_close_to_float32(activation, dtype):
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


def test_dense_keeps_nan_and_leaves_its_inputs_unchanged(path):
    x, weight = mx.array([[np.nan, 0.0], [1.0, 1.0]]), mx.eye(2)
    y = np.array(ops.dense(x, weight, mx.zeros(2), activation="relu"))
    assert np.isnan(y[0]).any() and np.isfinite(y[1]).all()
    mx.eval(mx.grad(lambda w: mx.sum(ops.dense(x, w, w[0], activation="relu")))(weight))
    assert np.array_equal(np.array(weight), np.eye(2)) and np.isnan(np.array(x)).sum() == 1
