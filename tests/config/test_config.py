"""Configuration: what loads, what wins, what is refused and with which words."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from puffer_mlx import config as c
from puffer_mlx.config.compatibility import ONLY, RENAMES, UNUSED
from puffer_mlx.config.resolve import LAYERS, env_names
from puffer_mlx.config.schema import KEYS, SECTIONS
from puffer_mlx.errors import UserError

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def ini(tmp_path):
    """Write an .ini file, return its path as text."""

    def write(text: str, name: str = "toy.ini") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write


# --- twenty and more wrong configurations: one message with the key, the value and a legal one ---


def test_a_file_that_is_no_text_or_not_there(tmp_path):
    (tmp_path / "binary.ini").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(UserError, match=r"binary\.ini is not a text file"):
        c.load(str(tmp_path / "binary.ini"))
    with pytest.raises(UserError, match=r"there is no file .*gone\.ini"):
        c.load(str(tmp_path / "gone.ini"))
    with pytest.raises(UserError, match=r"gone\.ini can't be read: No such file"):
        c.load("breakout", files=[tmp_path / "gone.ini"])


def test_what_is_known_is_there():
    """Names are offered that work: each is a folder in C, or is made in Python."""
    folders = {path.parent.name for path in (ROOT / "envs").glob("*/binding.c")}
    assert {name for name in c.known_envs() if ":" not in name} == folders


def test_the_hints_are_legal():
    # Each hint of a relation, taken at its word, loads.
    for argv in (
        ["--train.minibatch-size", "8256"],
        ["--train.minibatch-size", "262144"],
        ["--train.replay-ratio", "0.25"],
        ["--train.total-timesteps", "262144"],
        ["--vec.num-buffers", "4"],
        ["--vec.num-buffers", "5", "--vec.total-agents", "4095"],
        ["--vec.num-buffers", "5", "--vec.total-agents", "4100"],
    ):
        c.load("breakout", argv)


def test_the_hinted_replay_ratio_is_rounded_up():
    # M / (N T) = 64 / 576 = 1/9: 0.111 gives no minibatch, 0.112 gives one.
    config = c.Config()
    config.vec.total_agents, config.vec.num_buffers = 9, 1
    config.train.minibatch_size, config.train.replay_ratio = 64, 0.111
    with pytest.raises(UserError, match=r"train\.replay_ratio 0\.111 .*\n.*hint: 0\.112 or more"):
        c.validate(config)
    config.train.replay_ratio = 0.112
    c.validate(config)


@pytest.mark.parametrize(
    ("value", "named"), [("64", "'64' is not of type int"), (64.0, "64.0"), (True, "True")]
)
def test_validate_checks_types_of_a_configuration_built_in_code(value, named):
    config = c.Config()
    config.train.horizon = value
    with pytest.raises(UserError, match=named):
        c.validate(config)


# --- what loads ---


def test_breakout_is_upstreams():
    # N T = 4096 x 64 = 262144; S = 65536 / 64; E = 94e6 div 262144; K = trunc(1.42421 x 4) = 5
    ours, upstreams = c.load("breakout"), c.load(str(DATA / "upstream_breakout.ini"))
    for config in (ours, upstreams):
        assert (config.batch_size, config.segments, config.minibatches, config.epochs) == (
            (262144, 1024, 5, 358)
        )
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
    assert ours == upstreams


def test_minibatches_are_counted_in_float32():
    # The float32 next to 2.9999999 is 3, so K is 3 where double precision gives 2.
    config = c.Config()
    config.train.minibatch_size = config.batch_size
    config.train.replay_ratio = 2.9999999
    assert int(2.9999999 * config.batch_size / config.train.minibatch_size) == 2
    assert config.minibatches == 3


def test_upstreams_default_file_says_what_the_declarations_say():
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
    note = c.unused_note(config)
    assert note is not None
    for name in ("base.cudagraphs", "base.nccl_id", "train.seed", "base.rank"):
        assert note.count(name) == 1
    assert "\n" not in note


def test_fractions_in_integer_keys_are_cut_off():
    config = c.load(str(DATA / "upstream_g2048.ini"))
    assert config.env_name == "g2048"
    assert (config.vec.num_buffers, config.policy.num_layers) == (2, 4)
    assert config.env == {"scaffolding_ratio": 0.384917}
    assert config.unused == [
        *("policy.expansion_factor", "train.seed"),
        "train.env",
    ]


def test_forms_of_upstreams_environment_files():
    config = c.load(str(DATA / "upstream_quirks.ini"))
    assert config.env_name == "quirks"
    assert set(config.env) == {"interval", "reward_move", "spawn_rate", "leave_corpse"}
    assert list(config.env.values()) == [1.0, 0.0, 0.002, 1.0]
    assert config.train.total_timesteps == 94_000_000
    assert (config.train.anneal_lr, config.train.anneal_ent_coef) == (True, False)
    assert config.train.minibatch_size == 32768
    assert config.sweep["sweep.env.w_ang"]["min"] == "0.523 # PI / 6"
    assert "env.num_agents ('[8]' is not a number)" in config.unused
    assert {"base.package", "legacy.compile_fullgraph", "train.name"} < set(config.unused)


def test_large_integers_stay_exact():
    text = str(2**53 + 1)  # not a float
    assert c.load("default", ["--train.total-timesteps", text]).train.total_timesteps == 2**53 + 1


@pytest.mark.parametrize("word", ["true", "True", "1", "yes", "on"])
def test_words_for_true(word):
    assert c.load("default", ["--train.anneal-ent-coef", word]).train.anneal_ent_coef is True


@pytest.mark.parametrize("word", ["false", "False", "0", "no", "off"])
def test_words_for_false(word):
    assert c.load("default", ["--reset-state", word]).base.reset_state is False


def test_unused_options_are_accepted_and_named_once():
    config = c.load("breakout", ["--train.seed", "1", "--train.seed", "2", "--cudagraphs=5"])
    assert sorted(config.unused) == ["base.cudagraphs", "train.seed"]
    assert c.unused_note(c.load("breakout")) is None


def test_no_key_is_both_declared_and_unused():
    declared = {f"{section}.{key}" for section, keys in KEYS.items() for key in keys}
    assert not declared & set(UNUSED)
    assert set(ONLY) <= set(UNUSED)


# --- switches under the Metal port's names ---


def test_help_tells_the_other_names(capsys):
    with pytest.raises(SystemExit):
        c.parse_command_line(["--help", "all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "base.cpu_inference: train.rollout_device = cpu (0: auto)" in shown
    assert "base.async: train.overlap = auto (0: False; typed: True)" in shown
    for name, new in RENAMES.items():
        assert f"{name}: {new}" in shown
    assert len(RENAMES) == 8


def test_no_other_name_is_declared_or_unused():
    declared = {f"{section}.{key}" for section, keys in KEYS.items() for key in keys}
    assert not set(RENAMES) & (declared | set(UNUSED))
    assert {f"{section}.{key}" for section, key, *_ in RENAMES.values()} <= declared


# --- what wins ---


def test_later_sources_win(ini, tmp_path, monkeypatch):
    first = ini("[train]\ngamma = 0.1\ngae_lambda = 0.1\nclip_coef = 0.1\n")
    second = ini("[train]\ngae_lambda = 0.2\nclip_coef = 0.2\n", "second.ini")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "default.ini").write_text("[train]\ngamma = 0.4\nvf_coef = 0.4\n")
    monkeypatch.chdir(tmp_path)
    config = c.load(first, ["--train.clip_coef", "0.3"], files=[second])
    found = (config.train.vf_coef, config.train.gamma, config.train.gae_lambda)
    assert (*found, config.train.clip_coef) == (0.4, 0.1, 0.2, 0.3)
    assert config.train.beta1 == c.Train().beta1
    assert config.origins["train.clip_coef"] == "command line"
    assert config.origins["train.gae_lambda"] == "second.ini:2"


def test_the_working_directory_is_searched_before_the_package(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.ini").write_text("[base]\nenv_name = other breakout\n")
    (tmp_path / "configs" / "other.ini").write_text("[base]\nenv_name = other\n")
    (tmp_path / "configs" / "unnamed.ini").write_text("[train]\ngamma = 0.5\n")
    monkeypatch.chdir(tmp_path)
    assert c.find_config("breakout") == Path("configs/mine.ini")
    assert c.find_config("other") == Path("configs/other.ini")  # before mine.ini
    assert c.find_config("unnamed") == Path("configs/unnamed.ini")
    assert c.find_config("squared").is_absolute()  # the package's
    with pytest.raises(UserError, match="`puffer-mlx list` shows them"):
        c.find_config("mine")  # it names its environments, and this is none of them


def test_a_scripts_own_options():
    def add(parser):
        parser.add_argument("--load-model-path")
        parser.add_argument("--quiet", action="store_true")

    argv = ["breakout", "--quiet", "--seed", "5", "--load_model_path", "a/b.bin"]
    config, options = c.parse_command_line(argv, extra=add)
    assert config.base.seed == 5
    assert vars(options) == {"load_model_path": "a/b.bin", "quiet": True}


# --- help, and the way back ---


def test_help_explains_every_key(capsys):
    with pytest.raises(SystemExit) as caught:
        c.parse_command_line(["--help", "all"])
    assert caught.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for section, keys in KEYS.items():
        for key, declared in keys.items():
            option = ("--" if section == "base" else f"--{section}.") + key.replace("_", "-")
            assert f" {option} " in shown
            assert declared.help in shown
            assert declared.help.endswith(".")
    for name, reason in UNUSED.items():
        folded = shown.partition(f" {reason}: ")[2]
        assert re.match(rf"(\S+, )*{re.escape(name)}\b", folded), name


def test_help_of_an_environment_shows_its_values(capsys, ini):
    with pytest.raises(SystemExit):
        c.parse_command_line([ini("[train]\ngamma = 0.123\n[env]\nsize_of = 50%\n"), "-h", "all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "(0 to 1; default 0.123)" in shown
    assert "--env.size-of [FLOAT] default 50%" in shown


SHIPPED = sorted(p for p in (ROOT / "configs").rglob("*.ini") if p.name not in LAYERS)


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


def test_environments_of_python(monkeypatch, tmp_path):
    (tmp_path / "configs" / "gym").mkdir(parents=True)
    (tmp_path / "configs" / "python.ini").write_text("[train]\ngamma = 0.5\nvf_coef = 0.5\n")
    own = tmp_path / "configs" / "gym" / "Pole.ini"
    own.write_text("[base]\nenv_name = gym:Pole-v1\n[train]\nvf_coef = 0.7\n[env]\nsutton = True\n")
    monkeypatch.chdir(tmp_path)
    options = ["--env.render-mode", "rgb_array", "--env.g", "9.0", "--env.size=3", "--env.map='4'"]
    config = c.load("gym:Pole-v1", options)
    assert (config.env_name, config.python, config.source) == ("gym:Pole-v1", True, "")
    assert (config.train.gamma, config.train.vf_coef) == (0.5, 0.7)
    expected = {"sutton": True, "render_mode": "rgb_array", "g": 9.0, "size": 3, "map": "4"}
    assert config.env == expected
    assert [type(x) for x in config.env.values()] == [bool, str, float, int, str]
    c.write_ini(config, tmp_path / "again.ini")
    again = c.load(str(tmp_path / "again.ini"))
    assert again == config and [type(x) for x in again.env.values()] == [bool, str, float, int, str]
    other = c.load("my.envs:Maze", ["--env.size", "3"])
    assert (other.env_name, other.train.vf_coef, other.env) == ("my.envs:Maze", 0.5, {"size": 3})
    assert not c.load("squared").python and c.load("squared").train.gamma != 0.5


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("breakout", "breakout"),
        ("gym:CartPole-v1", "gym-CartPole-v1"),
        ("gym:ALE/Pong-v5", "gym-ALE-Pong-v5"),
        ("../my/envs.py:Maze", "my-envs.py-Maze"),
    ],
)
def test_names_of_folders(name, slug):
    assert c.Config(name).slug == slug


@pytest.mark.parametrize("layout", ["own", "beside", "none"])
def test_a_folder_of_sources(tmp_path, monkeypatch, layout):
    folder = tmp_path / "lib" / "ocean" / "kite"
    folder.mkdir(parents=True)
    (folder / "binding.c").write_text("")
    text = "[base]\nenv_name = other kite\n[env]\nwind = 3\n[train]\ngamma = 0.25\n"
    if layout == "own":
        (folder / "kite.ini").write_text(text)
    elif layout == "beside":
        deeper = tmp_path / "lib" / "config" / "ocean"
        deeper.mkdir(parents=True)
        (deeper / "kite.ini").write_text(text)
        (deeper.parent / "default.ini").write_text("[train]\ngamma = 0.75\nvf_coef = 0.75\n")
    monkeypatch.chdir(tmp_path)
    config = c.load("lib/ocean/kite", ["--train.beta1", "0.5"])
    assert (config.env_name, config.source, config.python) == ("kite", str(folder), False)
    assert config.train.beta1 == 0.5
    assert config.train.gamma == (0.995 if layout == "none" else 0.25)
    assert config.train.vf_coef == (0.75 if layout == "beside" else 2.0)
    c.write_ini(config, tmp_path / "again.ini")
    monkeypatch.chdir(tmp_path.parent)
    assert c.load(str(tmp_path / "again.ini")) == config


def test_the_source_of_a_file_is_beside_it(tmp_path, monkeypatch):
    (tmp_path / "mine.ini").write_text("[env]\nsource = 'c/kite'\n")
    monkeypatch.chdir(tmp_path.parent)
    assert c.load(f"{tmp_path.name}/mine.ini").source == str(tmp_path / "c" / "kite")
    here = c.load("squared", ["--env.source", "kite"])
    assert (here.source, here.env_name) == (str(tmp_path.parent / "kite"), "squared")


def test_written_and_loaded_is_the_same(tmp_path):
    argv = "--train.total-timesteps 123456789 --train.learning-rate 1e-05 --reset-state no"
    config = c.load("breakout", [*argv.split(), "--env.ball-width", "0.1", "--log-dir", "\"'x'\""])
    config.sweep["sweep"] = {"sweep_only": "gamma,\nhorizon"}
    c.write_ini(config, tmp_path / "run" / "config.ini")
    again = c.load(str(tmp_path / "run" / "config.ini"))
    assert again == config
    assert again.base.log_dir == "'x'"
    assert again.train.learning_rate == 1e-05
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.ini"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "config.ini"
    c.write_ini(c.Config(), path)
    before = path.read_text()

    def full(*_):
        raise OSError(28, "disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match=r"can't write .*config\.ini: disk full"):
        c.write_ini(c.load("breakout"), path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_to_dict_is_plain_and_complete():
    config = c.load("breakout")
    plain = json.loads(json.dumps(c.to_dict(config)))
    assert plain["env_name"] == "breakout"
    assert plain["train"]["learning_rate"] == 0.1
    for section, cls in SECTIONS.items():
        assert list(plain[section]) == [item.name for item in fields(cls)]
    assert "origins" not in plain
