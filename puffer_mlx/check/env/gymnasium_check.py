"""Check Gymnasium environments: Gymnasium's checker, declared spaces and action bounds."""

import math
import re
import warnings
from statistics import NormalDist
from typing import Any

import numpy as np

from puffer_mlx import vec
from puffer_mlx.check.env.environment import EnvUnderTest
from puffer_mlx.check.items import Finding, Findings, fail, ok, skip, warn
from puffer_mlx.vec.instances import parameters
from puffer_mlx.vec.puffer import is_puffer_env

MAX_CHECKED_STEPS = 300
MAX_ACTION_BOUND = 3.0  # an untrained policy samples from N(0, 1), rarely beyond this
COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")
# Texts in Gymnasium's warnings that are ignored.
IGNORED_WARNINGS = (
    "This is probably too low",
    "This is probably too high",
    "render modes due to the environment not having a spec",
    "recommend using a symmetric and normalized space",  # `check_bounds` reports it with numbers
)


def make_unwrapped(under_test: EnvUnderTest) -> Any:
    """Create one environment as its author wrote it, without the wrappers of gymnasium.make.

    If the factory creates only vector environments, the result is a vector environment.
    """
    import gymnasium

    config = under_test.config
    make = vec.python_factory(under_test.config)
    if isinstance(make, str):
        return gymnasium.make(make, **config.env).unwrapped
    count = parameters(make).get("num_envs")
    sets_num_envs = (
        count is not None and count.default is count.empty and "num_envs" not in config.env
    )
    env = make(**config.env, **({"num_envs": 1} if sets_num_envs else {}))
    single = isinstance(env, gymnasium.Env) and not isinstance(env, gymnasium.vector.VectorEnv)
    return env.unwrapped if single else env


def run_gymnasium_checker(under_test: EnvUnderTest) -> Findings:
    """Run Gymnasium's checker on an environment, and check its spaces and action bounds.

    Each warning of Gymnasium's checker becomes a finding.
    """
    if under_test.native:
        return [skip("not a Gymnasium environment")]
    from gymnasium import Env
    from gymnasium.utils.env_checker import check_env
    from gymnasium.vector import VectorEnv

    if is_puffer_env(vec.python_factory(under_test.config)):
        return [skip("has PufferLib 3's interface, not Gymnasium's")]
    env = make_unwrapped(under_test)
    if not isinstance(env, Env) or isinstance(env, VectorEnv):  # VectorEnv is an Env in 0.29
        return [skip(f"Gymnasium checks only gymnasium.Env, this is {type(env).__name__}")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True)
        except Exception as error:
            text = _plain(error) or type(error).__name__
            return [fail(text, "Gymnasium's check_env stops here")]
    texts = dict.fromkeys(_plain(warning.message) for warning in caught)
    findings = [
        warn(text, "a warning of Gymnasium's check_env")
        for text in texts
        if not any(ignored in text for ignored in IGNORED_WARNINGS)
    ]
    outside, count = find_outside_space(under_test, env)
    if outside or not findings:
        in_space = ok(f"check_env reports no problem; {count} observations are in their space")
        findings.append(outside or in_space)
    return findings + check_bounds(env.action_space)


def find_outside_space(under_test: EnvUnderTest, env: Any) -> tuple[Finding | None, int]:
    """Play a Gymnasium environment and find the first observation outside its declared space.

    Args:
        under_test: Checked environment, which limits the duration.
        env: One Gymnasium environment.

    Returns:
        A finding about this observation, or None; and the number of checked observations.
    """
    space = env.observation_space
    step = 0
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    for step in under_test.steps(MAX_CHECKED_STEPS):
        if not space.contains(observation):
            text = f"after {step - 1} steps {describe_misfit(space, observation)}"
            hint = "correct the declared space, or clip the observations to it"
            return fail(text, hint), step
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            observation, _ = env.reset()
    return None, step


def describe_misfit(space: Any, value: Any, name: str = "observation") -> str:
    """Return a text that says why a value isn't in a Gymnasium space.

    Args:
        space: Gymnasium space.
        value: Value outside the space.
        name: Name of the value in the text.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict) and isinstance(value, dict):
        for key, space_part in space.spaces.items():
            if key not in value:
                return f"{name} has no {key!r}"
            if not space_part.contains(value[key]):
                return describe_misfit(space_part, value[key], f"{name}[{key!r}]")
        return f"{name} has keys that its space lacks"
    if isinstance(space, spaces.Tuple) and isinstance(value, tuple):
        for i, (space_part, inner) in enumerate(zip(space.spaces, value, strict=False)):
            if not space_part.contains(inner):
                return describe_misfit(space_part, inner, f"{name}[{i}]")
    if not isinstance(space, spaces.Box) or not isinstance(value, np.ndarray):
        return f"{name} is {value!r:.60}, which isn't in {space}"
    if value.shape != space.shape:
        return f"{name} has the shape {value.shape}, declared is {space.shape}"
    if not np.can_cast(value.dtype, space.dtype):
        return f"{name} is {value.dtype}, declared is {space.dtype}"
    position = tuple(np.argwhere(~((value >= space.low) & (value <= space.high)))[0].tolist())
    index = ", ".join(map(str, position))
    declared = f"{space.low[position]:g} to {space.high[position]:g}"
    return f"{name}[{index}] is {value[position]:g}, declared is {declared}"


def check_bounds(space: Any) -> Findings:
    """Check that a new policy, which samples from N(0, 1), can reach most of the action space."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        return []
    pairs = zip(space.low.flat, space.high.flat, strict=True)
    cdf = NormalDist().cdf
    fraction = min(cdf(float(high)) - cdf(float(low)) for low, high in pairs)
    low, high = float(space.low.min()), float(space.high.max())
    if fraction < 0.5:
        problem = f"{1 - fraction:.0%} of a new policy's actions are beyond, and clipped"
    elif MAX_ACTION_BOUND < max(-low, high) < math.inf:
        problem = "a new policy samples about -2 to 2, and reaches larger actions late"
    else:
        return []
    hint = "wrap the environment in gymnasium.wrappers.RescaleAction(env, -1, 1)"
    return [warn(f"actions are {low:g} to {high:g}: {problem}", hint)]


def _plain(message: object) -> str:
    """Return a warning of Gymnasium as one line, without colours and the prefix WARN."""
    line = " ".join(COLOUR_CODES.sub("", str(message)).split())
    return line.removeprefix("WARN: ")
