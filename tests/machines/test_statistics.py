"""Statistics of several ranks' environments, made into those of all."""

import numpy as np
import pytest

from puffer_mlx.machines.statistics import merged_means, merged_moments


def moments(*parts: np.ndarray) -> dict[str, np.ndarray]:
    seen = np.concatenate(parts)
    count = np.array(float(len(seen)))
    return {"x.count": count, "x.mean": seen.mean(axis=0), "x.variance": seen.var(axis=0)}


def test_moments_are_those_of_all_that_was_seen():
    draw = np.random.default_rng(0)
    first, one, other = (draw.normal(at, 1 + at, (at + 3, 2)) for at in range(3))
    merged = merged_moments(moments(first), [moments(first, one), moments(first, other)])
    for name, array in moments(first, one, other).items():
        np.testing.assert_allclose(merged[name], array, err_msg=name)
    same = moments(first)
    for name, array in merged_moments(same, [same, same]).items():
        assert np.array_equal(array, same[name])


def test_means_are_over_all_episodes():
    logs = [{"score": 1.0, "n": 1.0}, {"score": 4.0, "own": 8.0, "n": 3.0}, {"n": 0.0}]
    assert merged_means(logs) == {"score": pytest.approx(13 / 4), "own": 6.0, "n": 4.0}
    assert merged_means([{"n": 0.0}, {}]) == {}
