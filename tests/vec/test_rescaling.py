"""vec.rescale_actions: actions from -1 to 1 become actions from low to high."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from played import POLICY, files_play, live, trained
from stepping import started, step

from puffer_mlx import checkpoint, config, vec
from puffer_mlx.checkpoint import rescaling
from puffer_mlx.errors import UserError
from puffer_mlx.export.exporting import ExportFormat, export
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.vec.layout import SpaceLayout

spaces = pytest.importorskip("gymnasium").spaces

INF, F = np.inf, np.float32
SEES = spaces.Box(-1, 1, (2,))

# ---- one space -----------------------------------------------------------------------------------

LOWS, HIGHS = st.sampled_from([-INF, -10, -1, 0, 3]), st.sampled_from([1, 3, 7, 30, INF])


@settings(max_examples=50)
@given(
    st.lists(st.tuples(LOWS, HIGHS).filter(lambda it: it[0] <= it[1]), min_size=1, max_size=4),
    st.sampled_from([F, np.float64, np.int32]),
    st.integers(0, 99),
)
@example([(3, 3), (-3e38, 3e38), (0, 1)], F, 0)  # no width, and more than float32 can hold
@example([(-1, 1), (-1, 1)], F, 0)
def test_actions_are_rescaled_to_bounds_and_clipped(bounds, dtype, seed):
    """Policies act from -1 to 1. An infinite bound isn't rescaled."""
    low, high = np.array(bounds, np.float64).T
    if dtype is np.int32:
        low, high = np.maximum(low, -10), np.minimum(high, 30)
    space = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
    chosen = np.random.default_rng(seed).normal(0, 1, (5, len(low))).astype(F)
    layout = SpaceLayout("x", SEES, space, rescale=True)
    actions, bounded = layout.actions(chosen), high - low < 3e38
    with np.errstate(invalid="ignore"):
        rescaled = np.where(bounded, low + (chosen + 1) / 2 * (high - low), chosen)
    tolerance = 0.51 if dtype is np.int32 else 1e-4
    assert actions.dtype == space.dtype and all(map(space.contains, actions))
    np.testing.assert_allclose(actions, rescaled.clip(low, high), rtol=1e-5, atol=tolerance)
    assert EnvSpec.from_json(layout.spec.to_json()) == layout.spec
    plain = SpaceLayout("x", SEES, space)
    if set(bounds) <= {(-1, 1), (-INF, INF)}:  # the rescaling changes nothing
        assert plain.spec == layout.spec
        np.testing.assert_array_equal(actions, plain.actions(chosen))


def test_spec_stores_bounds():
    two = spaces.Dict(a=spaces.Box(0, 10, (1,)), b=spaces.Box(-1, 1, (2,)))
    spec = SpaceLayout("x", SEES, two, rescale=True).spec
    assert spec.action.bounds == ((0, 10), (-1, 1), (-1, 1))
    assert "bounds" not in replace(spec, action=ActionSpec((1,))).to_json()
    with pytest.raises(ValueError, match="bounds"):
        ActionSpec((2,), ((-2, 2),))


@pytest.mark.parametrize("wrong", [[[-2, 2]] * 2, [[2, -2]], [["a", "b"]]])
def test_damaged_bounds_of_a_spec_are_refused(wrong):
    spec = SpaceLayout("x", SEES, spaces.Box(-2, 2, (1,)), rescale=True).spec
    with pytest.raises(ValueError):
        EnvSpec.from_json(json.dumps(json.loads(spec.to_json()) | {"action_bounds": wrong}))


# ---- environments --------------------------------------------------------------------------------

TASK = """
import gymnasium
import numpy as np

class Task(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(np.array([-3, 0], "f4"), np.array([7, 40], "f4"))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype("f4"), {}

    def step(self, action):
        self.steps += 1
        reward = -abs(float(action[0]) - 5) - abs(float(action[1]) - 10)
        seen = self.np_random.uniform(-1, 1, 2).astype("f4")
        return seen, reward, self.steps == 5, False, {}
"""
WORD = "tasks:Task"
RAW = "--vec.rescale-actions", "0"
BOUNDS = ((-3.0, 7.0), (0.0, 40.0))


@pytest.fixture
def tasks(here, monkeypatch):
    (here / "tasks.py").write_text(TASK)
    monkeypatch.syspath_prepend(str(here))
    return here


