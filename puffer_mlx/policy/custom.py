"""Custom classes, named ``module:Class`` in the configuration, and ``mlx.nn`` modules."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn

from puffer_mlx.errors import UserError
from puffer_mlx.ops.low_precision import dtype_of
from puffer_mlx.system.import_string import load_object


def load_class(name: str) -> type:
    """Return the class that ``module:Class`` names. Finds modules of the working directory, too.

    Raises:
        UserError: If there is no such module or class.
    """
    cls = load_object(name)
    if not isinstance(cls, type):
        raise UserError(f"{name} is {type(cls).__name__}, not a class", "write module:Class")
    return cls


def make_custom_encoder(name: str, inputs: int, hidden: int) -> Any:
    """Return ``Class(inputs, hidden)``, wrapped if it is an ``mlx.nn.Module``."""
    cls = load_class(name)
    if issubclass(cls, nn.Module):
        return Module(cls, (inputs, hidden))
    return _checked(name, cls(inputs, hidden), "init", "__call__")


def make_custom_network(name: str, hidden: int, layers: int) -> Any:
    """Return ``Class(hidden, layers)``, which must have the methods of ``networks.Network``."""
    network = load_class(name)(hidden, layers)
    return _checked(name, network, "init", "initial_state", "scan", "step")


def _checked(name: str, part: Any, *methods: str) -> Any:
    missing = [method for method in methods if not hasattr(part, method)]
    if missing:
        raise UserError(
            f"{name} lacks {', '.join(missing)}",
            "docs/custom_policy.md shows what a part of a policy must have",
        )
    mx.eval(getattr(part, "__dict__", {}))  # other threads can't evaluate arrays of this one
    return part


class PerThread(threading.local):
    """One ``mlx.nn.Module`` per thread, created at the thread's first use.

    A policy may act in one thread while it is trained in another. Copies and pickled objects start
    without modules.

    Args:
        make: returns a new module.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._module: Any = None

    @property
    def module(self) -> Any:
        """The current thread's module."""
        if self._module is None:
            self._module = self._make()
        return self._module

    def __reduce__(self) -> tuple[Any, ...]:
        return PerThread, (self._make,)


class Module:
    """An ``mlx.nn.Module`` as an encoder. Its parameters are the weights, passed at every call.

    Args:
        cls: the module's class.
        arguments: the constructor's arguments, ``(inputs, hidden)``.
    """

    def __init__(self, cls: type, arguments: tuple[int, int]) -> None:
        self.hidden = arguments[1]
        self._make = partial(cls, *arguments)
        self._per_thread = PerThread(self._make)

    def init(self, key: mx.array) -> dict:
        """Return a new module's parameters, initialized with random numbers from ``key``.

        Modules use MLX's global generator, which is local to each thread. The module is therefore
        constructed in a temporary thread with a seeded generator.
        """
        high, low = (int(part) for part in key.tolist())  # type: ignore

        def make() -> dict:
            mx.random.seed(high << 32 | low)
            weights = self._make().parameters()
            mx.eval(weights)
            return weights

        with ThreadPoolExecutor(1) as thread:
            try:
                return thread.submit(make).result()
            finally:
                thread.submit(mx.clear_streams).result()

    def __call__(self, weights: dict, observations: mx.array) -> mx.array:
        """Compute features (n, H) of observations (n, D), cast to the weights' dtype."""
        module = self._per_thread.module
        module.update(weights)
        return module(observations.astype(dtype_of(weights)))
