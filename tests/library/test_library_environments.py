"""Environments as a program has them."""

import re
from typing import Any, cast

import gymnasium
import numpy as np

import puffer_mlx
from puffer_mlx import config
from puffer_mlx.library.settings import build_config, environment_source, with_environment

SMALL: dict[str, Any] = {
    "total_timesteps": 512,
    "total_agents": 2,
    "horizon": 32,
    "minibatch_size": 32,
}


class Count(gymnasium.Env):
    """Gymnasium environment whose observation counts steps, and whose score is the count.

    An episode has ``size`` steps.
    """

    observation_space = gymnasium.spaces.Box(0, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, size=5, render_mode=None):
        self.size, self.render_mode, self.closed = size, render_mode, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        done = self.steps == self.size
        return np.full(2, self.steps, np.float32), 1.0, done, False, {}

    def render(self):
        return np.full((4, 4, 3), self.steps, np.uint8)

    def close(self):
        self.closed += 1


def test_classes_and_functions_make_all_environments():
    for env in [Count, lambda: Count()]:
        with puffer_mlx.train(env, **SMALL) as trainer:
            assert trainer.vec.num_environments == 2 and trainer.global_step == 512
        assert trainer.config.env_name.startswith(f"{__name__}:") and trainer.config.python


def test_a_local_function_makes_environments_in_processes():
    size = 7

    def made(more=0):
        return Count(size + more)

    with puffer_mlx.train(made, {"env.more": 1}, backend="async", **SMALL) as trainer:
        assert cast(Any, trainer.vec).backend == "async"
        assert puffer_mlx.evaluate(trainer, episodes=2).score.mean == 8


def test_one_environment_may_be_an_object_and_stays_open():
    env = Count()
    with puffer_mlx.train(env, **{**SMALL, "total_agents": 1}) as trainer:
        assert trainer.vec.num_environments == 1
        assert puffer_mlx.evaluate(trainer, Count(6), episodes=3).score.mean == 6
    assert env.closed == 0


def test_names_of_environments_are_read_back_from_files(here):
    for env in (Count, lambda: Count(), environment_source):
        (here / "config.ini").write_text(config.ini_text(build_config(None, env, {})))
        assert re.fullmatch(r"[\w.]+:[\w.]+", environment_source(env).name)
        assert config.load("config.ini", []).env_name == environment_source(env).name


def test_naming_an_environment_allows_only_that_name():
    settings = config.Config("a:b", untrusted_code={"a:b": "x.ini:1", "c:d": "x.ini:2"})
    assert with_environment(settings, environment_source("a:b")).untrusted_code == {
        "c:d": "x.ini:2"
    }
