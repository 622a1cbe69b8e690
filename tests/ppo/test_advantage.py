"""Advantages against upstream's numbers, a float64 loop and, at an end, hand arithmetic."""

import mlx.core as mx
import numpy as np
import oracles
import pytest

from puffer_mlx.ops import cpu_extension
from puffer_mlx.ppo.advantage import advantages

NAMES = ("gamma", "gae_lambda", "rho_clip", "c_clip")


def compute(rows, hyper, form):
    """Compute advantages (T, N) by the package from values, rewards, terminals and ratios."""
    arrays = [mx.array(np.ascontiguousarray(row, dtype=np.float32)) for row in rows]
    numbers = dict(zip(NAMES, map(float, hyper), strict=True))
    return np.array(advantages(*arrays, **numbers, formula=form))


@pytest.mark.parametrize("rho_clip", [1.1, 0.5])
def test_advantages_without_ratios_clip_ones(path, rho_clip):
    rng = np.random.default_rng(0)
    values, rewards = 2 * rng.normal(size=(2, 20, 3)).astype(np.float32)
    ends = rng.random((20, 3)) < 0.2
    hyper = 0.9, 0.8, rho_clip, 1.0
    given = [mx.array(array) for array in (values, rewards, ends.astype(np.float32))]
    numbers = dict(zip(NAMES, hyper, strict=True))
    found = advantages(*given, ratios=None, **numbers, reward_clip=1.0)
    rows = values, rewards.clip(-1, 1), ends, np.ones_like(values)
    expected = oracles.advantages(rows, hyper, "V")
    np.testing.assert_allclose(np.array(found), expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize(("file", "form"), [("puffer4", "S"), ("puffer3", "V")])
def test_advantages_equal_upstream(path, fixtures, file, form):
    data = np.load(fixtures / f"{file}_advantage.npz")
    for case in ("c0", "c1", "c2", "c3"):
        names = ("values", "rewards", "dones", "importance")
        rows, hyper = [data[f"{case}_{name}"].T for name in names], data[f"{case}_hyper"]
        expected = data[f"{case}_advantages"].T  # upstream's files are (rows, horizon)
        np.testing.assert_allclose(compute(rows, hyper, form), expected, rtol=2e-6, atol=5e-6)
        other = compute(rows, hyper, "VS"[form == "V"])
        assert np.abs(other - expected).max() > 1e-3, "the file can't tell the two forms apart"


@pytest.mark.parametrize(
    ("path", "shape", "form"),
    [("pure", (2, 1), "V"), ("fused", (64, 33), "S"), ("fused", (127, 2), "V")],
    indirect=["path"],
)
def test_advantages_equal_float64(path, form, shape):
    rng = np.random.default_rng(shape[0])
    rows = (
        rng.normal(size=shape),
        rng.normal(size=shape),
        rng.random(shape) < 0.15,
        rng.lognormal(0, 0.5, size=shape),
    )
    for hyper in ((0.995, 0.9, 1.0, 1.0), (0.9, 0.8, 1.3, 0.7), (1.0, 1.0, 5.0, 5.0)):
        rounded = [row.astype(np.float32) for row in rows]
        found, expected = compute(rounded, hyper, form), oracles.advantages(rounded, hyper, form)
        assert found.shape == shape and found.dtype == np.float32
        assert not found[-1].any()
        scale = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * scale)


def test_wrong_shapes_and_forms_are_refused():
    rows = [mx.zeros((4, 3)) for _ in range(4)]
    wrong = [*rows[:3], mx.zeros((3, 4))]
    hyper = dict.fromkeys(NAMES, 1)
    with pytest.raises(ValueError, match=r"\(4, 3\).*\(3, 4\)|\(3, 4\).*\(4, 3\)"):
        advantages(*wrong, **hyper)
    with pytest.raises(ValueError, match="'v'"):
        advantages(*rows, **hyper, formula="v")


# ---- final observations --------------------------------------------------------------------------

LAST = np.array(
    [
        [0.5, 0.4, 0.3, 0.2, 0.1, 0.6],  # values; row 2 is an episode's last observation
        [9, 1, 2, 0, 1, 0.5],  # rewards: the last action's arrives with it
        [0, 0, 0, 1, 0, 0],  # terminals: row 3 begins the next episode
        [1, 1, 1, 1, 1, 1],  # ratios
    ]
)
# By hand (gamma .9, lambda .8, gamma * lambda = .72):
#   adv[4] = .5 + .9 * .6 - .1 = .94          adv[3] = 1 + .9 * .1 - .2 + .72 * .94 = 1.5668
#   adv[2] = 0: its action was ignored
#   terminated: adv[1] = 2 - .4 = 1.6         adv[0] = 1 + .9 * .4 - .5 + .72 * 1.6 = 2.012
#   truncated:  adv[1] = 2 + .9 * .3 - .4 = 1.87    adv[0] = .86 + .72 * 1.87 = 2.2064
AFTER = [0, 1.5668, 0.94, 0]


@pytest.mark.parametrize(
    ("path", "form"), [("pure", "V"), ("fused", "S"), ("fused", "V")], indirect=["path"]
)
def test_final_observations_end_advantages(path, form):
    arrays = [mx.array(row[:, None].astype(np.float32)) for row in LAST]
    hyper = dict(zip(NAMES, (0.9, 0.8, 1.0, 1.0), strict=True))
    for final, bootstrap, before in (
        *((1, True, [2.012, 1.6]), (1, False, [2.012, 1.6]), (2, True, [2.2064, 1.87])),
        (2, False, [2.012, 1.6]),  # upstream: an end is an end
    ):
        final_observations = mx.zeros((6, 1))
        final_observations[2] = final
        found = advantages(
            *arrays,
            **hyper,
            formula=form,
            final_observations=final_observations,
            bootstrap=bootstrap,
        )
        np.testing.assert_allclose(np.array(found)[:, 0], [*before, *AFTER], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("form", "bootstrap"), [("V", True), ("S", False)])
def test_final_observations_of_many_agents_in_c_equal_plain_mlx(
    extension, monkeypatch, form, bootstrap
):
    rng = np.random.default_rng(1)
    shape = (40, 9)
    rows = [*rng.normal(size=(2, *shape)), rng.random(shape) < 0.1, rng.lognormal(size=shape)]
    arrays = [mx.array(row.astype(np.float32)) for row in rows]
    final_observations = mx.array(rng.choice([0, 0, 0, 1, 2], shape).astype(np.float32))
    numbers = dict(zip(NAMES, (0.95, 0.9, 1.1, 0.9), strict=True))
    numbers |= {"formula": form, "final_observations": final_observations, "bootstrap": bootstrap}
    found = np.array(advantages(*arrays, **numbers))
    monkeypatch.setattr(cpu_extension, "load_extension", lambda: None)
    expected = np.array(advantages(*arrays, **numbers))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
