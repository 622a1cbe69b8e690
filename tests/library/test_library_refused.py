"""Messages of the library about wrong values: ``messages.txt`` (``golden.py``).

An entry is a Python expression over ``NAMES``.
"""

import functools
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from golden import entries, placed, written
from gymnasium.spaces import Box, Dict, Discrete

import puffer_mlx
from puffer_mlx import config
from puffer_mlx.errors import UserError
from puffer_mlx.library.settings import (
    build_config,
    collect_settings,
    environment_source,
    with_environment,
)

SMALL: dict[str, Any] = {"total_timesteps": 512, "total_agents": 2, "horizon": 32}
SMALL |= {"minibatch_size": 64, "device": "cpu"}


class Count(gymnasium.Env):
    """Gymnasium environment whose episodes have ``size`` steps."""

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
    """Gymnasium environment whose observations are dictionaries of two parts."""

    observation_space: Any = Dict({"near": Box(-5, 5, (2, 2), np.float32), "kind": Discrete(3)})


@functools.cache
def trained(env: Any) -> puffer_mlx.Trainer:
    """Return a trainer of a small policy in an environment, before its first epoch."""
    return puffer_mlx.Trainer(SMALL, env)


NAMES = {
    **{name: getattr(puffer_mlx, name) for name in puffer_mlx.__all__},
    **{
        "Count": Count,
        "Parts": Parts,
        "SMALL": SMALL,
        "collected": collect_settings,
        "config": config,
    },
    **{
        "configured": build_config,
        "gymnasium": gymnasium,
        "np": np,
        "source_of": environment_source,
    },
    **{"trained": trained, "with_environment": with_environment},
}


def prepare() -> None:
    """Do nothing: the recorded expressions need no files. ``golden.messages`` calls this."""


def outcome(given: str) -> str:
    """Evaluate an expression that must be refused; return the error message."""
    before = {*Path().iterdir()}
    try:
        value = eval(written(given), {**NAMES, "__name__": "mine"})
    except UserError as error:
        new = {*Path().iterdir()} - before
        return placed(str(error)) + f"\nfiles {new}" * bool(new)
    return f"not refused: {value!r}"


def test_the_library_refuses_wrong_values_with_these_messages(here):
    expected = entries(">")
    assert {given: outcome(given) for given in expected} == expected


def test_every_message_is_for_programs():
    """They have a hint, and name no options of commands."""
    for given, said in entries(">").items():
        assert "hint: " in said and "command line" not in said, given
        assert "--" not in said or ".export(" in given, given
