"""The [sweep] sections of files: settings, ranges, notes about mistakes, and errors."""

import pytest

from puffer_mlx import config
from puffer_mlx.cli.sweep_options import SWEEP_RUN_KEYS, add_options
from puffer_mlx.errors import UserError
from puffer_mlx.sweep.reading import describe_space, read_sweep
from puffer_mlx.sweep.settings import SweepSettings
from puffer_mlx.sweep.space import Parameter


@pytest.fixture
def swept(tmp_path):
    """Return a function that reads a sweep's definition from an .ini text and options."""

    def read(text, *argv, env="breakout"):
        path = tmp_path / "more.ini"
        path.write_text(text)
        return read_sweep(typed(env, *argv, files=[path]))

    return read


def typed(*words, files=()):
    return config.parse_command_line(words, add_options, files, used=SWEEP_RUN_KEYS)[0]


def parameter(sweep, name):
    return sweep.space.parameters[sweep.space.names.index(name)]


def test_settings_are_read(swept):
    text = "[sweep]\nmethod = Random\nmetric = perf\nmax_suggestion_cost = 120\nuse_gpu = True\n"
    sweep = swept(f"{text}target_score = -2.5\nprune_pareto = False\nsweep_only = gamma, lr\n")
    assert sweep.notes == []
    assert sweep.settings == SweepSettings(
        method="Random",
        metric="env/perf",
        max_suggestion_cost=120.0,
        target_score=-2.5,
        prune_pareto=False,
        sweep_only="gamma, lr",
    )


def test_keys_of_a_files_range_replace_those_of_the_default_range(swept):
    """5.0's momentum is beta1."""
    before = parameter(swept(""), "train.gamma")
    text = "[sweep.train.gamma]\nmax = 0.99 # of 1\nmean = 0.6\n"
    sweep = swept(f"{text}[sweep.train.momentum]\nmin = 0.6\n")
    after = parameter(sweep, "train.gamma")
    assert (after.low, after.high) == (before.low, 0.99) and before.high == 0.9999
    assert parameter(sweep, "train.beta1").low == 0.6 and "train.momentum" not in sweep.space.names


def test_ranges_are_those_of_the_trainers_release_and_optimizer(swept):
    of_4, of_5 = swept(""), swept("[train]\nvtrace = 0\nmomentum = 0.9\n", env="squared")
    assert "train.prio_alpha" in of_4.space.names and "vec.num_buffers" in of_4.space.names
    assert not any("prio" in name or "vtrace" in name for name in of_5.space.names)
    assert parameter(of_5, "train.learning_rate").high == 1.0
    assert parameter(of_4, "train.learning_rate").high == 0.1
    assert "train.beta2" not in of_4.space.names
    assert "train.beta2" in swept("", "--train.optimizer", "adam").space.names


def test_sweep_only_selects_parameters_by_parts_of_their_names(swept):
    assert swept("[sweep]\nsweep_only = gamma,clip\n").space.names == (
        *("train.gamma", "train.vf_clip_coef"),
        *("train.vtrace_rho_clip", "train.vtrace_c_clip", "train.clip_coef"),
    )


RANGE = "distribution = uniform\nmin = 1\nmax = 8\nscale = auto\n"

ODD = [
    ("[sweep]\nearly_stop_quantile = 0.3\n", "is unused by Protein, which chooses how long"),
    (f"[sweep.env.nothing]\n{RANGE}", "[sweep.env.nothing] is left out: the configuration has no"),
    (f"[sweep.train.gama]\n{RANGE}", "the nearest is train.gamma"),
    (f"[sweep.train.anneal_lr]\n{RANGE}", "[sweep.train.anneal_lr] is left out: train.anneal_lr"),
    (f"[sweep.policy.expansion_factor]\n{RANGE}", "the key is unused"),
    (f"[sweep.policy.num_layers]\n{RANGE}", "is an integer: values are rounded"),
    ("[sweep.train.learning_rate]\nmax = 0.05\n", "train.learning_rate 0.1 is outside [sweep"),
    ("[sweep.train.learning_rate]\nstep = 1\nmax = 0.2\n", "step isn't a key of a range"),
    ("[sweep.train.gamma]\nscale = time\n", "scale time needs log_normal"),
    ("[sweep.train.prio_alpha]\nmax = 2\n", "2.0 is out of range: runs with this value fail"),
    ("[sweep]\nmax_cost = 120\n", "read as max_suggestion_cost"),
    ("[sweep]\nmethod = protein\n", "method protein is read as Protein"),
    ("[sweep]\nmethod = CARBS\n", "method CARBS doesn't exist; Protein is used"),
    ("[sweep]\nmetric = environment/score\n", "PufferLib 3.0's name for env/score"),
    ("[sweep]\nmaxruns = 3\n", "maxruns isn't a key of [sweep] (max_runs is)"),
    ("[sweep.metric]\ngoal = minimize\nname = environment/perf\n", "is a section of PufferLib 3.0"),
]


