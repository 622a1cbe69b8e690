"""What every native environment keeps to, ours and upstream's."""

from pathlib import Path

import numpy as np
from native_envs import GROUP, Stepper, folder_of, legal_actions, make

from puffer_mlx.config import Config
from puffer_mlx.training.trainer import Trainer
from puffer_mlx.vec.native.vec import NativeVec
from puffer_mlx.vec.rows import random_actions


def trajectory(name: str, steps: int = 200, **keywords) -> tuple[list[np.ndarray], dict]:
    """The bytes of all that 192 agents see in `steps` random steps, and the log."""
    seen = []
    rng = np.random.default_rng(0)
    with make(name, total_agents=8 * GROUP, **keywords) as vec:
        stepper = Stepper(vec, reset=False)
        for array in stepper.rows:
            if array is not None:
                array.fill(7)
        vec.reset(stepper.rows)
        assert not stepper.rows.rewards.any() and not stepper.rows.terminals.any()
        assert not (stepper.rows.observations == 7).all(axis=1).any()
        for _ in range(steps):
            rows = stepper.step(random_actions(vec, vec.num_agents, rng))
            arrays = [array for array in rows if array is not None]
            seen.append(np.concatenate([array.view(np.uint8).reshape(-1) for array in arrays]))
        return seen, vec.log()


def random_score(config: Config) -> float:
    """The mean score of legal random actions."""
    rng = np.random.default_rng(0)
    with NativeVec(folder_of(config.env_name), total_agents=384, env=config.env) as vec:
        stepper = Stepper(vec)
        for _ in range(300):
            stepper.step(legal_actions(stepper, rng))
        return vec.log()["score"]


def learn(config: Config) -> tuple[float, dict[str, float]]:
    """Train as configured: the mean score of the last five records with one, and the last."""
    with NativeVec(
        folder_of(config.env_name),
        total_agents=config.vec.total_agents,
        num_buffers=config.vec.num_buffers,
        num_threads=2,
        env=config.env,
    ) as vec:
        logs = [record for record in Trainer(config, vec) if "env/score" in record]
    return sum(record["env/score"] for record in logs[-5:]) / 5, logs[-1]


def has_spec(
    name: str,
    observation_size: int,
    dtype: type,
    heads: tuple[int, ...],
    mask_size: int,
    environments: int,
    agents: int = 12,
):
    """All its keys are read."""
    with make(name, total_agents=agents) as vec:
        spec = vec.spec
        assert (spec.name, spec.observation_size) == (name, observation_size)
        assert (spec.observation_dtype, spec.action.sizes) == (dtype, heads)
        assert spec.mask_size == mask_size
        assert (vec.num_environments, vec.finals, vec.unread) == (environments, False, [])


def keeps_the_contract(name: str):
    """A reset writes every row, and neither threads nor groups change what is seen.

    That a group steps alone, and what else environments have in common, is in test_vec_contract.py.
    """
    expected, log = trajectory(name)
    for threads, groups in (3, 8), (64, 2):
        seen, its_log = trajectory(name, num_threads=threads, num_buffers=groups)
        for step, (one, other) in enumerate(zip(expected, seen, strict=True)):
            np.testing.assert_array_equal(one, other, f"step {step}, {threads} threads")
        assert its_log == log and log["n"] > 20


def plays_the_recording(path: Path, name: str, tolerance: float = 0.0) -> None:
    """Compare with upstream's recording: observations, rewards, terminals and the log, exactly.

    Args:
        path: of the recording.
        name: of the environment.
        tolerance: of observations.
    """
    recorded = np.load(path, allow_pickle=False)
    env = dict(zip(recorded["env_kwargs_keys"], recorded["env_kwargs_vals"], strict=True))
    with make(name, total_agents=16, num_buffers=2, num_threads=2, env=env) as vec:
        stepper = Stepper(vec)
        np.testing.assert_array_equal(stepper.rows.observations, recorded["obs"][0])
        for step, actions in enumerate(recorded["actions"]):
            rows, expected = stepper.step(actions), recorded["obs"][step + 1]
            np.testing.assert_allclose(rows.observations, expected, rtol=0, atol=tolerance)
            np.testing.assert_array_equal(rows.rewards, recorded["rewards"][step])
            np.testing.assert_array_equal(rows.terminals, recorded["terminals"][step])
        log = vec.log()
    assert list(log) == recorded["log_keys"].tolist()
    np.testing.assert_array_equal(list(log.values()), recorded["log_vals"])  # means as float32
