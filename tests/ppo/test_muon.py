"""`optimizers/muon` against upstream's recorded steps and singular values."""

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_run import emulated_gpu

from puffer_mlx.ops.pack import BLOCK, PackedTree, launch_pack
from puffer_mlx.ppo import minibatch
from puffer_mlx.ppo.optimizers import muon as muon_file
from puffer_mlx.ppo.optimizers.muon import COEFFICIENTS, init, muon, orthogonalise
from puffer_mlx.trees import leaves


@pytest.mark.parametrize("shape", [(6, 6), (3, 20), (192, 64)])
def test_orthogonalise_equals_singular_value_decomposition(shape):
    x = np.random.default_rng(shape[0]).normal(size=shape).astype(np.float32) * 100
    found = np.array(orthogonalise(mx.array(x)))
    np.testing.assert_allclose(found, oracles.orthogonalise(x), rtol=0, atol=1e-5)


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
                oracles.assert_close(found, data[f"{p}_{kind}{k}"], f"{p} {kind}", bound=2e-6)


SHAPES = {"a": (130, 70), "b": (7,), "c": (2, 3, 40)}


def test_gradients_packed_by_a_minibatch_are_not_packed_again():
    rng = np.random.default_rng(0)
    named, momenta = ({k: mx.array(rng.normal(size=v)) for k, v in SHAPES.items()} for _ in "wm")
    P, one = sum(w.size for w in named.values()), mx.ones(8)
    partial, grads = mx.ones((6, 3)), mx.array(rng.normal(size=(3, P))).astype(mx.float32)
    inputs: dict = {"ent_coef": one, "settings": one}
    with emulated_gpu() as gpu:
        given = [{k: w.astype(mx.float32) for k, w in tree.items()} for tree in (named, momenta)]
        tree, _ = minibatch._sum_blocks(inputs, grads, partial, 3, named, ["b", "c", "a"])
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
