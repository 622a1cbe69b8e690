"""All implementations of every optimizer against float64."""

import math

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_run import alternate, emulated_gpu

from puffer_mlx.config.schema import OPTIMIZERS
from puffer_mlx.ops import cpu_extension
from puffer_mlx.ops.implementation import COMPARING_VARIABLE
from puffer_mlx.ppo import optimizers
from puffer_mlx.ppo.optimizers import clip_by_global_norm, muon
from puffer_mlx.trees import named_arrays

SHAPES = {
    "tall, wide, square": ((20, 3), (3, 20), (6, 6)),
    "all ranks": ((5,), (4, 9), (6, 2, 3, 2), (1, 7), (9, 1), (1, 1), (1030,)),
    "a block's largest": ((64, 256), (70, 33)),
    "in groups": ((65, 3, 23), (70, 3), (7,), (72, 136), (136, 72)),
    "of bf16": ((65, 3, 23), (7,), (136, 72)),
    "of a cluster": ((130, 72), (7,), (72, 136), (2, 3)),
    "many": tuple((2, n + 1) for n in range(9)),
}
LAUNCHES = {("muon", "many"): 3}  # else 2
LAUNCHES |= {("muon", case): 18 for case in ("in groups", "of bf16")}
LAUNCHES["muon", "of a cluster"] = 18
BETAS = {"adam": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-5}, "muon": {"beta1": 0.9}}
MOMENTS = {"adam": ("momentum", "second_moment"), "muon": ("momentum",)}
CASES = [
    *(("muon", case) for case in SHAPES),
    ("adam", "all ranks"),
]
LR, STEPS = 0.1, 3


def drawn(name, case):
    """Return random weights, gradients and moments for an optimizer's step."""
    rng, count = np.random.default_rng(0), 2 + len(MOMENTS[name])
    trees = [[rng.normal(size=s).astype(np.float32) for s in SHAPES[case]] for _ in range(count)]
    return trees if name == "muon" else [*trees[:3], [np.abs(v) for v in trees[3]]]


def arguments(trees, loss=1.0, lr=LR, steps=STEPS):
    return [*(a for tree in trees for a in tree), np.float32(steps), np.float32(lr), loss]


def stepping(name, case, max_norm=1.5, decay=0.3, **betas):
    """Return a function that computes an optimizer's step from a flat list of arrays."""
    numbers = {**BETAS[name], "max_grad_norm": max_norm, "weight_decay": decay, **betas}
    numbers |= {"low": True} if case == "of bf16" else {}
    count, kinds = len(SHAPES[case]), MOMENTS[name]

    def step(*arrays):
        *_, steps, lr, loss = arrays
        parts = [list(arrays[k * count :][:count]) for k in range(2 + len(kinds))]
        trees = [{"none": [], "list": part[:1], "deep": {"rest": part[1:]}} for part in parts]
        state = dict(zip(kinds, trees[2:], strict=True))
        state |= {"step": steps} if name == "adam" else {}
        given = *trees[:2], state
        weights, state, ok = optimizers.find_optimizer(name).step(*given, loss, lr, **numbers)
        assert weights["none"] == [] and ok.shape == () and weights.keys() == trees[0].keys()
        return [array for _, array in named_arrays([weights, state])] + [ok]

    return step


FORMS = pytest.mark.parametrize("form", ["fused", "pure", "metal", "cuda"], indirect=True)


@pytest.fixture
def form(request, monkeypatch):
    """Return a function that computes an optimizer's step with one of several implementations."""
    if request.param == "pure":
        monkeypatch.setattr(cpu_extension, "load_extension", lambda: None)
    elif request.param == "fused" and cpu_extension.load_extension() is None:
        pytest.skip("the extension can't be built here")

    def run(name, case, trees, loss=1.0, lr=LR, steps=STEPS, **numbers):
        """Compute an optimizer's step with this implementation.

        Returns new weights and moments, the number of steps, and 1 if the step counts.
        """
        step, given = stepping(name, case, **numbers), arguments(trees, loss, lr, steps)
        if request.param in ("metal", "cuda"):
            if name == "adam":
                pytest.skip("Adam has no kernel")
            with emulated_gpu(backend=request.param, checked=True) as gpu:
                found = [np.array(a) for a in step(*map(mx.array, given))]
            assert len(gpu.launches) == LAUNCHES.get((name, case), 2)
        else:
            found = [np.array(a) for a in step(*map(mx.array, given))]
        *arrays, ok = found
        assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
        count, made = len(SHAPES[case]), arrays.pop() if name == "adam" else np.array(steps)
        return [arrays[k : k + count] for k in range(0, len(arrays), count)], made.item(), ok

    return run


