"""`advantage.py` against hand arithmetic, upstream's numbers and a float64 loop."""

import mlx.core as mx
import numpy as np
import oracles
import pytest

from puffer_mlx.advantage import advantages

NAMES = ("gamma", "gae_lambda", "rho_clip", "c_clip")


def compute(rows, hyper, form):
    """Values, rewards, terminals, ratios, each (T, N)."""
    arrays = [mx.array(np.ascontiguousarray(row, dtype=np.float32)) for row in rows]
    numbers = dict(zip(NAMES, map(float, hyper), strict=True))
    return np.array(advantages(*arrays, **numbers, form=form))


GOLDEN = np.array(
    [
        [0.5, 0.4, 0.3, 0.2, 0.1, 0, -0.1, -0.2],  # values
        [9, 0, 1, 0, 0, -1, 0, 0.5],  # rewards: the first is never used
        [1, 0, 0, 0, 1, 0, 0, 0],  # terminals
        [1, 1.5, 0.5, 2, 1, 0.8, 1.2, 1],  # ratios
    ]
)
# By hand, from the end (gamma .9, lambda .8, so gamma * lambda = .72; rho <= 1.1, c <= 1):
#   V: adv[6] = 1.1 * (.5 + .9 * -.2 + .1) = 1.1 * .42                             = .462
#      adv[5] = .8 * (0 + .9 * -.1 - 0) + .72 * .8 * .462 = -.072 + .266112        = .194112
#      adv[4] = 1 * (-1 + .9 * 0 - .1) + .72 * 1 * .194112 = -1.1 + .13976064      = -.96023936
#      adv[3] = 1.1 * (0 + 0 - .2) + 0 = -.22      the episode ended: terminals[4] = 1
#   S: adv[6] = 1.1 * .5 + .9 * -.2 + .1                                           = .47
#      adv[5] = .8 * 0 + .9 * -.1 - 0 + .72 * .8 * .47 = -.09 + .27072             = .18072
#      adv[4] = -1 + 0 - .1 + .72 * .18072                                         = -.9698816
#      adv[3] = 0 + 0 - .2                                                         = -.2
EXPECTED = {
    "V": [0.4768787, 0.856776, -0.1392, -0.22, -0.9602394, 0.194112, 0.462, 0],
    "S": [0.4588672, 0.83176, -0.192, -0.2, -0.9698817, 0.18072, 0.47, 0],
}


@pytest.mark.parametrize("form", EXPECTED)
def test_golden(path, form):
    found = compute(GOLDEN[..., None], (0.9, 0.8, 1.1, 1.0), form)
    np.testing.assert_allclose(found[:, 0], EXPECTED[form], rtol=0, atol=2e-7)


@pytest.mark.parametrize("case", ["c0", "c1", "c2", "c3"])
@pytest.mark.parametrize(("file", "form"), [("puffer4", "S"), ("puffer3", "V")])
def test_upstream(path, fixtures, file, form, case):
    data = np.load(fixtures / f"{file}_advantage.npz")
    names = ("values", "rewards", "dones", "importance")
    found = compute([data[f"{case}_{name}"].T for name in names], data[f"{case}_hyper"], form)
    expected = data[f"{case}_advantages"].T  # upstream's files are (rows, horizon)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=5e-6)
    other = compute(
        [data[f"{case}_{name}"].T for name in names], data[f"{case}_hyper"], "VS"[form == "V"]
    )
    assert np.abs(other - expected).max() > 1e-3, "the file can't tell the two forms apart"


@pytest.mark.parametrize("form", ["V", "S"])
@pytest.mark.parametrize("shape", [(2, 1), (3, 5), (11, 7), (13, 3), (64, 33), (127, 2)])
def test_random(path, form, shape):
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


def test_forms_agree_when_nothing_is_clipped(path):
    rows = np.random.default_rng(0).normal(size=(3, 20, 6))
    rows[2] = rows[2] > 1
    ratios = np.ones((1, 20, 6))
    one, other = (compute([*rows, *ratios], (0.99, 0.95, 1.0, 1.0), form) for form in "VS")
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_shapes_must_agree():
    rows = [mx.zeros((4, 3)) for _ in range(4)]
    for i in range(4):
        wrong = [*rows[:i], mx.zeros((3, 4)), *rows[i + 1 :]]
        with pytest.raises(ValueError, match=r"\(4, 3\).*\(3, 4\)|\(3, 4\).*\(4, 3\)"):
            advantages(*wrong, gamma=1, gae_lambda=1, rho_clip=1, c_clip=1)


def test_unknown_form():
    rows = [mx.zeros((4, 3)) for _ in range(4)]
    with pytest.raises(ValueError, match="'v'"):
        advantages(*rows, gamma=1, gae_lambda=1, rho_clip=1, c_clip=1, form="v")
