"""Which Gymnasium is installed: 1.1 or newer, or 0.29, which PufferLib 3 needs.

Both have what this room uses. What only 1.1 has, ``need_newer`` refuses in words.
"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from puffer_mlx.errors import UserError

_NEWER = "pip install 'gymnasium>=1.1'; in an environment without PufferLib 3, which needs 0.29"


def gymnasium() -> Any:
    """The package.

    Raises:
        UserError: it isn't installed, or in a version that doesn't do.
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


def has_own_vector_forms() -> bool:
    """Whether environments' own vectorised forms say when the next episode begins (1.1)."""
    return _version(gymnasium()) >= (1, 1)


def need_newer(what: str) -> None:
    """Refuse what 0.29 lacks.

    Args:
        what: is asked for, as in "wrap.grayscale".

    Raises:
        UserError: Gymnasium is older than 1.1.
    """
    if not has_own_vector_forms():
        version = gymnasium().__version__
        raise UserError(f"{what} needs Gymnasium 1.1 or newer, {version} is installed", _NEWER)


@contextmanager
def quiet() -> Iterator[None]:
    """Without Gymnasium's advice (there is a newer version, say), which each copy would repeat.

    And without GLFW's, that there is no display: what comes of it is said by what fails.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(gymnasium|glfw)(\.|$)")
        yield


def _version(package: Any) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", package.__version__)[:2]))
