"""`ppo/schedules.py` against hand arithmetic."""

import math

import pytest

from puffer_mlx.config import load
from puffer_mlx.config.notes import unread
from puffer_mlx.errors import UserError
from puffer_mlx.ppo.schedules import adapted, annealed


def test_annealed():
    quarter = 0.02 + 0.04 * (1 + math.sqrt(0.5))
    for schedule, epoch, epochs, expected in (
        *(("cosine", 0, 100, 0.1), ("cosine", 50, 100, 0.06), ("cosine", 25, 100, quarter)),
        *(("linear", 0, 100, 0.1), ("linear", 50, 100, 0.06), ("linear", 25, 100, 0.08)),
        *(("constant", epoch, 100, 0.1) for epoch in (0, 25, 100)),
        *((schedule, 100, 100, 0.02) for schedule in ("cosine", "linear")),
        *((schedule, 150, 100, 0.02) for schedule in ("cosine", "linear")),  # past the end
        *((schedule, -5, 100, 0.1) for schedule in ("cosine", "linear")),
        *((schedule, 7, 0, 0.1) for schedule in ("cosine", "linear")),  # no epochs
    ):
        found = annealed(schedule, 0.1, 0.2, epoch, epochs)
        assert found == pytest.approx(expected, rel=1e-14), (schedule, epoch)


@pytest.mark.parametrize(
    ("rate", "kl", "expected"),
    [
        *((0.003, 0.0401, 0.002), (0.003, 0.04, 0.003), (0.003, 0.01, 0.003)),
        *((0.003, 0.0099, 0.0045), (0.003, 0.0, 0.0045), (0.003, float("inf"), 0.002)),
        *((0.003, float("nan"), 0.003), (4e-5, 1.0, 3e-5), (0.025, 0.0, 0.03)),  # the limits
        *((3e-5, 1.0, 3e-5), (0.03, 0.0, 0.03)),
    ],
)
def test_the_adaptive_learning_rate(rate, kl, expected):
    found = adapted(rate, first=0.003, kl=kl, desired_kl=0.02)
    assert found == pytest.approx(expected, rel=1e-12)


def test_words_about_it_that_make_no_sense():
    with pytest.raises(UserError, match="adaptive depends on earlier epochs") as caught:
        annealed("adaptive", 0.003, 0.0, 0, 10)
    assert caught.value.hint == "--train.lr-schedule cosine or linear"
    adaptive = ["--train.desired-kl", "0.02", "--train.lr-schedule", "adaptive"]
    with pytest.raises(UserError, match="anneal_lr False keeps the learning rate"):
        load("default", [*adaptive, "--train.anneal-lr", "0"])
    config = load("default", [*adaptive, "--train.min-lr-ratio", "0.1"])
    assert unread(config) == ["train.min_lr_ratio"]
    assert unread(load("default", adaptive[:2])) == ["train.desired_kl"]
