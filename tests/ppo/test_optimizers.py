"""What holds for every optimizer: its forms agree, and nothing happens where it mustn't."""

import math

import mlx.core as mx
import numpy as np
import pytest
from oracles import named

from puffer_mlx import config, ops
from puffer_mlx.config.schema import OPTIMIZERS
from puffer_mlx.ops import cpu_extension
from puffer_mlx.ppo import optimizers
from puffer_mlx.ppo.finite import clip_by_global_norm
from puffer_mlx.trees import Tree

SHAPES = {"a": (64, 4), "b": (3, 64), "c": (20,), "d": (5, 3, 2, 2), "e": (33, 129), "f": (1, 7)}
DECAY = ["--train.beta1", "0.9", "--train.weight-decay", "0.3"]
each = pytest.mark.parametrize("name", OPTIMIZERS)


def tree(rng, positive=False):
    """Arrays of all ranks in dictionaries and lists, some of them empty."""

    def array(name):
        numbers = rng.normal(size=SHAPES[name]).astype(np.float32)
        return mx.array(np.abs(numbers) if positive else numbers)

    return {"list": [array(n) for n in "abc"], "deep": {n: array(n) for n in "def"}, "none": []}


def example(name, seed=0):
    """Weights, gradients, and a state in the middle of a run."""
    rng = np.random.default_rng(seed)
    weights, grads = tree(rng), tree(rng)
    state = {
        part: tree(rng, positive=part != "momentum") if named(first)[0][0] else mx.array(3.0)
        for part, first in optimizers.find(name).init(weights).items()
    }
    return weights, grads, state


def arrays(*trees: Tree) -> list[np.ndarray]:
    return [np.array(array) for one in trees for _, array in named(one)]


def a_step(name, example, loss=1.0, max_norm=1.5, lr=0.1):
    """New weights and state as arrays, and whether they count."""
    weights, grads, state = example
    train = config.load("default", [*DECAY, "--train.max-grad-norm", str(max_norm)]).train
    step = optimizers.find(name).step
    *new, made = step(weights, grads, state, mx.array(loss), mx.array(lr), train)
    for now, before in zip(new, (weights, state), strict=True):
        assert [(n, a.shape, a.dtype) for n, a in named(now)] == [
            (n, a.shape, mx.float32) for n, a in named(before)
        ]
    assert new[0]["none"] == [] and made.dtype == mx.bool_ and made.shape == ()
    return arrays(*new), made.item()


@each
@pytest.mark.parametrize("max_norm", [1.5, 1e3])  # clipped and not
def test_a_step_is_the_same_on_the_extension(extension, monkeypatch, name, max_norm):
    found = []
    for threads in (1, 3):
        extension.set_threads(threads)
        found.append(a_step(name, example(name), max_norm=max_norm))
    assert extension.has_gemm() == (ops.extension_with_products() is not None)
    monkeypatch.setattr(cpu_extension, "load", lambda: None)
    plain, made = a_step(name, example(name), max_norm=max_norm)
    assert made
    for new, counted in found:
        assert counted
        for one, other in zip(new, plain, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=3e-6)
    (one, _), (three, _) = found
    for alone, together in zip(one, three, strict=True):
        np.testing.assert_array_equal(alone, together)


@each
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("where", ["loss", "gradient", "one that overflows"])
def test_a_step_that_is_not_finite_changes_nothing(monkeypatch, name, plain, where):
    if plain:
        monkeypatch.setattr(cpu_extension, "load", lambda: None)
    weights, grads, state = example(name)
    if where != "loss":
        bad = np.array(grads["deep"]["e"])
        bad[7, 100] = np.nan if where == "gradient" else 3e38
        grads["deep"]["e"] = mx.array(bad)
    loss = math.inf if where == "loss" else 1.0
    new, made = a_step(name, (weights, grads, state), loss=loss)
    assert not made
    for one, other in zip(new, arrays(weights, state), strict=True):
        np.testing.assert_array_equal(one, other)


# ---- the clip, by hand arithmetic ----------------------------------------------------------------


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