def check(
    form, name, case, trees, bound=5e-6, lr=LR, steps=STEPS, max_norm=1.5, rounded=None, **numbers
):
    """Compare an optimizer's step with the float64 oracle."""
    found, made, ok = form(name, case, trees, lr=lr, steps=steps, max_norm=max_norm, **numbers)
    assert ok == 1
    rounded = case == "of bf16" if rounded is None else rounded
    weights, grads, *moments = [[oracles.f64(a) for a in tree] for tree in trees]
    decay, beta = numbers.get("decay", 0.3), numbers.get("beta1", 0.9)
    if name == "muon":
        expected = oracles.muon(weights, grads, moments[0], lr, beta, max_norm, decay)
    else:
        assert made == np.float32(steps) + np.float32(1)
        betas = beta, numbers.get("beta2", 0.999)
        given = weights, grads, (*moments, steps), lr, betas, 1e-5, max_norm, decay
        after, (*moments, _) = oracles.adam(*given)
        expected = after, *moments
    for ours, theirs, before in zip(found, expected, (weights, *moments), strict=True):
        for one, other, old in zip(ours, theirs, before, strict=True):
            low = rounded and ours is found[0] and one.ndim > 1
            most = 0.02 * np.abs(other - old).max() if low else bound
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=most)


RUNS = [("fused", *run) for run in CASES] + alternate(CASES[:-1])
RUNS += [("pure", "muon", "all ranks"), ("pure", "adam", "all ranks")]
RUNS += [("cuda", "muon", "a block's largest")]  # a kernel that Metal's blocks have no room for


@pytest.mark.parametrize(("form", "name", "case"), RUNS, indirect=["form"])
def test_step_equals_float64(form, name, case):
    for max_norm, decay in ((0.5, 0.3), (1e3, 0.0)):  # clipped and not
        check(form, name, case, drawn(name, case), max_norm=max_norm, decay=decay)


@pytest.mark.parametrize(
    ("form", "beta1", "beta2", "steps"),
    [
        *(("fused", 0.9, 0.999, 0), ("pure", 0.0, 0.0, 3), ("fused", 0.95, 0.99999, 700)),
        *(("pure", 0.95, 0.99999, 3), ("fused", 0.9, 0.999, 2**24)),
    ],
    indirect=["form"],
)
def test_adam_corrects_its_moments_at_every_step(form, beta1, beta2, steps):
    betas = {"beta1": beta1, "beta2": beta2, "steps": steps}
    check(form, "adam", "all ranks", drawn("adam", "all ranks"), lr=0.01, **betas)


WRONG = {"nan": math.nan, "overflow": 3e38}  # else the loss


