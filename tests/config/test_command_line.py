"""Options of configuration keys: a command shows those that it uses, and names unused ones."""

import pytest
from running import cli

from puffer_mlx import config as c
from puffer_mlx.cli import bench
from puffer_mlx.config.compatibility import UNUSED
from puffer_mlx.config.schema import KEYS
from puffer_mlx.errors import UserError

SOME = ("base.seed", "vec")


def test_unused_keys_are_accepted_and_named(capsys):
    words = "--train.gamma 0.5 --vec.num-buffers 4 --cudagraphs 1 --seed 3 --overlap 1 --env.size 3"
    config, _ = c.parse_command_line(["squared", *words.split()], used=SOME)
    names = "train.gamma, base.cudagraphs, base.overlap"
    assert config.notes == [f"unused here: {names} (--help all shows the used keys)"]
    taken, _ = c.parse_command_line(["squared", "--overlap", "0"], used=["train.overlap"])
    assert taken.notes == []
    with pytest.raises(SystemExit):
        c.parse_command_line(["squared", "--help", "all"], used=SOME)
    shown = capsys.readouterr().out
    assert "--vec.num-buffers" in shown and "--seed" in shown and "--env.size" in shown
    assert "--train." not in shown and "--log-dir" not in shown and "[policy]" not in shown


def test_a_commands_own_option_wins_over_a_key_of_the_same_name():
    def add(parser):
        parser.add_argument("--episodes", "--eval-episodes", type=int)

    config, own = c.parse_command_line(["squared", "--eval-episodes", "7"], add, used=SOME)
    assert own.episodes == 7 and config.notes == []
    assert config.base.eval_episodes == c.Base().eval_episodes


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--anneal-lr --gamma 0.5", "train.anneal_lr", True),
        ("--train.gamma 0.3 --gamma=0.5", "train.gamma", 0.5),
        ("--seed 5", "base.seed", 5),  # of [base], although [vec] has one
        ("--precision bf16 --train.train-fp16 1 --precision bf16", "train.precision", "bf16"),
        ("--base.overlap 0 --base.seed 5", "train.overlap", False),  # another release's name
    ],
)
def test_the_last_option_of_a_key_counts_also_without_its_section(words, name, value):
    config = c.load("squared", words.split())
    assert config.value(name) == value and config.origins[name] == "command line"
    assert not name.startswith("base.seed") or config.vec.seed == c.load("squared").vec.seed


def test_suggested_keys_of_files_have_an_effect(here):
    suggested = set()
    for name in UNUSED:
        section, _, key = name.partition(".")
        if section in KEYS:
            (here / "toy.ini").write_text(f"[{section}]\n{key}x = 1\n")
            with pytest.raises(UserError) as caught:
                c.load("toy.ini")
            suggested.add(caught.value.hint.removeprefix("did you mean ").rstrip("?"))
    assert suggested and not suggested & {*UNUSED}


SCRIPTS = {  # options that a command's help shows, and options that it doesn't show
    "train": ("--train.gamma --log-dir --eval-episodes --vec.num-buffers", "--episodes"),
    "evaluate": (
        "--eval-episodes --seed --vec.seed --policy.hidden-size --env.size",
        "--train.gamma --train.minibatch-size --log-dir --profile --vec.num-buffers --reset-state",
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_shows_the_options_that_a_command_uses(name, capsys):
    module = cli(name)
    with pytest.raises(SystemExit):
        module.main(["squared", "--help", "all"])
    shown = capsys.readouterr().out.split()
    for word in SCRIPTS[name][0].split():
        assert word in shown or f"{word}," in shown, word
    assert not set(SCRIPTS[name][1].split()) & set(shown)


def test_stepping_without_a_policy_uses_no_training_keys(here, capsys):
    words = "--env-only --seconds 0.01 --repeat 1 --vec.total-agents 8 --train.gamma 0.5 --seed 3"
    assert bench.main(["squared", *words.split(), "--vec.num-threads", "1"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "unused here: train.gamma, base.seed (--help all shows the used keys)"


def test_help_lists_the_arguments_of_a_class_that_was_typed(tmp_path, monkeypatch, capsys):
    (tmp_path / "kites.py").write_text("class Kite:\n    def __init__(self, n, wind=0.5): ...\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        c.parse_command_line(["kites:Kite", "--help"])
    assert "environment parameters: --env.wind 0.5\n" in capsys.readouterr().out