@pytest.mark.parametrize(
    ("words", "expected"), [(("--vec.rescale-actions", "1"), [4.5, 15]), (RAW, [0.5, 0])]
)
def test_environment_gets_rescaled_actions(tasks, words, expected):
    sizes = "--vec.backend", "sync", "--vec.total-agents", "2", "--train.minibatch-size", "128"
    settings = config.load(WORD, [*sizes, "--vec.normalize-rewards", "0", *words])
    with vec.make(settings, 1) as env:
        rows = step(env, started(env), [[0.5, -0.25]])
        assert "rescale" not in str(vec.unused_env_keys(settings, env))
    paid = -abs(expected[0] - 5) - abs(expected[1] - 10)
    np.testing.assert_allclose(rows.rewards, [paid] * 2)


def test_setting_without_effect_is_reported():
    settings = config.load("gym:CartPole-v1", ("--vec.rescale-actions", "1"))
    with vec.make(settings, 1) as env:
        (line,) = vec.unused_env_keys(settings, env)
    assert line == "vec.rescale_actions (no action has finite bounds other than -1 and 1)"


# ---- files ---------------------------------------------------------------------------------------

NEEDED = [*POLICY.split(), "--vec.normalize-observations", "0"]  # without settings in a file
OPTIONS = f"""--vec.total-agents 8 --train.horizon 4 --device cpu --seed 3 --vec.backend sync
    --train.minibatch-size 16 --train.total-timesteps 256 --eval-episodes 0
    --vec.normalize-rewards 0 --vec.normalize-observations 0 {POLICY}""".split()
NORMALIZED = "--vec.normalize-observations", "1"


@pytest.fixture
def run(request, tasks):
    """Yield a trainer after training, its checkpoint, and an exported file."""
    with trained(config.load(WORD, [*OPTIONS, *getattr(request, "param", ())])) as made:
        export(checkpoint.load(made[1]), ExportFormat("safetensors"), tasks / "w.safetensors", None)
        yield *made, "w.safetensors"


@pytest.mark.parametrize("run", [NORMALIZED], indirect=True)
def test_every_file_plays_like_the_trained_policy(run, tasks, scripts):
    trainer, saved, _ = run
    expected = live(trainer)
    assert live(trainer, rescale_actions=False) != pytest.approx(expected, rel=0.01)
    for notes in files_play(scripts, tasks, WORD, saved, [*POLICY.split(), *NORMALIZED], expected):
        assert "the file rescales actions" in notes
    assert config.load(str(tasks / "onnx" / "config.ini")).vec.rescale_actions


def test_typed_setting_that_contradicts_the_policy_is_refused(run, scripts, capsys):
    """For a checkpoint and for a file."""
    _, saved, file = run
    for path, said in ((saved, f"rescaled to {BOUNDS}"), (file, "rescale-actions 1")):
        line = [WORD, "--load-model-path", str(path), *NEEDED, *RAW, "--device", "cpu"]
        assert scripts("evaluate").main(line) == 2
        assert said in capsys.readouterr().err
    assert scripts("import_").main([file, WORD, *RAW, "--out", "x"]) == 2
    assert f"rescales actions to {BOUNDS}" in capsys.readouterr().err


def test_flat_file_does_not_store_bounds(run, tasks):
    made, path = checkpoint.load(run[1]), tasks / "w.bin"
    with pytest.raises(UserError, match="can't hold the bounds of this policy's rescaled"):
        export(made, ExportFormat("bin"), path, None)
    assert not path.exists()
    report = export(made, ExportFormat("bin", lossy=True, whole=True), path, None)
    assert "--vec.rescale-actions 1" in " ".join(report.notes)


def test_training_keeps_the_setting_of_the_policy(run, scripts, capsys, shipped_configs):
    """The settings of the family may have changed since, or there was no such key."""
    _, saved, file = run

    def trained_from(path) -> str:
        assert scripts("train").main([WORD, *OPTIONS, "--load-model-path", str(path)]) == 0
        return capsys.readouterr().out

    family = shipped_configs / "continuous.ini"
    family.write_text("[vec]\nrescale_actions = False\n")
    assert "actions are rescaled to their bounds, as in the training of w.safet" in trained_from(
        file
    )
    family.write_text("[vec]\nrescale_actions = True\n")
    text = (saved / "config.ini").read_text()
    (saved / "config.ini").write_text(text.replace("rescale_actions = True\n", ""))
    assert f"actions are not rescaled, as in the training of {saved}" in trained_from(saved)


def test_damaged_bounds_of_a_file_are_refused():
    low, high = rescaling.LOW, rescaling.HIGH
    good = rescaling.bounds_tensors(BOUNDS)
    assert rescaling.split_bounds(Path("x"), {"w": 1, **good}) == ({"w": 1}, BOUNDS)
    for wrong in {low: good[low]}, {**good, high: np.array([np.nan, 40], F)}:
        with pytest.raises(UserError, match="bounds of actions"):
            rescaling.split_bounds(Path("x"), wrong)