@pytest.mark.parametrize(
    ("form", "name", "case", "wrong"),
    [
        *(("fused", "adam", "all ranks", "loss"), ("fused", "adam", "all ranks", "nan")),
        *(("pure", "adam", "all ranks", "nan"), ("fused", "muon", "all ranks", "loss")),
        *(
            ("fused", "muon", "all ranks", "overflow"),
            ("pure", "muon", "in groups", "nan"),
        ),
        *(("metal", "muon", "all ranks", "loss"), ("metal", "muon", "in groups", "nan")),
        *(
            ("cuda", "muon", "all ranks", "overflow"),
            ("cuda", "muon", "in groups", "loss"),
        ),
    ],
    indirect=["form"],
)
def test_step_that_is_not_finite_changes_nothing(form, name, case, wrong):
    trees = drawn(name, case)
    if wrong != "loss":
        trees[1][2].flat[-1] = WRONG[wrong]
    found, made, ok = form(name, case, trees, 1.0 if wrong in WRONG else math.nan)
    assert (made, ok) == (STEPS, 0)
    for ours, before in zip(found, (trees[0], *trees[2:]), strict=True):
        for one, other in zip(ours, before, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("backend", "low", "blocks"), [("metal", False, 1), ("cuda", True, 1), ("cuda", True, 8)]
)
def test_muon_by_a_cluster_equals_float64(backend, low, blocks, tmp_path, monkeypatch, request):
    if blocks == 1:
        monkeypatch.setenv(
            COMPARING_VARIABLE, "1"
        )  # the kernels are used in spite of the changes here
        monkeypatch.setattr(muon, "BLOCK_ROWS", 1000)
        monkeypatch.setattr(muon, "shared_pool_limits", lambda: (512, 0))
    request.addfinalizer(muon.tensor_layout.cache_clear)
    muon.tensor_layout.cache_clear()
    case, trees = "of a cluster", drawn("muon", "of a cluster")
    step = stepping("muon", case, low=low)

    def form(*_, loss=1.0, **__):
        given = map(mx.array, arguments(trees, loss))
        with emulated_gpu(backend=backend, checked=True, cluster=blocks) as gpu:
            found = [np.array(array) for array in step(*given)]
        assert gpu.launches == ["pack", "muon_by_cluster"]
        count = len(SHAPES[case])
        return [found[:count], found[count:-1]], STEPS, found[-1]

    check(form, "muon", case, trees, rounded=low)
    found, _, ok = form(loss=math.nan)
    assert ok == 0
    for ours, before in zip(found, (trees[0], trees[2]), strict=True):
        for one, other in zip(ours, before, strict=True):
            np.testing.assert_array_equal(one, other)


@FORMS
def test_muon_without_gradient_and_momentum_only_decays(form):
    weights, *others = drawn("muon", "in groups")
    trees = [weights, *([np.zeros_like(a) for a in tree] for tree in others)]
    check(form, "muon", "in groups", trees)


@pytest.mark.parametrize("form", ["fused", "cuda"], indirect=True)
def test_muon_does_not_scale_up_norms_below_1e_7(form):
    trees, lr = drawn("muon", "tall, wide, square"), 1e3
    for tree in trees[1:]:
        tree[:] = [a * np.float32(1e-10) for a in tree]
    (found, _), _, _ = form("muon", "tall, wide, square", trees, decay=0.0, lr=lr)
    weights, grads, momentum = [[oracles.f64(a) for a in tree] for tree in trees]
    expected, _ = oracles.muon(weights, grads, momentum, lr, 0.9, 1.5)
    for one, other, before in zip(found, expected, trees[0], strict=True):
        assert np.abs(other - before).max() > 100
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_does_not_depend_on_threads(extension, name):
    case, found = "a block's largest", []
    step, given = stepping(name, case), [*map(mx.array, arguments(drawn(name, case)))]
    for threads in (1, 3):
        extension.set_threads(threads)
        found.append([np.array(a) for a in step(*given)])
    for alone, together in zip(*found, strict=True):
        np.testing.assert_array_equal(alone, together)


# ---- the clip, by hand arithmetic ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "expected"),
    # norm of (3, 4) * scale is 5 * scale; g * min(1, 2 / (norm + 1e-6))
    [(0.2, (0.6, 0.8)), (1.0, (1.1999998, 1.5999997)), (0.0, (0, 0))],
)
def test_clip_scales_gradients_above_the_norm(scale, expected):
    grads = {"a": mx.array([3.0 * scale]), "b": {"c": mx.array([[4.0 * scale]])}}
    clipped, norm = clip_by_global_norm(grads, 2.0)
    assert norm.item() == pytest.approx(5 * scale)
    found = clipped["a"].item(), clipped["b"]["c"].item()
    assert found == pytest.approx(expected, abs=1e-7)


def test_clip_adds_a_millionth_to_the_norm():
    # 1e-6 / (1e-6 + 1e-6) = 1/2
    clipped, _ = clip_by_global_norm([mx.array([1e-6])], 1e-6)
    assert clipped[0].item() == pytest.approx(0.5e-6, rel=1e-4)
