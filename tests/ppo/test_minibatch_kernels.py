"""What a minibatch does around its gradients, on a GPU: kernels run as C++, called as users do.

`targets`, `draw` and `gather` of a minibatch: against plain MLX, which other
tests hold against float64 and hand arithmetic.
"""

import importlib
import sys
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_gpu import Functions
from running import ROOT

from puffer_mlx import ops
from puffer_mlx.ops import cpu_extension
from puffer_mlx.ppo import priority
from puffer_mlx.ppo.advantage import Discounts, advantages, after_minibatch

sys.path.append(str(ROOT / "benchmarks"))
Graphs = importlib.import_module("graphs_of_a_gpu").Graphs

HYPER = {"gamma": 0.97, "gae_lambda": 0.9, "rho_clip": 1.1, "c_clip": 0.9}
BACKENDS = ("metal", "cuda")


def plainly(function, *arrays):
    """What plain MLX computes, as NumPy arrays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_extension, "load", lambda: None)
        return [np.array(a) for a in function(*map(mx.array, arrays))]


# ---- advantages ----------------------------------------------------------------------------------

VARIANTS = [(form, ends, boot) for form in "VS" for ends, boot in ((0, 1), (1, 0), (1, 1))]
LOW = {"float16": mx.float16, "bfloat16": mx.bfloat16}
SHAPES = {1: (1, 3), 2: (2, 33), 9: (9, 40), 37: (37, 7)}  # T: steps are read 16 at a time


def series(T, ends, seed=0):
    """values, rewards, terminals, ratios, and finals if episodes' ends have rows."""
    rng, shape = np.random.default_rng(seed), SHAPES[T]
    found = [
        rng.normal(size=shape),
        rng.normal(size=shape) * 2,
        rng.random(shape) < 0.15,
        rng.lognormal(0, 0.5, size=shape),
    ]
    if ends:
        found.append(rng.choice([0, 0, 0, 1, 2], size=shape))
    return [array.astype(np.float32) for array in found]


def advantages_of(form, boot, reward_clip=1.0):
    def function(values, rewards, terminals, ratios=None, finals=None):
        return [
            advantages(
                *(values, rewards, terminals, ratios),
                **HYPER,
                reward_clip=reward_clip,
                form=form,
                finals=finals,
                bootstrap=bool(boot),
            )
        ]

    return function


@pytest.fixture(scope="module", params=BACKENDS)
def advantages_on_gpu(request, tmp_path_factory):
    cases = {
        (T, *variant): (advantages_of(variant[0], variant[2]), *series(T, variant[1]))
        for T in SHAPES
        for variant in VARIANTS
        if T == 9 or variant == ("V", 1, 1)
    }
    cases |= {form: (advantages_of(form, 1), *series(9, 0)[:3]) for form in "VS"}
    values, *rest = map(mx.array, series(9, 0))
    cases |= {n: (advantages_of("V", 1), values.astype(low), *rest) for n, low in LOW.items()}
    return Functions(request.param, tmp_path_factory.mktemp("kernels"), cases)


def test_advantages_on_gpu_equal_float64_and_plain_mlx(advantages_on_gpu):
    for case in [(9, *variant) for variant in VARIANTS] + [(T, "V", 1, 1) for T in (1, 2, 37)]:
        T, form, ends, boot = case
        arrays = series(T, ends, seed=7)
        (found,) = advantages_on_gpu.run(case, *arrays)
        (expected,) = plainly(advantages_of(form, boot), *arrays)
        np.testing.assert_allclose(found, expected, rtol=0, atol=4e-6, err_msg=str(case))
        assert not found[-1].any()
        if not ends:
            arrays[1] = arrays[1].clip(-1, 1)
            oracle = oracles.advantages(arrays, [float(x) for x in HYPER.values()], form)
            np.testing.assert_allclose(found, oracle, rtol=0, atol=4e-6, err_msg=str(case))


def test_advantages_without_ratios_and_of_16_bits_equal_plain_mlx(advantages_on_gpu):
    arrays = series(9, 0, seed=7)
    for form in "VS":
        (found,) = advantages_on_gpu.run(form, *arrays[:3])
        (expected,) = plainly(advantages_of(form, 1), *arrays[:3], np.ones_like(arrays[0]))
        np.testing.assert_allclose(found, expected, rtol=0, atol=4e-6)
    for name, dtype in LOW.items():
        values = mx.array(arrays[0]).astype(dtype)
        (found,) = advantages_on_gpu.run(name, values, *arrays[1:])
        (expected,) = plainly(advantages_of("V", 1), values.astype(mx.float32), *arrays[1:])
        np.testing.assert_allclose(found, expected, rtol=0, atol=4e-6)


