"""Suggested sizes that can't be trained together are adjusted within their ranges."""

from pathlib import Path

import pytest

pytest.importorskip("optuna", reason="pip install 'puffer-mlx[sweep]'")

from puffer_mlx import config as c
from puffer_mlx.sweep.engine.trainings import RunLauncher
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


def trainings(swept, *words):
    """Return the launcher of a sweep's training runs, with epochs of 64 agents x 16 steps.

    Args:
        swept: Names of the keys in ``RANGES`` that the sweep varies.
        words: Further options of the command.
    """
    words = [*WORDS, *words]
    parameters = []
    for name in swept:
        is_integer = name != REPLAY
        parameters.append(Parameter(*name.split("."), *RANGES[name], integer=is_integer))
    space = Space(parameters)
    config = c.load("squared", words)
    return RunLauncher("squared", words, config, space, SweepSettings(), Path("."), 60)


TRAINABLE = {AGENTS: 128, HORIZON: 8, MINIBATCH: 1024, REPLAY: 1.5, STEPS: 1024}


@pytest.mark.parametrize(
    ("suggested", "adjusted"),
    [
        (TRAINABLE, TRAINABLE),
        ({MINIBATCH: 4096, HORIZON: 8}, {MINIBATCH: 512, HORIZON: 8}),
        ({HORIZON: 64, AGENTS: 256, STEPS: 2000}, {HORIZON: 64, AGENTS: 256, STEPS: 18626}),
        ({REPLAY: 0.25}, {REPLAY: 0.25 * 1.25**4}),
        ({BUFFERS: 7, MINIBATCH: 2048}, {BUFFERS: 4, MINIBATCH: 1024}),
    ],
)
def test_sizes_are_adjusted_until_they_can_be_trained(suggested, adjusted):
    found = trainings(suggested).adjust(suggested)
    assert found == {name: pytest.approx(value, rel=0.01) for name, value in adjusted.items()}
    assert all(isinstance(value, int) for name, value in found.items() if name != REPLAY)


def test_values_that_no_adjustment_helps_stay(monkeypatch):
    suggested: dict[str, float] = {HORIZON: 8}  # its range ends at 64
    with monkeypatch.context() as patch:
        patch.setattr("puffer_mlx.config.validation.find_problems", lambda *_: [])
        sweep = trainings(suggested, "--train.minibatch-size", "8192")
    assert sweep.adjust(suggested) == suggested
