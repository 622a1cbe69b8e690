"""Configuration: what loads, what wins, what is refused and with which words."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from puffer_mlx import config as c
from puffer_mlx.config.compatibility import ONLY, RENAMES, UNUSED
from puffer_mlx.config.known_files import LAYERS, env_names
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

WRONG_OPTIONS = [  # option, value, what the message names, what the hint offers
    (
        "--train.minibatch-size",
        "8200",
        "train.minibatch_size 8200 is not a multiple",
        "8192 or 8256",
    ),
    ("--train.minibatch-size", "40", "train.minibatch_size 40 is not a multiple", "hint: 64"),
    ("--train.minibatch-size", "524288", "train.minibatch_size 524288", "262144 or less"),
    ("--train.minibatch-size", "auto", "train.minibatch_size auto is not a number", "8192"),
    ("--train.horizon", "1", "train.horizon 1 is out of range", "at least 2"),
    ("--train.horizon", "64.5", "train.horizon 64.5 is not a whole number", "64 or 65"),
    ("--train.horizon", "", "train.horizon '' is not a number", "64"),
    ("--train.replay-ratio", "0.01", "train.replay_ratio 0.01 trains no", "hint: 0.25 or more"),
    ("--train.replay-ratio", "0", "train.replay_ratio 0.0 is out of", "above 0"),
    ("--train.total-timesteps", "1000", "train.total_timesteps 1000", "262144 or more"),
    ("--train.total-timesteps", "None", "train.total_timesteps None is not a number", "10000000"),
    ("--train.total-timesteps", "1e400", "train.total_timesteps 1e400 is not a finite", "10000000"),
    ("--train.gamma", "1.5", "train.gamma 1.5 is out of range", "at most 1, for example 0.995"),
    ("--train.gamma", "-0.1", "train.gamma -0.1 is out of range", "0 to 1"),
    ("--train.gamma", "nan", "train.gamma nan is not a finite number", "0.995"),
    ("--train.beta1", "1", "train.beta1 1.0 is out of range", "below 1"),
    ("--train.learning-rate", "fast", "train.learning_rate fast is not a number", "0.015"),
    ("--train.learning-rate", "inf", "train.learning_rate inf is not a finite number", "0.015"),
    ("--train.learning-rate", "-1e-3", "train.learning_rate -0.001 is out of", "at least 0"),
    ("--train.min-lr-ratio", "2", "train.min_lr_ratio 2.0 is out of range", "at most 1"),
    ("--train.anneal-lr", "maybe", "train.anneal_lr maybe is neither", "true or false"),
    ("--train.advantage", "W", "train.advantage W does not exist", "V or S"),
    ("--train.rollout-device", "tpu", "train.rollout_device tpu does not exist", "auto or cpu or"),
    ("--train.precision", "int8", "train.precision int8 does not exist", "fp32 or bf16 or fp16"),
    ("--train.precision", "FP16", "train.precision FP16 does not exist", "fp32 or bf16 or fp16"),
    ("--train.overlap", "2", "train.overlap 2 is neither true nor false", "true or false"),
    ("--overlap", "maybe", "base.overlap maybe is neither true nor false", "true or false"),
    ("--cpu-inference", "gpu", "base.cpu_inference gpu is neither true nor", "true or false"),
    ("--train.train-fp16", "bf16", "train.train_fp16 bf16 is neither true nor", "true or false"),
    ("--train.rollout-devise", "cpu", "unknown option --train.rollout-devise", "--train.rollout-d"),
    ("--profile", "trace.txt", "base.profile trace.txt is neither", "or a file .json"),
    ("--train.launch-steps", "-1", "train.launch_steps -1 is out of range", "at least 0"),
    ("--train.gpus", "0", "train.gpus 0 is out of range", "at least 1"),
    ("--train.draw-from", "each", "train.draw_from each does not exist", "rank or all"),
    ("--world-size", "4", "base.world_size 4 is not supported", "hint: 1"),
    ("--selfplay.enabled", "1", "1 needs opponents, and vec.num_frozen_banks 0", "banks 1 --vec"),
    ("--selfplay.rules", "puffer3", "selfplay.rules puffer3 does not exist", "or puffer5"),
    ("--selfplay.swap-winrate", "1.5", "selfplay.swap_winrate 1.5 is out of", "at most 1"),
    ("--vec.num-frozen-banks", "9", "vec.num_frozen_banks 9 is out of range", "at most 8"),
    ("--vec.num-policies", "10", "vec.num_policies 10 is out of range", "at most 9"),
    ("--vec.total-agents", "0", "vec.total_agents 0 is out of range", "at least 1"),
    ("--vec.total-agents", "1e12", "vec.total_agents 1000000000000", "at most 2_147_483_647"),
    ("--vec.num-buffers", "5", "4096 is not a multiple of vec.num_buffers 5", "num_buffers 4 or 8"),
    ("--vec.num-buffers", "5", "4096 is not a multiple of vec.num_buffers 5", "4095 or 4100"),
    (
        "--vec.num-buffers",
        "5000",
        "vec.num_buffers 5000",
        "vec.num_buffers 4096, or vec.total_agents 5000",
    ),
    ("--policy.num-layers", "0", "policy.num_layers 0 is out of range", "at least 1"),
    (
        "--torch.network",
        "RNN",
        "torch.network RNN does not exist here",
        "GRU or LSTM or MinGRU or MLP",
    ),
    ("--device", "tpu", "base.device tpu does not exist", "auto or cpu or gpu"),
    ("--seed", "-1", "base.seed -1 is out of range", "at least 0"),
    ("--log-dir", "", "base.log_dir '' is not one line of text", "logs"),
    (
        "--train.lerning-rate",
        "0.1",
        "unknown option --train.lerning-rate 0.1",
        "--train.learning-rate?",
    ),
    ("--learning-rate", "0.1", "unknown option --learning-rate 0.1", "--train.learning-rate?"),
    ("--train.lr", "0.1", "unknown option --train.lr 0.1", "here it is --train.learning-rate"),
    ("--lr", "0.1", "unknown option --lr 0.1", "here it is --train.learning-rate"),
    ("--n-steps", "9", "unknown option --n-steps 9", "here it is --train.horizon"),
    ("--ppo.clip_range", "9", "unknown option --ppo.clip-range 9", "here it is --train.clip-coef"),
    ("--train.learning-rate", "linear", "is not a number", "train.lr_schedule says: cosine, lin"),
    ("--train.min-lr", "0.1", "unknown option --train.min-lr 0.1", "--train.min-lr-ratio?"),
    ("--base.sed", "3", "unknown option --sed 3", "did you mean --seed?"),
    ("--env.frameskp", "3", "unknown option --env.frameskp 3", "did you mean --env.frameskip?"),
    ("--env.frameskip", "four", "env.frameskip four is not a number", "for example 1"),
    ("--sweep.gamma.max", "1", "unknown option --sweep.gamma.max 1", "--sweep.train.gamma.max?"),
    ("--sweep.zebra.max", "1", "unknown option --sweep.zebra.max 1", "a [sweep] section"),
    ("--sweep.train.gamma.max", "high", "sweep.train.gamma.max high is not a number", "0.5"),
]


@pytest.mark.parametrize(("option", "value", "named", "hint"), WRONG_OPTIONS)
def test_a_wrong_option_is_one_clear_message(option, value, named, hint):
    # One epoch of breakout: 4096 agents x 64 steps = 262144; its minibatch, 65536, is 0.25 of it.
    with pytest.raises(UserError) as caught:
        c.load("breakout", [option, value])
    found, _, offered = str(caught.value).partition("\n")
    assert named in found
    assert found.count("command line") == 1
    assert hint in offered


WRONG_FILES = [  # text, what the message names, the line it names, what the hint offers
    (
        "[train]\nlerning_rate = 0.1",
        "unknown key train.lerning_rate 0.1",
        2,
        "train.learning_rate?",
    ),
    ("[base]\ngamma = 0.9", "unknown key base.gamma 0.9", 2, "did you mean train.gamma?"),
    ("[train]\nmometum = 1", "unknown key train.mometum 1", 2, "did you mean train.momentum?"),
    ("[train]\nlr = 1", "unknown key train.lr 1", 2, "here it is train.learning_rate"),
    ("[vec]\nxyzzy = 1", "unknown key vec.xyzzy 1", 2, "--help"),
    ("[base]\n\n[trian]\ngamma = 0.9", "unknown section [trian]", 3, "[train]"),
    ("[DEFAULT]\ngamma = 0.9", "unknown section [DEFAULT]", 1, "did you mean ["),
    ("[train]\n# a\n\nGamma: high", "train.gamma high is not a number", 4, "0.995"),
    ("[train]\ngamma = 1\n  vf_coef = 1", r"train.gamma '1\nvf_coef = 1' is not", 2, "0.995"),
    ("[train]\ngamma = 'None'", "train.gamma 'None' is not a number", 2, "0.995"),
    ("[train]\nhorizon = 1.9", "train.horizon 1 is out of range", 2, "at least 2"),
    ("[train]\ngamma = 0.9\ngamma = 0.8", "train.gamma is set twice", 3, "remove one"),
    ("[train]\n[vec]\n[train]", "section [train] begins twice", 3, "one header"),
    ("gamma = 0.9", "'gamma = 0.9' is before any section", 1, "[train]"),
    ("[train]\ngamma 0.9", "'gamma 0.9' has no value", 2, "key = value"),
    ("[selfplay]\nenabled = True", "selfplay.enabled 1 needs opponents", 2, "-banks 1"),
    ("[selfplay]\nenabled = 2", "selfplay.enabled 2 is neither true nor false", 2, "true or"),
    ("[sweep.train.gamma]\nmin = low", "sweep.train.gamma.min low is not a number", 2, "0.5"),
    ("[env]\nsize = inf", "env.size inf is not a finite number", 2, "for example 1"),
    ("[base]\ncheckpoint_dir = None", "base.checkpoint_dir 'None'", 2, "checkpoints"),
]


@pytest.mark.parametrize(("text", "named", "line", "hint"), WRONG_FILES)
def test_a_wrong_file_is_one_clear_message(ini, text, named, line, hint):
    path = ini(text)
    with pytest.raises(UserError) as caught:
        c.load(path)
    found, _, offered = str(caught.value).partition("\n")
    assert named in found
    assert f"({path}:{line})" in found
    assert hint in offered


def test_a_file_that_is_no_text_or_not_there(tmp_path):
    (tmp_path / "binary.ini").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(UserError, match=r"binary\.ini is not a text file"):
        c.load(str(tmp_path / "binary.ini"))
    with pytest.raises(UserError, match=r"there is no file .*gone\.ini"):
        c.load(str(tmp_path / "gone.ini"))
    with pytest.raises(UserError, match=r"gone\.ini can't be read: No such file"):
        c.load("breakout", files=[tmp_path / "gone.ini"])


def test_an_unknown_environment_names_the_closest():
    with pytest.raises(UserError) as caught:
        c.load("breakut")
    assert "'breakut'" in caught.value.message
    assert "did you mean breakout?" in caught.value.hint
    assert "`puffer-mlx list`" in caught.value.hint
    with pytest.raises(UserError) as caught:
        c.load("breakout-fst")
    assert "did you mean breakout-fast?" in caught.value.hint


def test_what_is_known_is_there():
    """Names are offered that work: each is a folder in C, or is made in Python."""
    folders = {path.parent.name for path in (ROOT / "envs").glob("*/binding.c")}
    assert {name for name in c.known_envs() if ":" not in name} == folders


def test_all_problems_come_in_one_message():
    argv = "--train.gamma 2 --train.minibatch-size 8200 --vec.num-buffers 7 --train.horizon 64"
    with pytest.raises(UserError) as caught:
        c.load("breakout", argv.split())
    lines = str(caught.value).split("\n")
    assert lines[0] == "3 problems in the configuration:"
    assert [line.strip()[:2] for line in lines[1::2]] == ["1.", "2.", "3."]
    assert all(line.strip().startswith("hint: ") for line in lines[2::2])
    with pytest.raises(UserError, match="2 problems"):
        c.load("breakout", ["--train.gamma", "high", "--train.beta1", "nan"])


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([], "the first word must be an environment"),
        (["--seed", "1", "breakout"], "the first word must be an environment"),
        (["breakout", "squared"], "unexpected 'squared'"),
        (["breakout", "--seed"], "argument --seed: expected one argument"),
        (["breakout", "--train.gam", "0.9"], "unknown option --train.gam 0.9"),  # no abbreviations
    ],
)
def test_a_command_line_that_makes_no_sense(argv, named):
    with pytest.raises(UserError) as caught:
        c.parse_command_line(argv)
    assert named in caught.value.message
    assert caught.value.hint


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


@pytest.mark.parametrize("text", ["10_000_000", "1e7", "10000000.0", "10000000"])
def test_spellings_of_an_integer(ini, text):
    for config in (
        c.load(ini(f"[train]\ntotal_timesteps = {text}")),
        c.load("default", ["--train.total-timesteps", text]),
    ):
        assert config.train.total_timesteps == 10_000_000
        assert type(config.train.total_timesteps) is int


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

SWITCHES = [  # option, value -> where it is, and what it is there
    ("--cpu-inference", "1", "rollout_device", "cpu"),
    ("--cpu-inference", "0", "rollout_device", "auto"),
    ("--train.cpu_inference", "True", "rollout_device", "cpu"),
    ("--train.cpu-inference", "off", "rollout_device", "auto"),
    ("--train-fp16", "1", "precision", "fp16"),
    ("--train.train-fp16", "yes", "precision", "fp16"),
    ("--train.train-fp16", "0", "precision", "fp32"),
    ("--overlap", "1", "overlap", True),
    ("--overlap", "False", "overlap", False),
    ("--train.overlap", "1", "overlap", True),
    ("--train.overlap", "false", "overlap", False),
]


@pytest.mark.parametrize(("option", "value", "key", "expected"), SWITCHES)
def test_switches_have_other_names_too(ini, option, value, key, expected):
    """On the command line and in a file, where they are what they mean and not unused."""
    name = option.removeprefix("--").replace("-", "_")
    section, _, old = name.rpartition(".")
    other = {"rollout_device": "gpu", "precision": "bf16", "overlap": not expected}[key]
    before = f"[train]\n{key} = {other}\n"
    for config in (
        c.load(ini(before), [option, value]),
        c.load(
            ini(before), files=[Path(ini(f"[{section or 'base'}]\n{old} = {value}\n", "b.ini"))]
        ),
    ):
        assert getattr(config.train, key) == expected
        assert config.unused == []
        assert not hasattr(config.train, old) or old == key
    if expected not in ("auto", "fp32", False):  # of what isn't the default the origin is known
        assert config.origins[f"train.{key}"].endswith("b.ini:2")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("[train]\noverlap = 1", "[base]\noverlap = 0", False),
        ("[base]\noverlap = 0", "[train]\noverlap = 1", True),
        ("[base]\noverlap = 1", "[train]\noverlap = 0", False),
    ],
)
def test_the_later_of_two_names_wins(ini, first, second, expected):
    config = c.load(ini(first), files=[Path(ini(second, "second.ini"))])
    assert config.train.overlap is expected
    argv = ["--overlap", str(not expected)]
    config = c.load(ini(first), argv, files=[Path(ini(second, "second.ini"))])
    assert config.train.overlap is not expected


def test_of_two_names_on_the_command_line_the_later_wins():
    options = ["--train.precision=bf16", "--train-fp16=1"]
    assert c.load("breakout", options).train.precision == "fp16"
    assert c.load("breakout", options[::-1]).train.precision == "bf16"
    options = ["--train.rollout-device=auto", "--train.cpu-inference=1"]
    assert c.load("breakout", options).train.rollout_device == "cpu"
    assert c.load("breakout", options[::-1]).train.rollout_device == "auto"


def test_an_option_that_is_repeated_under_another_name():
    words = "--train.precision bf16 --train.train-fp16 1 --train.precision bf16"
    assert c.load("breakout", words.split()).train.precision == "bf16"


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


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *(("fp32", "fp32"), ("bf16", "bf16"), ("fp16", "fp16")),
        *(("float32", "fp32"), ("bfloat16", "bf16"), ("float16", "fp16")),
    ],
)
def test_precisions_have_pufferlib_3s_names_too(ini, tmp_path, word, expected):
    for config in (
        c.load("breakout", ["--train.precision", word]),
        c.load(ini(f"[train]\nprecision = {word}\n")),
        c.load(ini(f"[train]\nprecision = '{word}'\n")),
    ):
        assert config.train.precision == expected
        c.write_ini(config, tmp_path / "again.ini")
        assert f"precision = {expected}\n" in (tmp_path / "again.ini").read_text()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("True", True), ("1", True), ("off", False), ("0", False)),
        *(("trace.json", "trace.json"), ("out/my trace.json", "out/my trace.json")),
        ("'1.json'", "1.json"),
    ],
)
def test_profile_is_a_switch_or_a_file(ini, tmp_path, text, expected):
    for config in (
        c.load("breakout", ["--profile", text]),
        c.load(ini(f"[base]\nprofile = {text}\n")),
    ):
        assert config.base.profile == expected
        assert type(config.base.profile) is type(expected)
        c.validate(config)
        c.write_ini(config, tmp_path / "again.ini")
        assert c.load(str(tmp_path / "again.ini")).base.profile == expected


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


def test_env_keys_are_options_and_negative_numbers_are_values():
    config = c.load("breakout", ["--env.paddle_speed", "-1e-3", "--env.ball-width=+2"])
    assert (config.env["paddle_speed"], config.env["ball_width"]) == (-0.001, 2.0)
    assert config.env["frameskip"] == 4.0


def test_env_keys_that_spell_the_same_option(ini):
    assert c.load(ini("[env]\na-b = 1\na_b = 2\n"), ["--env.a-b", "3"]).env == {"a-b": 1, "a_b": 3}


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


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_every_shipped_file_loads_and_holds_only_what_is_used(path):
    for name in env_names(path):
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


@pytest.mark.parametrize("word", ["no/such/folder", "./gone", ".."])
def test_no_such_folder(tmp_path, monkeypatch, word):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    with pytest.raises(UserError, match=r"doesn't exist|has no binding\.c"):
        c.load(word)


def test_parameters_of_a_native_environment_are_numbers():
    with pytest.raises(UserError, match=r"env\.size nine is not a number"):
        c.load("squared", ["--env.size", "nine"])


def test_the_family_is_no_environment():
    with pytest.raises(UserError, match="no configuration has the environment 'python'"):
        c.load("python")


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