def test_advantages_keep_nan(advantages_on_gpu):
    for place in range(4):
        arrays = series(9, 0)
        arrays[2][:] = 0
        arrays[place][4, 5] = np.nan
        (found,) = advantages_on_gpu.run((9, "V", 0, 1), *arrays)
        (expected,) = plainly(advantages_of("V", 1), *arrays)
        assert np.isnan(expected[:, 5]).any()
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


def test_advantages_with_infinite_bound_do_not_clip_rewards(advantages_on_gpu):
    _, *rest = arrays = series(9, 0)
    arrays = [np.zeros_like(rest[0]), 5 * np.ones_like(rest[0]), np.zeros_like(rest[0]), rest[2]]
    (found,) = advantages_on_gpu.run(
        (9, "V", 0, 1), *arrays, function=advantages_of("V", 1, np.inf)
    )
    (expected,) = plainly(advantages_of("V", 1, np.inf), *arrays)
    (clipped,) = plainly(advantages_of("V", 1), *arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(expected, 5 * clipped, rtol=1e-6)


# ---- the draw ------------------------------------------------------------------------------------

DRAWS = {  # T, N, S: four steps of eight agents are read at a time, by 512 threads, 256 on Metal
    "one": (1, 1, 1),
    "few": (5, 37, 700),
    "shares": (39, 1301, 300),
    "whole": (16, 1024, 513),
}
ALPHA = 0.8


def draw_case(T, N, S, seed=0):
    """adv, uniforms, beta."""
    rng = np.random.default_rng(seed)
    adv = rng.normal(size=(T, N)).astype(np.float32) ** 3
    uniforms = (1 - rng.random(S)).astype(np.float32)
    uniforms[-2:] = (1.0, 1e-9)[-S:]
    return adv, uniforms, np.float32(0.4)


def choose(adv, uniforms, beta):
    return priority.choose(adv, uniforms, beta, ALPHA)


@pytest.fixture(scope="module", params=BACKENDS)
def draw_on_gpu(request, tmp_path_factory):
    cases: dict[str, Any] = {name: (choose, *draw_case(*shape)) for name, shape in DRAWS.items()}
    return Functions(request.param, tmp_path_factory.mktemp("kernels"), cases)


def check_draw(found, adv, uniforms, beta):
    """Rows and weights are plain MLX's but where rounding decides."""
    rows, weights = found[:2]
    plain, importance = plainly(choose, adv, uniforms, beta)
    p = oracles.probabilities(adv, ALPHA)
    assert rows.dtype == np.int32 and rows.min() >= 0 and rows.max() < len(p)
    same = rows == plain
    assert same.mean() > 0.99 and np.abs(rows - plain).max() <= 1
    np.testing.assert_allclose(weights[same], importance[same], rtol=1e-5)
    np.testing.assert_allclose(weights, (len(p) * p[rows]) ** -np.float64(beta), rtol=1e-5)
    cdf = np.cumsum(p)
    reached = np.append(0, cdf)
    assert (uniforms <= cdf[rows] + 1e-6).all() or rows.max() == len(p) - 1
    assert (uniforms >= reached[rows] - 1e-6).all()


def test_draw_equals_plain_mlx(draw_on_gpu):
    for name, (_, N, _) in DRAWS.items():
        adv, uniforms, beta = draw_case(*DRAWS[name], seed=3)
        check_draw(draw_on_gpu.run(name, adv, uniforms, beta), adv, uniforms, beta)
        rows, *_ = draw_on_gpu.run(name, adv, uniforms * 0 + 1.5, beta)
        np.testing.assert_array_equal(rows, N - 1)  # the last row takes what none reaches


def test_draw_ignores_advantages_that_are_not_finite(draw_on_gpu):
    adv, uniforms, beta = draw_case(*DRAWS["shares"])
    for bad in (np.nan, np.inf, -np.inf):
        adv[7, 20] = bad
        check_draw(draw_on_gpu.run("shares", adv, uniforms, beta), adv, uniforms, beta)


def test_draw_without_advantages_and_with_one_row_of_them(draw_on_gpu):
    """Without advantages every p is 1: all uniforms draw the first row, its weight is 37^-.4."""
    adv, uniforms, beta = draw_case(*DRAWS["few"])
    rows, weights, *_ = draw_on_gpu.run("few", adv * 0, uniforms, beta)
    np.testing.assert_array_equal(rows, 0)
    np.testing.assert_allclose(weights, 37**-0.4, rtol=1e-6)
    adv, uniforms, beta = draw_case(*DRAWS["shares"])
    for agent in (0, 2, 3, 1300):  # at either end of a thread's share of three, and the last
        one = np.where(np.arange(1301) == agent, adv * 1e6, 0).astype(np.float32)
        rows, *_ = draw_on_gpu.run("shares", one, uniforms.clip(0.01, 0.99), beta)
        np.testing.assert_array_equal(rows, agent)


def test_uniform_at_a_cumulative_sum_draws_its_row(draw_on_gpu):
    """Advantages of 2^36 in 16 steps: 2^40, to the power .8 2^32. 1024 rows: p is 2^-10."""
    adv, uniforms, beta = draw_case(*DRAWS["whole"])
    rows = np.arange(1024)[-len(uniforms) :]
    reached = ((rows + 1) / 1024).astype(np.float32)
    found, weights, *_ = draw_on_gpu.run("whole", adv * 0 + 2.0**36, reached, beta)
    np.testing.assert_array_equal(found, rows)
    np.testing.assert_array_equal(weights, 1)
    above = np.nextafter(reached, np.float32(2))
    found, *_ = draw_on_gpu.run("whole", adv * 0 + 2.0**36, above, beta)
    np.testing.assert_array_equal(found, (rows + 1).clip(0, 1023))


# ---- gathers, and writing back -------------------------------------------------------------------

T, N, S = 11, 75, 90  # 90 rows of 75: some are drawn twice
FIELDS = {  # dtype, what follows (T, N): words and bytes, fewer than 32 of them and more
    "terminals": (np.float32, ()),
    "actions": (np.float32, (3,)),
    "floats": (np.float32, (5, 8)),
    "wide": (np.float32, (167,)),
    "masks": (np.uint8, (7,)),
    "pixels": (np.uint8, (2, 6)),
    "coordinates": (np.int16, (3,)),
    "flags": (np.bool_, ()),
    "doubled": (np.int64, (2,)),
}
STEPS = {"wide": 2, "floats": 2}  # a thread of the machine's stands for each of a GPU's


# Of four bytes, one and two; and more arrays than a launch has.
TOGETHER = [("floats", "masks"), ("actions", "coordinates", "masks", "doubled", "terminals")]


def several(*arrays):
    *sources, rows = arrays
    return ops.take_several(sources, rows, 2)


def rows_of(seed=0):
    return np.random.default_rng(seed).integers(0, N, S).astype(np.int32)


def field(name, seed=0):
    """An array with the row that the next rollout begins with, and the steps that are taken."""
    dtype, tail = FIELDS[name]
    steps = STEPS.get(name, 4)
    numbers = np.random.default_rng(seed).integers(0, 250, (steps + 1, N, *tail))
    return numbers.astype(dtype), steps


def taken(name):
    steps = field(name)[1]
    return lambda source, rows: [ops.take_rows(source, rows, steps)]


def grids(seed=0):
    """values, ratios, logprobs, adv, finals: (T, N)."""
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(T, N)).astype(np.float32) for _ in range(4)]
    return [*arrays, rng.choice([0, 0, 1, 2], (T, N)).astype(np.float32)]


