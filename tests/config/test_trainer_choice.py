"""Whose trainer a run gets, PufferLib 4.0's or 5.0's: what tells, and what counts for it."""

import pytest

from puffer_mlx import config as c
from puffer_mlx.config.trainer_choice import ESSENCE, trainer_note, unread
from puffer_mlx.config.versions import file_version
from puffer_mlx.errors import UserError

FILES = {  # text -> the trainer it selects, None: none; and the rules it is read by
    "[train]\ngamma = 0.5": (None, ""),
    "[env]\nmomentum = 1\nvtrace = 1\nbeta1 = 1": (None, ""),
    "[train]\n# momentum = 0.9\n; vtrace = 1": (None, ""),
    "[train]\nmomentum = 0.9": ("puffer5", "5.0"),
    "[train]\nvtrace = 0": ("puffer5", "5.0"),
    "[base]\nasync = 1 # on": ("puffer5", "5.0"),
    "[base]\nreset_every_horizon = 0": ("puffer5", "5.0"),
    "[vec]\nnum_policies = 1": ("puffer5", "5.0"),
    "[vec]\nhist_policy_num_layers = 0": ("puffer5", "5.0"),
    "[selfplay]\neval_games = 0": ("puffer5", "5.0"),
    "[train]\nbeta1 = 0.9": ("puffer4", "4.0"),
    "[train]\nBETA2: 0.9": ("puffer4", "4.0"),
    "[train]\neps = 1e-5": ("puffer4", "4.0"),
    "[train]\nprio_alpha = 0": ("puffer4", "4.0"),
    "[train]\nprio_beta0 = 0": ("puffer4", "4.0"),
    "[torch]": ("puffer4", "4.0"),
    "[base]\nreset_state = 1": ("puffer4", "4.0"),
    "[vec]\nfrozen_bank_pct = 0": ("puffer4", "4.0"),
    "[policy]\nexpansion_factor = 1": ("puffer4", "4.0"),
    # Of both: old keys are left in files of 5.0; before its release it drew by priorities.
    "[train]\nmomentum = 0.9\n[policy]\nexpansion_factor = 1": ("puffer5", "5.0"),
    "[train]\nmomentum = 0.9\nvtrace = 0\nprio_alpha = 0.8": ("puffer5", "5.0"),
    "[train]\nmomentum = 0.9\nprio_alpha = 0.8": ("puffer4", "5.0"),
    "[base]\nasync = 1\n[train]\nprio_beta0 = 0.8": ("puffer4", "5.0"),
    # It says so itself: the keys of 5.0 alone still tell the rules.
    "[train]\nalgorithm = puffer5\nprio_alpha = 0": ("puffer5", "4.0"),
    "[train]\nalgorithm = puffer5\nvtrace = 0": ("puffer5", "4.0"),
    "[train]\nalgorithm = puffer5\n[vec]\nnum_policies = 2": ("puffer5", "4.0"),
    "[train]\nalgorithm = puffer4\n[selfplay]\neval_games = 0": ("puffer4", "4.0"),
    "[train]\nalgorithm = 'puffer4'\nmomentum = 0.9 ; x": ("puffer4", "5.0"),
}


@pytest.mark.parametrize(("text", "expected"), FILES.items(), ids=[repr(text) for text in FILES])
def test_a_file_tells_whose_it_is(here, text, expected):
    trainer, rules = expected
    (here / "toy.ini").write_text(f"{text}\n")
    told = file_version(here / "toy.ini")
    assert (told.algorithm or None, told.rules) == (trainer, rules)
    config = c.load("toy.ini")
    assert config.train.algorithm == (trainer or "puffer4")
    assert trainer_note(config).startswith(
        f"toy: PufferLib {'4' if not trainer else trainer[-1]}.0"
    )
    assert trainer_note(config).endswith(f" (toy.ini {told.why})" if trainer else " (the default)")


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
    """The command line, a file that says it, the last file that tells, the folder."""
    (repository / "config" / "default.ini").write_text("[train]\nmomentum = 0.9\n")
    assert c.load("kite").train.algorithm == "puffer5"
    (repository / "config" / "kite.ini").write_text("[train]\nprio_alpha = 0\n")
    assert c.load("kite").train.algorithm == "puffer4"
    (repository / "config" / "default.ini").write_text("[train]\nalgorithm = puffer5\n")
    config = c.load("kite")
    assert config.train.algorithm == "puffer5"
    assert config.chosen_by == "config/default.ini says train.algorithm"
    config = c.load("kite", ["--train.algorithm", "puffer4"])
    assert trainer_note(config) == "kite: PufferLib 4.0's trainer (--train.algorithm)"
    assert config.train.algorithm == "puffer4" and config.base.reset_state
    with pytest.raises(UserError, match=r"train\.algorithm puffer6 does not exist here"):
        c.load("kite", ["--train.algorithm=puffer6"])


