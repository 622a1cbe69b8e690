"""Configurations: which load, which of several sources wins, and what is refused."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puffer_mlx import config as c
from puffer_mlx.config.compatibility import RENAMES, UNUSED
from puffer_mlx.config.finding import SHARED_FILES, env_names
from puffer_mlx.config.schema import DECLARED, SECTIONS
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.reading import read_sweep

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def ini(tmp_path):
    """Return a function that writes an .ini file and returns its path as text."""

    def write(text: str, name: str = "toy.ini") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write


def test_missing_and_binary_files_are_refused(tmp_path):
    (tmp_path / "binary.ini").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(UserError, match=r"binary\.ini is not a text file"):
        c.load(str(tmp_path / "binary.ini"))
    with pytest.raises(UserError, match=r"there is no file .*gone\.ini"):
        c.load(str(tmp_path / "gone.ini"))
    with pytest.raises(UserError, match=r"gone\.ini can't be read: No such file"):
        c.load("breakout", files=[tmp_path / "gone.ini"])


def test_many_problems_of_a_file_are_cut_to_20(ini):
    path = ini("[train]\n" + "".join(f"unknown_{n} = 1\n" for n in range(5000)))
    with pytest.raises(UserError) as caught:
        c.load(path)
    lines = str(caught.value).splitlines()
    assert lines[0] == "5,000 problems in the configuration:" and lines[-1] == "  and 4,980 more"
    assert lines[-3].startswith("  20. unknown key train.unknown_19 1 ")


def test_settings_that_are_not_utf_8_are_refused(here):
    with pytest.raises(UserError, match=r"env\.source is '.*gr\\udcf6.*', which is not UTF-8"):
        c.load("squared", ["--env.source", "gr\udcf6"])


@settings(max_examples=40)
@given(
    option=st.sampled_from(["train.minibatch_size", "vec.num_buffers", "train.total_timesteps"]),
    number=st.integers(1, 300_000),
)
def test_the_first_number_of_a_hint_is_legal(option, number):
    try:
        c.load("breakout", [f"--{option}={number}"])
    except UserError as error:
        found = re.search(r"\b\d+", error.hint)
        assert found
        c.load("breakout", [f"--{option}={found[0]}"])


def test_validate_checks_types_of_a_configuration_built_in_code():
    config = c.Config()
    config.train.horizon = "64"  # pyright: ignore
    with pytest.raises(UserError, match="'64' is not of type int"):
        c.validate(config)


# --- what loads ---


def test_breakout_equals_upstreams_file():
    # N T = 4096 x 64 = 262144; S = 65536 / 64; E = 94e6 div 262144; K = trunc(1.42421 x 4) = 5
    ours, upstreams = c.load("breakout"), c.load(str(DATA / "upstream_breakout.ini"))
    for config in (ours, upstreams):
        sizes = config.batch_size, config.segments, config.minibatches, config.epochs
        assert sizes == (262144, 1024, 5, 358)
    assert upstreams.unused == ours.unused == []
    assert (upstreams.train.beta2, upstreams.train.eps) == (
        0.9986265112492152,
        8.339460257113628e-5,
    )
    upstreams.train.beta2, upstreams.train.eps = ours.train.beta2, ours.train.eps  # unread by Muon
    for lines in upstreams.sweep.values():
        del lines["mean"]  # upstream does not read it
    for key in ("initial_paddle_width", "num_agents"):
        del upstreams.env[key]  # the game does not read it
    assert ours.env.pop("hide_balls_and_width") == 0  # upstream has no such key
    assert ours == upstreams


def test_minibatches_are_counted_in_float32():
    # The float32 next to 2.9999999 is 3, so K is 3 where double precision gives 2.
    config = c.Config()
    config.train.minibatch_size = config.batch_size
    config.train.replay_ratio = 2.9999999
    assert int(2.9999999 * config.batch_size / config.train.minibatch_size) == 2
    assert config.minibatches == 3


def test_upstreams_defaults_equal_the_declarations():
    config = c.load(str(DATA / "upstream_default.ini"))
    assert (config.base.checkpoint_interval, config.base.profile) == (500, False)  # ours: 200, on
    config.base.checkpoint_interval, config.base.profile = 200, True
    assert config.train.eps == 1e-12  # that nothing reads; ours is for Adam
    config.train.eps = 1e-5
    assert config.base == c.Base()
    assert (config.vec, config.policy, config.torch) == (c.Vec(), c.Policy(), c.Torch())
    assert config.train == c.Train()
    assert config.selfplay == c.Selfplay()
    assert config.sweep["sweep"]["match_enemy_model_path"] == "''"
    assert config.sweep["sweep.train.gamma"]["max"] == "0.9999"
    note = c.unused_keys_note(config)
    assert note is not None
    for name in ("base.cudagraphs", "base.nccl_id", "train.seed", "base.rank"):
        assert note.count(name) == 1
    assert "\n" not in note


def test_upstreams_environment_files_load():
    """Fractions in whole numbers are cut off; keys that mean nothing are named."""
    config = c.load(str(DATA / "upstream_g2048.ini"))
    assert (config.env_name, config.vec.num_buffers, config.policy.num_layers) == ("g2048", 2, 4)
    assert config.env == {"scaffolding_ratio": 0.384917}
    assert config.unused == ["policy.expansion_factor", "train.seed", "train.env"]
    config = c.load(str(DATA / "upstream_quirks.ini"))
    expected = {"interval": 1, "reward_move": 0, "spawn_rate": 0.002, "leave_corpse": 1}
    assert config.env_name == "quirks" and config.env == expected
    train = config.train
    assert (train.total_timesteps, train.minibatch_size) == (94_000_000, 32768)
    assert (train.anneal_lr, train.anneal_ent_coef) == (True, False)
    assert config.sweep["sweep.env.w_ang"]["min"] == "0.523 # PI / 6"
    assert "env.num_agents ('[8]' is not a number)" in config.unused
    assert {"base.package", "legacy.compile_fullgraph", "train.name"} < set(config.unused)


# --- what wins ---


def test_later_sources_win(ini, tmp_path, monkeypatch):
    first = ini("[train]\ngamma = 0.1\ngae_lambda = 0.1\nclip_coef = 0.1\n")
    second = ini("[train]\ngae_lambda = 0.2\nclip_coef = 0.2\n", "second.ini")
    monkeypatch.chdir(tmp_path)
    config = c.load(first, ["--train.clip_coef", "0.3"], files=[second])
    found = (config.train.gamma, config.train.gae_lambda, config.train.clip_coef)
    assert found == (0.1, 0.2, 0.3)
    assert config.train.beta1 == c.Train().beta1
    assert config.origins["train.clip_coef"] == "command line"
    assert config.origins["train.gae_lambda"] == "second.ini:2"


def test_the_working_directory_is_searched_for_names_that_the_package_lacks(here):
    (here / "configs").mkdir()
    (here / "configs" / "mine.ini").write_text("[base]\nenv_name = other breakout\n")
    (here / "configs" / "other.ini").write_text("[base]\nenv_name = other\n")
    (here / "configs" / "unnamed.ini").write_text("[train]\ngamma = 0.5\n")
    assert c.find_config("breakout") == ROOT / "configs/breakout.ini"
    assert c.find_config("other") == here / "configs/other.ini"  # before mine.ini
    assert c.find_config("unnamed") == here / "configs/unnamed.ini"
    with pytest.raises(UserError, match="`puffer-mlx list` shows all"):
        c.find_config("mine")  # it names its environments, and this is none of them


# --- help, and the way back ---


def test_help_explains_every_key(capsys, ini):
    """And other names of keys, and those that mean nothing; of an environment with its values."""
    with pytest.raises(SystemExit) as caught:
        c.parse_command_line(["--help", "all"])
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, declared in DECLARED.items():
        assert f" --{name.removeprefix('base.').replace('_', '-')} " in shown
        assert declared.help in shown and declared.help.endswith(".")
    for name, reason in UNUSED.items():
        folded = shown.partition(f" {reason}: ")[2]
        assert re.match(rf"(\S+, )*{re.escape(name)}\b", folded), name
    for name, new in RENAMES.items():
        assert f"{name}: {new}" in shown
    assert "base.async: train.overlap = auto (0: False; typed: True)" in shown
    with pytest.raises(SystemExit):
        c.parse_command_line([ini("[train]\ngamma = 0.123\n[env]\nsize_of = 50%\n"), "-h", "all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "(0 to 1; default 0.123)" in shown and "--env.size-of [FLOAT] default 50%" in shown


SHIPPED = sorted(p for p in (ROOT / "configs").rglob("*.ini") if p.name not in SHARED_FILES)


def test_default_ini_is_generated_from_the_declarations():
    text = c.DEFAULT_HEADER + c.ini_text(c.Config(), comments=True)
    path = ROOT / "configs" / "default.ini"
    assert path.read_text() == text, "python -m puffer_mlx.config > configs/default.ini"


def test_every_shipped_file_loads_and_holds_only_what_is_used():
    for name in (name for path in SHIPPED for name in env_names(path)):
        config = c.load(name)
        assert config.env_name == name
        assert config.unused == []
        if not config.python:  # whose samples are shuffled, if not by puffer5
            assert c.load(name, ["--train.algorithm=puffer5"]).notes == []  # its minibatches fit


# --- what the first word names ---


def test_environments_of_python_have_their_own_files_and_arguments(here):
    (here / "configs" / "gym").mkdir(parents=True)
    own = here / "configs" / "gym" / "Pole.ini"
    own.write_text("[base]\nenv_name = gym:Pole-v1\n[train]\nvf_coef = 0.7\n[env]\nsutton = True\n")
    config = c.load("gym:Pole-v1", ["--env.g", "9.0", "--env.size=3", "--env.map='4'"])
    assert (config.env_name, config.python, config.source) == ("gym:Pole-v1", True, "")
    assert config.train.vf_coef == 0.7
    assert config.env == {"sutton": True, "g": 9.0, "size": 3, "map": "4"}
    other = c.load("my.envs:Maze", ["--env.size", "3"])
    assert (other.env_name, other.env) == ("my.envs:Maze", {"size": 3})
    assert other.train.vf_coef != 0.7 and not c.load("squared").python
    slugs = {"gym:ALE/Pong-v5": "gym-ALE-Pong-v5", "../my/envs.py:Maze": "my-envs.py-Maze"}
    assert {name: c.Config(name).slug for name in slugs} == slugs


def test_a_saved_folder_of_sources_is_absolute(here, monkeypatch):
    """``source`` in a file is relative to the file."""
    (here / "kite").mkdir()
    (here / "kite" / "binding.c").write_text("")
    (here / "kite" / "kite.ini").write_text("[env]\nwind = 3\n[train]\ngamma = 0.25\n")
    config = c.load("./kite", ["--train.beta1", "0.5"])
    assert (config.env_name, config.source, config.python) == ("kite", str(here / "kite"), False)
    assert (config.train.beta1, config.train.gamma, config.env) == (0.5, 0.25, {"wind": 3})
    c.write_ini(config, "again.ini")
    (here / "mine.ini").write_text("[env]\nsource = 'c/kite'\n")
    monkeypatch.chdir(here.parent)
    assert c.load(str(here / "again.ini")) == config
    assert c.load(f"{here.name}/mine.ini").source == str(here / "c" / "kite")
    assert c.load("squared", ["--env.source", "kite"]).source == str(here.parent / "kite")


def test_to_dict_is_plain_and_complete():
    config = c.load("breakout")
    plain = json.loads(json.dumps(c.to_dict(config)))
    assert plain["env_name"] == "breakout"
    assert plain["train"]["learning_rate"] == 0.1
    for section, cls in SECTIONS.items():
        assert list(plain[section]) == [item.name for item in fields(cls)]
    assert "origins" not in plain


def test_a_removed_key_is_refused_if_typed_and_ignored_in_old_files(ini):
    for words in (["--log-format", "puffer5"], ["--base.log_format=jsonl"]):
        with pytest.raises(UserError, match="--log-format was removed") as error:
            c.load("squared", words)
        assert "RUN.jsonl" in str(error.value)
    for value in ("jsonl", "puffer5"):
        config = c.load("squared", files=[ini(f"[base]\nlog_format = {value}\n")])
        assert not config.unused and not hasattr(config.base, "log_format")


# ---- what ranks policies -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "metric", "sign"),
    [
        ("", "env/score", 1),
        ("[sweep]\nmetric = environment/perf\n", "env/perf", 1),  # PufferLib 3.0's name
        ("[sweep.metric]\nname = environment/perf\ngoal = minimize\n", "env/perf", -1),  # 3.0's
        ("[sweep]\nmetric = elo\n[sweep.metric]\nname = perf\ngoal = minimize\n", "env/elo", -1),
    ],
)
def test_training_and_sweeps_read_the_metric_by_one_rule(ini, text, metric, sign):
    config = c.load("squared", files=[ini(text)])
    settings = read_sweep(config).settings
    assert (config.metric, config.sign) == (settings.metric, settings.sign) == (metric, sign)


def test_a_metric_that_evaluations_do_not_report_is_refused_before_training():
    words = ["--sweep.metric=loss/total", "--eval-interval", "8", "--stop-at-score", "1"]
    with pytest.raises(UserError, match=r"loss/total, which evaluations don't report"):
        c.load("squared", words)
