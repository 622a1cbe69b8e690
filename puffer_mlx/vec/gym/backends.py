"""Which form of Gymnasium's environments is stepped, and building it.

``auto`` stands for:

1. ``vector``, if the environment has a vectorised form of its own;
2. ``sync`` or ``async``, whichever a few steps of one environment promise to be faster. Both give
   the same rows, so the measurement can't change a result.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.gym.make import MAKING, Recipe, gymnasium
from puffer_mlx.vec.processes import ROUND_TRIP, cores
from puffer_mlx.vec.python_faults import RAISED, Fault, told

__all__ = ["build", "choose", "tells_finals"]

_PROBE_SECONDS = 0.1
_PROBE_STEPS = 200


def choose(recipe: Recipe, agents: int, backend: str) -> tuple[str, str]:
    """The vectorisation to use and why, in a few words.

    Args:
        recipe: of the environments.
        agents: how many environments there will be.
        backend: ``vector``, ``sync``, ``async`` or ``auto``.

    Raises:
        UserError: there is no vectorised form, and it was asked for; or the environment fails.
    """
    if backend in ("sync", "async"):
        return backend, "as vec.backend says"
    form, lacking = recipe.vector_form()
    if not lacking:
        return "vector", f"{form}, its own vectorised form"
    if backend == "vector":
        raise UserError(
            f"{recipe.name}: vec.backend is vector, but {lacking}", "set it to sync or async"
        )
    wrapped = f"{lacking}; " if "(wrap." in lacking else ""  # it gives way: that is said
    if agents == 1:
        return "sync", f"{wrapped}there is only one"
    if cores() == 1:
        return "sync", f"{wrapped}there is one core"
    seconds = measure(recipe)
    step = f"a step takes {_duration(seconds)}"
    if seconds - seconds / min(agents, cores()) > ROUND_TRIP:
        return "async", f"{wrapped}{agents} processes, {step}"
    return "sync", f"{wrapped}{step}, which processes wouldn't make faster"


def build(recipe: Recipe, n: int, backend: str, finals: bool, timeout: float) -> Any:
    """A vector environment of n environments.

    Args:
        recipe: of an environment.
        n: how many.
        backend: ``vector``, ``sync`` or ``async``.
        finals: whether last observations are wanted, each in a row of its own.
        timeout: seconds after which an environment's process hangs.

    Raises:
        UserError: an environment can't be made.
        Fault: of a process, or environments differ in their spaces.
    """
    if backend == "vector":
        return recipe.vector(n)
    vector = gymnasium().vector
    mode = vector.AutoresetMode.NEXT_STEP if finals else vector.AutoresetMode.SAME_STEP
    if backend == "async":
        from puffer_mlx.vec.gym.workers import Workers

        return Workers([recipe] * n, mode, timeout)
    try:
        return vector.SyncVectorEnv([recipe] * n, copy=False, autoreset_mode=mode)
    except RuntimeError as error:
        raise Fault(MAKING, told(error)) from None


def tells_finals(name: str, vector: Any) -> bool:
    """Whether a vector environment gives an episode's last observation a row of its own.

    Raises:
        UserError: it doesn't begin the next episode by itself, or doesn't say when.
    """
    modes = gymnasium().vector.AutoresetMode
    found = vector.metadata.get("autoreset_mode")
    if found in (modes.NEXT_STEP, modes.NEXT_STEP.value):
        return True
    if found in (modes.SAME_STEP, modes.SAME_STEP.value):
        return False
    raise UserError(
        f'{name}: its metadata["autoreset_mode"] is {found}, expected NEXT_STEP or SAME_STEP',
        "begin the next episode by itself, and say when: gymnasium.vector.AutoresetMode.NEXT_STEP",
    )


def measure(recipe: Recipe) -> float:
    """Seconds that a step of one environment takes, with its share of resets.

    Raises:
        UserError: the environment fails.
    """
    env = recipe()
    what = "failed in reset"
    try:
        env.action_space.seed(0)
        _, info = env.reset(seed=0)
        steps, began = 0, time.perf_counter()
        while steps < _PROBE_STEPS and time.perf_counter() - began < _PROBE_SECONDS:
            what = "failed in step"
            _, _, terminated, truncated, info = env.step(_legal(env.action_space, info))
            steps += 1
            if terminated or truncated:
                what = "failed in reset"
                _, info = env.reset()
        return (time.perf_counter() - began) / steps
    except RAISED as error:
        raise Fault(what, told(error), 0).report(recipe.name) from None
    finally:
        env.close()


def _legal(space: Any, info: Mapping[str, Any]) -> Any:
    """A random action, a legal one if the environment tells which are."""
    mask = info.get("action_mask")
    if mask is None or type(space).__name__ != "Discrete":
        return space.sample()
    legal = np.flatnonzero(np.asarray(mask))
    return space.start + space.np_random.choice(legal if len(legal) else np.arange(space.n))


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds * 1e6:.0f} us"
