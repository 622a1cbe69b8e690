"""Adam's kernel, run on a CPU, against float64: the clip, corrections, steps that don't count."""

import math

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_gpu import Compiled, recording

from puffer_mlx.ppo.optimizers.adam import gpu

SHAPES = ((5,), (4, 9), (6, 2, 3, 2), (1030,), (3, 1), (2, 2), (1,))
COUNT, LR, EPS = len(SHAPES), 0.01, 1e-5


def drawn():
    """Weights, gradients, first and second moments."""
    rng = np.random.default_rng(0)
    trees = [[rng.normal(size=s).astype(np.float32) for s in SHAPES] for _ in range(4)]
    return [*trees[:3], [np.abs(v) for v in trees[3]]]


def stepping(betas=(0.9, 0.999), max_norm=1.5, decay=0.3):
    def step(*arrays):
        weights, grads, first, second = (list(arrays[k * COUNT :][:COUNT]) for k in range(4))
        steps, lr, loss = arrays[4 * COUNT :]
        one, two = betas
        return gpu.step(
            weights, grads, first, second, steps, lr, loss, max_norm, one, two, EPS, decay
        )

    return step


class Emulated:
    def __init__(self, backend, folder):
        arrays = [a for tree in drawn() for a in tree]
        with recording(backend) as recorder:
            self.calls = recorder.record_all(stepping(), *arrays, 3.0, LR, 1.0)
        self.compiled = Compiled(recorder, folder)

    def step(self, trees, steps, loss=1.0, **settings):
        """New weights and moments, the number of steps, and whether they are new."""
        arrays = [*(a for tree in trees for a in tree), np.float32(steps), LR, loss]
        function = stepping(**settings)
        *new, made, ok = self.compiled.play(self.calls, function, *map(mx.array, arrays))
        assert (made.shape, ok.shape, ok.dtype) == ((), (), mx.float32)
        assert [a.shape for a in new] == 3 * [*SHAPES]
        kinds = [[np.array(a) for a in new[k * COUNT :][:COUNT]] for k in range(3)]
        return kinds, made.item(), ok.item()


@pytest.fixture(scope="module", params=["metal", "cuda"])
def emulated(request, tmp_path_factory):
    return Emulated(request.param, tmp_path_factory.mktemp("kernels"))


def test_launches(emulated):
    assert len(emulated.calls) == 3  # 28 arrays are packed by two


@pytest.mark.parametrize(
    ("betas", "steps", "max_norm", "decay"),  # the norm: clipped and not
    [
        ((0.9, 0.999), 0, 0.5, 0.3),
        ((0.0, 0.0), 3, 1e4, 0.0),
        ((0.95, 0.99999), 3, 0.5, 0.0),
        ((0.95, 0.99999), 700, 1e4, 0.3),
        ((0.9, 0.999), 2**24, 0.5, 0.3),
    ],
)
def test_float64(emulated, betas, steps, max_norm, decay):
    trees = drawn()
    found, made, ok = emulated.step(trees, steps, betas=betas, max_norm=max_norm, decay=decay)
    assert ok == 1 and made == np.float32(steps) + np.float32(1)
    weights, grads, first, second = ([oracles.f64(a) for a in tree] for tree in trees)
    state = first, second, steps
    after, moments = oracles.adam(weights, grads, state, LR, betas, EPS, max_norm, decay)
    for ours, theirs in zip(found, (after, *moments[:2]), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("where", ["loss", "-loss", "nan", "inf", "one that overflows"])
def test_what_is_not_finite_changes_nothing(emulated, where):
    trees, loss = drawn(), {"loss": math.nan, "-loss": -math.inf}.get(where, 1.0)
    if loss == 1:
        trees[1][3].flat[-1] = {"nan": math.nan, "inf": -math.inf}.get(where, 3e38)
    found, made, ok = emulated.step(trees, 7, loss)
    assert (made, ok) == (7, 0)
    for ours, before in zip(found, (trees[0], *trees[2:]), strict=True):
        for one, other in zip(ours, before, strict=True):
            np.testing.assert_array_equal(one, other)
