"""Which form of Gymnasium's environments is stepped.

``auto`` stands for:

1. ``vector``, if the environment has a vectorised form of its own;
2. ``sync`` or ``async``, whichever a few steps of one environment promise to be faster. Both give
   the same rows, so the measurement can't change a result.
"""

from typing import Any

from puffer_mlx.errors import UserError
from puffer_mlx.vec.gym.make import Recipe
from puffer_mlx.vec.instances import Buffers
from puffer_mlx.vec.layout import Layout
from puffer_mlx.vec.plan import pays, step_time
from puffer_mlx.vec.processes import cores

__all__ = ["choose", "tells_finals"]


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
    if pays(seconds, min(agents, cores())):
        return "async", f"{wrapped}{agents} processes, {step}"
    return "sync", f"{wrapped}{step}, which processes wouldn't make faster"


def tells_finals(name: str, vector: Any) -> bool:
    """Whether a vector environment gives an episode's last observation a row of its own.

    Raises:
        UserError: it doesn't begin the next episode by itself, or doesn't say when.
    """
    found = vector.metadata.get("autoreset_mode")
    mode = getattr(found, "value", found)
    if mode in ("NextStep", "SameStep"):
        return mode == "NextStep"
    raise UserError(
        f'{name}: its metadata["autoreset_mode"] is {found}, expected NEXT_STEP or SAME_STEP',
        "begin the next episode by itself, and say when: gymnasium.vector.AutoresetMode.NEXT_STEP",
    )


def measure(recipe: Recipe) -> float:
    """Seconds that a step of one environment takes, with its share of resets.

    Raises:
        UserError: the environment fails.
    """
    try:
        recipe.layout = Layout(recipe.name, *recipe.look_at(0))
        return step_time(recipe, recipe.layout, Buffers.row_shapes(1, recipe.layout.spec))
    finally:
        recipe.close()


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds * 1e6:.0f} us"
