"""Check the installed Gymnasium (1.1 or newer, or 0.29 for PufferLib 3) and required packages."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from puffer_mlx.errors import UserError

# (pattern of environment names, required modules, package to install). The first match counts.
_REQUIRED_MODULES = (
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
_UPGRADE_HINT = (
    "pip install 'gymnasium>=1.1'; in an environment without PufferLib 3, which needs 0.29"
)


def gymnasium() -> Any:
    """Import Gymnasium and return its module.

    Raises:
        UserError: Gymnasium isn't installed, or its version isn't supported.
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
    """Return the missing package of an environment such as ``gym:ID``, "" if all are installed."""
    for pattern, modules, package in _REQUIRED_MODULES:
        if re.match(pattern, name):
            return "" if all(map(find_spec, modules)) else package
    return ""


def has_vectorised_versions() -> bool:
    """Return True if Gymnasium's vectorised environments report when episodes begin (from 1.1)."""
    return _version(gymnasium()) >= (1, 1)


def require_newer(what: str) -> None:
    """Raise an error for a feature that needs Gymnasium 1.1, if an older one is installed.

    Args:
        what: Name of the feature, such as "wrap.grayscale".

    Raises:
        UserError: Gymnasium is older than 1.1.
    """
    if not has_vectorised_versions():
        version = gymnasium().__version__
        raise UserError(
            f"{what} needs Gymnasium 1.1 or newer, {version} is installed", _UPGRADE_HINT
        )


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Suppress the warnings of Gymnasium and GLFW.

    Each process would repeat Gymnasium's. GLFW warns of a missing display, but rendering raises an
    error in that case.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(gymnasium|glfw)(\.|$)")
        yield


def _version(package: Any) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", package.__version__)[:2]))
