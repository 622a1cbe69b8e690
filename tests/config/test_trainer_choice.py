"""Whose trainer a run gets, PufferLib 4.0's or 5.0's: what tells, and what counts for it."""

import pytest

from puffer_mlx import config as c
from puffer_mlx.config.notes import trainer_note
from puffer_mlx.config.resolve import ESSENCE


@pytest.fixture
def repository(here):
    """An environment of each release, with a file that tells nothing."""
    for name, source in (("kelp", "kelp.h"), ("kite", "binding.c")):
        (here / "ocean" / name).mkdir(parents=True)
        (here / "ocean" / name / source).write_text("typedef float obs_t;\n")
    (here / "config").mkdir()
    (here / "config" / "kelp.ini").write_text("[train]\ngamma = 0.5 ; half\n[env]\nMap = a, b\n")
    (here / "config" / "kite.ini").write_text("[train]\ngamma = 0.5 # half\n")
    return here


def test_a_file_that_tells_nothing_follows_the_folder(repository):
    five, four = c.load("ocean/kelp"), c.load("ocean/kite")
    assert trainer_note(five) == "kelp: PufferLib 5.0's trainer (ocean/kelp is a 5.0 folder)"
    assert trainer_note(four) == "kite: PufferLib 4.0's trainer (ocean/kite is a 4.0 folder)"
    assert five.train.gamma == four.train.gamma == 0.5  # read by the rules of the folder
    (repository / "mine.ini").write_text("[env]\nsource = ocean/kelp\nMap = c # d\n")
    mine = c.load("mine.ini")
    assert mine.train.algorithm == "puffer5" and mine.env["Map"] == "c"
    (repository / "mine.ini").write_text("[train]\ngamma = 0.5\n")
    mine = c.load("mine.ini", ["--env.source", "ocean/kelp", "--env.num_bots=2"])
    assert mine.train.algorithm == "puffer5" and mine.env["num_bots"] == 2


def test_what_wins(repository):
    """The command line, a file that says it, the last file that tells, the folder, the default."""
    default, own = repository / "config" / "default.ini", repository / "config" / "kite.ini"
    for path, line, algorithm in (
        (default, "momentum = 0.9", "puffer5"),
        (own, "prio_alpha = 0", "puffer4"),
        (default, "algorithm = puffer5", "puffer5"),
    ):
        path.write_text(f"[train]\n{line}\n")
        config = c.load("kite")
        assert config.train.algorithm == algorithm
    assert config.chosen_by == "config/default.ini says train.algorithm"
    config = c.load("kite", ["--train.algorithm", "puffer4"])
    assert trainer_note(config) == "kite: PufferLib 4.0's trainer (--train.algorithm)"
    assert config.train.algorithm == "puffer4" and config.base.reset_state
    (repository / "configs").mkdir()  # one's own defaults
    (repository / "configs" / "default.ini").write_text("[train]\nalgorithm = puffer5\n")
    for line, algorithm in ("gamma = 0.5", "puffer5"), ("beta1 = 0.5", "puffer4"):
        (repository / "toy.ini").write_text(f"[train]\n{line}\n")
        assert c.load("toy.ini").train.algorithm == algorithm


IS_4, IS_5 = (True, False, True, False), (False, True, False, "auto")


def test_what_the_trainers_are():
    essence = {"puffer4": [True, False, True, False], "puffer5": [False, True, False, "auto"]}
    for word, algorithm in (
        *(("breakout", "puffer4"), ("breakout-a", "puffer5")),
        *(("breakout --train.algorithm=puffer5", "puffer5"), ("squared", "puffer4")),
        ("breakout-a --train.algorithm=puffer4", "puffer4"),
        ("gym:CartPole-v1 --train.algorithm=puffer5", "puffer5"),
    ):
        env, *words = word.split()
        config = c.load(env, words)
        assert [config.value(name) for name in ESSENCE] == essence[algorithm], word


def test_a_run_says_whose_trainer_it_has_and_what_that_does_not_read(here, script, capsys):
    words = "--train.algorithm puffer5 --train.prio-alpha 0.5 --vec.num-policies=1"
    small = "--vec.total-agents 8 --train.minibatch-size 64 --train.horizon 8"
    small += " --train.total-timesteps 128 --eval-episodes 0 --base.checkpoint_dir=kept"
    assert script.main(["squared", *words.split(), *small.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "squared: PufferLib 5.0's trainer (--train.algorithm)"
    assert lines[1] == "unused here: train.prio_alpha, vec.num_policies (--help all says why)"
    # Its own file says the rest, whatever the word before it is.
    longer = "--resume latest --base.checkpoint_dir=kept --train.total-timesteps 256"
    assert script.main(["squared", *longer.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("squared: PufferLib 5.0's trainer (kept/squared/")
    assert lines[0].endswith("/config.ini says train.algorithm)")
    assert lines[2].startswith("going on with ")
