"""Custom losses, advantages and optimizers: objects passed by a program or named in [train].

``docs/custom_policy.md`` shows examples. Custom functions are plain MLX. They are compiled and
differentiated in the same way as the built-in ones.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from puffer_mlx.config import Config
from puffer_mlx.config.schema.train import NORMALIZED
from puffer_mlx.config.trust import refuse_untrusted_code
from puffer_mlx.errors import UserError
from puffer_mlx.ppo import advantage, closed_form
from puffer_mlx.ppo.advantage import Discounts
from puffer_mlx.ppo.loss import METRICS, Coefficients, Forward, Targets, normalized_loss
from puffer_mlx.system.import_string import load_object

PAGE = "docs/custom_policy.md shows one"


def find(config: Config, key: str) -> Any:
    """Return the custom object for a key of [train]. None for a built-in value.

    Raises:
        UserError: the object doesn't exist, or is named by an untrusted file (``config.trust``).
    """
    name = getattr(config.train, key)
    if ":" not in name:
        return None
    refuse_untrusted_code(config, "train")
    if (full := f"train.{key}") in config.objects:
        return config.objects[full]
    try:
        return load_object(name)
    except UserError as error:
        hint = f"{error.hint}; or give it: in Python {key}=…, here --{full} module:name"
        raise UserError(f"{full} {error.message}", hint) from None


def find_function(config: Config, key: str, count: int, *names: str) -> Callable[..., Any] | None:
    """Return the custom function for a key of [train]. None for a built-in value.

    Args:
        config: configuration of the run.
        key: a key of section [train].
        count: number of positional arguments of the function.
        names: names of its keyword arguments.

    Raises:
        UserError: raised by ``find``, or the object can't be called with these arguments.
    """
    function = find(config, key)
    if function is None:
        return None
    name = f"train.{key} {getattr(config.train, key)}"
    if not callable(function):
        raise UserError(f"{name} is {type(function).__name__}, not a function", PAGE)
    try:
        inspect.signature(function).bind(*range(count), **dict.fromkeys(names))
    except TypeError as error:
        wanted = f"{count} arguments and, by their names, {', '.join(names)}"
        raise UserError(f"{name} can't be called: {error}", f"it gets {wanted}; {PAGE}") from None
    except ValueError:  # the signature of a C function is unknown
        pass
    return function


def find_loss(config: Config) -> Callable[..., Any] | None:
    """Return the custom loss or ``normalized_loss``, or None for the standard loss.

    Raises:
        UserError: raised by ``find_function``.
    """
    if config.train.loss == NORMALIZED:
        return normalized_loss
    return find_function(config, "loss", 2, "ent_coef", *Coefficients._fields)


def functions(config: Config) -> list[Callable[..., Any]]:
    """Return the custom loss and the custom optimizer's step, if set. Fused code can't run them."""
    functions = find_loss(config), getattr(find(config, "optimizer"), "step", None)
    return [each for each in functions if each is not None]


def custom_loss(
    function: Callable[..., Any],
    name: str,
    metric_names: list[str],
    forward: Forward,
    targets: Targets,
    **coefficients: Any,
) -> tuple[mx.array, mx.array]:
    """Call a custom loss and check its result.

    Args:
        function: the custom loss.
        name: name of the function in error messages.
        metric_names: list that is filled with the names of the metrics.
        forward: forward pass of the minibatch.
        targets: targets of the minibatch.
        coefficients: coefficients of the loss, passed by name.

    Returns:
        The loss, a float32 scalar, and the metrics: those of ``METRICS``, then custom ones.

    Raises:
        UserError: the function returned something else.
    """
    closed_form.LOSS.choose(function)  # prints that the loss by closed form isn't used
    result = function(forward, targets, **coefficients)
    parts: tuple[Any, ...] = result if type(result) is tuple else (result,)
    wanted = "a scalar, ppo_loss's statistics, and if you like a dictionary of further scalars"
    if len(parts) not in (2, 3):
        raise UserError(f"{name} returned {_words(result)}", f"expected {wanted}")
    total, metrics, *further = parts
    _refuse(name, "as loss", total, (), "mx.mean(…) of what samples cost")
    _refuse(name, "as statistics", metrics, (len(METRICS),), f"{', '.join(METRICS)}: ppo_loss's")
    others = further[0] if further else {}
    if not isinstance(others, Mapping) or not all(type(word) is str for word in others):
        raise UserError(f"{name} returned as its third {_words(others)}", f"expected {wanted}")
    for word, number in others.items():
        if word in METRICS:
            raise UserError(f"{name} returned {word} twice", "another name")
        _refuse(name, f"as {word}", number, (), "mx.mean(…)")
    total = total.astype(mx.float32)
    by_name = dict(zip(METRICS, metrics, strict=True)) | {"total": total} | dict(others)
    metric_names[:] = by_name
    return total, mx.stack([mx.stop_gradient(number) for number in by_name.values()])


def find_advantages(config: Config) -> Callable[..., mx.array]:
    """Return the function that computes advantages: ``advantage.advantages`` or the custom one.

    Raises:
        UserError: raised by ``find_function``.
    """
    function = find_function(config, "advantage", 4, "finals", *Discounts._fields)
    if function is None:
        return advantage.advantages
    name = f"train.advantage {config.train.advantage}"

    def checked(values: mx.array, *arrays: Any, **numbers: Any) -> mx.array:
        result = function(values, *arrays, **numbers)
        _refuse(name, "as advantages", result, values.shape, "one for each value")
        return result.astype(mx.float32)

    return checked


def _refuse(name: str, what: str, value: Any, shape: tuple[int, ...], hint: str) -> None:
    """Raise UserError if a value isn't an array of a shape."""
    if not isinstance(value, mx.array) or value.shape != shape:
        raise UserError(f"{name} returned {what} {_words(value)}", f"expected {shape}: {hint}")


def _words(value: Any) -> str:
    """Return a short description of a value for error messages."""
    if isinstance(value, mx.array):
        return f"an array of shape {value.shape}"
    if type(value) is tuple:
        return f"{len(value)} values"
    return f"an object of {type(value).__name__}"
