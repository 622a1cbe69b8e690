"""Which versions of Gymnasium do, and what is said to the others."""

import gymnasium
import pytest

from puffer_mlx.errors import UserError
from puffer_mlx.vec.gym.installed import gymnasium as package
from puffer_mlx.vec.gym.installed import has_own_vector_forms, need_newer
from puffer_mlx.vec.gym.vec import GymVec


@pytest.mark.parametrize("version", ["0.28.1", "1.0.0a2", "1.0.0"])
def test_versions_that_do_not(version: str, monkeypatch):
    monkeypatch.setattr(gymnasium, "__version__", version)
    with pytest.raises(UserError, match=f"Gymnasium {version} is installed, expected 0.29, or 1.1"):
        package()


@pytest.mark.parametrize(("version", "newer"), [("0.29.1", False), ("1.1.0", True), ("1.10", True)])
def test_versions_that_do(version: str, newer: bool, monkeypatch):
    monkeypatch.setattr(gymnasium, "__version__", version)
    assert package() is gymnasium and has_own_vector_forms() is newer
    if newer:
        return need_newer("x")
    with pytest.raises(UserError, match=r"x needs Gymnasium 1\.1 or newer, 0\.29\.1 is installed"):
        need_newer("x")


def test_what_needs_a_newer_one_says_so(monkeypatch):
    monkeypatch.setattr(gymnasium, "__version__", "0.29.1")
    made = {"name": "CartPole-v1", "total_agents": 2}
    from puffer_mlx.config.schema import Wrap

    with pytest.raises(UserError, match=r"CartPole-v1: wrap\.clip_rewards needs Gymnasium 1\.1"):
        GymVec("CartPole-v1", wrap=Wrap(clip_rewards=1.0), **made)
    with pytest.raises(UserError, match=r"backend is vector, but Gymnasium 0\.29\.1 has none that"):
        GymVec("CartPole-v1", backend="vector", **made)
