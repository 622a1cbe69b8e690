"""PPO of networks with memory: segments begin where their rollout did, and the T-maze is solved.

The maze shows where its goal is at the start only: without memory the mean return is 1.95 at most,
with it 4. Its settings are written out here, so that others can be tuned elsewhere.
"""

import pytest
from mlx.utils import tree_map
from running import ROOT

from puffer_mlx import config, vec
from puffer_mlx.ops import take_rows
from puffer_mlx.policy.policy import Policy
from puffer_mlx.training.trainer import Trainer

pytest.importorskip("gymnasium")

MAZE = f"{ROOT / 'benchmarks' / 'partial_environments.py'}:t_maze"
RECURRENT = "MinGRU", "LSTM", "GRU"
OPTIONS = """
    --device cpu --seed 1 --vec.seed 1000 --vec.total-agents 8 --vec.backend sync
    --env.length 2 --reset-state False --policy.reset-on-terminal True
    --policy.hidden-size 64 --policy.num-layers 2 --policy.dialect native
    --train.algorithm ppo --train.horizon 64 --train.minibatch-size 256 --train.replay-ratio 10
    --train.optimizer adam --train.learning-rate 0.003 --train.lr-schedule linear
    --train.beta1 0.9 --train.gamma 0.99 --train.gae-lambda 0.95 --train.ent-coef 0.01
    --train.vf-coef 0.5 --train.max-grad-norm 0.5
"""


def trained(network: str, steps: int, *more: str) -> list[dict[str, float]]:
    """The records of a run's epochs."""
    words = [*OPTIONS.split(), "--torch.network", network, *more]
    settings = config.load(MAZE, [*words, "--train.total-timesteps", str(steps)])
    with vec.make(settings, 1) as environments:
        return list(Trainer(settings, environments))


# ---- what is trained is what acted ---------------------------------------------------------------


def first_ratio_errors(network: str) -> list[float]:
    """Of epochs of 16 steps; episodes take 6 steps and more, so most rollouts begin in one."""
    words = "--env.length", "5", "--train.horizon", "16", "--train.minibatch-size", "64"
    return [logs["loss/first_ratio_error"] for logs in trained(network, 8 * 16 * 8, *words)]


@pytest.mark.parametrize("network", RECURRENT)
def test_a_segment_begins_with_its_rollouts_state(network):
    assert max(first_ratio_errors(network)) < 1e-5


def forget_states(monkeypatch):
    from puffer_mlx.training import reader

    monkeypatch.setattr(reader.Reader, "first_states", lambda self, rollout: None)


def give_others_states(monkeypatch):
    """Each agent's segment begins with the next one's state."""
    from puffer_mlx.ppo.algorithms import ppo

    real = ppo.segments

    def mixed(policy, fields, adv, learned, states, rows):
        section = real(policy, fields, adv, learned, states, rows)
        rows = (rows + 1) % adv.shape[1]
        others = tree_map(lambda a: take_rows(a[None], rows, 1).squeeze(0), states)
        return section._replace(state=others)

    monkeypatch.setattr(ppo, "segments", mixed)


def reset_nowhere_in_training(monkeypatch):
    real = Policy.not_done

    def kept(self, terminals):
        found = real(self, terminals)
        return found if found is None or terminals.ndim == 1 else 0 * found + 1

    monkeypatch.setattr(Policy, "not_done", kept)


@pytest.mark.parametrize("broken", [forget_states, give_others_states, reset_nowhere_in_training])
def test_other_states_are_noticed(monkeypatch, broken):
    broken(monkeypatch)
    assert max(first_ratio_errors("GRU")) > 1e-2


# ---- learning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["MinGRU", "LSTM"])
def test_the_maze_is_solved(network):
    assert trained(network, 8_000)[-1]["env/score_100"] > 3.5


def test_without_memory_it_is_not():
    assert 1 < trained("MLP", 8_000)[-1]["env/score_100"] < 3
