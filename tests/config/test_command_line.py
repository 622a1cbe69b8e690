"""The keys of a script: it shows and takes those that it obeys, and says which it doesn't."""

import argparse

import pytest
from running import cli

from puffer_mlx import config as c
from puffer_mlx.cli import bench
from puffer_mlx.config.compatibility import UNUSED
from puffer_mlx.config.option_names import is_used
from puffer_mlx.config.schema import KEYS
from puffer_mlx.errors import UserError

SOME = ("base.seed", "vec")


def test_keys_that_are_not_obeyed_are_taken_and_named(capsys):
    words = "--train.gamma 0.5 --vec.num-buffers 4 --cudagraphs 1 --seed 3 --overlap 1 --env.size 3"
    config, _ = c.parse_command_line(["squared", *words.split()], used=SOME)
    names = "train.gamma, base.cudagraphs, base.overlap"
    assert config.notes == [f"unused here: {names} (--help all shows what is used)"]
    taken, _ = c.parse_command_line(["squared", "--overlap", "0"], used=["train.overlap"])
    assert taken.notes == []
    with pytest.raises(SystemExit):
        c.parse_command_line(["squared", "--help", "all"], used=SOME)
    shown = capsys.readouterr().out
    assert "--vec.num-buffers" in shown and "--seed" in shown and "--env.size" in shown
    assert "--train." not in shown and "--log-dir" not in shown and "[policy]" not in shown


def test_a_scripts_own_option_comes_before_a_key_of_its_name():
    def add(parser):
        parser.add_argument("--episodes", "--eval-episodes", type=int)

    config, own = c.parse_command_line(["squared", "--eval-episodes", "7"], add, used=SOME)
    assert own.episodes == 7 and config.notes == []
    assert config.base.eval_episodes == c.Base().eval_episodes


def test_keys_are_no_options_of_argparse(monkeypatch):
    added = []
    add = argparse.ArgumentParser.add_argument
    monkeypatch.setattr(
        argparse._ActionsContainer,
        "add_argument",
        lambda self, *names, **how: added.append(names) or add(self, *names, **how),
    )
    config = c.load("breakout", ["--train.gamma=0.5", "--env.paddle-width", "3"])
    assert config.train.gamma == 0.5 and config.env["paddle_width"] == 3
    assert added == [("-h", "--help"), ("--allow-code",)]


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--total-timesteps 1e6", "train.total_timesteps", 1_000_000),
        ("--learning_rate=0.5", "train.learning_rate", 0.5),
        ("--anneal-lr --gamma 0.5", "train.anneal_lr", True),
        ("--train.gamma 0.3 --gamma 0.5", "train.gamma", 0.5),
        ("--gamma 0.3 --train.gamma 0.5", "train.gamma", 0.5),
        ("--seed 5", "base.seed", 5),  # of [base], although [vec] has one
        ("--hidden-size 32", "policy.hidden_size", 32),
        ("--network LSTM", "torch.network", "LSTM"),  # which also chooses files
        ("--base.overlap 0 --base.seed 5", "train.overlap", False),  # another release's name
    ],
)
def test_a_key_of_one_section_needs_no_section(words, name, value):
    config = c.load("squared", words.split())
    assert config.value(name) == value and config.origins[name] == "command line"
    assert not name.startswith("base.seed") or config.vec.seed == c.load("squared").vec.seed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--train.gamma 0.5 0.6", "unexpected '0.6'"),
        ("--anneal-lr 1 --gamma 0.5 x --horizon 8", "unexpected 'x'"),
        ("x --gamma 0.5", "unexpected 'x'"),
        ("--gamma", "argument --gamma: expected one argument"),
        ("--gamma --seed 3", "argument --gamma: expected one argument"),
        ("--base.gamma 0.5", "unknown option --base.gamma 0.5"),
        ("--gama 0.5", "unknown option --gama 0.5"),
        ("-- 0.5", "unknown option -- 0.5"),
    ],
)
def test_what_is_no_option_of_a_key_is_refused(words, message):
    with pytest.raises(UserError) as caught:
        c.load("squared", words.split())
    assert caught.value.message == f"{message} (command line)" and caught.value.hint


def test_a_suggestion_does_something():
    for word in ["--track", "--gpu", "--train.beta", "--cuda-graph", "--train.optimiser", "--rnk"]:
        for used in None, SOME:
            with pytest.raises(UserError) as caught:
                c.parse_command_line(["squared", word, "1"], used=used)
            if "did you mean --" in caught.value.hint:
                name = caught.value.hint.removeprefix("did you mean --").rstrip("?")
                name = name.replace("-", "_")
                assert is_used(used, name if "." in name else f"base.{name}")


def test_a_file_is_never_advised_a_key_that_does_nothing(here):
    for name in UNUSED:
        section, _, key = name.partition(".")
        if section in KEYS:
            (here / "toy.ini").write_text(f"[{section}]\n{key}x = 1\n")
            with pytest.raises(UserError) as caught:
                c.load("toy.ini")
            meant = caught.value.hint.removeprefix("did you mean ").rstrip("?")
            assert meant not in UNUSED


SCRIPTS = {  # script -> options that its help shows, and that it doesn't
    "train": ("--train.gamma --log-dir --eval-episodes --vec.num-buffers", "--episodes"),
    "evaluate": (
        "--eval-episodes --seed --vec.seed --policy.hidden-size --env.size",
        "--train.gamma --train.minibatch-size --log-dir --profile --vec.num-buffers --reset-state",
    ),
    "bench": ("--train.gamma --vec.num-threads", "--log-dir --eval-episodes --checkpoint-keep"),
    "check_env": ("--train.gamma --vec.num-buffers", "--log-dir --train.total-timesteps"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_shows_what_a_script_obeys(name, capsys):
    module = cli(name)
    with pytest.raises(SystemExit):
        module.main(["squared", "--help", "all"])
    shown = capsys.readouterr().out.split()
    for word in SCRIPTS[name][0].split():
        assert word in shown or f"{word}," in shown, word
    assert not set(SCRIPTS[name][1].split()) & set(shown)


def test_stepping_alone_uses_no_policy(here, capsys):
    words = "--env-only --seconds 0.01 --repeat 1 --vec.total-agents 8 --train.gamma 0.5 --seed 3"
    assert bench.main(["squared", *words.split(), "--vec.num-threads", "1"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "unused here: train.gamma, base.seed (--help all shows what is used)"
