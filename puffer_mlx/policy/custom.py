"""Custom encoders and networks, which a configuration names as ``module:Class``."""

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
    """Import a user's class by its name ``module:Class``, also from the working directory.

    Raises:
        UserError: If the module or the class doesn't exist.
    """
    cls = load_object(name)
    if not isinstance(cls, type):
        raise UserError(f"{name} is {type(cls).__name__}, not a class", "write module:Class")
    return cls


def make_custom_encoder(name: str, inputs: int, hidden: int) -> Any:
    """Create the encoder that a user's class ``module:Class`` defines.

    Args:
        name: ``module:Class``. An ``mlx.nn.Module`` is wrapped in ``Module``.
        inputs: Observation size D.
        hidden: Number H of features.
    """
    cls = load_class(name)
    if issubclass(cls, nn.Module):
        return Module(cls, (inputs, hidden))
    return _checked(name, cls(inputs, hidden), "init", "__call__")


def make_custom_network(name: str, hidden: int, layers: int) -> Any:
    """Create the network that a user's class ``module:Class`` defines.

    Args:
        name: ``module:Class``, a class with the methods of ``networks.Network``.
        hidden: Number H of features.
        layers: Number of layers.
    """
    network = load_class(name)(hidden, layers)
    return _checked(name, network, "init", "initial_state", "scan", "step")


def _checked(name: str, component: Any, *methods: str) -> Any:
    missing = [method for method in methods if not hasattr(component, method)]
    if missing:
        raise UserError(
            f"{name} lacks {', '.join(missing)}",
            "docs/custom_policy.md lists the methods of encoders and networks",
        )
    mx.eval(getattr(component, "__dict__", {}))  # arrays of this thread; others can't evaluate them
    return component


class PerThread(threading.local):
    """Holds one ``mlx.nn.Module`` per thread, created when the thread first needs it.

    A policy may act in one thread while another thread trains it. Copies and pickled objects start
    without modules.

    Args:
        make: Returns a new module.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._module: Any = None

    @property
    def module(self) -> Any:
        """The current thread's copy of the user's ``mlx.nn.Module``, made when first needed."""
        if self._module is None:
            self._module = self._make()
        return self._module

    def __reduce__(self) -> tuple[Any, ...]:
        return PerThread, (self._make,)


class Module:
    """Uses an ``mlx.nn.Module`` as an encoder. Its parameters are the encoder's weights.

    Args:
        cls: Class of the module.
        arguments: Arguments of its constructor, ``(inputs, hidden)``.
    """

    def __init__(self, cls: type, arguments: tuple[int, int]) -> None:
        self.hidden = arguments[1]
        self._make = partial(cls, *arguments)
        self._per_thread = PerThread(self._make)

    def init(self, key: mx.array) -> dict:
        """Return random initial parameters of the user's ``mlx.nn.Module``, determined by ``key``.

        Modules use MLX's global random generator, and each thread has its own. The module is
        therefore constructed in a temporary thread with a seeded generator.
        """
        high, low = (int(word) for word in key.tolist())  # type: ignore

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
        """Compute features (n, H) of observations (n, D) with the user's ``mlx.nn.Module``.

        Observations are cast to the weights' dtype.
        """
        module = self._per_thread.module
        module.update(weights)
        return module(observations.astype(dtype_of(weights)))
