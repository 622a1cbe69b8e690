"""Learning as a whole: what must be learned is, and what must not be isn't when a part is broken.

`memory` shows a cue once and asks for it four actions later, so 0.5 is the most
a policy without memory can score. `squared` on a 3 x 3 grid needs none; random walks return -0.4.
"""

import statistics
from pathlib import Path

import mlx.core as mx
import pytest

from puffer_mlx import config, vec
from puffer_mlx.config import Base, Config, Policy, Train, Vec, validate
from puffer_mlx.evaluation.games import play_pair
from puffer_mlx.evaluation.players import policy_player, random_player
from puffer_mlx.policy.networks import mingru
from puffer_mlx.ppo import advantage, loss
from puffer_mlx.rollout import acting as ways_of_acting
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec

MEMORY = find_environment("memory")
N, T, H = 128, 16, 16
LENGTH = 4  # actions of an episode of memory: four episodes fit in a segment


def train(folder: Path, epochs: int, agents: int = N, **env: float) -> list[float]:
    """Train from scratch; the mean score of the episodes that ended in each epoch."""
    settings = Config(
        env_name=folder.name,
        base=Base(seed=0),
        vec=Vec(total_agents=agents, num_buffers=2, seed=0),
        env=env,
        policy=Policy(hidden_size=H, num_layers=1),
        train=Train(
            total_timesteps=epochs * agents * T,
            learning_rate=0.03,
            minibatch_size=512,
            horizon=T,
            gamma=0.95,
            ent_coef=0.01,
        ),
    )
    validate(settings)
    about = {"total_agents": agents, "num_buffers": 2, "num_threads": 2, "env": env, "seed": 0}
    with NativeVec(folder, **about) as environments:
        return [logs["env/score"] for logs in Trainer(settings, environments)]


def train_memory() -> list[float]:
    return train(MEMORY, 70, length=LENGTH)


def train_squared() -> list[float]:
    return train(find_environment("squared"), 40, agents=2 * N, size=3)


def end(scores: list[float]) -> float:
    """The mean of the last epochs."""
    return sum(scores[-5:]) / 5


# ---- what must be learned ------------------------------------------------------------------------


def test_memory_is_learned():
    scores = train_memory()
    assert scores[0] < 0.6  # it began with guesses
    assert end(scores) > 0.95


def test_squared_is_learned():
    scores = train_squared()
    assert scores[0] < -0.2
    assert end(scores) > 0.9


# ---- what must not be: the tests above can fail --------------------------------------------------


def negate_advantages(monkeypatch):
    real = advantage.advantages
    monkeypatch.setattr(advantage, "advantages", lambda *args, **how: -real(*args, **how))


def flip_policy_gradient(monkeypatch):
    """The advantage also makes the value's target: only the normalised one is the policy's."""
    real = loss.normalise
    monkeypatch.setattr(loss, "normalise", lambda *args: -real(*args))


def credit_rewards_late(monkeypatch):
    """Credit a reward to the action after the one that earned it."""
    real = advantage.advantages

    def late(values, rewards, *args, **how):
        shifted = mx.concatenate([mx.zeros_like(rewards[:1]), rewards[:-1]])
        return real(values, shifted, *args, **how)

    monkeypatch.setattr(advantage, "advantages", late)


def forget(monkeypatch, acting: bool = True, training: bool = True):
    """Begin every step from zeros: T steps of S segments become T * S segments of one step."""
    real = mingru.mingru

    def amnesiac(x, weight, first, keep):
        steps, segments, width = x.shape
        if not (acting if steps == 1 else training):
            return real(x, weight, first, keep)
        single = x.reshape(1, steps * segments, width)
        out, _ = real(single, weight, mx.zeros(single.shape[1:]))
        return out.reshape(x.shape), mx.zeros((segments, width))

    monkeypatch.setattr(mingru, "mingru", amnesiac)
    monkeypatch.setattr(ways_of_acting, "make_actor", lambda *_: None)  # which computes in C


def forget_acting(monkeypatch):
    forget(monkeypatch, training=False)


def forget_training(monkeypatch):
    forget(monkeypatch, acting=False)


@pytest.mark.parametrize(
    ("broken", "most"),
    [
        (negate_advantages, 0.8),  # 0.70 on one processor, where another rounds otherwise
        (flip_policy_gradient, 0.2),
        (credit_rewards_late, 0.6),
        (forget_acting, 0.6),
        (forget_training, 0.6),
    ],
)
def test_a_broken_learner_does_not_learn_memory(monkeypatch, broken, most):
    broken(monkeypatch)
    assert end(train_memory()) < most


def test_squared_needs_no_memory(monkeypatch):
    """So it is the memory that the first task tests."""
    forget(monkeypatch)
    assert end(train_squared()) > 0.9


# ---- Adam learns what Muon does, by the environments' own files ----------------------------------

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


# ---- one policy that plays all four seats of soccer, against two who choose at random ------------

SHORT = "--vec.total-agents 512 --vec.num-buffers 2 --policy.hidden-size 32 --train.horizon 32"
STEPS = "--train.minibatch-size 2048 --train.total-timesteps 320_000 --profile 0"


def test_a_team_learns():
    """Untrained it scores about 0.5; four games of each of 32 environments, on both sides."""
    folder, seen = find_environment("soccer"), []
    settings = config.load("soccer", [*SHORT.split(), *STEPS.split()])
    with (
        NativeVec(folder, env={}, total_agents=512, num_buffers=2, num_threads=2) as seats,
        NativeVec(folder, env={}, total_agents=4 * 32, seed=10_000) as boards,
    ):
        trainer = Trainer(settings, seats)
        others = random_player(seats.spec.action)
        for training in False, True:
            if training:
                list(trainer)
            ours = policy_player("learner", trainer.policy, trainer.weights, deterministic=False)
            seen.append(play_pair(ours, others, boards, 4, seed=1).total.score)
    assert abs(seen[0] - 0.5) < 0.1 and seen[1] > 0.7
