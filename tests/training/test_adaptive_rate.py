"""``train.lr_schedule adaptive``: the learning rate follows the last epoch's KL."""

import pytest

from puffer_mlx import config, vec
from puffer_mlx.ppo.schedules import RATE_FACTOR, adapted_rate
from puffer_mlx.training.trainer import Trainer

WORDS = """
    --device cpu --env.size 3 --policy.hidden-size 8 --policy.num-layers 1
    --vec.total-agents 8 --vec.num-buffers 1 --train.horizon 8 --train.minibatch-size 32
    --train.total-timesteps 512 --train.lr-schedule adaptive --train.learning-rate 0.02
"""
CASES = {
    "puffer4, overlapped": ["--train.overlap", "1"],
    "puffer5": ["--train.algorithm", "puffer5"],
    "ppo": ["--train.algorithm", "ppo", "--torch.network", "MLP"],
    "ppo at once": ["--train.algorithm", "ppo", "--torch.network", "MLP", "--train.optimizer=adam"],
}


def settings(*more):
    return config.load("squared", [*WORDS.split(), *more])


@pytest.mark.parametrize("more", CASES.values(), ids=CASES)
def test_each_epochs_rate_follows_from_the_kl_of_the_epoch_before(more):
    chosen = settings(*more)
    with vec.make(chosen, 1) as environments:
        trainer, rates, rate = Trainer(chosen, environments), [], chosen.train.learning_rate
        while trainer.epoch < chosen.epochs:
            assert trainer.scheduled(trainer.epoch).lr == pytest.approx(rate, rel=1e-6)
            log = trainer.step()
            assert log["loss/learning_rate"] == rate
            rates.append(rate)
            train = chosen.train
            rate = adapted_rate(rate, train.learning_rate, log["loss/kl"], train.desired_kl)
    assert max(rates) > RATE_FACTOR**2 * rates[0] or min(rates) < rates[0] / RATE_FACTOR**2


def test_another_schedule_ignores_a_saved_rate():
    chosen = settings("--train.lr-schedule", "linear")
    with vec.make(chosen, 1) as environments:
        trainer = Trainer(chosen, environments)
        trainer.step()
        state = trainer.state()
        assert "learning_rate" not in state.values
        state.values["learning_rate"] = 5.0  # saved by the adaptive schedule
        trainer.restore(trainer.weights, state)
        assert trainer.scheduled(trainer.epoch).lr < 0.02
