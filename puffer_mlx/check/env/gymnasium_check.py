"""Check Gymnasium environments: Gymnasium's own checker, spaces and action bounds."""

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

STEPS = 300
LARGE = 3.0  # an untrained policy samples from N(0, 1) and rarely gets beyond
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Parts of warnings to ignore.
HARMLESS = (
    "This is probably too low",
    "This is probably too high",
    "render modes due to the environment not having a spec",
    "recommend using a symmetric and normalized space",  # `check_bounds` reports it with numbers
)


def make_one(under_test: EnvUnderTest) -> Any:
    """Return one environment as its author wrote it, without the wrappers of gymnasium.make.

    If the factory makes only vector environments, return a vector environment.
    """
    import gymnasium

    config = under_test.config
    make = vec.python_factory(under_test.config)
    if isinstance(make, str):
        return gymnasium.make(make, **config.env).unwrapped
    count = parameters(make).get("num_envs")
    vectorised = count is not None and count.default is count.empty and "num_envs" not in config.env
    env = make(**config.env, **({"num_envs": 1} if vectorised else {}))
    single = isinstance(env, gymnasium.Env) and not isinstance(env, gymnasium.vector.VectorEnv)
    return env.unwrapped if single else env


def run_gymnasium_checker(under_test: EnvUnderTest) -> Findings:
    """Run Gymnasium's checker, one finding per warning, then check spaces and action bounds."""
    if under_test.native:
        return [skip("not one of Gymnasium's")]
    from gymnasium import Env
    from gymnasium.utils.env_checker import check_env
    from gymnasium.vector import VectorEnv

    if is_puffer_env(vec.python_factory(under_test.config)):
        return [skip("its interface is PufferLib 3's")]
    env = make_one(under_test)
    if not isinstance(env, Env) or isinstance(env, VectorEnv):  # VectorEnv is an Env in 0.29
        return [skip(f"its own check is for gymnasium.Env, this is {type(env).__name__}")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True)
        except Exception as error:
            text = _plain(error) or type(error).__name__
            return [fail(text, "Gymnasium's check_env stops here")]
    texts = dict.fromkeys(_plain(warning.message) for warning in caught)
    complaints = [text for text in texts if not any(part in text for part in HARMLESS)]
    findings = [warn(text, "Gymnasium's check_env says so") for text in complaints]
    outside, tried = find_outside_space(under_test, env)
    if outside or not findings:
        in_space = ok(f"check_env found nothing; {tried} observations are in their space")
        findings.append(outside or in_space)
    return findings + check_bounds(env.action_space)


def find_outside_space(under_test: EnvUnderTest, env: Any) -> tuple[Finding | None, int]:
    """Find the first observation outside the declared space.

    Returns:
        The finding or None, and the number of observations checked.
    """
    space = env.observation_space
    step = 0
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    for step in under_test.steps(STEPS):
        if not space.contains(observation):
            text = f"after {step - 1} steps {describe_misfit(space, observation)}"
            return fail(text, "declare what it is, or clip it to what is declared"), step
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            observation, _ = env.reset()
    return None, step


def describe_misfit(space: Any, value: Any, name: str = "observation") -> str:
    """Return a description of why a value isn't in a space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict) and isinstance(value, dict):
        for key, part in space.spaces.items():
            if key not in value:
                return f"{name} has no {key!r}"
            if not part.contains(value[key]):
                return describe_misfit(part, value[key], f"{name}[{key!r}]")
        return f"{name} has keys that its space lacks"
    if isinstance(space, spaces.Tuple) and isinstance(value, tuple):
        for i, (part, inner) in enumerate(zip(space.spaces, value, strict=False)):
            if not part.contains(inner):
                return describe_misfit(part, inner, f"{name}[{i}]")
    if not isinstance(space, spaces.Box) or not isinstance(value, np.ndarray):
        return f"{name} is {value!r:.60}, which isn't in {space}"
    if value.shape != space.shape:
        return f"{name} has the shape {value.shape}, declared is {space.shape}"
    if not np.can_cast(value.dtype, space.dtype):
        return f"{name} is {value.dtype}, declared is {space.dtype}"
    at = tuple(np.argwhere(~((value >= space.low) & (value <= space.high)))[0].tolist())
    where = ", ".join(map(str, at))
    declared = f"{space.low[at]:g} to {space.high[at]:g}"
    return f"{name}[{where}] is {value[at]:g}, declared is {declared}"


def check_bounds(space: Any) -> Findings:
    """Check that the bounds of continuous actions suit a policy that starts near N(0, 1)."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        return []
    pairs = zip(space.low.flat, space.high.flat, strict=True)
    below = NormalDist().cdf
    within = min(below(float(high)) - below(float(low)) for low, high in pairs)
    low, high = float(space.low.min()), float(space.high.max())
    if within < 0.5:
        problem = f"{1 - within:.0%} of what a policy tries at first is beyond, and clipped"
    elif LARGE < max(-low, high) < math.inf:
        problem = "a policy tries about -2 to 2 at first, and reaches the rest late"
    else:
        return []
    hint = "wrap it in gymnasium.wrappers.RescaleAction(env, -1, 1)"
    return [warn(f"actions are {low:g} to {high:g}: {problem}", hint)]


def _plain(message: object) -> str:
    """Return a message as one line, without colours and without the prefix WARN."""
    text = " ".join(COLOURS.sub("", str(message)).split())
    return text.removeprefix("WARN: ")
