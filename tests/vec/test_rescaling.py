"""vec.rescale_actions: actions from -1 to 1 become actions from low to high."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from played import POLICY, by_file, close, files_play, live, trained
from stepping import started, step

from puffer_mlx import checkpoint, config, vec
from puffer_mlx.checkpoint import rescaling
from puffer_mlx.errors import UserError
from puffer_mlx.export.exporting import Format, export
from puffer_mlx.spec import ActionSpec, EnvSpec
from puffer_mlx.vec.layout import SpaceLayout

spaces = pytest.importorskip("gymnasium").spaces

INF, F = np.inf, np.float32
SEES = spaces.Box(-1, 1, (2,))

# ---- one space -----------------------------------------------------------------------------------


BOUNDS_OF = st.lists(
    st.tuples(st.sampled_from([-INF, -10, 0, 3]), st.sampled_from([3, 7, 30, INF])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=50)
@given(BOUNDS_OF, st.sampled_from([F, np.float64, np.int32]), st.integers(0, 99))
@example([(3, 3), (-3e38, 3e38), (0, 1)], F, 0)  # no width, and more than float32 can hold
def test_actions_are_rescaled_to_bounds_and_clipped(bounds, dtype, seed):
    """Policies act from -1 to 1; an infinite bound stays as it is."""
    low, high = np.array(bounds, np.float64).T
    if dtype is np.int32:
        low, high = np.maximum(low, -10), np.minimum(high, 30)
    space = spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)
    chosen = np.random.default_rng(seed).normal(0, 1, (5, len(low))).astype(F)
    actions = SpaceLayout("x", SEES, space, rescale=True).actions(chosen)
    bounded = high - low < 3e38
    with np.errstate(invalid="ignore"):
        rescaled = np.where(bounded, low + (chosen + 1) / 2 * (high - low), chosen)
    expected = rescaled.clip(low, high)
    tolerance = 0.51 if dtype is np.int32 else 1e-4
    assert actions.dtype == space.dtype and all(map(space.contains, actions))
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=tolerance)


def test_bounds_of_minus_1_and_1_change_nothing():
    rows = np.random.default_rng(0).normal(size=(100, 3)).astype(F)
    rows[0] = 1e-9, 1.0, -1.0
    space = spaces.Box(np.array([-1, -1, -INF], F), np.array([1, 1, INF], F))
    one, other = (SpaceLayout("x", SEES, space, rescale=rescale) for rescale in (True, False))
    assert one.spec == other.spec and not one.spec.action.bounds
    np.testing.assert_array_equal(one.actions(rows), other.actions(rows))


def test_spec_stores_bounds():
    spec = SpaceLayout("x", SEES, spaces.Box(-2, 2, (1,)), rescale=True).spec
    assert EnvSpec.from_json(spec.to_json()) == spec and spec.action.bounds == ((-2, 2),)
    plain = replace(spec, action=ActionSpec((1,)))
    assert "bounds" not in plain.to_json() and EnvSpec.from_json(plain.to_json()) == plain
    two = spaces.Dict(a=spaces.Box(0, 10, (1,)), b=spaces.Box(-1, 1, (2,)))
    bounds = SpaceLayout("x", SEES, two, rescale=True).spec.action.bounds
    assert bounds == ((0, 10), (-1, 1), (-1, 1))
    with pytest.raises(ValueError, match="bounds"):
        ActionSpec((2,), ((-2, 2),))


@pytest.mark.parametrize("wrong", [[[-2, 2]] * 2, [[2, -2]], [["a", "b"]]])
def test_damaged_bounds_of_a_spec_are_refused(wrong):
    spec = SpaceLayout("x", SEES, spaces.Box(-2, 2, (1,)), rescale=True).spec
    with pytest.raises(ValueError):
        EnvSpec.from_json(json.dumps(json.loads(spec.to_json()) | {"action_bounds": wrong}))


# ---- both roads ----------------------------------------------------------------------------------

TASKS = """
import gymnasium
import numpy as np



