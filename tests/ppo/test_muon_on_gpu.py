"""Muon's kernels, run on a CPU, against float64: shapes, the clip, steps that don't count."""

import math

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_gpu import Compiled, recording

from puffer_mlx.ops.gpu import launch
from puffer_mlx.ppo.optimizers.muon import COEFFICIENTS, gpu

SHAPES = {
    "tall, wide, square": ((20, 3), (3, 20), (6, 6)),
    "all ranks": ((5,), (4, 9), (6, 2, 3, 2), (1, 7), (9, 1), (1, 1), (1030,)),
    "vectors": ((5,), (1,)),
    "Breakout": ((64, 118), (192, 64), (4, 64)),
    "a block's largest": ((64, 256), (70, 33)),
    "in groups": ((65, 3, 23), (70, 3), (7,)),
    "many": tuple((2, n + 1) for n in range(9)),
}
LAUNCHES = {"in groups": 18, "many": 3}  # else 2


def drawn(shapes, seed=0):
    """Weights, gradients, momenta."""
    rng = np.random.default_rng(seed)
    return [[rng.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(3)]


def stepping(count, max_norm=1.5, decay=0.3):
    def step(*arrays):
        weights, grads, momentum = (list(arrays[k * count :][:count]) for k in range(3))
        lr, loss = arrays[3 * count :]
        return gpu.step(weights, grads, momentum, lr, loss, max_norm, 0.9, decay, COEFFICIENTS)

    return step


class Emulated:
    """A step for each of SHAPES."""

    def __init__(self, backend, folder):
        self.calls = {}
        with recording(backend) as recorder:
            for case, shapes in SHAPES.items():
                arrays = [a for tree in drawn(shapes) for a in tree]
                function = stepping(len(shapes))
                self.calls[case] = recorder.record_all(function, *arrays, 0.1, 1.0)
        self.compiled = Compiled(recorder, folder)

    def step(self, case, trees, loss=1.0, lr=0.1, **settings):
        """New weights and momenta, and whether they are new."""
        arrays = [mx.array(a) for tree in trees for a in tree] + [mx.array(lr), mx.array(loss)]
        count = len(trees[0])
        function = stepping(count, **settings)
        *new, ok = self.compiled.play(self.calls[case], function, *arrays)
        assert ok.shape == () and ok.dtype == mx.float32
        assert [a.shape for a in new] == [a.shape for a in (*trees[0], *trees[2])]
        return [np.array(a) for a in new[:count]], [np.array(a) for a in new[count:]], ok.item()


@pytest.fixture(scope="module", params=["metal", "cuda"])
def emulated(request, tmp_path_factory):
    return Emulated(request.param, tmp_path_factory.mktemp("kernels"))


def test_launches(emulated):
    found = {case: len(calls) for case, calls in emulated.calls.items()}
    assert found == {case: LAUNCHES.get(case, 2) for case in SHAPES}


def check(found, trees, max_norm, decay, lr=0.1):
    exact = [[oracles.f64(a) for a in tree] for tree in trees]
    weights, grads, momentum = exact
    expected = oracles.muon(weights, grads, momentum, lr, 0.9, max_norm, decay)
    assert found[2] == 1
    for ours, theirs in zip(found[:2], expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=5e-6)


@pytest.mark.parametrize("case", SHAPES)
def test_float64(emulated, case):
    for max_norm, decay in ((0.5, 0.3), (1e3, 0.0)):  # clipped and not
        trees = drawn(SHAPES[case])
        found = emulated.step(case, trees, max_norm=max_norm, decay=decay)
        check(found, trees, max_norm, decay)


@pytest.mark.parametrize(
    ("case", "where"),
    [("all ranks", where) for where in ("loss", "-loss", "nan", "inf", "one that overflows")]
    + [("in groups", "nan")],
)
def test_what_is_not_finite_changes_nothing(emulated, case, where):
    trees, loss = drawn(SHAPES[case]), {"loss": math.nan, "-loss": -math.inf}.get(where, 1.0)
    if loss == 1:
        value = {"nan": math.nan, "inf": -math.inf}.get(where, 3e38)
        trees[1][2].flat[-1] = value
    weights, momentum, ok = emulated.step(case, trees, loss)
    assert ok == 0
    for ours, before in zip((weights, momentum), (trees[0], trees[2]), strict=True):
        for one, other in zip(ours, before, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("case", ["all ranks", "in groups"])
def test_no_gradient(emulated, case):
    """Of no momentum either: weights decay, and nothing is divided by 0."""
    weights, *others = drawn(SHAPES[case])
    trees = [weights, *([np.zeros_like(a) for a in tree] for tree in others)]
    check(emulated.step(case, trees), trees, 1.5, 0.3)


def test_a_tiny_gradient(emulated):
    """A norm below 1e-7 isn't scaled up to 1."""
    trees = drawn(SHAPES["tall, wide, square"])
    for tree in trees[1:]:
        tree[:] = [a * np.float32(1e-10) for a in tree]
    found = emulated.step("tall, wide, square", trees, decay=0.0, lr=1e3)
    exact = [[oracles.f64(a) for a in tree] for tree in trees]
    weights, grads, momentum = exact
    expected, _ = oracles.muon(weights, grads, momentum, 1e3, 0.9, 1.5)
    for one, other, before in zip(found[0], expected, weights, strict=True):
        assert np.abs(other - before).max() > 100
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-3)


def test_limits():
    """Threads of a block, arrays of a kernel, and its shared memory on Metal."""
    assert launch.THREADS == 256
    assert 4 * (256 + 2 * 32 * 17 * 4) <= 32 * 1024  # muon_step
    sizes = [(64, 256), (65, 256), (64, 257), (0, 0)]
    fits = [gpu.fits_a_block(gpu.Matrix(*size, False)) for size in sizes]
    assert fits == [True, False, False, True]


def test_layout():
    at = gpu.layout(((130, 70), (7,), (2, 3, 4)))
    tensors = np.array(at.tensors).reshape(-1, 8)
    assert at.starts == (0, 9216, 10240) and tensors[0, :2].tolist() == [11264, 11]
    assert tensors[1:, :6].tolist() == [
        [0, 9100, 70, 130, 1, 0],
        [9216, 7, 0, 0, 0, 4912],
        [10240, 24, 2, 12, 0, 4912],
    ]
    assert np.array(at.owners).tolist() == [0] * 9 + [1, 2]
    lower = [[0, 0, 0], [0, 64, 0], [0, 64, 64], [2, 0, 0]]
    assert np.array(at.tiles[gpu.GRAM]).reshape(-1, 3).tolist() == lower
    assert len(np.array(at.tiles[gpu.NEXT])) == 3 * (2 * 3 + 1)
