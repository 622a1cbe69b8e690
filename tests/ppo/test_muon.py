"""`optimizers/muon.py` against hand arithmetic, upstream's recorded steps and singular values."""

import math

import mlx.core as mx
import numpy as np
import oracles
import pytest

from puffer_mlx.ops import cpu_extension
from puffer_mlx.ppo.optimizers import muon as optim
from puffer_mlx.ppo.optimizers.muon import (
    clip_by_global_norm,
    cosine,
    muon,
    muon_init,
    orthogonalise,
)


def test_golden_two_steps():
    # |G1| = sqrt(1 + 4 + 9 + 1 + .25 + .0625) = 3.9131190, scaled by 1.5 / 3.9131200 = .3833258;
    # |G2| = .5567764 < 1.5 stays. step 1: m = g, u = 1.9 g; step 2: m = .9 m + g, u = g + .9 m
    grads = [[[1, 2], [3, -1], [0.5, 0.25]], [[0.2, -0.1], [0, 0.4], [-0.3, 0.1]]]
    momenta = [
        [[0.3833258, 0.7666517], [1.1499775, -0.3833258], [0.1916629, 0.0958315]],
        [[0.5449933, 0.5899865], [1.0349798, 0.0550067], [-0.1275034, 0.1862483]],
    ]
    # W -= .1 * sqrt(3/2) * U:  .1 * 1.2247449 * .3565283 = .0436656
    after = [
        [[-0.0436656, -0.1117632], [-0.1116877, 0.046227], [-0.019764, -0.0150048]],
        [[-0.096932, -0.1696792], [-0.1933704, 0.0015648], [0.0514527, -0.1138057]],
    ]
    weights = {"w": mx.zeros((3, 2))}
    momentum = muon_init(weights)
    for g, m, w in zip(grads, momenta, after, strict=True):
        clipped, norm = clip_by_global_norm({"w": mx.array(g)}, 1.5)
        assert norm.item() == pytest.approx(np.linalg.norm(g), rel=1e-6)
        weights, momentum = muon(weights, clipped, momentum, lr=0.1, beta=0.9)
        np.testing.assert_allclose(np.array(momentum["w"]), m, rtol=0, atol=2e-7)
        np.testing.assert_allclose(np.array(weights["w"]), w, rtol=0, atol=5e-7)


def test_golden_row():
    found = np.array(orthogonalise(mx.array([[0.3, -0.4]])))
    np.testing.assert_allclose(found, [[0.5870073, -0.7826764]], rtol=0, atol=2e-6)
    # a singular value of 1 becomes .97835: .6 * .97835 = .58701
    assert np.linalg.norm(found) == pytest.approx(0.97835, abs=2e-5)


@pytest.mark.parametrize("shape", [(6, 6), (20, 3), (3, 20), (1, 9), (9, 1), (64, 118), (192, 64)])
def test_orthogonalise(shape):
    x = np.random.default_rng(shape[0]).normal(size=shape).astype(np.float32) * 100
    found = np.array(orthogonalise(mx.array(x)))
    np.testing.assert_allclose(found, oracles.orthogonalise(x), rtol=0, atol=1e-5)
    if min(shape) * 3 <= max(shape):  # no tiny singular value to begin with
        singular = np.linalg.svd(found, compute_uv=False)
        assert singular.min() > 0.7 and singular.max() < 1.3


def test_orthogonalise_nothing():
    np.testing.assert_array_equal(np.array(orthogonalise(mx.zeros((3, 2)))), 0)
    # a norm below 1e-7 isn't scaled up to 1: 1e-13 / 1e-7 = 1e-6, times the five a's, 492.75
    tiny = np.array(orthogonalise(mx.array([[1e-13, 0.0]])))
    np.testing.assert_allclose(tiny, [[4.9275e-4, 0]], rtol=1e-4)


@pytest.mark.parametrize("name", ["breakout", "default", "wd"])
def test_upstream(fixtures, name):
    data = np.load(fixtures / "puffer4_muon.npz")
    lr, beta, _, decay = data[f"{name}_hyper"]
    assert (decay > 0) == (name == "wd")
    parameters = [f"{name}_p{i}" for i in range(9)]
    weights = {p: mx.array(data[f"{p}_init"]) for p in parameters}
    assert {w.ndim for w in weights.values()} == {1, 2, 4}
    momentum = muon_init(weights)
    for step in range(3):
        grads = {p: mx.array(data[f"{p}_grad{step}"]) for p in parameters}
        weights, momentum = muon(
            weights, grads, momentum, lr=float(lr), beta=float(beta), weight_decay=float(decay)
        )
        for p in parameters:
            for found, kind in ((weights[p], "after"), (momentum[p], "buf")):
                expected = data[f"{p}_{kind}{step}"]
                scale = max(1.0, np.abs(expected).max())
                np.testing.assert_allclose(
                    np.array(found), expected, rtol=0, atol=2e-6 * scale, err_msg=f"{p} {kind}"
                )


