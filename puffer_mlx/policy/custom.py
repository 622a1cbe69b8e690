"""Classes of the user's own, named ``module:Class`` in the configuration; ``mlx.nn`` modules."""

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
    """The class that ``module:Class`` names; modules of the working directory are found too.

    Raises:
        UserError: there is no such module or class.
    """
    cls = load_object(name)
    if not isinstance(cls, type):
        raise UserError(f"{name} is {type(cls).__name__}, not a class", "write module:Class")
    return cls


def make_encoder(name: str, inputs: int, hidden: int) -> Any:
    """``Class(inputs, hidden)``, wrapped if it is an ``mlx.nn.Module``."""
    cls = load_class(name)
    if issubclass(cls, nn.Module):
        return Module(cls, (inputs, hidden))
    return _checked(name, cls(inputs, hidden), "init", "__call__")


def make_network(name: str, hidden: int, layers: int) -> Any:
    """``Class(hidden, layers)``, which has the methods of ``networks.Network``."""
    network = load_class(name)(hidden, layers)
    return _checked(name, network, "init", "initial_state", "scan", "step")


def _checked(name: str, part: Any, *methods: str) -> Any:
    missing = [method for method in methods if not hasattr(part, method)]
    if missing:
        raise UserError(
            f"{name} lacks {', '.join(missing)}",
            "docs/custom_policy.md shows what a part of a policy must have",
        )
    mx.eval(getattr(part, "__dict__", {}))  # threads that act can't evaluate what this one made
    return part


class PerThread(threading.local):
    """One ``mlx.nn.Module`` for each thread, made when the thread first uses it.

    A policy may act in one thread while it is trained in another. Pickled or copied, it starts
    without modules.

    Args:
        make: returns a new module.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._module: Any = None

    @property
    def module(self) -> Any:
        """This thread's module."""
        if self._module is None:
            self._module = self._make()
        return self._module

    def __reduce__(self) -> tuple[Any, ...]:
        return PerThread, (self._make,)


class Module:
    """An ``mlx.nn.Module`` as an encoder: its parameters are the weights, passed at every call.

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
        """Observations (n, D), which the module gets in the weights' dtype -> features (n, H)."""
        module = self._per_thread.module
        module.update(weights)
        return module(observations.astype(dtype_of(weights)))
