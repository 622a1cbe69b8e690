"""EnvPool's environments: rows, seeds, episodes, and errors of construction."""

from typing import Any

import numpy as np
import pytest
from stepping import played, started, step

from puffer_mlx import config, vec
from puffer_mlx.errors import UserError
from puffer_mlx.vec.base import TERMINATED, TRUNCATED
from puffer_mlx.vec.gym import envpool as pools
from puffer_mlx.vec.gym import installed

envpool = pytest.importorskip("envpool")
pytestmark = pytest.mark.filterwarnings("ignore:.*Box (low|high).s precision")
LEFT = 0


def make(name: str, agents: int = 4, *words: str, render: bool = False) -> Any:
    sizes = ["--vec.total-agents", str(agents), "--vec.normalize-observations", "0"]
    plain = [*sizes, "--vec.normalize-rewards", "0", "--device", "cpu"]
    return vec.make(config.load(f"envpool:{name}", [*plain, *words]), 2, render=render)


def refused(said: str, name: str, *words: str) -> None:
    with pytest.raises(UserError, match=said):
        make(name, 4, *words).close()


def first_observations(seed: int, steps: int = 100) -> np.ndarray:
    """Return CartPole's observations (steps, 4, 4) of four agents that always push left."""
    with make("CartPole-v1", 4, "--vec.seed", str(seed)) as environments:
        rows = started(environments)
        seen = [rows.observations]
        seen += [step(environments, rows, LEFT).observations for _ in range(steps - 1)]
        return np.stack(seen)


def test_seed_decides_all_observations():
    first = first_observations(7)
    assert np.array_equal(first, first_observations(7))
    assert not np.any(first == first_observations(1007), axis=2).all(axis=1).any()
    assert np.array_equal(first[:, 1], first_observations(8)[:, 0])  # environment i has seed + i


def test_groups_have_different_seeds():
    with make("CartPole-v1", 4, "--vec.num-buffers", "2") as environments:
        assert len(np.unique(started(environments).observations, axis=0)) == 4


def test_episodes_equal_an_independent_count():
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=3, seed=5)
    pool.reset()
    returns = np.zeros(3)
    counted: list[tuple[int, float]] = []
    over = np.zeros(3, bool)
    for _ in range(200):
        _, rewards, terminated, truncated, _ = pool.step(np.full(3, LEFT))
        returns = np.where(over, 0, returns + rewards)  # the step after an end is a reset
        over = terminated | truncated
        counted += [(index, returns[index]) for index in np.flatnonzero(over).tolist()]
    with make("CartPole-v1", 3, "--vec.seed", "5") as environments:
        rows = started(environments)
        for _ in range(200):
            step(environments, rows, LEFT)
        episodes = environments.episodes()
    found = [(int(one["env"]), one["episode_return"]) for one in episodes]
    assert len(found) > 30 and found == sorted(counted, key=lambda one: one[0])
    assert all(one["episode_length"] == one["episode_return"] for one in episodes)


def test_scores_contain_no_bookkeeping():
    with make("CartPole-v1", 2) as environments:
        rows = started(environments)
        for _ in range(40):
            step(environments, rows, LEFT)
        assert set(environments.log()) == {"episode_return", "episode_length", "score", "n"}


@pytest.mark.parametrize(
    ("name", "end", "length"), [("CartPole-v1", TERMINATED, None), ("Pendulum-v1", TRUNCATED, 200)]
)
def test_last_observation_has_a_row_that_names_the_end(name, end, length):
    with make(name, 1, "--train.bootstrap-truncated", "1") as environments:
        rows = started(environments)
        ends = []
        for _ in range(210):
            flags = step(environments, rows, LEFT).final_observations
            assert flags is not None
            ends.append(int(flags[0]))
        assert environments.final_observations and set(ends) == {0, end}
        assert length is None or ends.index(end) == length - 1


def test_reset_with_another_seed_makes_another_pool():
    with make("CartPole-v1", 2, "--vec.seed", "3") as environments:
        first = started(environments).observations.copy()
        environments._envs[0].submit("reset", 4)
        environments._envs[0].wait()
        assert np.array_equal(environments._envs[0].buffers.observations[0], first[1])


def test_dictionaries_and_images_fill_rows():
    with make("WalkerWalk-v1", 2) as environments:
        assert environments.spec.observation_size == 14 + 1 + 9
        assert np.all(np.isfinite(played(environments, 5)[-1].observations))
    with make("Pong-v5", 2) as environments:
        assert environments.spec.observation_shape == (84, 84, 4)


def test_files_about_gymnasiums_twin_apply():
    files = config.load("envpool:HalfCheetah-v5", ["--family", "continuous"]).files
    assert [file for file in files if file.endswith("gym/HalfCheetah.ini")]


def test_a_file_may_name_an_environment_without_permission(tmp_path):
    (tmp_path / "task.ini").write_text("[base]\nenv_name = envpool:CartPole-v1\n")
    vec.make(config.load(str(tmp_path / "task.ini"), ["--vec.total-agents", "2"]), 1).close()


@pytest.mark.parametrize(
    ("said", "name", "words"),
    [
        ("EnvPool has no such environment", "CartPole-v7", ()),
        ("it takes no env.foo", "CartPole-v1", ("--env.foo", "1")),
        ("env.num_threads can't be set", "CartPole-v1", ("--env.num_threads", "2")),
        ("vec.backend is sync", "CartPole-v1", ("--vec.backend", "sync")),
        ("wrap.frame_stack is for Gymnasium", "Pong-v5", ("--wrap.frame-stack", "2")),
    ],
)
def test_wrong_words_are_one_error(said, name, words):
    refused(said, name, *words)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(installed, "find_spec", lambda name: None)
    refused("EnvPool isn't installed", "CartPole-v0")


@pytest.mark.processes
def test_environment_that_cannot_be_drawn_leaves_this_process(monkeypatch):
    monkeypatch.setattr(pools, "_DRAWING", "import os; os._exit(3)")
    with pytest.raises(UserError, match="can't be drawn: exit code 3"):
        make("CartPole-v1", 1, render=True)