class Task(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(np.array([-3, 0], "f4"), np.array([7, 40], "f4"))
    told = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.see(), {}

    def see(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.told.append(action.copy())
        self.steps += 1
        reward = -abs(float(action[0]) - 5) - abs(float(action[1]) - 10)
        return self.see(), reward, self.steps == 5, False, {}

"""
RAW = "--vec.rescale-actions", "0"
TINY = ["--vec.backend", "sync", "--vec.total-agents", "2", "--train.minibatch-size", "128"]


@pytest.fixture
def tasks(here, monkeypatch):
    (here / "tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(str(here))
    return here


@pytest.mark.parametrize(("words", "expected"), [((), [4.5, 15]), (RAW, [0.5, 0])])
def test_environment_gets_rescaled_actions(tasks, words, expected):
    import tasks as module  # type: ignore

    settings = config.load("tasks:Task", [*TINY, *words])
    with vec.make(settings, 1) as env:
        rows = started(env)
        module.Task.told.clear()
        step(env, rows, [[0.5, -0.25]])
    np.testing.assert_allclose(module.Task.told, [expected] * 2)
    assert settings.vec.rescale_actions == (not words)


def test_setting_without_effect_is_reported(tasks):
    typed = "--vec.rescale-actions", "1"
    settings = config.load("gym:CartPole-v1", typed)
    with vec.make(settings, 1) as env:
        (line,) = vec.unused_keys(settings, env)
    assert line == "vec.rescale_actions (no action has finite bounds other than -1 and 1)"
    settings = config.load("tasks:Task", [*TINY, *typed])
    with vec.make(settings, 1) as env:
        assert "rescale" not in str(vec.unused_keys(settings, env))


# ---- files ---------------------------------------------------------------------------------------

OPTIONS = f"""--vec.total-agents 8 --train.horizon 4 --device cpu --seed 3 --vec.backend sync
    --train.minibatch-size 16 --train.total-timesteps 256 --eval-episodes 0 {POLICY}
    --vec.normalize-rewards 0"""
WORD = "tasks:Task"
BOUNDS = ((-3.0, 7.0), (0.0, 40.0))


@pytest.fixture
def run(request, tasks):
    """A trainer that has trained, its checkpoint, and options that its policy needs."""
    normalize = getattr(request, "param", "0")
    words = [*POLICY.split(), "--vec.normalize-observations", normalize]
    with trained(config.load(WORD, [*OPTIONS.split(), *words])) as made:
        yield *made, words


@pytest.mark.parametrize("run", ["1", "0"], indirect=True)
def test_every_file_plays_like_the_trained_policy(run, tasks, scripts):
    trainer, saved, words = run
    expected = live(trainer)
    assert live(trainer, rescale_actions=False) != pytest.approx(expected, rel=0.01)
    for notes in files_play(scripts, tasks, WORD, saved, words, expected):
        assert "actions are rescaled inside" in notes
    for kind in "torch", "safetensors", "onnx":
        assert config.load(str(tasks / kind / "config.ini")).vec.rescale_actions


def test_typed_setting_that_contradicts_the_policy_is_refused(run, tasks, scripts, capsys):
    """For a checkpoint and for a file."""
    _, saved, words = run
    export(checkpoint.load(saved), Format("safetensors"), tasks / "w.safetensors", None)
    for path, said in ((saved, f"rescaled to {BOUNDS}"), ("w.safetensors", "rescale-actions 1")):
        line = [WORD, "--load-model-path", str(path), *words, *RAW, "--device", "cpu"]
        assert scripts("evaluate").main(line) == 2
        assert said in capsys.readouterr().err
    assert scripts("import_").main(["w.safetensors", WORD, *RAW, "--out", "x"]) == 2
    assert f"rescales actions to {BOUNDS}" in capsys.readouterr().err


def test_flat_file_does_not_store_bounds(run, tasks, scripts):
    trainer, saved, _ = run
    made, path = checkpoint.load(saved), tasks / "w.bin"
    with pytest.raises(UserError, match="can't hold what this policy's actions are rescaled"):
        export(made, Format("bin"), path, None)
    assert not path.exists()
    report = export(made, Format("bin", lossy=True, whole=True), path, None)
    assert "--vec.rescale-actions 1" in " ".join(report.notes)
    words = "--vec.rescale-actions", "1", *POLICY.split(), "--out", "i"
    assert scripts("import_").main(["w.bin", WORD, *words]) == 0
    assert by_file(scripts("evaluate"), WORD, "i") == close(live(trainer))


def test_training_keeps_the_setting_of_the_policy(run, tasks, scripts, capsys, shipped_configs):
    """The settings of the family may have changed since."""
    _, saved, words = run
    family = shipped_configs / "continuous.ini"
    export(checkpoint.load(saved), Format("safetensors"), tasks / "w.safetensors", None)

    def trained_from(path) -> str:
        line = [WORD, *OPTIONS.split(), *words, "--load-model-path", str(path)]
        assert scripts("train").main(line) == 0
        return capsys.readouterr().out

    family.write_text("[vec]\nrescale_actions = False\n")
    assert "actions are rescaled to their bounds, as w.safet" in trained_from("w.safetensors")
    assert f"actions are rescaled to their bounds, as {saved}" in trained_from(saved)
    family.write_text("[vec]\nrescale_actions = True\n")
    assert "actions are" not in trained_from(saved)
    text = (saved / "config.ini").read_text()  # from before there was the key:
    (saved / "config.ini").write_text(text.replace("rescale_actions = True\n", ""))
    assert f"actions are taken as they are, as {saved}" in trained_from(saved)


def test_damaged_bounds_of_a_file_are_refused():
    low, high = rescaling.NAMES
    good = rescaling.tensors_of(BOUNDS)
    assert rescaling.split_bounds(Path("x"), {"w": 1, **good}) == ({"w": 1}, BOUNDS)
    assert rescaling.split_bounds(Path("x"), {"w": 1}) == ({"w": 1}, ())
    for wrong in {low: good[low]}, {**good, high: np.array([np.nan, 40], F)}:
        with pytest.raises(UserError, match="bounds of actions"):
            rescaling.split_bounds(Path("x"), wrong)
