"""Normalised environments, against statistics computed in one piece."""

import io
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from native_envs import DRIFT, make
from oracles import CodedVec, named
from played import POLICY, by_file, close, live

from puffer_mlx import checkpoint, config, vec
from puffer_mlx.checkpoint import environment_statistics
from puffer_mlx.errors import UserError
from puffer_mlx.export import importing
from puffer_mlx.export.exporting import Format, export
from puffer_mlx.playing.episodes import score
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec import normalize
from puffer_mlx.vec.base import Remembers
from puffer_mlx.vec.normalize import EPSILON, LIMIT, Moments, Normalized
from puffer_mlx.vec.rows import allocate_rows

N, GAMMA = 12, 0.9
RETURN = {"return.count", "return.mean", "return.variance"}


def coded(groups=1, observations=True, rewards=True) -> Normalized:
    inner = CodedVec(N, groups)
    inner.scale = 1e5  # rewards of hundreds
    inner.episodes = list  # type: ignore
    return Normalized(inner, observations, rewards, GAMMA)  # type: ignore


def step(env: Normalized):
    rows = allocate_rows(env, N)
    n = N // env.num_groups
    for g in range(env.num_groups):
        agents = slice(g * n, (g + 1) * n)
        env.send(g, np.zeros((n, 1), np.float32), rows.part(agents))
    for g in range(env.num_groups):
        env.wait(g)
    return rows


