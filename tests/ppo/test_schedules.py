"""`ppo/schedules.py` against hand arithmetic."""

import math

import pytest

from puffer_mlx.config import load
from puffer_mlx.config.notes import keys_without_effect
from puffer_mlx.errors import UserError
from puffer_mlx.ppo.schedules import adapted_rate, annealed

QUARTER = 0.02 + 0.04 * (1 + math.sqrt(0.5))


@pytest.mark.parametrize(
    ("schedule", "epoch", "epochs", "expected"),
    [
        *(("cosine", 25, 100, QUARTER), ("linear", 25, 100, 0.08), ("constant", 100, 100, 0.1)),
        *(("cosine", 150, 100, 0.02), ("linear", -5, 100, 0.1), ("cosine", 7, 0, 0.1)),
    ],
)
def test_annealed_rate_equals_hand_arithmetic(schedule, epoch, epochs, expected):
    assert annealed(schedule, 0.1, 0.2, epoch, epochs) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("rate", "kl", "expected"),
    [
        *((0.003, 0.0401, 0.002), (0.003, 0.04, 0.003), (0.003, 0.0099, 0.0045)),
        *((0.003, float("nan"), 0.003), (4e-5, 1.0, 3e-5), (0.025, 0.0, 0.03)),  # the limits
    ],
)
def test_adaptive_learning_rate_equals_hand_arithmetic(rate, kl, expected):
    found = adapted_rate(rate, first=0.003, kl=kl, desired_kl=0.02)
    assert found == pytest.approx(expected, rel=1e-12)


def test_contradicting_settings_are_refused_or_reported():
    with pytest.raises(UserError, match="adaptive depends on earlier epochs") as caught:
        annealed("adaptive", 0.003, 0.0, 0, 10)
    assert caught.value.hint == "--train.lr-schedule cosine or linear"
    adaptive = ["--train.desired-kl", "0.02", "--train.lr-schedule", "adaptive"]
    with pytest.raises(UserError, match="anneal_lr False keeps the learning rate"):
        load("default", [*adaptive, "--train.anneal-lr", "0"])
    config = load("default", [*adaptive, "--train.min-lr-ratio", "0.1"])
    assert keys_without_effect(config) == ["train.min_lr_ratio"]
    assert keys_without_effect(load("default", adaptive[:2])) == ["train.desired_kl"]
