"""Suggested sizes that don't fit one another give way, within their ranges."""

from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="pip install 'puffer-mlx[sweep]'")

from puffer_mlx import config as c
from puffer_mlx.sweep.engine.trainings import Trainings
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Parameter, Space

WORDS = [
    *("--vec.total-agents", "64", "--vec.num-buffers", "1", "--train.horizon", "16"),
    *("--train.minibatch-size", "512", "--train.total-timesteps", "8192"),
    *("--train.replay-ratio", "1", "--device", "cpu"),
]
RANGES = {
    "vec.total_agents": ("uniform_pow2", 16, 256),
    "vec.num_buffers": ("uniform", 1, 8),
    "train.horizon": ("uniform_pow2", 8, 64),
    "train.minibatch_size": ("uniform_pow2", 128, 4096),
    "train.replay_ratio": ("uniform", 0.25, 4),
    "train.total_timesteps": ("log_normal", 1024, 65536),
}
AGENTS, BUFFERS, HORIZON, MINIBATCH, REPLAY, STEPS = RANGES


def trainings(*names, words=()):
    """Of a sweep over these keys; an epoch has 64 x 16 = 1024 steps unless one of them is swept."""
    config = c.load("squared", [*WORDS, *words])
    made = []
    for name in names:
        section, key = name.split(".")
        made.append(Parameter(section, key, *RANGES[name], whole=name != REPLAY))
    space = Space(made)
    return Trainings("squared", [*WORDS, *words], config, space, SweepSettings(), Path("."), 60)


@pytest.mark.parametrize(
    ("swept", "fitted"),
    [
        ({MINIBATCH: 4096}, {MINIBATCH: 1024}),
        ({MINIBATCH: 4096, HORIZON: 8}, {MINIBATCH: 512, HORIZON: 8}),
        ({HORIZON: 8, AGENTS: 16}, {HORIZON: 32, AGENTS: 16}),
        ({AGENTS: 16}, {AGENTS: 32}),
        ({HORIZON: 64, AGENTS: 256, STEPS: 2000}, {HORIZON: 64, AGENTS: 256, STEPS: 18626}),
        ({REPLAY: 0.25}, {REPLAY: 0.25 * 1.25**4}),
        ({BUFFERS: 7, MINIBATCH: 2048}, {BUFFERS: 4, MINIBATCH: 1024}),
    ],
)
def test_sizes_give_way(swept, fitted):
    made = trainings(*swept).settle(swept)
    assert made == {name: pytest.approx(value, rel=0.01) for name, value in fitted.items()}
    for name, value in made.items():
        assert isinstance(value, int) or name == REPLAY


def test_what_can_be_run_stays_as_it_is():
    swept = {AGENTS: 128, HORIZON: 8, MINIBATCH: 1024, REPLAY: 1.5, STEPS: 1024}
    assert trainings(*swept).settle(swept) == swept


@pytest.mark.parametrize(
    ("swept", "words"),
    [
        ({HORIZON: 8}, ["--train.minibatch-size", "8192"]),  # its range ends at 64
        ({MINIBATCH: 4096}, ["--train.learning-rate", "-1"]),  # not for its size
    ],
)
def test_what_nothing_helps_stays_as_it_is(swept, words, monkeypatch):
    monkeypatch.setattr("puffer_mlx.config.validation.find_problems", lambda *_: [])
    made = trainings(*swept, words=words)
    monkeypatch.undo()
    assert made.settle(swept) == swept