def test_moments_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    batches = [rng.normal(5, 3, (n, 4)) * [1, 10, 1e-3, 0] for n in (1, 7, 2, 100)]
    moments = Moments(4)
    assert (moments.count, moments.scale[0]) == (0, pytest.approx(1))
    for batch in batches:
        moments.add(batch.astype(np.float32))
    rows = np.concatenate(batches).astype(np.float32).astype(np.float64)
    assert moments.count == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(axis=0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(moments.variance, rows.var(axis=0), rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(moments.scale, (rows.var(axis=0) + EPSILON) ** -0.5, rtol=1e-10)


def test_rows():
    """By the definition: statistics over everything so far, this step included."""
    env, plain = coded(), CodedVec(N, 1)
    plain.scale = 1e5
    raw, G = [], np.zeros(N)
    returns = []
    for k in range(20):
        rows = allocate_rows(env, N)
        if k == 0:
            env.reset(rows)
        else:
            rows = step(env)
        observations, rewards, terminals, _ = map(np.asarray, plain.rows(np.arange(N), k))
        raw.append(np.asarray(observations, np.float64))
        seen = np.concatenate(raw)
        expected = (raw[-1] - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + EPSILON)
        expected = np.clip(expected, -LIMIT, LIMIT)
        np.testing.assert_allclose(rows.observations, expected, rtol=1e-5, atol=1e-5)
        if k:
            G = GAMMA * G + rewards
            returns.append(G.copy())
            scale = np.sqrt(np.concatenate(returns).var() + EPSILON)
            np.testing.assert_allclose(rows.rewards, rewards / scale, rtol=1e-5)
            G[np.asarray(terminals) != 0] = 0
        np.testing.assert_array_equal(rows.terminals, terminals)
    assert abs(rows.observations).max() < 5 and 0.1 < abs(rows.rewards).max() < 5
    np.testing.assert_allclose(env.raw(rows.observations), raw[-1], rtol=1e-4, atol=1e-3)


def test_far_observations_are_clipped():
    env = coded()
    env.reset(allocate_rows(env, N))
    seen = env.memory()
    seen["observations.variance"] = np.full(4, 1e-6)
    seen["observations.count"] = np.array(1e9)
    env.remember(seen)
    assert abs(step(env).observations).max() == LIMIT


def test_one_of_the_two():
    for which in ("observations", "rewards"):
        env, both = coded(**{"observations": False, "rewards": False, which: True}), coded()
        env.reset(allocate_rows(env, N))
        both.reset(allocate_rows(both, N))
        (one, two), (_, plain) = (step(env), step(both)), (None, CodedVec(N, 1))
        plain.scale = 1e5
        raw = dict(zip(one._fields, plain.rows(np.arange(N), 1), strict=False))
        other = "rewards" if which == "observations" else "observations"
        np.testing.assert_array_equal(getattr(one, which), getattr(two, which))
        np.testing.assert_allclose(getattr(one, other), np.asarray(raw[other]), rtol=1e-6)
        assert which in env.description and other not in env.description
        assert {name.partition(".")[0] for name in env.memory()} == {
            {"observations": "observations", "rewards": "return"}[which]
        }


def test_frozen_statistics_stay_and_rewards_are_as_they_were():
    env = coded()
    env.reset(allocate_rows(env, N))
    for _ in range(5):
        step(env)
    memory = env.memory()
    other = coded()
    assert isinstance(other, Remembers)
    other.remember(memory, frozen=True)
    other.reset(allocate_rows(other, N))
    rows = step(other)
    for name, array in other.memory().items():
        np.testing.assert_array_equal(array, memory[name])
    plain = CodedVec(N, 1)
    plain.scale = 1e5
    expected = np.asarray(plain.rows(np.arange(N), 1)[1])
    np.testing.assert_allclose(rows.rewards, expected, rtol=1e-6)
    observations = np.asarray(plain.rows(np.arange(N), 1)[0], np.float64)
    deviation = np.sqrt(memory["observations.variance"] + EPSILON)
    expected = (observations - memory["observations.mean"]) / deviation
    np.testing.assert_allclose(rows.observations, expected.clip(-LIMIT, LIMIT), rtol=1e-5)


def test_going_on_is_bit_for_bit():
    env = coded(groups=3)
    env.reset(allocate_rows(env, N))
    for _ in range(4):
        step(env)
    state = env.state()
    assert state is not None
    expected = [step(env) for _ in range(5)]
    other = coded(groups=3)
    other.reset(allocate_rows(other, N))
    other.restore(state)
    for rows in expected:
        for one, two in zip(step(other), rows, strict=True):
            np.testing.assert_array_equal(one, two)


def test_states_and_statistics_of_others():
    env = coded()
    env.reset(allocate_rows(env, N))
    with pytest.raises(UserError, match="isn't one of normalised"):
        env.restore(np.zeros(100, np.uint8))
    memory = env.memory()
    for wrong in ({}, memory | {"observations.mean": np.zeros(5)}):
        with pytest.raises(UserError, match=r"observations\.mean"):
            env.remember(wrong)
    only = io.BytesIO()
    np.savez(only, inner=np.zeros(1))
    with pytest.raises(UserError, match="missing"):
        env.restore(np.frombuffer(only.getvalue(), np.uint8))


def test_without_a_state_there_is_none():
    env = coded()
    env.inner.state = lambda: None
    assert env.state() is None


def test_bytes_stay_as_they_are():
    with (
        make("squared", total_agents=8) as inner,
        pytest.raises(ValueError, match="squared shows bytes"),
    ):
        Normalized(inner, True, True, GAMMA)
    settings = config.load("squared")
    settings.vec.normalize_observations = True
    with vec.make(settings, 1) as env:
        assert not isinstance(env, Normalized)
        assert any("normalize_observations" in line for line in vec.unused_keys(settings, env))
    settings.vec.normalize_rewards = True
    with vec.make(settings, 1) as env:
        assert isinstance(env, Normalized) and set(env.memory()) == RETURN


@pytest.mark.parametrize("normal", [True, False])
def test_what_can_be_normalised_is_decided_once(monkeypatch, normal):
    """Environments, the line about unused keys and checkpoints follow one function."""
    monkeypatch.setattr(normalize, "can_normalise", lambda spec: normal)
    settings = config.load("cartpole", ["--vec.normalize-observations", "1"])
    with vec.make(settings, 1) as env:
        assert isinstance(env, Normalized) == normal
        assert (
            any("normalize_observations" in line for line in vec.unused_keys(settings, env))
            != normal
        )
        spec = env.spec
    if not normal:
        environment_statistics.require_statistics(settings, spec, {})
        return
    with pytest.raises(UserError, match="statistics that observations are normalised by"):
        environment_statistics.require_statistics(settings, spec, {})


def test_a_checkpoint_carries_the_statistics(tmp_path):
    options = """--vec.total-agents 32 --vec.num-buffers 1 --train.horizon 8 --device cpu
        --train.minibatch-size 64 --policy.hidden-size 8 --policy.num-layers 1
        --vec.normalize-observations 1 --vec.normalize-rewards 1 --train.total-timesteps 2048"""
    settings = config.load("cartpole", options.split())
    with vec.make(settings, 1) as env:
        trainer = Trainer(settings, env)
        for _ in trainer:
            pass
        assert isinstance(env, Remembers)
        memory = env.memory()
        assert memory["observations.count"] == 32 * (1 + 2048 // 32)
        about = settings, env.spec, trainer.policy, trainer.weights, trainer.state(), 1.0
        made = checkpoint.write_weights(tmp_path, 2048, *about, memory)
    for name, array in environment_statistics.read_statistics(made).items():
        np.testing.assert_allclose(np.array(array), memory[name], rtol=1e-6)
    with vec.make(settings, 1) as env:
        assert isinstance(env, Remembers)
        environment_statistics.restore_statistics(env, made, frozen=True)
        np.testing.assert_allclose(env.memory()["return.mean"], memory["return.mean"], rtol=1e-6)
        empty = tmp_path / "empty"
        empty.mkdir()
        with pytest.raises(UserError, match="missing"):
            environment_statistics.restore_statistics(env, empty)
    with make("squared", total_agents=8) as plain:
        environment_statistics.restore_statistics(plain, empty)  # nothing to know


def test_resume_is_bit_for_bit():
    options = """--vec.total-agents 32 --vec.num-buffers 2 --train.horizon 8 --device cpu
        --train.minibatch-size 64 --policy.hidden-size 8 --policy.num-layers 1
        --vec.normalize-observations 1 --vec.normalize-rewards 1 --train.total-timesteps 2560"""
    settings = config.load("cartpole", options.split())

    def flat(trainer):
        return np.concatenate([np.array(w).ravel() for _, w in named(trainer.weights)])

    with vec.make(settings, 1) as env:
        trainer = Trainer(settings, env)
        for _ in range(5):
            trainer.step()
        weights, state = trainer.weights, trainer.state()
        mx.eval(state.arrays)
        for _ in trainer:
            pass
        expected = flat(trainer)
    with vec.make(settings, 1) as env:
        trainer = Trainer(settings, env)
        assert trainer.restore(weights, state)
        for _ in trainer:
            pass
        np.testing.assert_array_equal(flat(trainer), expected)


def test_observations_can_be_taken_apart():
    pytest.importorskip("gymnasium")
    settings = config.load("gym:CartPole-v1")
    with vec.make(settings, 1) as env:
        assert isinstance(env, Normalized) and env.layout is not None
        rows = allocate_rows(env, 8)
        env.reset(rows)
        np.testing.assert_array_equal(env.layout.restore(rows.observations), rows.observations)
    assert coded().layout is None


# ---- files of a policy of normalised observations ------------------------------------------------

TRAINING = f"""--vec.total-agents 8 --vec.num-buffers 2 --train.horizon 4 --device cpu --seed 3
    --train.minibatch-size 16 --train.total-timesteps 512 --vec.normalize-rewards 1 {POLICY}"""
OPTIONS = f"{TRAINING} --vec.normalize-observations 1"


@pytest.fixture(params=["native", "python"])
def run(request, here):
    """A word for the environment, a trainer that has trained, and its checkpoint."""
    word = DRIFT[request.param]
    settings = config.load(word, OPTIONS.split())
    with vec.make(settings, 1) as env:
        trainer = Trainer(settings, env)
        for _ in trainer:
            pass
        saved = checkpoint.save(checkpoint.prepare(settings, "17"), trainer)
        yield word, trainer, saved


def test_every_file_plays_as_the_live_policy(run, here, scripts):
    """A checkpoint, what is exported of it, and what is imported of that."""
    word, trainer, saved = run
    script, small = scripts("evaluate"), POLICY.split()
    expected = live(trainer)
    assert by_file(script, word, saved) == close(expected)
    made = checkpoint.load(saved)
    export(made, Format("safetensors"), here / "w.safetensors", checkpoint.recorded(saved))
    for path in (here / "w.safetensors", saved / "weights.safetensors"):
        assert by_file(script, word, path, *small) == close(expected)
    for kind, name in (("torch", "w.pt"), ("safetensors", "w.safetensors"), ("onnx", "w.onnx")):
        export(made, Format(kind), here / name, checkpoint.recorded(saved))
        assert scripts("import_").main([name, word, "--out", kind]) == 0
        assert by_file(script, word, kind) == close(expected)
    raw = replace(made.config, vec=replace(made.config.vec, normalize_observations=False))
    with vec.make(raw, 1) as env:
        other = score(made.policy, made.weights, env, 12, seed=3, greedy=True)
    assert other.summary()["score"].mean != pytest.approx(expected, rel=0.01)


def test_nobody_is_overruled(run, here, scripts, capsys):
    """What a person typed isn't changed silently, but refused: for a checkpoint and for a file."""
    word, _, saved = run
    export(checkpoint.load(saved), Format("safetensors"), here / "w.safetensors", None)
    raw = ["--vec.normalize-observations", "0", *POLICY.split(), "--device", "cpu"]
    for name, path in (("evaluate", saved), ("evaluate", "w.safetensors"), ("train", saved)):
        assert scripts(name).main([word, "--load-model-path", str(path), *raw]) == 2
        error = capsys.readouterr().err
        assert "normalised observations" in error and "--vec.normalize-observations 1" in error


def test_training_goes_on_from_an_exported_file(run, here, scripts, capsys):
    """The statistics go on; those of rewards too, where the file has them."""
    word, _, saved = run
    before = environment_statistics.read_statistics(saved)
    export(checkpoint.load(saved), Format("safetensors"), here / "w.safetensors", None)
    words = [
        *(OPTIONS + POLICY).replace("--vec.normalize-observations 1", "").split(),
        "--load-model-path",
    ]
    assert scripts("train").main([word, *words, "w.safetensors"]) == 0
    printed = capsys.readouterr().out
    by_default = config.load(word).vec.normalize_observations
    assert ("observations are normalised, as w.safetensors learned" in printed) == (not by_default)
    made = Path(printed.partition("\nsaved ")[2].partition("\n")[0])
    assert checkpoint.load(made).config.vec.normalize_observations
    after = environment_statistics.read_statistics(made)
    for what in ("observations", "return"):
        assert after[f"{what}.count"] > before[f"{what}.count"] > 500
    assert abs(after["observations.mean"] - before["observations.mean"]).max() < 1  # of 1000


def test_nobody_saves_a_policy_without_its_statistics(run, here):
    """However it is written."""
    _, trainer, saved = run
    written = environment_statistics.read_statistics(saved)
    for name, array in trainer.vec.memory().items():
        np.testing.assert_allclose(written[name], array, rtol=1e-6)
    about = trainer.config, trainer.vec.spec, trainer.policy, trainer.weights
    for memory in None, {}, {k: w for k, w in trainer.vec.memory().items() if "return" in k}:
        with pytest.raises(UserError, match="statistics that observations are normalised by are"):
            checkpoint.write_weights(here / "other", 1, *about, memory=memory)
    keeper = checkpoint.CheckpointManager(here / "other", trainer.config)
    with pytest.raises(UserError, match="are missing"):
        keeper.save(1, *about[1:], None)
    assert not (here / "other").exists()


def test_a_policy_of_normalised_observations_is_shown_no_others(run, here):
    word, trainer, saved = run
    plain = config.load(word, [*OPTIONS.split(), "--vec.normalize-observations", "0"])
    for rewards in False, True:
        plain.vec.normalize_rewards = rewards
        with vec.make(plain, 1) as env, pytest.raises(UserError, match="normalised observations"):
            environment_statistics.restore_statistics(env, saved)
    plain.origins.clear()  # as if nobody had typed it
    assert environment_statistics.as_trained(plain, saved).vec.normalize_observations
    settings = trainer.config
    assert environment_statistics.as_trained(settings, saved) is settings
    (here / "w.safetensors").write_bytes((saved / "weights.safetensors").read_bytes())
    with vec.make(settings, 1) as env:
        with pytest.raises(UserError, match=r"are missing: .*w\.safetensors has none") as caught:
            environment_statistics.restore_statistics(env, here / "w.safetensors")
        assert "--vec.normalize-observations 0" in caught.value.hint


def test_statistics_beside_a_file(run, here, scripts, capsys):
    """As exports had them before, and flat files have them still."""
    _, _, saved = run
    words = [str(saved), "--to", "bin", "--out", "w.bin", "--lossy", "--bin-whole"]
    assert scripts("export").main(words) == 0
    printed = capsys.readouterr().out
    assert "reads their statistics from w.bin.normalization.safetensors" in printed
    expected = environment_statistics.read_statistics(saved)
    found = environment_statistics.read_statistics(Path("w.bin"))
    assert set(found) == set(expected)
    np.testing.assert_array_equal(found["observations.mean"], expected["observations.mean"])
    assert importing.inspect(Path("w.bin")).settings["vec.normalize_observations"] == "True"


# ---- what isn't finite ---------------------------------------------------------------------------


class Spoiled(CodedVec):
    """Some agents' rows aren't finite in some steps."""

    value = np.nan

    def rows(self, agents, k):
        observations, rewards, *others = super().rows(agents, k)
        observations, rewards = np.array(observations, float), np.array(rewards, float)
        if k in (3, 4):
            observations[agents == 2, 1] = self.value
            rewards[agents == 5] = self.value
        return [observations, rewards, *others]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_isnt_finite_never_enters_the_statistics(value, groups, capsys):
    """They are those of all the other rows, and of all the other returns."""
    inner = Spoiled(N, groups)
    inner.scale, inner.value, inner.episodes = 1e5, value, list  # type: ignore
    env = Normalized(inner, True, True, GAMMA)  # type: ignore
    plain, seen, returns, G = CodedVec(N, 1), [], [], np.zeros(N)
    plain.scale = 1e5
    for k in range(8):
        rows = allocate_rows(env, N)
        if k == 0:
            env.reset(rows)
        else:
            rows = step(env)
        observations, rewards, terminals, _ = map(np.array, plain.rows(np.arange(N), k))
        bad = k in (3, 4)
        good = np.arange(N) != (2 if bad else -1)
        seen.append(observations[good])
        if k:
            rewarded = np.arange(N) != (5 if bad else -1)
            G = GAMMA * G + rewards * rewarded
            returns.append(G[rewarded])
            G[terminals != 0] = 0
        assert np.isfinite(rows.observations[good]).all()
    memory = env.memory()
    for name, batches in (("observations", seen), ("return", returns)):
        everything = (
            np.concatenate(batches).astype(np.float64).reshape(-1, len(memory[f"{name}.mean"]))
        )
        assert memory[f"{name}.count"] == len(everything)
        np.testing.assert_allclose(memory[f"{name}.mean"], everything.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(memory[f"{name}.variance"], everything.var(axis=0), rtol=1e-5)
    err = capsys.readouterr().err
    assert err == (
        f"puffer_mlx: coded: agent 2 got an observation of {value} at position 1; what isn't finite"
        " is left out of the statistics that normalise\n"
    )  # once


def test_a_step_without_a_finite_row_changes_no_statistics():
    inner = CodedVec(N, 1)
    inner.episodes = list  # type: ignore
    env = Normalized(inner, True, False, GAMMA)  # type: ignore
    env.reset(allocate_rows(env, N))
    step(env)
    before, others = env.memory(), inner.rows(np.arange(N), 2)[1:]
    inner.rows = lambda agents, k: [np.full((N, 4), np.nan), *others]
    step(env)
    for name, array in env.memory().items():
        np.testing.assert_array_equal(array, before[name])
