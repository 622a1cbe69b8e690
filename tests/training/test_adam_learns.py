"""Adam learns what Muon does, by the environments' own files: benchmarks/RESULTS.md has both."""

import statistics

import pytest

from puffer_mlx import config, vec
from puffer_mlx.training.trainer import Trainer

ADAM = ["--device", "cpu", "--train.optimizer", "adam", "--train.lr-schedule", "linear"]
ADAM += ["--train.beta1", "0.9"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_cartpole(seed):
    words = ["--train.learning-rate", "0.02", "--seed", seed, "--vec.seed", seed]
    settings = config.load("cartpole", [*ADAM, *words])
    with vec.make(settings, 1) as environments:
        scores = [logs.get("env/score", 0.0) for logs in Trainer(settings, environments)]
    assert statistics.fmean(scores[-len(scores) // 10 :]) > 190  # of 200; it was 199 with each


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_gymnasiums_cartpole(seed):
    words = ["--train.learning-rate", "0.001", "--seed", seed, "--vec.seed", f"{seed}000"]
    settings = config.load("gym:CartPole-v1", [*ADAM, *words])
    with vec.make(settings, 1) as environments:
        trainer = Trainer(settings, environments)
        for logs in trainer:
            if logs.get("env/score_100", 0.0) >= 475 or trainer.global_step >= 80_000:
                break
    assert trainer.global_step < 80_000  # 57 to 60 thousand
