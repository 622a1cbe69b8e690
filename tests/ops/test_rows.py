"""The CPU extension's recursion of advantages, and its gathers."""

import contextlib

import mlx.core as mx
import numpy as np
import pytest
from emulated_run import emulated_gpu
from kernel_oracles import assert_close
from oracles import f64

from puffer_mlx import ops
from puffer_mlx.ops import cpu_extension


def series(shape, seed=0):
    """Return random arrays ``delta`` and ``decay`` for the kernel of discounted sums."""
    return np.random.default_rng(seed).normal(size=(2, *shape)).astype(np.float32)


def discount_oracle(delta, decay):
    adv = np.zeros((len(delta) + 1, delta.shape[1]))
    for t in reversed(range(len(delta))):
        adv[t] = f64(delta)[t] + f64(decay)[t] * adv[t + 1]
    return adv


# ---- the CPU extension ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 3), (19, 300)])
def test_discount_equals_numpy_for_any_number_of_threads(extension, shape):
    rows, results = series(shape), []
    for threads in (1, 2, 5):
        extension.set_threads(threads)
        results.append(np.array(extension.discount(*map(mx.array, rows))))
    assert_close(results[:1], [discount_oracle(*rows)])
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize(
    ("dtype", "tail", "threads"),
    [(np.uint8, (118,), 5), (np.float32, (), 2), (np.int16, (3, 7), 1)],
)
def test_take_rows_equals_numpy(extension, monkeypatch, dtype, tail, threads):
    extension.set_threads(threads)
    rng = np.random.default_rng(threads)
    source = rng.integers(0, 256, (6, 9, *tail)).astype(dtype)
    rows = rng.integers(0, 9, 333).astype(np.int32)
    found = ops.take_rows(mx.array(source), mx.array(rows), 5)  # the carry row isn't taken
    np.testing.assert_array_equal(np.array(found), source[:5, rows])
    assert np.array(found).dtype == dtype
    monkeypatch.setattr(cpu_extension, "load_extension", lambda: None)
    pure = ops.take_rows(mx.array(source), mx.array(rows), 5)
    np.testing.assert_array_equal(np.array(pure), source[:5, rows])


@pytest.mark.parametrize(
    ("form", "size", "dtype", "tail"),
    [
        ("extension", 1, np.float32, ()),
        ("extension", 3, np.uint8, (3, 7)),
        ("plain", 3, np.float32, ()),
        ("cuda", 9, np.float32, ()),
    ],
)
def test_split_rows_equals_numpy(extension, monkeypatch, form, size, dtype, tail):
    if form == "plain":
        monkeypatch.setattr(cpu_extension, "load_extension", lambda: None)
    source = np.random.default_rng(size).integers(0, 256, (6, 9, *tail)).astype(dtype)
    with emulated_gpu() if form == "cuda" else contextlib.nullcontext():
        found = ops.split_rows(mx.array(source), size, 5)
    expected = np.split(source[:5], 9 // size, axis=1)
    for ours, other in zip(found, expected, strict=True):
        assert np.array(ours).dtype == dtype
        np.testing.assert_array_equal(np.array(ours), other)
