"""Errors of Python environments, reported with the environment, lines of its code, and a hint.

`one_number`, `one_flag`, `all_numbers` and `as_info` convert values that an environment returned,
and raise an `EnvFailure` for values that can't be converted.
"""

import os
import re
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from puffer_mlx.errors import UserError

_MAX_FRAMES = 3  # stack frames of an environment's code in a message
_LIBRARIES = ("gymnasium", "numpy", "puffer_mlx")
_DEFAULT_HINT = "fix the environment; with vec.backend = sync a debugger can stop where it fails"
# Hints on environments that are written for gym before 0.26.
_STEP_HINT = (
    "return observation, reward, terminated, truncated, info: done is terminated or truncated"
)
_RESET_HINT = "def reset(self, *, seed=None, options=None), and return observation, info"
# Messages of Python for a step or reset that returned too few or too many values, and for a reset
# without the parameters that Gymnasium passes.
_UNPACKED = re.compile(r"values to unpack \(expected ([25])(?:, got (\d+))?\)")
_NO_SEED = re.compile(r"reset\(\) got an unexpected keyword argument '(seed|options)'")


_SCALAR_TYPES = int, float, np.floating, np.integer, np.bool_
_INFO_HINT = "return a dict as info, {} if there is nothing to report"

UNKNOWN_INDEX = -1  # index of the environment that failed in a vectorised environment
ENV_EXCEPTIONS = (Exception, SystemExit)  # ``sys.exit`` in an environment doesn't end the program


class EnvFailure(Exception):
    """Failure of a Python environment, as an exception that can be sent between processes.

    Args:
        event: Event, for example "failed in step"; "" if the caller adds it.
        text: Details, such as a result of ``describe_exception``, or "".
        index: Index of the environment in its group, ``UNKNOWN_INDEX``, or None for the caller to
            add it.
        hint: Hint that replaces the default one.
    """

    def __init__(self, event: str, text: str, index: int | None = None, hint: str = "") -> None:
        super().__init__(event, text, index, hint)
        self.event = event
        self.text = text
        self.index = index
        self.hint = hint

    def report(self, name: str, first: int = 0, seed: int = 0) -> UserError:
        """Return this failure of an environment as a ``UserError`` that names environment and seed.

        Args:
            name: Name of the environments.
            first: Number of the group's first environment.
            seed: Seed of environment 0.
        """
        which = "an environment"
        text = f": {self.text}" if self.text else ""
        if self.index is not None and self.index != UNKNOWN_INDEX:
            number = first + self.index
            which = f"environment {number} (seed {seed + number})"
        return UserError(f"{name}: {which} {self.event}{text}", self.hint or _DEFAULT_HINT)


