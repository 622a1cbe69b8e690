"""`ppo/schedules.py` against hand arithmetic."""

import math

import pytest

from puffer_mlx.config import load
from puffer_mlx.config.notes import unread
from puffer_mlx.errors import UserError
from puffer_mlx.ppo.schedules import adapted, cosine, entropy_coefficient, learning_rate, linear


def test_cosine():
    assert cosine(0.1, 0.02, 0, 100) == 0.1
    assert cosine(0.1, 0.02, 50, 100) == pytest.approx(0.06)  # half way: the mean
    assert cosine(0.1, 0.02, 25, 100) == pytest.approx(0.02 + 0.04 * (1 + math.sqrt(0.5)))
    assert cosine(0.1, 0.02, 100, 100) == pytest.approx(0.02)
    assert cosine(0.1, 0.02, 150, 100) == pytest.approx(0.02)  # past the end
    assert cosine(0.1, 0.02, -5, 100) == 0.1
    assert cosine(0.1, 0.02, 7, 0) == 0.1  # no epochs


def test_linear():
    assert linear(0.1, 0.02, 0, 100) == 0.1
    assert linear(0.1, 0.02, 25, 100) == pytest.approx(0.08)  # .1 - .08 / 4
    assert linear(0.1, 0.02, 100, 100) == pytest.approx(0.02)
    assert linear(0.1, 0.02, 150, 100) == pytest.approx(0.02)  # past the end
    assert linear(0.1, 0.02, -5, 100) == 0.1
    assert linear(0.1, 0.02, 7, 0) == 0.1  # no epochs


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", 0.001 + 0.009 * (1 + math.sqrt(0.5)) / 2),  # PufferLib's
        ("--train.lr-schedule cosine", 0.001 + 0.009 * (1 + math.sqrt(0.5)) / 2),
        ("--train.lr-schedule linear", 0.00775),  # .01 - .009 / 4
        ("--train.lr-schedule linear --train.min-lr-ratio 0", 0.0075),
        ("--train.anneal-lr False", 0.01),
        ("--train.anneal-lr False --train.lr-schedule linear", 0.01),
    ],
)
def test_learning_rate(words, expected):
    first = ["--train.learning-rate", "0.01", "--train.min-lr-ratio", "0.1"]
    train = load("default", [*first, *words.split()]).train
    assert learning_rate(train, 0, 100) == pytest.approx(0.01, rel=1e-15)
    assert learning_rate(train, 25, 100) == pytest.approx(expected)


def test_entropy_coefficient():
    train = load("default", ["--train.ent-coef", "0.01", "--train.lr-schedule", "linear"]).train
    assert entropy_coefficient(train, 50, 100) == 0.01
    train.anneal_ent_coef = True
    assert entropy_coefficient(train, 50, 100) == pytest.approx(0.0055)  # half way to a tenth
    assert entropy_coefficient(train, 25, 100) == pytest.approx(0.001 + 0.009 * 0.8535534)


ADAPTIVE = ["--train.lr-schedule", "adaptive", "--train.learning-rate", "0.003"]
ADAPTIVE += ["--train.desired-kl", "0.02"]


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
    train = load("default", ADAPTIVE).train
    assert adapted(train, rate, {"kl": kl}) == pytest.approx(expected, rel=1e-12)
    assert adapted(train, rate, {}) == rate


def test_the_adaptive_one_is_not_of_the_epoch():
    with pytest.raises(UserError, match="adaptive needs the epochs before") as caught:
        learning_rate(load("default", ADAPTIVE).train, 0, 10)
    assert caught.value.hint == "--train.lr-schedule cosine or linear"


def test_words_about_it_that_make_no_sense():
    with pytest.raises(UserError, match="anneal_lr False keeps the learning rate"):
        load("default", [*ADAPTIVE, "--train.anneal-lr", "0"])
    config = load("default", [*ADAPTIVE, "--train.min-lr-ratio", "0.1"])
    assert unread(config) == ["train.min_lr_ratio"]
    assert unread(load("default", ADAPTIVE[2:])) == ["train.desired_kl"]