@pytest.mark.parametrize("shape", [(5,), (4, 9), (9, 4), (6, 2, 3, 2), (1, 7)])
def test_random(shape):
    rng = np.random.default_rng(len(shape))
    weights = [rng.normal(size=shape), rng.normal(size=(3, 3))]
    momentum = [np.zeros_like(w) for w in weights]
    tree = {"a": mx.array(weights[0], mx.float32), "b": [mx.array(weights[1], mx.float32)]}
    buffers = muon_init(tree)
    for max_norm in (0.5, 1e3):
        grads = [rng.normal(size=w.shape) for w in weights]
        clipped, _ = clip_by_global_norm(
            {"a": mx.array(grads[0], mx.float32), "b": [mx.array(grads[1], mx.float32)]}, max_norm
        )
        tree, buffers = muon(tree, clipped, buffers, lr=mx.array(0.05), beta=0.8)
        weights, momentum = oracles.muon(weights, grads, momentum, 0.05, 0.8, max_norm)
        np.testing.assert_allclose(np.array(tree["a"]), weights[0], rtol=0, atol=5e-6)
        np.testing.assert_allclose(np.array(tree["b"][0]), weights[1], rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("scale", "expected"),
    # norm of (3, 4) * scale is 5 * scale; g * min(1, 2 / (norm + 1e-6))
    [(0.2, (0.6, 0.8)), (1.0, (1.1999998, 1.5999997)), (100.0, (1.2, 1.6)), (0.0, (0, 0))],
)
def test_clip(scale, expected):
    grads = {"a": mx.array([3.0 * scale]), "b": {"c": mx.array([[4.0 * scale]])}}
    clipped, norm = clip_by_global_norm(grads, 2.0)
    assert norm.item() == pytest.approx(5 * scale)
    found = clipped["a"].item(), clipped["b"]["c"].item()
    assert found == pytest.approx(expected, abs=1e-7)


def test_clip_adds_a_millionth_to_the_norm():
    # 1e-6 / (1e-6 + 1e-6) = 1/2
    clipped, _ = clip_by_global_norm([mx.array([1e-6])], 1e-6)
    assert clipped[0].item() == pytest.approx(0.5e-6, rel=1e-4)


def test_cosine():
    assert cosine(0.1, 0.02, 0, 100) == 0.1
    assert cosine(0.1, 0.02, 50, 100) == pytest.approx(0.06)  # half way: the mean
    assert cosine(0.1, 0.02, 25, 100) == pytest.approx(0.02 + 0.04 * (1 + math.sqrt(0.5)))
    assert cosine(0.1, 0.02, 100, 100) == pytest.approx(0.02)
    assert cosine(0.1, 0.02, 150, 100) == pytest.approx(0.02)  # past the end
    assert cosine(0.1, 0.02, -5, 100) == 0.1
    assert cosine(0.1, 0.02, 7, 0) == 0.1  # no epochs


# ---- a whole step --------------------------------------------------------------------------------

SHAPES = {"a": (64, 4), "b": (3, 64), "c": (20,), "d": (5, 3, 2, 2), "e": (33, 129), "f": (1, 7)}


def trees(seed=0):
    """Weights, gradients and momentum."""
    rng = np.random.default_rng(seed)
    return [
        {
            "list": [mx.array(rng.normal(size=SHAPES[n]).astype(np.float32)) for n in "abc"],
            "deep": {n: mx.array(rng.normal(size=SHAPES[n]).astype(np.float32)) for n in "def"},
            "none": [],
        }
        for _ in range(3)
    ]


def a_step(state, loss=1.0, max_norm=1.5, lr=0.1):
    """New weights and momentum as lists of arrays, and whether they count."""
    weights, grads, momentum = state
    numbers = {"lr": mx.array(lr), "beta": 0.9, "max_norm": max_norm}
    *new, made = optim.step(weights, grads, momentum, mx.array(loss), **numbers)
    assert [optim.named(tree)[i][0] for tree in new for i in range(6)] == [
        name for tree in (weights, momentum) for name, _ in optim.named(tree)
    ]
    assert all(tree["none"] == [] for tree in new) and made.dtype == mx.bool_ and made.shape == ()
    return [[np.array(array) for _, array in optim.named(tree)] for tree in new], made.item()


@pytest.mark.parametrize("max_norm", [1.5, 1e3])  # clipped and not
def test_a_step_is_the_same_on_the_extension(extension, monkeypatch, max_norm):
    found = []
    for threads in (1, 3):
        extension.set_threads(threads)
        found.append(a_step(trees(), max_norm=max_norm))
    assert extension.has_gemm() == (optim.ops.extension_with_products() is not None)
    monkeypatch.setattr(cpu_extension, "load", lambda: None)
    plain, made = a_step(trees(), max_norm=max_norm)
    assert made
    for new, counted in found:
        assert counted
        for ours, expected in zip(new, plain, strict=True):
            for one, other in zip(ours, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=3e-6)
    (one, _), (three, _) = found
    for alone, together in zip([*one[0], *one[1]], [*three[0], *three[1]], strict=True):
        np.testing.assert_array_equal(alone, together)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("where", ["loss", "gradient", "one that overflows"])
def test_a_step_that_is_not_finite_changes_nothing(monkeypatch, plain, where):
    if plain:
        monkeypatch.setattr(cpu_extension, "load", lambda: None)
    state = trees()
    if where != "loss":
        bad = np.array(state[1]["deep"]["e"])
        bad[7, 100] = np.nan if where == "gradient" else 3e38
        state[1]["deep"]["e"] = mx.array(bad)
    new, made = a_step(state, loss=math.inf if where == "loss" else 1.0)
    assert not made
    before = [[np.array(a) for _, a in optim.named(state[i])] for i in (0, 2)]
    for ours, expected in zip(new, before, strict=True):
        for one, other in zip(ours, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_step_refuses_what_does_not_fit(extension):
    if not extension.has_gemm():
        pytest.skip("the products are MLX's here")
    w, one = mx.zeros((3, 2)), mx.array(1.0)
    for wrong in (
        ([w], [w], [], one, one),
        ([w], [w.T], [w], one, one),
        ([w], [w], [w.astype(mx.float16)], one, one),
        ([w], [w], [w], one[None], one),
        ([w], [w], [w], one, mx.array(1)),
    ):
        with pytest.raises(ValueError, match="muon_step"):
            extension.muon_step(*wrong, 1.5, 0.9, optim.COEFFICIENTS)
