"""The installed Gymnasium: 1.1 or newer, or 0.29, which PufferLib 3 needs.

``need_newer`` refuses features that only 1.1 has. ``missing_package`` names the package that an
environment needs.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from puffer_mlx.errors import UserError

_NEEDED = (  # (pattern of names, modules, package with them); the first match counts
    (r"gym:ALE/", ("ale_py", "cv2", "gymnasium"), "puffer-mlx[atari]"),
    (r"gym:(minigrid:)?MiniGrid-", ("minigrid", "gymnasium"), "minigrid"),
    (r"gym:(BipedalWalker|CarRacing|LunarLander)", ("Box2D", "gymnasium"), "gymnasium[box2d]"),
    (
        r"gym:(Ant|HalfCheetah|Hopper|Humanoid|Inverted|Pusher|Reacher|Swimmer|Walker2d)",
        ("mujoco", "gymnasium"),
        "gymnasium[mujoco]",
    ),
    (r"gym:(phys2d|tabular)/", ("jax", "gymnasium"), "gymnasium[jax]"),
    (r"gym:", ("gymnasium",), "puffer-mlx[gym]"),
    (r"envpool:", ("envpool",), "puffer-mlx[envpool]"),
    (r"pettingzoo:mpe2\.", ("mpe2", "pettingzoo"), "mpe2"),
    (r"pettingzoo:", ("pettingzoo",), "puffer-mlx[pettingzoo]"),
)
_NEWER = "pip install 'gymnasium>=1.1'; in an environment without PufferLib 3, which needs 0.29"


def gymnasium() -> Any:
    """Return the package.

    Raises:
        UserError: It isn't installed, or its version isn't supported.
    """
    try:
        import gymnasium
        import gymnasium.vector
    except ImportError as error:
        raise UserError(
            f"Gymnasium can't be imported: {error}", "pip install 'puffer-mlx[gym]'"
        ) from None
    version = _version(gymnasium)
    if version < (0, 29) or version == (1, 0):
        raise UserError(
            f"Gymnasium {gymnasium.__version__} is installed, expected 0.29, or 1.1 or newer",
            "pip install --upgrade 'puffer-mlx[gym]'",
        )
    return gymnasium


def missing_package(name: str) -> str:
    """Return the package to install for an environment such as ``gym:ID``; "" without need."""
    for pattern, modules, package in _NEEDED:
        if re.match(pattern, name):
            return "" if all(map(find_spec, modules)) else package
    return ""


def has_own_vector_forms() -> bool:
    """Return True if vectorised forms report when the next episode begins (Gymnasium 1.1)."""
    return _version(gymnasium()) >= (1, 1)


def need_newer(what: str) -> None:
    """Refuse a feature that Gymnasium 0.29 lacks.

    Args:
        what: Name of the feature, such as "wrap.grayscale".

    Raises:
        UserError: Gymnasium is older than 1.1.
    """
    if not has_own_vector_forms():
        version = gymnasium().__version__
        raise UserError(f"{what} needs Gymnasium 1.1 or newer, {version} is installed", _NEWER)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the warnings of Gymnasium, which each process would repeat, and of GLFW.

    GLFW warns of a missing display; drawing raises an error in that case.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(gymnasium|glfw)(\.|$)")
        yield


def _version(package: Any) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", package.__version__)[:2]))
