"""Normalized environments, compared with statistics computed at once."""

import contextlib
from dataclasses import replace
from pathlib import Path
from unittest import mock

import gymnasium
import numpy as np
import pytest
from native_envs import DRIFT
from oracles import CodedVec
from played import POLICY, files_play, live, trained
from stepping import alike, gym_vec, played, started, step

import puffer_mlx
from puffer_mlx import checkpoint, config, vec
from puffer_mlx.checkpoint import environment_statistics
from puffer_mlx.errors import UserError
from puffer_mlx.evaluation.episodes import AgentStepper, score_episodes
from puffer_mlx.export.exporting import ExportFormat, export
from puffer_mlx.vec.normalize import MAX_DEVIATIONS, VARIANCE_EPSILON, Normalized

N, GAMMA = 12, 0.9


def coded(groups=1, observations=True, rewards=True, kind=CodedVec) -> Normalized:
    inner = kind(N, groups)
    inner.scale = 1e5  # rewards of hundreds
    inner.episodes = list  # type: ignore
    return Normalized(inner, observations, rewards, GAMMA)  # type: ignore


def raw(k: int) -> list[np.ndarray]:
    """Return coded observations, rewards and terminals of step k before normalization."""
    plain = CodedVec(N, 1)
    plain.scale = 1e5
    return [np.array(array) for array in plain.rows(np.arange(N), k)[:3]]


def everything(steps: int, bad=lambda k: ([], [])):
    """Yield for each step what the normalizer should have seen until then.

    These are the step, its raw rows, and all observations and returns so far.

    Agents that ``bad`` returns are left out.
    """
    seen, returns, G = [], [np.zeros(0)], np.zeros(N)
    for k in range(steps):
        observations, rewards, terminals = raw(k)
        unseen, unpaid = bad(k)
        seen.append(np.delete(observations, unseen, 0).astype(np.float64))
        if k:
            paid = np.isin(np.arange(N), unpaid, invert=True)
            G = GAMMA * G + rewards * paid
            returns.append(G[paid])
            G = np.where(terminals != 0, 0, G)
        so_far = np.concatenate(seen), np.concatenate(returns)[:, None]
        yield k, observations, rewards, terminals, *so_far


