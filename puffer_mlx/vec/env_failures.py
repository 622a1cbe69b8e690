"""Errors of environments: the environment, the lines of its code, and a hint.

`one_number`, `one_flag`, `all_numbers` and `as_info` accept every unambiguous form of a returned
value, and raise a `EnvFailure` for others.
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

_MAX_FRAMES = 3  # lines of an environment's code in a message
_LIBRARIES = ("gymnasium", "numpy", "puffer_mlx")
_DEFAULT_HINT = "mend the environment; with vec.backend = sync a debugger can stop where it fails"
# Hints on environments that are written for gym before 0.26.
_STEP_HINT = "return observation, reward, terminated, truncated, info: done is either of the two"
_RESET_HINT = "def reset(self, *, seed=None, options=None), and return observation, info"
_UNPACKED = re.compile(r"values to unpack \(expected ([25])(?:, got (\d+))?\)")
_NO_SEED = re.compile(r"reset\(\) got an unexpected keyword argument '(seed|options)'")


_SCALAR_TYPES = int, float, np.floating, np.integer, np.bool_
_INFO_HINT = "return a dict as info, {} if there is nothing to report"

UNKNOWN_INDEX = -1  # index of an environment in a vectorised form
ENV_EXCEPTIONS = (Exception, SystemExit)  # ``sys.exit`` in an environment doesn't end the program


class EnvFailure(Exception):
    """Failure of an environment; can be sent between processes.

    Args:
        what: Event, for example "failed in step"; "" if the caller knows it.
        text: Details, such as ``describe_exception`` of an exception, or "".
        index: Index of the environment in its group, ``UNKNOWN_INDEX``, or None for a caller that knows
            it.
        hint: Hint that replaces the usual one.
    """

    def __init__(self, what: str, text: str, index: int | None = None, hint: str = "") -> None:
        super().__init__(what, text, index, hint)
        self.what, self.text, self.index, self.hint = what, text, index, hint

    def report(self, name: str, first: int = 0, seed: int = 0) -> UserError:
        """Return the error with its message.

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
        return UserError(f"{name}: {which} {self.what}{text}", self.hint or _DEFAULT_HINT)


def describe_exception(error: BaseException) -> str:
    """Return an exception as a few lines: its type and message, and the last lines of code.

    Lines of Gymnasium, NumPy and the standard library are left out.
    """
    kind = type(error).__name__
    head = f"{kind}: {error}" if str(error) else kind
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not _in_library(Path(frame.filename))]
    lines = [f"  {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in theirs[-_MAX_FRAMES:]]
    return "\n".join([head, *lines])


def failure_of(what: str, error: BaseException, index: int | None = None) -> EnvFailure:
    """Return an environment's exception as a ``EnvFailure``.

    Args:
        what: Event, for example "failed in step".
        error: The exception.
        index: Index of the environment.
    """
    frame = (traceback.extract_tb(error.__traceback__) or [None])[-1]
    if frame and _in_library(Path(frame.filename)):  # who called it couldn't take its result
        counts = _UNPACKED.search(str(error)) if isinstance(error, ValueError) else None
        if counts and counts[1] == "5":
            return _old_gym_failure(
                "step", f"{counts[2] or 'more than 5'} values, expected 5", index
            )
        if counts and "reset" in f"{frame.name} {frame.line}":
            return _old_gym_failure("reset", "an observation alone", index)
        if isinstance(error, TypeError) and (word := _NO_SEED.search(str(error))):
            return EnvFailure("failed in reset", f"it doesn't take {word[1]}", index, _RESET_HINT)
    return EnvFailure(what, describe_exception(error), index)


@contextmanager
def raising_failure(what: str, index: int | None = None) -> Iterator[None]:
    """Raise an environment's exceptions in a block as a ``EnvFailure``."""
    try:
        yield
    except ENV_EXCEPTIONS as error:
        raise failure_of(what, error, index) from error


def result_failure(method: str, result: Any, index: int | None = None) -> EnvFailure | None:
    """Return the fault in a result of ``step`` or ``reset``; None: the result is valid.

    Args:
        method: ``step`` or ``reset``.
        result: The returned value.
        index: Index of the environment, as in `EnvFailure`.
    """
    several = isinstance(result, tuple | list)
    if several and len(result) == (5 if method == "step" else 2):
        return None
    if result is None:
        text, hint = ("it returned None, expected observation", "return the values in a tuple")
        text += ", reward, terminated, truncated, info" if method == "step" else ", info"
        return EnvFailure(f"failed in {method}", text, index, hint)
    if method == "reset":
        return _old_gym_failure("reset", "an observation alone", index)
    return _old_gym_failure(
        "step", f"{len(result)} values, expected 5" if several else format_value(result), index
    )


def one_number(value: Any, what: str) -> Any:
    """Return a reward as a scalar; it may come as an array or a list of one element.

    Args:
        value: The returned value.
        what: Name of the value, for the message: "a reward".

    Raises:
        Fault: It isn't one number.
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
    """Return ``terminated`` or ``truncated`` as a scalar, like `one_number`. None means False."""
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
    """Return one number for each of n environments, (n,), or one for all of them.

    Args:
        values: The returned value: n numbers of any shape, or a scalar.
        what: Name of the value, for the message: "rewards".
        n: Environments.

    Raises:
        Fault: They aren't n numbers.
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
    """Return one truth value for each of n environments, as `all_numbers`. None means False."""
    return np.zeros(n, bool) if values is None else all_numbers(values, what, n)


def as_info(info: Any, index: int | None = None) -> Mapping[Any, Any]:
    """Return an info as a dict, {} for None.

    Args:
        info: The returned value.
        index: Index of the environment, as in `EnvFailure`.

    Raises:
        Fault: It is no dict.
    """
    if isinstance(info, Mapping):
        return info
    if info is None:
        return {}
    raise EnvFailure(
        f"returned an info of {format_value(info)}, expected a dict", "", index, _INFO_HINT
    )


def format_value(value: Any) -> str:
    """Return the dtype and shape of an array, or the start of another value's text."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"{value!r:.60}"


def _numeric_array(value: Any) -> np.ndarray | None:
    """Return an array of numbers, or None for another value."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return array if array.dtype.kind in "biuf" else None


def _old_gym_failure(method: str, text: str, index: int | None) -> EnvFailure:
    """Return the fault of an environment that returns values as gym before 0.26."""
    text = f"it returned {text}, as gym's environments did before 0.26"
    return EnvFailure(
        f"failed in {method}", text, index, _STEP_HINT if method == "step" else _RESET_HINT
    )


def drawing_hint(error: BaseException) -> str:
    """Return a hint on an exception from drawing with OpenGL, "" for another exception."""
    frames = traceback.extract_tb(error.__traceback__)
    parts = {part for frame in frames for part in Path(frame.filename).parts}
    if not parts & {"OpenGL", "glfw", "mujoco_rendering.py", "gl_context.py"}:
        return ""
    now = f"; it is {chosen!r} now" if (chosen := os.environ.get("MUJOCO_GL")) is not None else ""
    return (
        "without a display, MUJOCO_GL=egl before the command (libegl1), or MUJOCO_GL=osmesa"
        f" (libosmesa6){now}"
    )


def _in_library(path: Path) -> bool:
    if {*path.parts} & {*_LIBRARIES} or str(path).startswith("<frozen"):
        return True
    return path.is_relative_to(sysconfig.get_path("stdlib")) and "site-packages" not in path.parts
