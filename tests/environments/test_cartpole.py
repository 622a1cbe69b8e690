"""cartpole and cartpole_continuous against upstream's recorded numbers and their equations."""

from pathlib import Path

import numpy as np
import pytest
from native_envs import SAME_LIBM, Stepper, plays_the_recording

from puffer_mlx.config import load
from puffer_mlx.vec.native.make import find_environment
from puffer_mlx.vec.native.vec import NativeVec

LEFT, RIGHT = 0, 1
LIMITS = np.array([2.4, 12 * np.pi / 180])  # m, rad
OTHER = {  # parameters, all unlike 1 and the default
    "cart_mass": 0.7,
    "pole_mass": 0.25,
    "pole_length": 0.8,
    "gravity": 3.7,
    "force_mag": 6.0,
    "dt": 0.03,
}


def make(name: str = "cartpole", agents: int = 1, **env: float) -> NativeVec:
    return NativeVec(find_environment(name), total_agents=agents, env={**load(name).env, **env})


def balance(seen: np.ndarray) -> np.ndarray:
    """Return actions (N, 1) that balance CartPole's pole, from observations."""
    x, x_dot, theta, theta_dot = seen.T.astype(np.float64)
    wanted = theta + 0.3 * theta_dot + 0.05 * x + 0.1 * x_dot
    return (wanted > 0).astype(np.float32)[:, None]


def predict(seen: np.ndarray, force: np.ndarray, p: dict[str, float]) -> np.ndarray:
    """Return CartPole's state after a step, (N, 4) float64, as PufferLib 4.0 computes it."""
    x, x_dot, theta, theta_dot = seen.T.astype(np.float64)
    sine, cosine = np.sin(theta), np.cos(theta)
    m = p["cart_mass"] + p["pole_mass"]
    k = m + p["pole_mass"]
    push = (force + k * theta_dot**2 * sine) / m
    theta_acc = (p["gravity"] * sine - cosine * push) / (
        p["pole_length"] * (4 / 3 - m * cosine**2 / m)
    )
    x_acc = push - k * theta_acc * cosine / m
    dt = p["dt"]
    return np.stack(
        [x + dt * x_dot, x_dot + dt * x_acc, theta + dt * theta_dot, theta_dot + dt * theta_acc], 1
    )


def test_recording_of_upstream_is_reproduced(fixtures: Path):
    """16 environments, 600 steps: everything, exactly where sinf and cosf are the recorder's.

    Elsewhere the last bits differ, for at most the 20 steps that a random episode lasts: 1e-5.
    """
    tolerance = 0.0 if SAME_LIBM else 1e-5
    plays_the_recording(fixtures / "puffer4_env_cartpole.npz", "cartpole", tolerance)


@pytest.mark.parametrize(("name", "env"), [("cartpole", OTHER), ("cartpole_continuous", {})])
def test_step_computes_the_equations(name: str, env: dict[str, float]):
    n, ended = 64, 0
    parameters = {**load(name).env, **env}
    rng = np.random.default_rng(0)
    with make(name, n, **env) as vec:
        assert vec.spec.action.continuous == (name == "cartpole_continuous")
        stepper = Stepper(vec)
        for _ in range(200):
            before = stepper.rows.observations.copy()
            if vec.spec.action.continuous:
                actions = rng.normal(0, 0.8, (n, 1)).astype(np.float32)
                force = np.clip(actions[:, 0], -1, 1) * parameters["force_mag"]
            else:
                actions = rng.integers(0, 2, (n, 1)).astype(np.float32)
                force = np.where(actions[:, 0] == RIGHT, 1, -1) * parameters["force_mag"]
            expected = predict(before, force, parameters)
            rows = stepper.step(actions)
            distance = np.abs(expected[:, [0, 2]]) - LIMITS
            assert np.abs(distance).min() > 1e-6  # none so close that rounding decides
            over = (distance > 0).any(1)
            np.testing.assert_array_equal(rows.terminals, over)
            np.testing.assert_array_equal(rows.rewards, ~over)
            found = rows.observations
            np.testing.assert_allclose(found[~over], expected[~over], rtol=1e-5, atol=1e-5)
            assert np.abs(found[over]).max(initial=0) <= 0.04 + 1e-8
            ended += over.sum()
        log = vec.log()
    assert log["n"] == ended > n
    assert log["pole_angle_termination"] == 1


def test_time_limit_is_not_terminal():
    """Step 200 has no reward, and then shows the first state of another episode."""
    with make(agents=8) as vec:
        stepper = Stepper(vec)
        for _ in range(199):
            rows = stepper.step(balance(stepper.rows.observations))
            assert (rows.rewards == 1).all() and not rows.terminals.any()
        assert vec.log() == {}
        before = rows.observations.copy()
        rows = stepper.step(balance(before))
        assert not rows.rewards.any() and not rows.terminals.any()
        assert (np.abs(rows.observations) <= 0.04 + 1e-8).all()
        assert (np.abs(before) > 0.04).any(1).all()
        log = vec.log()
    assert log.pop("perf") == pytest.approx(199 / 200)
    assert list(log.values()) == [200.0, 200.0, 0.0, 0.0, 1.0, 8.0]


def test_cart_that_leaves_the_rail_ends_the_episode():
    """A pole of a kilometre hardly turns, so that it is the cart that ends the episode."""
    with make(pole_length=1000) as vec:
        stepper = Stepper(vec)
        while not stepper.rows.terminals[0]:
            before = stepper.rows.observations[0].copy()
            stepper.step(LEFT)
        assert -2.4 <= before[0] < -2.2 and abs(before[2]) < 0.1
        log = vec.log()
    assert (log["x_threshold_termination"], log["pole_angle_termination"]) == (1, 0)