def test_rows_are_normalized_by_statistics_of_all_rows_so_far():
    """The rows of this step are included."""
    env = coded()
    rows = started(env)
    for k, observations, rewards, terminals, seen, returns in everything(20):
        if k:
            step(env, rows)
            scale = np.sqrt(returns.var() + VARIANCE_EPSILON)
            np.testing.assert_allclose(rows.rewards, rewards / scale, rtol=1e-5)
        expected = (observations - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + VARIANCE_EPSILON)
        expected = np.clip(expected, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        np.testing.assert_allclose(rows.observations, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(rows.terminals, terminals)
    assert abs(rows.observations).max() < 5 and 0.1 < abs(rows.rewards).max() < 5
    np.testing.assert_allclose(env.raw(rows.observations), observations, rtol=1e-4, atol=1e-3)
    memory = env.statistics()
    far = {"variance": np.full(4, 1e-6), "count": np.array(1e9)}
    env.restore_statistics(memory | {f"observations.{key}": value for key, value in far.items()})
    assert abs(step(env, rows).observations).max() == MAX_DEVIATIONS  # far ones are clipped


@pytest.mark.parametrize("which", ["observations", "rewards"])
def test_observations_and_rewards_are_normalized_separately(which):
    env, both = coded(1, which == "observations", which == "rewards"), coded()
    one, two = step(env, started(env)), step(both, started(both))
    plain = dict(zip(("observations", "rewards"), raw(1), strict=False))
    np.testing.assert_array_equal(getattr(one, which), getattr(two, which))
    (other,) = plain.keys() - {which}
    np.testing.assert_allclose(getattr(one, other), plain[other], rtol=1e-6)
    assert which in env.description and other not in env.description
    names = {name.partition(".")[0] for name in env.statistics()}
    assert names == {which.replace("rewards", "return")}


def test_frozen_statistics_stay_and_rewards_are_unchanged():
    env, other = coded(), coded()
    played(env, 5)
    memory = env.statistics()
    other.restore_statistics(memory, frozen=True)
    rows = step(other, started(other))
    assert all(np.array_equal(array, memory[name]) for name, array in other.statistics().items())
    observations, rewards, _ = raw(1)
    np.testing.assert_allclose(rows.rewards, rewards, rtol=1e-6)
    deviation = np.sqrt(memory["observations.variance"] + VARIANCE_EPSILON)
    expected = (observations - memory["observations.mean"]) / deviation
    np.testing.assert_allclose(
        rows.observations, expected.clip(-MAX_DEVIATIONS, MAX_DEVIATIONS), rtol=1e-5
    )


def test_restored_statistics_continue_bit_for_bit():
    env, other = coded(groups=3), coded(groups=3)
    played(env, 4)
    state, rows, its = env.state(), started(other), started(other)
    expected = [step(env, rows) for _ in range(5)]
    other.restore(state)  # type: ignore
    assert alike([step(other, its) for _ in range(5)], expected)


class Clock(gymnasium.Env):
    """Gymnasium environment that observes a time of day (``start`` + step) and the step."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, start=1.7e9, dtype="float64"):
        self.start, self.dtype = start, np.dtype(dtype)
        self.observation_space = gymnasium.spaces.Box(0, 2**31 - 1, (2,), self.dtype.type)

    def see(self):
        return np.array([self.start + self.t, self.t], self.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.see(), {}

    def step(self, action):
        self.t += 1
        return self.see(), 1.0, False, self.t == 7, {}


def clocks(num_envs, **keywords):
    return gymnasium.vector.SyncVectorEnv([lambda: Clock(**keywords)] * num_envs)


@pytest.mark.parametrize(
    ("factory", "backend", "dtype"),
    [(Clock, "sync", "float64"), (Clock, "async", "int64"), (clocks, "vector", "uint32")],
)
def test_large_numbers_are_normalized_in_float64_also_in_files(tmp_path, factory, backend, dtype):
    """The first number is 1.7e9 more than the second; in float32 it would be constant."""
    given = {"name": "clock", "total_agents": 4, "num_buffers": 2, "backend": backend}
    env = {"dtype": dtype, "start": 1_700_000_000}
    with Normalized(gym_vec(factory, env=env, **given), True, False, GAMMA) as made:
        for rows in played(made, 20):
            first, second = rows.observations.T
            np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)
        memory = made.statistics()
    assert memory["observations.variance"][0] > 1
    environment_statistics.write_statistics(memory, tmp_path / "normalization.safetensors")
    found = environment_statistics.read_statistics(tmp_path)
    assert set(found) == set(memory)
    assert abs(found["observations.mean"] - memory["observations.mean"]).max() < 1e-3


def test_policy_normalizes_large_numbers_as_in_training():
    settings = {"total_timesteps": 64, "total_agents": 2, "horizon": 32, "minibatch_size": 64}
    with puffer_mlx.train(Clock, settings) as trainer:
        policy = puffer_mlx.Policy(trainer)
        policy.architecture = mock.Mock(wraps=policy.architecture, is_recurrent=False)
        policy.predict(np.array([[1.7e9 + t, t] for t in range(7)]))
        rows = policy.architecture.act.call_args.args[1]
    np.testing.assert_allclose(rows[:, 0], rows[:, 1], rtol=1e-4, atol=1e-4)


def test_state_and_statistics_of_another_environment_are_refused():
    env = coded()
    with pytest.raises(UserError, match="doesn't belong to normalised"):
        env.restore(np.zeros(100, np.uint8))
    for wrong in {}, env.statistics() | {"observations.mean": np.zeros(5)}:
        with pytest.raises(UserError, match=r"observations\.mean"):
            env.restore_statistics(wrong)


def test_bytes_are_not_normalized():
    settings = config.load("squared")
    settings.vec.normalize_observations = True
    with vec.make(settings, 1) as env:
        assert not isinstance(env, Normalized)
        assert any("normalize_observations" in line for line in vec.unused_env_keys(settings, env))
        environment_statistics.require_statistics(settings, env.spec, {})
    settings.vec.normalize_rewards = True
    with vec.make(settings, 1) as env:
        assert isinstance(env, Normalized)
        assert set(env.statistics()) == {"return.count", "return.mean", "return.variance"}


# ---- files of a policy of normalised observations ------------------------------------------------

TRAINING = f"""--vec.total-agents 8 --vec.num-buffers 2 --train.horizon 4 --device cpu --seed 3
    --train.minibatch-size 16 --train.total-timesteps 512 --vec.normalize-rewards 1 {POLICY}"""
OPTIONS = f"{TRAINING} --vec.normalize-observations 1"


@pytest.fixture(scope="module")
def run(request, tmp_path_factory):
    """Yield an environment's name, its trainer after training, and the checkpoint."""
    word = DRIFT[getattr(request, "param", "native")]
    folder = tmp_path_factory.mktemp("run")
    with contextlib.ExitStack() as stack:
        with contextlib.chdir(folder):
            made = trained(config.load(word, OPTIONS.split()))
            trainer, saved = stack.enter_context(made)
        yield word, trainer, folder / saved


@pytest.mark.parametrize("run", ["native", "python"], indirect=True)
def test_every_file_plays_like_the_trained_policy(run, here, scripts):
    word, trainer, saved = run
    expected = live(trainer)
    files_play(scripts, here, word, saved, POLICY.split(), expected)
    made = checkpoint.load(saved)
    raw = replace(trainer.config, vec=replace(trainer.config.vec, normalize_observations=False))
    with vec.make(raw, 1) as env:
        other = score_episodes(
            AgentStepper(made.policy, made.weights, env, 3, deterministic=True), 12
        )
    assert other.summary()["score"].mean != pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("command", "exported"), [("evaluate", True), ("train", False)])
def test_typed_setting_that_contradicts_the_policy_is_refused(
    run, here, scripts, capsys, command, exported
):
    word, _, path = run
    if exported:
        path = here / "w.safetensors"
        export(checkpoint.load(run[2]), ExportFormat("safetensors"), path, None)
    raw = ["--vec.normalize-observations", "0", *POLICY.split(), "--device", "cpu"]
    assert scripts(command).main([word, "--load-model-path", str(path), *raw]) == 2
    error = capsys.readouterr().err
    assert "normalised observations" in error and "--vec.normalize-observations 1" in error


def test_training_continues_statistics_of_an_exported_file(run, here, scripts, capsys):
    word, _, saved = run
    before = environment_statistics.read_statistics(saved)
    export(checkpoint.load(saved), ExportFormat("safetensors"), here / "w.safetensors", None)
    words = [*TRAINING.split(), *POLICY.split(), "--load-model-path", "w.safetensors"]
    assert scripts("train").main([word, *words]) == 0
    printed = capsys.readouterr().out
    assert "observations are normalised, as in the training of w.safetensors" in printed
    made = Path(printed.partition("\nsaved ")[2].partition("\n")[0])
    assert checkpoint.load(made).config.vec.normalize_observations
    after = environment_statistics.read_statistics(made)
    for what in ("observations", "return"):
        assert after[f"{what}.count"] > before[f"{what}.count"] > 500


def test_policy_is_not_saved_without_its_statistics(run, here):
    _, trainer, saved = run
    written = environment_statistics.read_statistics(saved)
    for name, array in trainer.vec.statistics().items():
        np.testing.assert_allclose(written[name], array, rtol=1e-6)
    manager = checkpoint.CheckpointManager(here / "other", trainer.config)
    with pytest.raises(UserError, match="are missing"):
        manager.save(1, trainer.vec.spec, trainer.policy, trainer.weights, None)
    assert not (here / "other").exists()


def test_policy_of_normalized_observations_refuses_other_environments(run, here):
    word, trainer, saved = run
    plain = config.load(word, [*OPTIONS.split(), "--vec.normalize-observations", "0"])
    with vec.make(plain, 1) as env, pytest.raises(UserError, match="normalised observations"):
        environment_statistics.restore_statistics(env, saved)
    plain.origins.clear()  # it is a default then
    assert environment_statistics.with_saved_preprocessing(plain, saved).vec.normalize_observations
    (here / "w.safetensors").write_bytes((saved / "weights.safetensors").read_bytes())
    said = r"are missing: .*w\.safetensors has none"
    with vec.make(trainer.config, 1) as env, pytest.raises(UserError, match=said) as caught:
        environment_statistics.restore_statistics(env, here / "w.safetensors")
    assert "--vec.normalize-observations 0" in caught.value.hint


# ---- what isn't finite ---------------------------------------------------------------------------


class Spoiled(CodedVec):
    """Stub environments in which some observations and rewards aren't finite."""

    def rows(self, agents, k):
        observations, rewards, *others = super().rows(agents, k)
        observations, rewards = np.array(observations, float), np.array(rewards, float)
        if k in (3, 4):
            observations[agents == 2, 1] = np.nan
            rewards[agents == 5] = -np.inf
        if k == 5:
            observations[:] = np.nan
            rewards[:] = np.nan
        return [observations, rewards, *others]


@pytest.mark.parametrize("groups", [1, 2])
def test_statistics_ignore_numbers_that_are_not_finite(groups, capsys):
    env = coded(groups, kind=Spoiled)
    rows, bad = started(env), lambda k: ([2], [5]) if k in (3, 4) else ([], [])
    for k, *_ in (steps := [*everything(5, bad)]):
        if k:
            step(env, rows)
        assert np.isfinite(np.delete(rows.observations, bad(k)[0], 0)).all()
    step(env, rows)
    memory = env.statistics()
    for name, rows_of in zip(("observations", "return"), steps[-1][-2:], strict=True):
        assert memory[f"{name}.count"] == len(rows_of)
        np.testing.assert_allclose(memory[f"{name}.mean"], rows_of.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(memory[f"{name}.variance"], rows_of.var(axis=0), rtol=1e-5)
    assert capsys.readouterr().err == (
        "puffer_mlx: coded: agent 2 got an observation of nan at position 1; non-finite"
        " numbers are left out of the normalization statistics\n"
    )  # once