def test_ones_own_defaults_may_say_it(here):
    (here / "configs").mkdir()
    (here / "configs" / "default.ini").write_text("[train]\nalgorithm = puffer5\n")
    (here / "toy.ini").write_text("[train]\ngamma = 0.5\n")
    assert c.load("toy.ini").train.algorithm == "puffer5"
    (here / "toy.ini").write_text("[train]\nbeta1 = 0.5\n")
    assert c.load("toy.ini").train.algorithm == "puffer4"


def essence(config: c.Config) -> tuple:
    return tuple(getattr(getattr(config, s), k) for s, k in (name.split(".") for name in ESSENCE))


IS_4, IS_5 = (True, False, True, False), (False, True, False, "auto")


def test_what_the_trainers_are(here):
    assert essence(c.load("breakout")) == IS_4
    assert essence(c.load("breakout-a")) == IS_5
    assert essence(c.load("breakout", ["--train.algorithm=puffer5"])) == IS_5
    assert essence(c.load("breakout-a", ["--train.algorithm=puffer4"])) == IS_4
    assert essence(c.load("gym:CartPole-v1", ["--train.algorithm=puffer5"])) == IS_5


def test_a_file_of_the_other_release_does_not_change_what_a_trainer_is(here):
    """Its other values count, and win over those of puffer5.ini."""
    text = "[base]\nreset_state = True\ncheckpoint_interval = 7\n[train]\nbeta1 = 0.5\n"
    (here / "toy.ini").write_text(text)
    config = c.load("toy.ini", ["--train.algorithm", "puffer5"])
    assert essence(config) == IS_5
    assert (config.base.checkpoint_interval, config.train.beta1) == (7, 0.5)
    assert c.take_notes(config) == [
        "base.reset_state True (toy.ini:2) is not for puffer5, which has False;"
        " hint: --reset-state sets it"
    ]
    typed = c.load("toy.ini", ["--train.algorithm", "puffer5", "--reset-state", "1"])
    assert essence(typed) == (True, *IS_5[1:]) and typed.notes == []  # whoever types it knows
    (here / "toy.ini").write_text("[base]\nreset_state = False\n[train]\nbeta1 = 0.5\n")
    typed = c.load("toy.ini", ["--train.algorithm", "puffer5", "--reset-state", "1"])
    assert typed.base.reset_state and typed.notes == []
    config = c.load("toy.ini", ["--train.algorithm", "puffer5"])
    assert essence(config) == IS_5 and config.notes == []  # nothing to say


def test_a_file_from_before_the_release_trains_as_4(here):
    text = "[base]\nasync = 1\nreset_every_horizon = 0\n[train]\nprio_alpha = 0.5 ; x\n"
    (here / "toy.ini").write_text(text + "momentum = 0.5\n")
    config = c.load("toy.ini")
    assert config.chosen_by == "toy.ini is from before 5.0's release"
    assert (config.train.prio_alpha, config.train.beta1) == (0.5, 0.5)
    assert essence(config) == IS_4
    assert [note.partition(" (")[0] for note in config.notes] == [
        "train.overlap auto",
        "base.reset_state 0",
    ]


def test_keys_that_a_trainer_does_not_read_are_named(here):
    assert unread(c.load("breakout")) == unread(c.load("breakout-a")) == []
    five = c.load("breakout", ["--train.algorithm=puffer5", "--train.advantage", "V"])
    assert unread(five) == ["train.prio_alpha", "train.prio_beta0", "train.advantage"]
    assert unread(c.load("breakout", ["--eval-agents", "8"])) == ["base.eval_agents"]


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


def test_a_written_configuration_has_the_same_trainer(here):
    for words in (["breakout-a"], ["breakout", "--train.algorithm=puffer5"], ["breakout"]):
        config = c.load(words[0], [*words[1:], "--log-dir", "a # b; c"])
        c.write_ini(config, "config.ini")
        assert "chosen_by" not in c.to_dict(config)
        again = c.load("config.ini")
        assert again == config and again.chosen_by == "config.ini says train.algorithm"
        assert again.base.log_dir == "a # b; c" and again.notes == []


def test_the_layer_is_no_environment():
    with pytest.raises(UserError, match="no configuration has the environment 'puffer5'"):
        c.load("puffer5")
    assert "puffer5" not in c.known_envs()