def test_mistake_that_can_be_ignored_is_one_note(swept):
    notes = {text: swept(text).notes for text, _ in ODD}
    found = {text: [line for line in notes[text] if note in line] for text, note in ODD}
    assert {text: lines for text, lines in found.items() if len(lines) != 1} == {}
    assert {text: lines for text, lines in notes.items() if len(lines) > 2} == {}


def test_old_names_of_settings_are_read(swept):
    assert swept("[sweep]\nmax_cost = 120\n").settings.max_suggestion_cost == 120.0
    old = swept("[sweep.metric]\ngoal = minimize\nname = environment/perf\n").settings
    assert (old.metric, old.goal) == ("env/perf", "minimize")
    assert swept("[sweep]\nmethod = pareto_genetic\n").settings.method == "ParetoGenetic"


WRONG = [
    ("[sweep.train.gamma]\nmin = 0.99\nmax = 0.9\n", "min 0.99 is not below max 0.9"),
    ("[sweep.train.gamma]\ndistribution = normal\n", "distribution is 'normal'"),
    ("[sweep.train.ent_coef]\nmin = 0\n", "log_normal needs a value above 0"),
    ("[sweep.policy.hidden_size]\nmin = -2\n", "uniform_pow2 needs a value above 0"),
    ("[sweep.train.gamma]\nmax = 1\n", "logit_normal needs a value below 1"),
    ("[sweep.env.width]\ndistribution = uniform\nmin = 1\n", "[sweep.env.width] has no max"),
    ("[sweep.train.gamma]\nscale = 0\n", "scale is '0'"),
    ("[sweep.policy.num_layers]\nmin = 1.2\nmax = 1.8\n", "fewer than two whole numbers"),
    ("[sweep.policy.hidden_size]\nmin = 33\nmax = 63\n", "fewer than two powers of two"),
    (
        "[sweep]\nsweep_only = nothing\n",
        "no parameter to sweep whose name contains nothing",
    ),
    ("[sweep]\nmetric = eval/score\n", "sweep.metric eval/score needs evaluations while training"),
    ("[sweep]\nmetric_distribution = log\n", "sweep.metric_distribution log does not exist here"),
    ("[sweep]\nseeds = 0\n", "sweep.seeds 0 is out of range"),
    ("[sweep]\ntarget_score = nan\n", "sweep.target_score nan is not a finite number"),
]


def error(swept, text: str) -> str:
    with pytest.raises(UserError) as caught:
        swept(text)
    assert caught.value.hint
    return str(caught.value)


def test_range_or_setting_that_is_impossible_is_an_error(swept):
    found = {text: error(swept, text) for text, _ in WRONG}
    assert {found[text]: message for text, message in WRONG if message not in found[text]} == {}


# ---- what is typed stays fixed -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["--train.gamma", "0.9"], "train.gamma"),
        (["--train.momentum", "0.9"], "train.beta1"),  # PufferLib 5.0's name
        (["--env.paddle-width", "60"], "env.paddle_width"),
    ],
)
def test_typed_key_is_not_searched(swept, argv, name):
    text = f"[sweep.env.paddle_width]\n{RANGE}[sweep.train.momentum]\nmin = 0.6\n"
    usual, sweep = swept(text), swept(text, *argv)
    assert {*usual.space.names} - {*sweep.space.names} == {name}
    assert not any(name in note for note in sweep.notes)


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["--train.momentum", "0.9", "--sweep.train.momentum.max", "0.95"], "train.beta1"),
        (["--env.paddle_width", "4", "--sweep.env.paddle_width.max=9"], "env.paddle_width"),
    ],
)
def test_typed_key_is_searched_if_its_range_is_typed(swept, argv, name):
    sweep = swept(f"[sweep.env.paddle_width]\n{RANGE}", *argv)
    assert parameter(sweep, name).default == float(argv[1])


