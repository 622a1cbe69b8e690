"""MinGRU, fused: GPU kernels and the CPU extension; its recursion of advantages, its gathers."""

import contextlib

import mlx.core as mx
import numpy as np
import pytest
from emulated_gpu import Compiled, recording
from emulated_run import emulated_gpu
from kernel_oracles import close, mingru_oracle, random_keep
from oracles import f64

from puffer_mlx import ops
from puffer_mlx.ops import cpu_extension
from puffer_mlx.policy.networks.mingru.gpu import mingru_backward, mingru_forward

# T, S, H: 3, 300, 256 and 777 threads; and one and more chunks of 8 steps that are read at once
SHAPES = [(1, 1, 3), (5, 3, 100), (4, 2, 128), (3, 7, 111), (8, 1, 3), (19, 2, 5)]
N = len(SHAPES)


def layer(shape, seed=0):
    """u, x, first, keep, dout."""
    T, S, H = shape
    rng = np.random.default_rng(seed)
    sizes = (T, S, 3 * H), (T, S, H), (S, H), (T, S, H)
    u, x, first, dout = (rng.normal(size=size).astype(np.float32) * 2 for size in sizes)
    return u, x, np.abs(first), random_keep(rng, T, S), dout


def series(shape, seed=0):
    """delta, decay."""
    return np.random.default_rng(seed).normal(size=(2, *shape)).astype(np.float32)


def discount_oracle(delta, decay):
    adv = np.zeros((len(delta) + 1, delta.shape[1]))
    for t in reversed(range(len(delta))):
        adv[t] = f64(delta)[t] + f64(decay)[t] * adv[t + 1]
    return adv


# ---- GPU kernels as C++ --------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["metal", "cuda"])
def compiled(request, tmp_path_factory):
    """Kernels 0 .. N - 1: forward for each of SHAPES, then backward.

    After them forward and backward without a first state, then without ``keep``, of the last shape.
    """
    with recording(request.param) as recorder:
        for shape in SHAPES:
            recorder.record(mingru_forward, *layer(shape)[:4])
        for shape in SHAPES:
            u, x, first, keep, dout = layer(shape)
            recorder.record(mingru_backward, u, x, first, keep, x, dout)
        for left_out in (2, 3):
            given = [None if i == left_out else a for i, a in enumerate((u, x, first, keep))]
            recorder.record(mingru_forward, *given)
            recorder.record(mingru_backward, *given, x, dout)
    return Compiled(recorder, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_gpu_kernels(compiled, number):
    u, x, first, keep, dout = layer(SHAPES[number], seed=number)
    forward, backward = mingru_oracle(u, x, first, keep, dout)
    states = forward[1].astype(np.float32)
    found = (
        compiled.run(number, u, x, first, keep),
        compiled.run(N + number, u, x, first, keep, states, dout),
    )
    for ours, expected in zip(found, (forward, backward), strict=True):
        close(ours, expected)

    extension = cpu_extension.load()
    if extension is not None:
        by_cpu = (
            extension.mingru_forward(*map(mx.array, (u, x, first, keep))),
            extension.mingru_backward(*map(mx.array, (u, x, first, keep, states, dout))),
        )
        for ours, other in zip(found, by_cpu, strict=True):
            close(ours, [np.array(o) for o in other])


def test_nothing_stands_for_zeros_and_ones(compiled):
    """A first state, or `keep`, that isn't there: one number that is read by all."""
    u, x, first, keep, dout = layer(SHAPES[-1])
    zeros, ones = np.zeros(8, np.float32), np.ones(8, np.float32)
    for number, short, long in (
        (2 * N, (zeros, keep), (np.zeros_like(first), keep)),
        (2 * N + 2, (first, ones), (first, np.ones_like(keep))),
    ):
        expected = compiled.run(N - 1, u, x, *long)
        found = compiled.run(number, u, x, *short)
        gradients = compiled.run(number + 1, u, x, *short, expected[1], dout)
        wanted = compiled.run(2 * N - 1, u, x, *long, expected[1], dout)
        wanted[2] = wanted[2].ravel()[:1] if number == 2 * N else wanted[2]  # nobody needs it
        for ours, other in zip([*found, *gradients], [*expected, *wanted], strict=True):
            np.testing.assert_array_equal(ours, other)


def test_one_kernel_serves_every_size(compiled):
    """What a compiler would make anew for each is the type alone."""
    for call in compiled.calls:
        assert [name for name, _ in call["template"]] in ([], ["Low"])


# ---- the CPU extension ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [*SHAPES, (2, 400, 5)])
def test_extension(extension, shape):
    """Against float64, and bit-identical for any number of threads."""
    u, x, first, keep, dout = layer(shape)
    T, S, H = shape
    rows = series((T, S * H))
    forward, backward = mingru_oracle(u, x, first, keep, dout)
    states = mx.array(forward[1].astype(np.float32))
    results = []
    for threads in (1, 2, 5):
        extension.set_threads(threads)
        out = extension.mingru_forward(*map(mx.array, (u, x, first, keep)))
        gradient = extension.mingru_backward(
            *map(mx.array, (u, x, first, keep)), states, mx.array(dout)
        )
        adv = extension.discount(*map(mx.array, rows))
        results.append([np.array(a) for a in (*out, *gradient, adv)])
    close(results[0], [*forward, *backward, discount_oracle(*rows)])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("dtype", "tail", "threads"),
    [
        (np.uint8, (118,), 5),
        (np.uint8, (3, 7), 1),
        (np.float32, (), 2),
        (np.float32, (5,), 5),
        (np.int16, (3,), 2),
    ],
)
def test_take_rows(extension, monkeypatch, dtype, tail, threads):
    extension.set_threads(threads)
    rng = np.random.default_rng(threads)
    source = rng.integers(0, 256, (6, 9, *tail)).astype(dtype)
    rows = rng.integers(0, 9, 333).astype(np.int32)
    found = ops.take_rows(mx.array(source), mx.array(rows), 5)  # the carry row isn't taken
    np.testing.assert_array_equal(np.array(found), source[:5, rows])
    assert np.array(found).dtype == dtype
    strided = mx.array(source.swapaxes(0, 1)).swapaxes(0, 1)
    np.testing.assert_array_equal(
        np.array(ops.take_rows(strided, mx.array(rows), 5)), source[:5, rows]
    )
    monkeypatch.setattr(cpu_extension, "load", lambda: None)
    pure = ops.take_rows(mx.array(source), mx.array(rows), 5)
    np.testing.assert_array_equal(np.array(pure), source[:5, rows])


