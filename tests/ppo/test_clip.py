"""`ppo/finite.py`'s clip against hand arithmetic."""

import mlx.core as mx
import pytest

from puffer_mlx.ppo.finite import clip_by_global_norm


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