def test_sweep_of_typed_keys_alone_is_refused_with_a_hint(swept):
    with pytest.raises(UserError, match=r"the command line sets train\.gamma") as error:
        swept("", "--train.gamma", "0.9", "--sweep.sweep-only", "train.gamma")
    assert "--sweep.train.gamma.min" in error.value.hint


def test_settings_of_a_program_are_not_searched(swept):
    from puffer_mlx.library.settings import build_config

    config = build_config({"train.gamma": 0.9}, "breakout", {"learning_rate": 0.01})
    names = read_sweep(config).space.names
    assert names and not {"train.gamma", "train.learning_rate"} & {*names}


# ---- environments in Python ----------------------------------------------------------------------

IN_PYTHON = {
    *("train.learning_rate", "train.gamma", "train.gae_lambda", "train.ent_coef"),
    *("train.clip_coef", "train.replay_ratio", "train.minibatch_size", "train.horizon"),
}


@pytest.mark.parametrize(
    "words",
    [
        ("module:make", "--base.family", "continuous_images", "--torch.network", "MinGRU"),
        ("gym:CartPole-v1",),
        ("pettingzoo:mpe2.simple_spread_v3",),
    ],
    ids=" ".join,
)
def test_ranges_in_python_lie_around_the_configurations_values(swept, words):
    sweep = swept("", *words[1:], env=words[0])
    assert {*sweep.space.names} == IN_PYTHON
    for p in sweep.space.parameters:
        assert p.default is not None
        assert p.low <= p.default <= p.high or (p.name, p.default) == ("train.ent_coef", 0), p
    assert len(sweep.notes) <= 1 and all("ent_coef 0 " in note for note in sweep.notes)


def test_ranges_in_python_fit_any_value(swept):
    text = "[train]\ngamma = 0\ngae_lambda = 1\nhorizon = 2\nminibatch_size = 2\n"
    sweep = swept(text, "--vec.total-agents", "1", env="module:make")
    assert {*sweep.space.names} == IN_PYTHON
    assert parameter(sweep, "train.horizon").to_value(-1) == 2


def test_length_of_runs_in_python_is_searched_on_request(swept):
    sweep = swept("[sweep.train.total_timesteps]\nmax = 1e7\n", env="module:make")
    p = parameter(sweep, "train.total_timesteps")
    assert p.low <= 1_000_000 <= p.high and p.high < 3e7


def test_saved_configuration_of_python_has_the_same_ranges(swept, tmp_path):
    saved = config.load("module:make", ["--family", "continuous"])
    config.write_ini(saved, tmp_path / "config.ini")
    again = swept("", env=str(tmp_path / "config.ini"))
    before = swept("", "--family", "continuous", env="module:make")
    assert again.space.parameters == before.space.parameters


# ---- what a sweep says at its start --------------------------------------------------------------


def test_searched_and_fixed_keys_are_described(swept):
    argv = ["--train.total-timesteps", "30_000", "--sweep.sweep-only", "gamma,learning"]
    conf = typed("module:make", *argv, "--family", "discrete")
    searched, fixed = describe_space(conf, read_sweep(conf))
    assert searched.startswith("searching 2 keys: train.learning_rate 3e-05 to 0.003, train.gamma")
    assert fixed == "fixed: train.total_timesteps 30000 (typed), and all other keys as configured"
    conf = typed("module:make", "--sweep.train.total-timesteps.min", "1e4")
    assert "train.total_timesteps" not in describe_space(conf, read_sweep(conf))[1]


# ---- zero on a logarithmic scale -----------------------------------------------------------------


def test_trial_records_the_ranges_end_for_a_value_without_a_logarithm():
    p = Parameter("train", "ent_coef", "log_normal", 1e-5, 0.2, default=0.0)
    assert p.recorded_default == 1e-5
