"""`optimizers/muon` against hand arithmetic, upstream's recorded steps and singular values."""

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_run import emulated_gpu

from puffer_mlx.ops.pack import BLOCK, PackedTree, launch_pack
from puffer_mlx.ppo import minibatch
from puffer_mlx.ppo.optimizers import clip_by_global_norm
from puffer_mlx.ppo.optimizers import muon as muon_file
from puffer_mlx.ppo.optimizers.muon import COEFFICIENTS, init, muon, orthogonalise
from puffer_mlx.trees import leaves


def test_two_steps_equal_hand_arithmetic():
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
    momentum = init(weights)["momentum"]
    for g, m, w in zip(grads, momenta, after, strict=True):
        clipped, norm = clip_by_global_norm({"w": mx.array(g)}, 1.5)
        assert norm.item() == pytest.approx(np.linalg.norm(g), rel=1e-6)
        weights, momentum = muon(weights, clipped, momentum, lr=0.1, beta=0.9)
        np.testing.assert_allclose(np.array(momentum["w"]), m, rtol=0, atol=2e-7)
        np.testing.assert_allclose(np.array(weights["w"]), w, rtol=0, atol=5e-7)


def test_orthogonalised_row_equals_hand_arithmetic():
    found = np.array(orthogonalise(mx.array([[0.3, -0.4]])))
    np.testing.assert_allclose(found, [[0.5870073, -0.7826764]], rtol=0, atol=2e-6)
    # a singular value of 1 becomes .97835: .6 * .97835 = .58701
    assert np.linalg.norm(found) == pytest.approx(0.97835, abs=2e-5)


@pytest.mark.parametrize("shape", [(6, 6), (3, 20), (192, 64)])
def test_orthogonalise_equals_singular_value_decomposition(shape):
    x = np.random.default_rng(shape[0]).normal(size=shape).astype(np.float32) * 100
    found = np.array(orthogonalise(mx.array(x)))
    np.testing.assert_allclose(found, oracles.orthogonalise(x), rtol=0, atol=1e-5)
    if min(shape) * 3 <= max(shape):  # no tiny singular value to begin with
        singular = np.linalg.svd(found, compute_uv=False)
        assert singular.min() > 0.7 and singular.max() < 1.3


@pytest.mark.parametrize("name", ["breakout", "wd"])
def test_steps_equal_upstream(fixtures, name):
    data = np.load(fixtures / "puffer4_muon.npz")
    lr, beta, _, decay = data[f"{name}_hyper"]
    assert (decay > 0) == (name == "wd")
    parameters = [f"{name}_p{i}" for i in range(9)]
    weights = {p: mx.array(data[f"{p}_init"]) for p in parameters}
    assert {w.ndim for w in weights.values()} == {1, 2, 4}
    momentum = init(weights)["momentum"]
    for k in range(3):
        grads = {p: mx.array(data[f"{p}_grad{k}"]) for p in parameters}
        weights, momentum = muon(
            weights, grads, momentum, lr=float(lr), beta=float(beta), weight_decay=float(decay)
        )
        for p in parameters:
            for found, kind in ((weights[p], "after"), (momentum[p], "buf")):
                expected = data[f"{p}_{kind}{k}"]
                scale = max(1.0, np.abs(expected).max())
                np.testing.assert_allclose(
                    np.array(found), expected, rtol=0, atol=2e-6 * scale, err_msg=f"{p} {kind}"
                )


SHAPES = {"a": (130, 70), "b": (7,), "c": (2, 3, 40)}


def test_gradients_packed_by_a_minibatch_are_not_packed_again():
    rng = np.random.default_rng(0)
    named, momenta = ({k: mx.array(rng.normal(size=v)) for k, v in SHAPES.items()} for _ in "wm")
    P, one = sum(w.size for w in named.values()), mx.ones(8)
    partial, grads = mx.ones((6, 3)), mx.array(rng.normal(size=(3, P))).astype(mx.float32)
    inputs: dict = {"ent_coef": one, "settings": one}
    with emulated_gpu() as gpu:
        given = [{k: w.astype(mx.float32) for k, w in tree.items()} for tree in (named, momenta)]
        tree, _ = minibatch._finished(inputs, grads, partial, 3, named, ["b", "c", "a"])
        first, at = dict(zip("bca", (0, 7, 247), strict=True)), grads.sum(axis=0)
        for name, found in tree.items():
            expected = at[first[name] :][: found.size].reshape(found.shape)
            np.testing.assert_allclose(np.array(found), np.array(expected), rtol=0, atol=1e-6)

        def step(weights, grads, momentum):
            gpu.names.clear()
            trees = weights, grads, momentum
            new = muon_file.launch_step(*trees, one[0], one[0], 0.5, 0.9, 0.0, COEFFICIENTS)
            return [np.array(array) for array in leaves(list(new))], "pack" in gpu.names

        ours = [PackedTree(launch_pack([*a.values()], BLOCK)[0], a) for a in given]
        expected, packs = step(given[0], tree, given[1])
        assert packs
        found, packs = step(ours[0], tree, ours[1])
        assert not packs
        for one_, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one_, other)
        ours[0]["b"] = ours[0]["b"] + 1  # so the packed array isn't the tree's any more
        found, packs = step(ours[0], tree, ours[1])
        assert packs and not np.array_equal(found[1], expected[1])
