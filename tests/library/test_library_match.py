"""``puffer_mlx.play_match``: two policies, or a policy and who has none."""

import importlib
import sys
from typing import Any

import pytest
from native_envs import OURS

import puffer_mlx
from puffer_mlx import config
from puffer_mlx.evaluation.results import Tally

SMALL: dict[str, Any] = {
    **{"total_agents": 16, "horizon": 8, "minibatch_size": 64, "total_timesteps": 256},
    **{"hidden_size": 8, "device": "cpu"},
}

pytest.importorskip("gymnasium")
sys.path.append(str(OURS / "python"))
Duel = importlib.import_module("zoo_duel").Duel


@pytest.fixture(scope="module")
def trainer():
    with puffer_mlx.train("connect4_two", **SMALL) as made:
        yield made


@pytest.fixture(scope="module")
def dueling():
    with puffer_mlx.train(Duel, **{"env.agents": 4, "backend": "sync", **SMALL}) as made:
        yield made


def test_half_of_the_games_are_on_either_side(trainer):
    found = puffer_mlx.play_match(trainer, "random", games=30)
    assert [side.games for side in found.sides] == [15, 15]
    assert found.total.games == 30 and 0 <= found.total.score <= 1
    low, high = found.total.interval
    assert str(found).endswith(
        f"score {found.total.score:.3f} ({low:.3f} to {high:.3f}), sampled actions"
    )


def test_the_same_seed_gives_the_same_games(trainer):
    policy = puffer_mlx.Policy(trainer)

    def played(**how):
        return puffer_mlx.play_match(policy, "bot:0.5", games=40, **how)

    assert played(seed=1) == played(seed=1) != played(seed=2)
    assert played() == played(seed=trainer.config.base.seed)


def test_a_match_in_python_uses_the_runs_parameters_and_normalization(dueling):
    assert dueling.config.vec.normalize_observations  # of Python's families
    found = puffer_mlx.play_match(dueling, dueling, games=8, deterministic=True)
    assert found.deterministic and str(found).endswith(", deterministic")
    assert sum(found.total) == 8 and found.sides[0] == Tally(*reversed(found.sides[1]))
    other = puffer_mlx.play_match(dueling, "random", env=Duel, games=8)
    assert other.total.games == 8


def test_a_match_does_not_change_the_run(trainer):
    before = config.to_dict(trainer.config)
    puffer_mlx.play_match(trainer, "random", games=4)
    assert config.to_dict(trainer.config) == before
