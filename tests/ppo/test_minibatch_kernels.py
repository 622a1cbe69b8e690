"""Kernels of advantages, draws and gathers, run as C++, against plain MLX and NumPy."""

from functools import partial

import mlx.core as mx
import numpy as np
import oracles
import pytest
from emulated_run import alternate, on_gpu

from puffer_mlx import ops
from puffer_mlx.ops import cpu_extension
from puffer_mlx.ppo import priority
from puffer_mlx.ppo.advantage import Discounts, advantages, after_minibatch

HYPER = {"gamma": 0.97, "gae_lambda": 0.9, "rho_clip": 1.1, "c_clip": 0.9}
BACKENDS = pytest.mark.parametrize("backend", ["metal", "cuda"])


def plainly(function, *arrays):
    """Call a function without the CPU extension; return its results as NumPy arrays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_extension, "load_extension", lambda: None)
        return [np.array(a) for a in function(*map(mx.array, arrays))]


# ---- advantages ----------------------------------------------------------------------------------

SHAPES = {1: (1, 3), 2: (2, 33), 9: (9, 40), 37: (37, 7)}  # T: steps are read 16 at a time


def series(T, ends, seed=0):
    """Return random values, rewards, terminals and ratios of a rollout.

    With ``ends``, also final_observations.
    """
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


def advantages_of(form, boot):
    def function(values, rewards, terminals, ratios=None, final_observations=None):
        return [
            advantages(
                *(values, rewards, terminals, ratios),
                **HYPER,
                reward_clip=1.0,
                formula=form,
                final_observations=final_observations,
                bootstrap=bool(boot),
            )
        ]

    return function


@pytest.mark.parametrize(
    ("backend", "T", "form", "ends", "boot"),
    [
        *(("metal", 9, "V", 0, 1), ("cuda", 9, "S", 0, 1), ("metal", 9, "V", 1, 0)),
        *(("cuda", 9, "S", 1, 1), ("metal", 1, "V", 1, 1), ("cuda", 2, "S", 1, 0)),
        *(("metal", 37, "S", 0, 1), ("cuda", 37, "V", 1, 1)),
    ],
)
def test_advantages_on_gpu_equal_float64_and_plain_mlx(backend, T, form, ends, boot):
    arrays = series(T, ends, seed=7)
    (found,) = on_gpu(backend, advantages_of(form, boot), *arrays)
    (expected,) = plainly(advantages_of(form, boot), *arrays)
    np.testing.assert_allclose(found, expected, rtol=0, atol=4e-6)
    assert not found[-1].any()
    if not ends:
        arrays[1] = arrays[1].clip(-1, 1)
        oracle = oracles.advantages(arrays, [float(x) for x in HYPER.values()], form)
        np.testing.assert_allclose(found, oracle, rtol=0, atol=4e-6)


@pytest.mark.parametrize(
    ("backend", "form", "dtype"), [("metal", "V", mx.bfloat16), ("cuda", "S", mx.float16)]
)
def test_advantages_of_16_bit_values_without_ratios_equal_plain_mlx(backend, form, dtype):
    values, *arrays, _ = series(9, 0, seed=7)
    low = mx.array(values).astype(dtype)
    (found,) = on_gpu(backend, advantages_of(form, 1), low, *arrays)
    ones = np.ones_like(values)
    (expected,) = plainly(advantages_of(form, 1), low.astype(mx.float32), *arrays, ones)
    np.testing.assert_allclose(found, expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize(("backend", "place"), [("metal", 0), ("cuda", 3)])
def test_advantages_keep_nan(backend, place):
    arrays = series(9, 0)
    arrays[2][:] = 0
    arrays[place][4, 5] = np.nan
    (found,) = on_gpu(backend, advantages_of("V", 1), *arrays)
    (expected,) = plainly(advantages_of("V", 1), *arrays)
    assert np.isnan(expected[:, 5]).any()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))


# ---- the draw ------------------------------------------------------------------------------------

DRAWS = {  # T, N, S: four steps of eight agents are read at a time, by 512 threads, 256 on Metal
    "one": (1, 1, 1),
    "few": (5, 37, 700),
    "shares": (39, 1301, 300),
    "whole": (16, 1024, 513),
}
ALPHA = 0.8


def draw_case(T, N, S, seed=0):
    """Return random inputs for drawing segments: advantages, uniform numbers, and beta."""
    rng = np.random.default_rng(seed)
    adv = rng.normal(size=(T, N)).astype(np.float32) ** 3
    uniforms = (1 - rng.random(S)).astype(np.float32)
    uniforms[-2:] = (1.0, 1e-9)[-S:]
    return adv, uniforms, np.float32(0.4)


def choose(adv, uniforms, beta):
    return priority.choose_segments(adv, uniforms, beta, ALPHA)


def check_draw(found, adv, uniforms, beta):
    """Check drawn segments and their weights against plain MLX, except where rounding decides."""
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


@pytest.mark.parametrize(("backend", "name"), alternate((name,) for name in DRAWS))
def test_draw_equals_plain_mlx(backend, name):
    adv, uniforms, beta = draw_case(*DRAWS[name], seed=3)
    check_draw(on_gpu(backend, choose, adv, uniforms, beta), adv, uniforms, beta)
    rows, *_ = on_gpu(backend, choose, adv, uniforms * 0 + 1.5, beta)
    np.testing.assert_array_equal(rows, adv.shape[1] - 1)  # the last row takes the rest


@pytest.mark.parametrize(("backend", "bad"), [("metal", np.nan), ("cuda", -np.inf)])
def test_draw_ignores_advantages_that_are_not_finite(backend, bad):
    adv, uniforms, beta = draw_case(*DRAWS["shares"])
    adv[7, 20] = bad
    check_draw(on_gpu(backend, choose, adv, uniforms, beta), adv, uniforms, beta)


@pytest.mark.parametrize(  # at either end of a thread's share of three, and the last
    ("backend", "agent"), [("metal", 0), ("cuda", 2), ("metal", 1300)]
)
def test_draw_takes_the_only_row_with_advantages(backend, agent):
    adv, uniforms, beta = draw_case(*DRAWS["shares"])
    one = np.where(np.arange(1301) == agent, adv * 1e6, 0).astype(np.float32)
    rows, *_ = on_gpu(backend, choose, one, uniforms.clip(0.01, 0.99), beta)
    np.testing.assert_array_equal(rows, agent)


# ---- gathers, and writing back -------------------------------------------------------------------

T, N, S = 11, 75, 90  # 90 rows of 75: some are drawn twice
FIELDS = {  # dtype, what follows (T, N): words and bytes, fewer than 32 of them and more
    "actions": (np.float32, (3,)),
    "wide": (np.float32, (167,)),
    "masks": (np.uint8, (7,)),
    "pixels": (np.uint8, (2, 6)),
    "coordinates": (np.int16, (3,)),
    "flags": (np.bool_, ()),
    "doubled": (np.int64, (2,)),
}
STEPS = {"wide": 2}  # a thread of the machine's stands for each of a GPU's


TOGETHER = "actions", "coordinates", "masks", "doubled", "flags"  # more than a launch takes


def several(*arrays):
    *sources, rows = arrays
    return ops.take_several(sources, rows, 2)


def rows_of(seed=0):
    return np.random.default_rng(seed).integers(0, N, S).astype(np.int32)


def field(name, seed=0):
    """Return a random rollout field with one more step than is read, and the number of steps."""
    dtype, tail = FIELDS[name]
    steps = STEPS.get(name, 4)
    numbers = np.random.default_rng(seed).integers(0, 250, (steps + 1, N, *tail))
    return numbers.astype(dtype), steps


def taken(name):
    steps = field(name)[1]
    return lambda source, rows: [ops.take_rows(source, rows, steps)]


def grids(seed=0):
    """Return random values, ratios, logprobs, adv and final_observations, (T, N) each."""
    rng = np.random.default_rng(seed)
    arrays = [rng.normal(size=(T, N)).astype(np.float32) for _ in range(4)]
    return [*arrays, rng.choice([0, 0, 1, 2], (T, N)).astype(np.float32)]


def put_case(ok, seed=0):
    rows = rows_of(seed)
    new = np.random.default_rng(seed + 1).normal(size=(2, T, S)).astype(np.float32)
    return [*grids(seed)[:2], rows, *new, np.float32(ok)]


def targets(logprobs, values, adv, rows, weights, final_observations=None):
    return ops.take_targets(logprobs, values, adv, final_observations, rows, weights)


NUMBERS = Discounts(*HYPER.values(), reward_clip=1.0)


def after(values, *back, vtrace=True):
    """Compute what follows a minibatch: new values, ratios and advantages.

    Returns also the sums of the advantages' magnitudes.
    """
    ratios, *back, rewards, terminals, final_observations = back
    fields = {"rewards": rewards, "terminals": terminals, "final_observations": final_observations}
    *new, totals = after_minibatch(fields, values, ratios, tuple(back), NUMBERS, vtrace)
    return [*new, mx.sum(mx.abs(totals), axis=0)]


def after_case(ok, seed=0):
    rng = np.random.default_rng(seed + 3)
    terminals = (rng.random((T + 1, N)) < 0.1).astype(np.float32)
    rewards = rng.normal(size=(T + 1, N)).astype(np.float32)
    return [*put_case(ok, seed), rewards, terminals, grids(seed)[-1]]


def target_case(ends, seed=0):
    values, _, logprobs, adv, final_observations = grids(seed)
    weights = np.random.default_rng(seed + 2).random(S).astype(np.float32)
    return [logprobs, values, adv, rows_of(seed), weights, *([final_observations] if ends else [])]


@pytest.mark.parametrize(("backend", "name"), alternate((name,) for name in FIELDS))
def test_take_rows_equals_numpy(backend, name):
    source, steps = field(name, seed=2)
    (found,) = on_gpu(backend, taken(name), source, rows_of(2))
    expected = np.ascontiguousarray(source[:steps, rows_of(2)])
    assert found.shape == expected.shape and found.dtype == FIELDS[name][0]
    assert found.tobytes() == expected.tobytes()


@BACKENDS
def test_take_several_equals_numpy(backend):
    sources = [field(name, seed=3)[0] for name in TOGETHER]
    found = on_gpu(backend, several, *sources, rows_of(3))
    for source, array in zip(sources, found, strict=True):
        assert array.dtype == source.dtype
        np.testing.assert_array_equal(array, source[:2, rows_of(3)])


@pytest.mark.parametrize(("backend", "ends"), [("metal", 0), ("cuda", 1)])
def test_take_targets_equals_numpy(backend, ends):
    arrays = target_case(ends, seed=4)
    *found, moments = on_gpu(backend, targets, *arrays)
    count, mean, squares = moments.astype(np.float64)
    logprobs, values, adv, rows, weights, *final_observations = arrays
    taken_adv = adv[:, rows].ravel().astype(np.float64)
    assert count.sum() == taken_adv.size and len(count) == -(-taken_adv.size // 256)
    whole = (count * mean).sum() / taken_adv.size
    spread = squares.sum() + (count * (mean - whole) ** 2).sum()
    expected = [taken_adv.mean(), taken_adv.size * taken_adv.var()]
    np.testing.assert_allclose([whole, spread], expected, rtol=1e-5)
    weight = np.broadcast_to(weights, (T, S))
    if ends:
        weight = np.where(final_observations[0][:, rows] > 0, 0, weight)
    expected = [array[:, rows].ravel() for array in (logprobs, values, adv)]
    for results in (found, plainly(targets, *arrays)[:4]):
        for one, other in zip(results, [*expected, weight.ravel()], strict=True):
            np.testing.assert_array_equal(one, other)


def test_put_rows_writes_the_last_of_repeated_rows():
    arrays = put_case(1, seed=5)
    values, ratios, rows, new_values, new_ratios, _ = arrays
    assert len(set(rows)) < S
    expected = [values.copy(), ratios.copy()]
    for s, row in enumerate(rows):  # so the last one counts
        expected[0][:, row], expected[1][:, row] = new_values[:, s], new_ratios[:, s]
    for found, oracle in zip(plainly(ops.put_rows, *arrays), expected, strict=True):
        np.testing.assert_array_equal(found, oracle)


@pytest.mark.parametrize(
    ("backend", "ok", "vtrace"),
    [("metal", 1, True), ("cuda", 1, False), ("cuda", 0, True)],
)
def test_advantages_after_a_minibatch_equal_plain_mlx(backend, ok, vtrace):
    arrays = after_case(ok, seed=6)
    found = on_gpu(backend, partial(after, vtrace=vtrace), *arrays)
    expected = plainly(partial(after, vtrace=vtrace), *arrays)
    for ours, plain in zip(found[:2], expected, strict=False):
        np.testing.assert_array_equal(ours, plain)
    for ours, plain in zip(found[2:], expected[2:], strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-6, atol=4e-6)
