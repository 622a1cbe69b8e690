"""Whole runs learn what they must.

`memory` shows a cue once and asks for it four actions later, so a policy without a recurrent state
scores at most 0.5. `squared` on a 3 x 3 grid needs no state; random walks return -0.4.
"""

import statistics

import pytest

from puffer_mlx import config, vec
from puffer_mlx.training.trainer import Trainer

SMALL = """
    --policy.hidden-size 16 --policy.num-layers 1 --train.learning-rate 0.03 --train.horizon 16
    --train.minibatch-size 512 --train.gamma 0.95 --train.ent-coef 0.01 --vec.num-buffers 2
"""


@pytest.mark.parametrize(
    ("name", "more", "epochs", "agents", "at_first", "at_last"),
    [
        ("memory", ["--env.length", "4"], 70, 128, 0.6, 0.95),
        ("squared", ["--env.size", "3"], 40, 256, -0.2, 0.9),
    ],
)
def test_a_task_is_learned(name, more, epochs, agents, at_first, at_last):
    steps = ["--train.total-timesteps", str(epochs * agents * 16)]
    words = [*SMALL.split(), *steps, "--vec.total-agents", str(agents), "--device", "cpu", *more]
    settings = config.load(name, words)
    with vec.make(settings, 2) as environments:
        scores = [logs["env/score"] for logs in Trainer(settings, environments)]
    assert scores[0] < at_first
    assert statistics.fmean(scores[-5:]) > at_last


ADAM = ["--device", "cpu", "--train.optimizer", "adam", "--train.lr-schedule", "linear"]
ADAM += ["--train.beta1", "0.9"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "rate", "solved"),
    [("cartpole", "0.02", 190), ("gym:CartPole-v1", "0.001", 475)],  # of 200 and 500
)
def test_adam_learns_cartpole(env, rate, solved):
    settings = config.load(env, [*ADAM, "--train.learning-rate", rate, "--seed", "1"])
    best = 0.0
    with vec.make(settings, 1) as environments:
        trainer = Trainer(settings, environments)
        for logs in trainer:
            best = max(best, logs.get("env/score_100", logs.get("env/score", 0.0)))
            if best >= solved:
                break
    assert best >= solved
    if env.startswith("gym:"):
        assert trainer.global_step < 80_000
