"""Learning as a whole: what must be learned is, and what must not be isn't when a part is broken.

`memory` shows a cue once and asks for it four actions later, so 0.5 is the most
a policy without memory can score. `squared` on a 3 x 3 grid needs none; random walks return -0.4.
"""

from pathlib import Path

import mlx.core as mx
import pytest

from puffer_mlx.config import Base, Config, Policy, Train, Vec, validate
from puffer_mlx.policy.networks.mingru import network as mingru
from puffer_mlx.ppo import advantage, loss
from puffer_mlx.rollout import acting as ways_of_acting
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec

MEMORY = find_environment("memory")
N, T, H = 128, 16, 16
LENGTH = 4  # actions of an episode of memory: four episodes fit in a segment


def train(folder: Path, epochs: int, seed: int = 0, agents: int = N, **env: float) -> list[float]:
    """Train from scratch; the mean score of the episodes that ended in each epoch."""
    config = Config(
        env_name=folder.name,
        base=Base(seed=seed),
        vec=Vec(total_agents=agents, num_buffers=2, seed=seed),
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
    validate(config)
    with NativeVec(
        folder, total_agents=agents, num_buffers=2, num_threads=2, env=env, seed=seed
    ) as vec:
        return [logs["env/score"] for logs in Trainer(config, vec)]


def train_memory(epochs: int = 70, seed: int = 0) -> list[float]:
    return train(MEMORY, epochs, seed, length=LENGTH)


def train_squared(epochs: int = 40, seed: int = 0) -> list[float]:
    return train(find_environment("squared"), epochs, seed, agents=2 * N, size=3)


def end(scores: list[float]) -> float:
    """The mean of the last epochs."""
    return sum(scores[-5:]) / 5


# ---- what must be learned ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_memory_is_learned(seed):
    scores = train_memory(seed=seed)
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
        (negate_advantages, 0.6),
        (flip_policy_gradient, 0.2),
        (credit_rewards_late, 0.6),
        (forget, 0.6),
        (forget_acting, 0.6),
        (forget_training, 0.6),
    ],
)
def test_a_broken_learner_does_not_learn_memory(monkeypatch, broken, most):
    broken(monkeypatch)
    assert end(train_memory()) < most


@pytest.mark.parametrize("broken", [negate_advantages, flip_policy_gradient])
def test_a_learner_of_the_wrong_sign_does_not_learn_squared(monkeypatch, broken):
    broken(monkeypatch)
    assert end(train_squared(epochs=20)) < -0.45  # worse than random


def test_squared_needs_no_memory(monkeypatch):
    """So it is the memory that the first task tests."""
    forget(monkeypatch)
    assert end(train_squared()) > 0.9