def describe_exception(error: BaseException) -> str:
    """Describe an exception in a few lines: type, message, and the last lines of the user's code.

    Lines of Gymnasium, NumPy and the standard library are left out.
    """
    kind = type(error).__name__
    head = f"{kind}: {error}" if str(error) else kind
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not _in_library(Path(frame.filename))]
    last = user_frames[-_MAX_FRAMES:]
    lines = [f"  {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in last]
    return "\n".join([head, *lines])


def failure_of(event: str, error: BaseException, index: int | None = None) -> EnvFailure:
    """Convert an exception that an environment raised to an ``EnvFailure``, and return it.

    Args:
        event: Event, for example "failed in step".
        error: The exception.
        index: Index of the environment.
    """
    frame = (traceback.extract_tb(error.__traceback__) or [None])[-1]
    # An error in a library's code is often its complaint about what the environment returned.
    if frame and _in_library(Path(frame.filename)):
        counts = _UNPACKED.search(str(error)) if isinstance(error, ValueError) else None
        if counts and counts[1] == "5":
            return _old_gym_failure(
                "step", f"{counts[2] or 'more than 5'} values, expected 5", index
            )
        if counts and "reset" in f"{frame.name} {frame.line}":
            return _old_gym_failure("reset", "an observation alone", index)
        if isinstance(error, TypeError) and (word := _NO_SEED.search(str(error))):
            return EnvFailure("failed in reset", f"it doesn't take {word[1]}", index, _RESET_HINT)
    return EnvFailure(event, describe_exception(error), index)


@contextmanager
def raising_failure(event: str, index: int | None = None) -> Iterator[None]:
    """Context manager: convert exceptions that an environment raises in it to ``EnvFailure``.

    Args:
        event: Event, for example "failed in step".
        index: Index of the environment, as in `EnvFailure`.
    """
    try:
        yield
    except ENV_EXCEPTIONS as error:
        raise failure_of(event, error, index) from error


def result_failure(method: str, result: Any, index: int | None = None) -> EnvFailure | None:
    """Check that an environment's ``step`` or ``reset`` returned the right number of values.

    Args:
        method: ``step`` or ``reset``.
        result: The returned value.
        index: Index of the environment, as in `EnvFailure`.

    Returns:
        The failure to raise, or None when the result is valid.
    """
    is_sequence = isinstance(result, tuple | list)
    if is_sequence and len(result) == (5 if method == "step" else 2):
        return None
    if result is None:
        rest = "reward, terminated, truncated, info" if method == "step" else "info"
        text = f"it returned None, expected observation, {rest}"
        return EnvFailure(f"failed in {method}", text, index, "return the values in a tuple")
    if method == "reset":
        return _old_gym_failure("reset", "an observation alone", index)
    text = f"{len(result)} values, expected 5" if is_sequence else format_value(result)
    return _old_gym_failure("step", text, index)


def one_number(value: Any, what: str) -> Any:
    """Convert a number that an environment returned to a scalar.

    Args:
        value: Scalar, or an array or a list with one element.
        what: Name of the value, for the message: "a reward".

    Raises:
        EnvFailure: The value isn't one number.
    """
    if isinstance(value, _SCALAR_TYPES):
        return value
    array = _numeric_array(value)
    if array is not None and array.size == 1:
        return array.item()
    hint = "return one number for each step, as in float(reward)"
    raise EnvFailure(
        f"returned {what} of {format_value(value)}, expected one number", "", None, hint
    )


def one_flag(value: Any, what: str) -> Any:
    """Convert an environment's ``terminated`` or ``truncated`` to a scalar. None becomes False.

    Args:
        value: Scalar, array or list with one element, or None.
        what: Name of the value, for the message.

    Raises:
        EnvFailure: The value isn't one truth value.
    """
    if value is None or isinstance(value, _SCALAR_TYPES):
        return value or False
    array = _numeric_array(value)
    if array is not None and array.size == 1:
        return array.item()
    hint = "return True or False for each step, as in bool(terminated)"
    raise EnvFailure(
        f"returned {what} of {format_value(value)}, expected one truth value", "", None, hint
    )


def all_numbers(values: Any, what: str, n: int) -> np.ndarray:
    """Convert numbers that n environments returned to an array (n,). A scalar gives an array ().

    Args:
        values: Array or list of n numbers, or a scalar.
        what: Name of the values, for the message: "rewards".
        n: Number of environments.

    Raises:
        EnvFailure: The values aren't n numbers.
    """
    if isinstance(values, np.ndarray) and values.shape == (n,) and values.dtype.kind in "biuf":
        return values
    array = _numeric_array(values)
    if array is not None and array.ndim == 0:
        return array
    if array is not None and array.size == n == max(array.shape):
        return array.reshape(n)
    text = f"returned {what} of {format_value(values)}, expected ({n},) numbers"
    raise EnvFailure(
        text, "", UNKNOWN_INDEX, "return an array with one number for each environment"
    )


def all_flags(values: Any, what: str, n: int) -> np.ndarray:
    """Convert an environment's truth values, such as ``terminated``, to an array (n,) bool.

    None becomes False for all.

    Arguments and exceptions are those of `all_numbers`.
    """
    return np.zeros(n, bool) if values is None else all_numbers(values, what, n)


def as_info(info: Any, index: int | None = None) -> Mapping[Any, Any]:
    """Check that an environment's ``info`` is a dict. Returns the dict, or {} for None.

    Args:
        info: The returned value.
        index: Index of the environment, as in `EnvFailure`.

    Raises:
        EnvFailure: The info isn't a dict.
    """
    if isinstance(info, Mapping):
        return info
    if info is None:
        return {}
    raise EnvFailure(
        f"returned an info of {format_value(info)}, expected a dict", "", index, _INFO_HINT
    )


def format_value(value: Any) -> str:
    """Format a value for an error message: dtype and shape of an array, or the ``repr``'s start."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"{value!r:.60}"


def _numeric_array(value: Any) -> np.ndarray | None:
    """Convert a value to an array of numbers. Returns None when it contains anything else."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return array if array.dtype.kind in "biuf" else None  # bool, int, unsigned int, float


def _old_gym_failure(method: str, text: str, index: int | None) -> EnvFailure:
    """Return the ``EnvFailure`` for an environment that uses the interface of gym before 0.26."""
    text = f"it returned {text}, as gym's environments did before 0.26"
    return EnvFailure(
        f"failed in {method}", text, index, _STEP_HINT if method == "step" else _RESET_HINT
    )


def rendering_hint(error: BaseException) -> str:
    """Return a hint on MUJOCO_GL if an exception comes from rendering with OpenGL, else ""."""
    frames = traceback.extract_tb(error.__traceback__)
    path_components = {name for frame in frames for name in Path(frame.filename).parts}
    if not path_components & {"OpenGL", "glfw", "mujoco_rendering.py", "gl_context.py"}:
        return ""
    backend = os.environ.get("MUJOCO_GL")
    current = f"; it is {backend!r} now" if backend is not None else ""
    return (
        "without a display, put MUJOCO_GL=egl (needs libegl1) or MUJOCO_GL=osmesa (needs"
        f" libosmesa6) before the command{current}"
    )


def _in_library(path: Path) -> bool:
    """Return True if a source file is library code (Python, Gymnasium, ...), not the user's."""
    if {*path.parts} & {*_LIBRARIES} or str(path).startswith("<frozen"):
        return True
    return path.is_relative_to(sysconfig.get_path("stdlib")) and "site-packages" not in path.parts
