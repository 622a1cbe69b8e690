"""Which form of Gymnasium's environments is stepped, and building it.

``auto`` stands for:

1. ``vector``, if the environment has a vectorised form of its own;
2. ``sync`` or ``async``, whichever a few steps of one environment promise to be faster. Both give
   the same rows, so the measurement can't change a result.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError
from puffer_mlx.vec.gym.make import MAKING, Recipe
from puffer_mlx.vec.processes import ROUND_TRIP, cores
from puffer_mlx.vec.python_faults import RAISED, Fault, told
from puffer_mlx.vec.step_speed import step_seconds

__all__ = ["build", "choose", "tells_finals"]


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
    from puffer_mlx.vec.gym.vectors import AutoresetMode, SyncVectorEnv

    mode = AutoresetMode.NEXT_STEP if finals else AutoresetMode.SAME_STEP
    if backend == "async":
        from puffer_mlx.vec.gym.workers import Workers

        return Workers([recipe] * n, mode, timeout)
    try:
        return SyncVectorEnv([recipe] * n, copy=False, autoreset_mode=mode)
    except RuntimeError as error:
        raise Fault(MAKING, told(error)) from None


def tells_finals(name: str, vector: Any) -> bool:
    """Whether a vector environment gives an episode's last observation a row of its own.

    Raises:
        UserError: it doesn't begin the next episode by itself, or doesn't say when.
    """
    from puffer_mlx.vec.gym.vectors import AutoresetMode as modes

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
    trial = _Trial(env)
    try:
        env.action_space.seed(0)
        trial.reset(seed=0)
        return step_seconds(trial.step)
    except RAISED as error:
        raise Fault(f"failed in {trial.doing}", told(error), 0).report(recipe.name) from None
    finally:
        env.close()


class _Trial:
    """Random steps of one environment, episode after episode."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def reset(self, **how: Any) -> None:
        self.doing = "reset"
        _, self._info = self._env.reset(**how)

    def step(self) -> None:
        self.doing = "step"
        action = _legal(self._env.action_space, self._info)
        _, _, terminated, truncated, self._info = self._env.step(action)
        if terminated or truncated:
            self.reset()


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