def put_case(ok, seed=0):
    rows = rows_of(seed)
    new = np.random.default_rng(seed + 1).normal(size=(2, T, S)).astype(np.float32)
    return [*grids(seed)[:2], rows, *new, np.float32(ok)]


def targets(logprobs, values, adv, rows, weights, finals=None):
    return ops.take_targets(logprobs, values, adv, finals, rows, weights)


NUMBERS = Discounts(*HYPER.values(), reward_clip=1.0)


def after(values, *back, vtrace=True):
    """New values and ratios, advantages, and sums of their magnitudes."""
    ratios, *back, rewards, terminals, finals = back
    fields = {"rewards": rewards, "terminals": terminals, "finals": finals}
    *new, totals = after_minibatch(fields, values, ratios, tuple(back), NUMBERS, vtrace)
    return [*new, mx.sum(mx.abs(totals), axis=0)]


def after_case(ok, seed=0):
    rng = np.random.default_rng(seed + 3)
    terminals = (rng.random((T + 1, N)) < 0.1).astype(np.float32)
    rewards = rng.normal(size=(T + 1, N)).astype(np.float32)
    return [*put_case(ok, seed), rewards, terminals, grids(seed)[-1]]


def target_case(ends, seed=0):
    values, _, logprobs, adv, finals = grids(seed)
    weights = np.random.default_rng(seed + 2).random(S).astype(np.float32)
    return [logprobs, values, adv, rows_of(seed), weights, *([finals] if ends else [])]


