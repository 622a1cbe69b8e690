"""examples/minimal.py trains the weights of the trainer, and refuses what it lacks."""

import functools
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import flat
from running import errors

from puffer_mlx import config, vec
from puffer_mlx.config.schema import KEYS
from puffer_mlx.errors import UserError
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.base import Environments

PAGE = Path(__file__).parents[2] / "examples" / "minimal.py"

T, N, S, EPOCHS = 8, 8, 4, 3
# Every number that training depends on is away from where it would do nothing.
OPTIONS = f"""
    --device cpu --policy.hidden-size 8 --policy.num-layers 1
    --vec.total-agents {N} --vec.num-buffers 1 --train.horizon {T}
    --train.total-timesteps {EPOCHS * T * N} --train.minibatch-size {S * T}
    --train.replay-ratio 1.5 --train.learning-rate 0.005 --train.min-lr-ratio 0.5
    --train.ent-coef 0.1 --train.anneal-ent-coef 1 --train.max-grad-norm 0.5
    --train.clip-coef 0.02 --train.vf-clip-coef 0.02 --train.reward-clip 0.4
    --train.vtrace-c-clip 0.999 --train.prio-beta0 0.4
""".split()
SQUARED = "squared", "--env.size", "3"
CARTPOLE = (  # which tells time limits from ends
    *("gym:CartPole-v1", "--env.max_episode_steps", "6"),
    *("--train.algorithm", "puffer4", "--train.optimizer", "muon"),
)
CASES = {
    "squared, MinGRU": (*SQUARED, "--policy.reset-on-terminal", "1"),
    "breakout, LSTM": ("breakout", "--torch.network", "LSTM", "--reset-state", "0"),
    "connect4: masks": ("connect4", "--torch.network", "GRU", "--policy.dialect", "torch"),
    "squared, Adam, no ratios": (
        *(*SQUARED, "--train.optimizer", "adam", "--train.weight-decay", "0.1"),
        *("--train.vtrace", "0", "--train.vtrace-rho-clip", "0.9"),
    ),
    "cartpole_continuous, MLP": (
        *("cartpole_continuous", "--torch.network", "MLP", "--train.advantage", "S"),
        *("--train.clip-coef", "0.2"),
    ),
    "Gymnasium: last observations": CARTPOLE,
    "Gymnasium: time limits end": (*CARTPOLE, "--train.bootstrap-truncated", "0"),
}


class Stepped:
    """Environments without the method ``collect``, so that the trainer acts through MLX."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments

    def __getattr__(self, name: str) -> Any:
        if name in ("collect", "_environments"):
            raise AttributeError(name)
        return getattr(self._environments, name)


@pytest.fixture(scope="module")
def page():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(PAGE.parent)
        return import_module(PAGE.stem)


def run_page(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PAGE), *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    done.stderr = errors(done.stderr)
    return done


def configure(*words: str) -> config.Config:
    return config.load(words[0], [*OPTIONS, *words[1:]])


def of_page(page, *words: str) -> np.ndarray:
    settings = configure(*words)
    with vec.make(settings, threads=2) as environments:
        return flat(page.train(settings, environments))


def of_trainer(*words: str, wrap=lambda environments: environments) -> np.ndarray:
    settings = configure(*words)
    with vec.make(settings, threads=2) as environments:
        trainer = Trainer(settings, wrap(environments))
        assert trainer.acts_in_c == (wrap is not Stepped)
        records = list(trainer)
        assert len(records) == EPOCHS and records[-1]["loss/skipped_steps"] == 0
        return flat(trainer.weights)


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_page_trains_the_weights_of_the_trainer(page, words):
    """To the bit where both act through MLX; acting in C rounds otherwise."""
    found = of_page(page, *words)
    np.testing.assert_array_equal(found, of_trainer(*words, wrap=Stepped))
    np.testing.assert_allclose(found, of_trainer(*words), rtol=0, atol=1e-6)


# A change of each key of [train] that the page uses.
CHANGES = f"""
    total_timesteps={T * N} optimizer=adam learning_rate=0.02 anneal_lr=0 lr_schedule=linear
    min_lr_ratio=0.1 weight_decay=0.1 gamma=0.9 gae_lambda=0.5 replay_ratio=1 clip_coef=0.005
    vf_coef=1 vf_clip_coef=0.5 max_grad_norm=0.1 ent_coef=0.01 anneal_ent_coef=0
    min_ent_coef_ratio=0.5 beta1=0.5 beta2=0.9 eps=1e-3 minibatch_size={2 * T} horizon=4 vtrace=0
    vtrace_rho_clip=1.5 vtrace_c_clip=0.5 reward_clip=1 bootstrap_truncated=0 prio_alpha=0.2
    prio_beta0=0.9 advantage=S
""".split()
REFUSED = {"algorithm": "puffer5", "overlap": 1, "precision": "bf16", "rollout_device": "cpu"}
REFUSED |= {"launch_steps": 8, "one_launch": 1, "gpus": 2, "loss": "mine:loss"}
REFUSED |= {"rpo_alpha": 0.5}
OTHERS = {"target_kl", "desired_kl"}  # of another algorithm, and of a schedule that is refused
OTHERS |= {"rank_timeout"}  # of several processes
FASTER = "--train.learning-rate", "0.05"  # ratios and values move as far as their clips
ADAM = *SQUARED, "--train.optimizer", "adam"
ELSEWHERE = {"bootstrap_truncated": CARTPOLE, "beta2": ADAM, "eps": ADAM}


def test_page_uses_or_refuses_every_key_of_training(page):
    changes = dict(word.split("=") for word in CHANGES)
    command = sys.modules["minimal_command"]
    assert sorted({*changes, *REFUSED} | OTHERS) == sorted(KEYS["train"])
    assert {f"train.{key}" for key in REFUSED} | {"selfplay.enabled"} == command.LEFT_OUT.keys()
    plain = functools.cache(lambda *words: of_page(page, *words))
    unused = []
    for key, value in changes.items():
        words = *ELSEWHERE.get(key, SQUARED), *FASTER
        option = f"--train.{key.replace('_', '-')}={value}"
        if np.array_equal(of_page(page, *words, option), plain(*words)):
            unused.append(key)
    assert unused == []


def test_page_refuses_keys_that_it_lacks(page):
    key = "overlap"
    option = f"--train.{key.replace('_', '-')}={REFUSED[key]}"
    with pytest.raises(UserError, match=rf"not on this page: train\.{key}"):
        sys.modules["minimal_command"].refuse_left_out(configure(*SQUARED, option))


def test_command_in_the_docstring_learns_what_it_says(here):
    (words,) = re.findall(r"^    python examples/minimal\.py (.*)$", PAGE.read_text(), re.MULTILINE)
    low, high, most = map(int, re.findall(r"from (\d+) to (\d+),\s+of (\d+)", PAGE.read_text())[0])
    done = run_page(*words.split(), "--device", "cpu", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    scores = [float(score) for score in re.findall(r"score ([\d.]+)", done.stdout)]
    assert abs(scores[0] - low) < 1 and abs(scores[-1] - high) < 5 and high <= most
    assert not list(here.iterdir())
