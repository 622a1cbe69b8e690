"""What the library refuses, and with which words: ``refused.txt`` (``golden.py``).

An entry is a Python expression, in which everything of ``NAMES`` is known.
"""

import functools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from golden import entries, placed
from gymnasium.spaces import Box, Dict, Discrete

import puffer_mlx
from puffer_mlx import config
from puffer_mlx.errors import UserError
from puffer_mlx.library.settings import collected, configured, source_of, with_environment

NAME = "library/refused.txt"
SMALL: dict[str, Any] = {"total_timesteps": 512, "total_agents": 2, "horizon": 32}
SMALL |= {"minibatch_size": 64, "device": "cpu"}


class Count(gymnasium.Env):
    """Its episodes take ``size`` steps."""

    observation_space: Any = Box(0, 100, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, size=5, render_mode=None):
        self.size, self.render_mode, self.steps = size, render_mode, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == self.size, False, {}


class Parts(Count):
    """Shows two parts."""

    observation_space: Any = Dict({"near": Box(-5, 5, (2, 2), np.float32), "kind": Discrete(3)})


@functools.cache
def trained(env: Any) -> puffer_mlx.Trainer:
    """A trainer that nothing was trained by."""
    return puffer_mlx.Trainer(SMALL, env)


NAMES = {
    **{name: getattr(puffer_mlx, name) for name in puffer_mlx.__all__},
    **{"Count": Count, "Parts": Parts, "SMALL": SMALL, "collected": collected, "config": config},
    **{"configured": configured, "gymnasium": gymnasium, "np": np, "source_of": source_of},
    **{"trained": trained, "with_environment": with_environment},
}


def prepare() -> None:
    """Nothing has to be there."""


def outcome(given: list[str]) -> str:
    """The message of what is refused now; nothing is written."""
    before = {*Path().iterdir()}
    try:
        value = eval(given[0][2:], {**NAMES, "__name__": "mine"})
    except UserError as error:
        assert {*Path().iterdir()} == before, given
        return placed(str(error))
    raise AssertionError(f"{given} is {value!r}")


def test_each_is_refused_with_these_words(here):
    for given, expected in entries(NAME):
        assert outcome(given) == expected, given
        assert "hint: " in expected and "command line" not in expected
        assert "--" not in expected or ".export(" in given[0]