@pytest.mark.parametrize("form", ["extension", "plain", "cuda"])
@pytest.mark.parametrize(
    ("size", "dtype", "tail"),
    [(1, np.float32, ()), (3, np.uint8, (3, 7)), (9, np.uint8, (3, 7)), (9, np.float32, ())],
)
def test_split_rows(extension, monkeypatch, form, size, dtype, tail):
    if form == "plain":
        monkeypatch.setattr(cpu_extension, "load", lambda: None)
    source = np.random.default_rng(size).integers(0, 256, (6, 9, *tail)).astype(dtype)
    with emulated_gpu() if form == "cuda" else contextlib.nullcontext():
        found = ops.split_rows(mx.array(source), size, 5)
    expected = np.split(source[:5], 9 // size, axis=1)
    for ours, other in zip(found, expected, strict=True):
        assert np.array(ours).dtype == dtype
        np.testing.assert_array_equal(np.array(ours), other)


def test_rows_outside_never_read_other_memory(extension):
    source = mx.arange(12).reshape(2, 6)
    found = extension.take_rows(source, mx.array([-5, 6, 99]), 2)
    np.testing.assert_array_equal(np.array(found), [[0, 5, 5], [6, 11, 11]])


def test_wrong_arguments(extension):
    T, S, H = 3, 4, 5
    u, x, first, keep, dout = map(mx.array, layer((T, S, H)))
    rows = mx.zeros(2, mx.int32)
    wrong = [
        lambda: extension.mingru_forward(u[..., :-1], x, first, keep),
        lambda: extension.mingru_forward(u, x, first[:-1], keep),
        lambda: extension.mingru_forward(u[:-1], x, first, keep),
        lambda: extension.mingru_forward(u, x[0], first, keep),
        lambda: extension.mingru_forward(u.astype(mx.float16), x, first, keep),
        lambda: extension.mingru_forward(u, x, first, keep[:, :-1]),
        lambda: extension.mingru_forward(u, x, first, keep.astype(mx.int32)),
        lambda: extension.mingru_backward(u, x, first, keep, x[:-1], dout),
        lambda: extension.mingru_backward(u, x, first, keep, x, dout[:, :-1]),
        lambda: extension.mingru_backward(u, x, first, keep, x, dout.astype(mx.float16)),
        lambda: extension.discount(x[0], x[0, :-1]),
        lambda: extension.discount(x, x),
        lambda: extension.discount(x[0].astype(mx.int32), x[0]),
        lambda: extension.take_rows(x, rows, T + 1),
        lambda: extension.take_rows(x, rows, 0),
        lambda: extension.take_rows(x, rows.astype(mx.int64), T),
        lambda: extension.take_rows(x, rows[None], T),
        lambda: extension.take_rows(x[0, 0], rows, 1),
    ]
    for call in wrong:
        with pytest.raises(ValueError):
            call()


def extremes():
    """u, x, first, keep, dout with logits of +-1e4 and exact zeros."""
    u, x, first, keep, dout = layer(SHAPES[1])
    u[:2] = np.random.default_rng(0).choice([-1e4, 0, 1e4], u[:2].shape)
    return u, x, first, keep, dout


def check_extremes(forward, backward):
    """Finite and right; at exact zero the gradient is the positive branch's."""
    u, x, first, keep, dout = extremes()
    expected = mingru_oracle(u, x, first, keep, dout)
    states = expected[0][1].astype(np.float32)
    found = (*forward(u, x, first, keep), *backward(u, x, first, keep, states, dout))
    for ours, oracle in zip(found, (*expected[0], *expected[1]), strict=True):
        assert np.isfinite(np.array(ours)).all()
        np.testing.assert_allclose(np.array(ours), oracle, rtol=1e-4, atol=2e-5)


def test_extremes_on_a_gpu(compiled):
    check_extremes(lambda *a: compiled.run(1, *a), lambda *a: compiled.run(N + 1, *a))


def test_extremes_in_the_extension(extension):
    check_extremes(
        lambda *a: extension.mingru_forward(*map(mx.array, a)),
        lambda *a: extension.mingru_backward(*map(mx.array, a)),
    )
