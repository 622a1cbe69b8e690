"""Find custom losses, advantages and optimizers, passed by a program or named in [train].

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

EXAMPLE_HINT = "docs/custom_policy.md shows an example"


def find_custom(config: Config, key: str) -> Any:
    """Return the custom object that a key of [train] names, or None for a built-in value.

    Raises:
        UserError: the object doesn't exist, or an untrusted file names it (``config.trust``).
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
        hint = f"{error.hint}; or pass it: in Python {key}=…, in a shell --{full} module:name"
        raise UserError(f"{full} {error.message}", hint) from None


def find_function(config: Config, key: str, count: int, *names: str) -> Callable[..., Any] | None:
    """Return the custom function that a key of [train] names, or None for a built-in value.

    Args:
        config: configuration of the run.
        key: a key of section [train].
        count: number of positional arguments of the function.
        names: names of its keyword arguments.

    Raises:
        UserError: raised by ``find_custom``, or the object can't be called with these arguments.
    """
    function = find_custom(config, key)
    if function is None:
        return None
    name = f"train.{key} {getattr(config.train, key)}"
    if not callable(function):
        raise UserError(f"{name} is {type(function).__name__}, not a function", EXAMPLE_HINT)
    try:
        values = range(count)  # any values, because the function isn't called
        inspect.signature(function).bind(*values, **dict.fromkeys(names))
    except TypeError as error:
        expected = f"{count} positional arguments and the keyword arguments {', '.join(names)}"
        hint = f"it gets {expected}; {EXAMPLE_HINT}"
        raise UserError(f"{name} can't be called: {error}", hint) from None
    except ValueError:  # the signature of a C function is unknown
        pass
    return function


def find_loss(config: Config) -> Callable[..., Any] | None:
    """Return the loss function of a configuration, or None for the standard PPO loss.

    Raises:
        UserError: raised by ``find_function``.
    """
    if config.train.loss == NORMALIZED:
        return normalized_loss
    positional = 2  # forward, targets
    return find_function(config, "loss", positional, "ent_coef", *Coefficients._fields)


def custom_functions(config: Config) -> list[Callable[..., Any]]:
    """Return the custom functions of a configuration: its loss and its optimizer's step, if any.

    Fused implementations can't call them, so they aren't used with custom functions.
    """
    loss = find_loss(config)
    optimizer = find_custom(config, "optimizer")
    functions = [] if loss is None else [loss]
    if hasattr(optimizer, "step"):
        functions.append(optimizer.step)
    return functions


def custom_loss(
    function: Callable[..., Any],
    name: str,
    metric_names: list[str],
    forward: Forward,
    targets: Targets,
    **coefficients: Any,
) -> tuple[mx.array, mx.array]:
    """Call a custom loss function and check its result.

    Args:
        function: the custom loss.
        name: name of the function in error messages.
        metric_names: list whose contents are replaced by the names of the metrics.
        forward: forward pass of the minibatch.
        targets: targets of the minibatch.
        coefficients: coefficients of the loss, passed by name.

    Returns:
        The loss, a float32 scalar, and the metrics: ``METRICS``, then custom metrics.

    Raises:
        UserError: the function's result is not a scalar loss, PPO's metrics, and optionally a
            dictionary of custom metrics.
    """
    closed_form.LOSS.choose(function)  # only prints that the closed-form loss isn't used
    result = function(forward, targets, **coefficients)
    values: tuple[Any, ...] = result if type(result) is tuple else (result,)
    expected = "a scalar, ppo_loss's metrics, and optionally a dictionary of further scalars"
    if len(values) not in (2, 3):
        raise UserError(f"{name} returned {_describe(result)}", f"expected {expected}")
    total, metrics, *optional = values
    _check_array(name, "as loss", total, (), "mx.mean(…) of the samples' losses")
    hint = f"{', '.join(METRICS)}, as ppo_loss returns them"
    _check_array(name, "as metrics", metrics, (len(METRICS),), hint)
    custom_metrics = optional[0] if optional else {}
    if not isinstance(custom_metrics, Mapping) or not all(
        type(key) is str for key in custom_metrics
    ):
        found = f"{name} returned as third value {_describe(custom_metrics)}"
        raise UserError(found, f"expected {expected}")
    for key, value in custom_metrics.items():
        if key in METRICS:
            raise UserError(f"{name} returned {key} twice", "use another name")
        _check_array(name, f"as {key}", value, (), "mx.mean(…)")
    total = total.astype(mx.float32)
    by_name = dict(zip(METRICS, metrics, strict=True))
    by_name["total"] = total  # the custom loss, not the total that ``ppo_loss`` computed
    by_name |= custom_metrics
    metric_names[:] = by_name.keys()
    return total, mx.stack([mx.stop_gradient(value) for value in by_name.values()])


def find_advantages(config: Config) -> Callable[..., mx.array]:
    """Return the function that computes advantages: the built-in one or the custom one.

    Raises:
        UserError: raised by ``find_function``.
    """
    positional = 4  # values, rewards, terminals, ratios
    keywords = "final_observations", *Discounts._fields
    function = find_function(config, "advantage", positional, *keywords)
    if function is None:
        return advantage.advantages
    name = f"train.advantage {config.train.advantage}"

    def checked(values: mx.array, *arrays: Any, **coefficients: Any) -> mx.array:
        """Call a custom advantage function, and return its result as float32.

        Raises:
            UserError: If the result isn't an array with one advantage for each value.
        """
        result = function(values, *arrays, **coefficients)
        _check_array(name, "as advantages", result, values.shape, "one for each value")
        return result.astype(mx.float32)

    return checked


def _check_array(name: str, what: str, value: Any, shape: tuple[int, ...], hint: str) -> None:
    """Raise UserError unless a custom function's result is an array of the expected shape.

    Args:
        name: name of the function in the error message.
        what: what the result is, after "returned" in the message, such as "as loss".
        value: the result, of any type.
        shape: expected shape.
        hint: what the function should return.
    """
    if not isinstance(value, mx.array) or value.shape != shape:
        raise UserError(f"{name} returned {what} {_describe(value)}", f"expected {shape}: {hint}")


def _describe(value: Any) -> str:
    """Describe a value of any type in a few words, for error messages."""
    if isinstance(value, mx.array):
        return f"an array of shape {value.shape}"
    if type(value) is tuple:
        return f"{len(value)} values"
    return f"an object of {type(value).__name__}"
