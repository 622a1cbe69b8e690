"""Configuration files, defaults and keys of PufferLib 5.0, and the choice of its trainer."""

from pathlib import Path

import pytest

from puffer_mlx import config as c
from puffer_mlx.config.compatibility import RENAMES, UNUSED
from puffer_mlx.config.ini_files import read_ini_5
from puffer_mlx.config.notes import keys_without_effect, trainer_note
from puffer_mlx.config.scanning import TRAINER_DEFINING_KEYS
from puffer_mlx.config.schema import DECLARED, SECTIONS

TABLE = Path(__file__).parents[1] / "data" / "upstream5_default.ini"

PUBLISHED = {  # variant of Breakout -> agents, epochs, minibatches, first agent of each, steps
    "a": (8192, 304, 6, [0, 2048, 4096, 6144, 0, 2048], 79_691_776),
    "b": (2048, 1205, 2, [0, 0], 78_970_880),
    "c": (2048, 1655, 5, [0, 1024, 0, 1024, 0], 108_462_080),
    "d": (2048, 958, 4, [0, 512, 1024, 1536], 62_783_488),
    "e": (4096, 498, 4, [0, 2048, 0, 2048], 65_273_856),
    "f": (4096, 357, 4, [0, 2048, 0, 2048], 46_792_704),
}


def test_the_published_runs_have_their_published_lengths():
    for variant, (agents, epochs, minibatches, offsets, steps) in PUBLISHED.items():
        config = c.load(f"breakout-{variant}")
        assert (config.env_name, config.vec.total_agents) == ("breakout", agents)
        assert (config.epochs, config.minibatches) == (epochs, minibatches)
        assert [j * config.segments % agents for j in range(config.minibatches)] == offsets
        assert config.epochs * config.batch_size == steps
        assert config.train.algorithm == "puffer5" and config.unused == config.notes == []
        changed = {"frameskip": 3, "hide_balls_and_width": 1}
        assert config.env == c.load("breakout").env | changed


def test_upstreams_table_of_defaults_equals_the_layer(here):
    theirs, ours = c.load(str(TABLE)), c.load("default", ["--train.algorithm", "puffer5"])
    trainer = "trainer puffer5, PufferLib 5.0's"
    assert trainer_note(theirs) == f"upstream5_default: {trainer} ({TABLE} is a 5.0 file)"
    assert theirs.base.profile is False and ours.base.profile is True  # the only other difference
    theirs.base.profile = True
    theirs.train.eps, theirs.train.beta2 = ours.train.eps, ours.train.beta2  # Adam's
    for section in SECTIONS:
        assert getattr(theirs, section) == getattr(ours, section)
    assert theirs.notes == [] and keys_without_effect(theirs) == []
    known = {*DECLARED, *RENAMES, "base.env_name"}
    given = {s.name for s in read_ini_5(TABLE) if s.section not in ("env", *theirs.sweep)}
    assert set(theirs.unused) == given - known <= UNUSED.keys()


def test_environments_of_5_0_have_the_parameters_that_5_0_adds_to_each(here):
    (here / "ocean" / "kelp").mkdir(parents=True)
    (here / "ocean" / "kelp" / "kelp.h").write_text("typedef float obs_t;\n")
    (here / "config").mkdir()
    text = "[env]\nnum_agents = 3\nmap = 'a # b'\nSpeed = 0x10\ncap = inf\n"
    (here / "config" / "kelp.ini").write_text(text)
    config = c.load("ocean/kelp")
    expected = {"dr": 0, "num_agents": 3, "num_bots": 0, "map": "a # b", "Speed": 16}
    assert config.env == expected | {"cap": float("inf")} and config.unused == []
    assert type(config.env["Speed"]) is type(config.env["dr"]) is float


@pytest.mark.parametrize(
    ("words", "algorithm"),
    [
        ("breakout-a --train.algorithm=puffer4", "puffer4"),
        ("gym:CartPole-v1 --train.algorithm=puffer5", "puffer5"),
    ],
)
def test_the_typed_trainer_sets_the_keys_that_define_it(words, algorithm):
    values = {"puffer4": [True, False, True, False], "puffer5": [False, True, False, "auto"]}
    env, *options = words.split()
    config = c.load(env, options)
    assert [config.value(name) for name in TRAINER_DEFINING_KEYS] == values[algorithm]