@pytest.fixture(scope="module", params=BACKENDS)
def rows_on_gpu(request, tmp_path_factory):
    cases: dict[str, Any] = {name: (taken(name), field(name)[0], rows_of()) for name in FIELDS}
    cases |= {f"targets {ends}": (targets, *target_case(ends)) for ends in (0, 1)}
    for names in TOGETHER:
        cases[names] = (several, *(field(name)[0] for name in names), rows_of())
    for vtrace in True, False:
        cases[f"after {vtrace}"] = (partial(after, vtrace=vtrace), *after_case(1))
    return Functions(request.param, tmp_path_factory.mktemp("kernels"), cases)


def test_take_rows_equals_numpy(rows_on_gpu):
    for name, (dtype, tail) in FIELDS.items():
        source, steps = field(name, seed=2)
        (found,) = rows_on_gpu.run(name, source, rows_of(2))
        assert found.shape == (steps, S, *tail) and found.dtype == dtype
        assert found.tobytes() == np.ascontiguousarray(source[:steps, rows_of(2)]).tobytes(), name


@pytest.mark.parametrize("names", TOGETHER)
def test_take_several_equals_numpy(rows_on_gpu, names):
    given = [field(name, seed=3) for name in names]
    found = rows_on_gpu.run(names, *(source for source, _ in given), rows_of(3))
    for (source, _), array in zip(given, found, strict=True):
        wanted = source[:2, rows_of(3)]
        assert array.dtype == source.dtype and array.shape == wanted.shape
        np.testing.assert_array_equal(array, wanted)


def test_gathers_clip_rows_that_are_out_of_range(rows_on_gpu):
    rows = rows_of()
    rows[:4] = -1, N, 2**31 - 1, -(2**31)
    inside = rows.clip(0, N - 1)
    for name in ("actions", "masks"):
        source, steps = field(name)
        (found,) = rows_on_gpu.run(name, source, rows)
        np.testing.assert_array_equal(found, source[:steps, inside].reshape(found.shape))
    logprobs, values, adv, _, weights = target_case(0)
    found = rows_on_gpu.run("targets 0", logprobs, values, adv, rows, weights)
    np.testing.assert_array_equal(found[2], adv[:, inside].ravel())


@pytest.mark.parametrize("ends", [0, 1])
def test_take_targets_equals_numpy(rows_on_gpu, ends):
    arrays = target_case(ends, seed=4)
    *found, moments = rows_on_gpu.run(f"targets {ends}", *arrays)
    count, mean, squares = moments.astype(np.float64)
    adv = arrays[2][:, arrays[3]].ravel().astype(np.float64)
    assert count.sum() == adv.size and len(count) == -(-adv.size // 256)
    whole = (count * mean).sum() / adv.size
    spread = squares.sum() + (count * (mean - whole) ** 2).sum()
    np.testing.assert_allclose([whole, spread], [adv.mean(), adv.size * adv.var()], rtol=1e-5)
    for ours, expected in zip(found, plainly(targets, *arrays), strict=True):
        assert ours.shape == (T * S,)
        np.testing.assert_array_equal(ours, expected)
    logprobs, _, _, rows, weights, *finals = arrays
    np.testing.assert_array_equal(found[0], logprobs[:, rows].ravel())
    weight = np.broadcast_to(weights, (T, S))
    if ends:
        weight = np.where(finals[0][:, rows] > 0, 0, weight)
    np.testing.assert_array_equal(found[3], weight.ravel())


@pytest.mark.parametrize("ok", [1, 0])
def test_put_rows_writes_the_last_of_repeated_rows(ok):
    arrays = put_case(ok, seed=5)
    values, ratios, rows, new_values, new_ratios, _ = arrays
    assert len(set(rows)) < S
    expected = [values.copy(), ratios.copy()]
    for s, row in enumerate(rows if ok else []):  # so the last one counts
        expected[0][:, row], expected[1][:, row] = new_values[:, s], new_ratios[:, s]
    for found, oracle in zip(plainly(ops.put_rows, *arrays), expected, strict=True):
        np.testing.assert_array_equal(found, oracle)


@pytest.mark.parametrize(("ok", "vtrace"), [(1, True), (1, False), (0, True)])
def test_advantages_after_a_minibatch_equal_plain_mlx(rows_on_gpu, ok, vtrace):
    arrays = after_case(ok, seed=6)
    found = rows_on_gpu.run(f"after {vtrace}", *arrays)
    expected = plainly(partial(after, vtrace=vtrace), *arrays)
    for ours, plain in zip(found[:2], expected, strict=False):
        np.testing.assert_array_equal(ours, plain)
    for ours, plain in zip(found[2:], expected[2:], strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-6, atol=4e-6)
