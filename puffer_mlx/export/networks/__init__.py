"""Networks in other programs: PyTorch, ONNX and Stable-Baselines3. One file per network.

A file is named as the network's folder in ``policy/networks`` and has ``EXPORTS``. A network
without a file can only be exported as safetensors. Files import torch inside functions only.
Tensors are named without ``network.``.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from puffer_mlx.config.components import network_folders
from puffer_mlx.policy.networks.catalog import NETWORKS


@dataclass(frozen=True)
class TorchNetwork:
    """Functions that create and compute one of our networks in PyTorch, for a ``NetworkModule``.

    Args:
        modules: (hidden, layers) -> the submodules, by name.
        scan: (module, features (S, T, H), state) -> features (S, T, H) and the state after the last
            step.
        step: (module, features (n, H), state) -> features (n, H) and the next state.
        states: Number of tensors (L, n, H) in a state.
    """

    modules: Callable[[int, int], dict[str, Any]]
    scan: Callable[..., tuple[Any, Any]]
    step: Callable[..., tuple[Any, Any]]
    states: int = 1


@dataclass(frozen=True)
class Puffer4Network:
    """A network in PufferLib 4.0's torch backend: its class, keys and number of layers.

    Args:
        network: The class, rewritten.
        keys: (layers) -> keys of each tensor; after the first key, names that share the tensor.
        layers: (keys) -> number of layers; 0 if the keys are another network's.
        note: (layers) -> how PufferLib's class differs from the network; empty if it doesn't.
    """

    network: TorchNetwork
    keys: Callable[[int], dict[str, list[str]]]
    layers: Callable[[Collection[str]], int]
    note: Callable[[int], str] = lambda layers: ""


@dataclass(frozen=True)
class Puffer3Network:
    """A network in PufferLib 3.0, whose wrapper has one layer: its modules and keys.

    Args:
        network: The wrapper's modules, rewritten.
        keys: Keys of each tensor; after the first key, names that share the tensor.
    """

    network: TorchNetwork
    keys: dict[str, list[str]]


@dataclass(frozen=True)
class Sb3Network:
    """A network in Stable-Baselines3's policy, where it follows the encoder: its keys.

    Args:
        module: Key of the module that contains the sequences of actor and critic.
        key: (tensor's name) -> its key in a sequence that begins with the encoder's two modules.
    """

    module: str
    key: Callable[[str], str]


@dataclass(frozen=True)
class NetworkExports:
    """Implementations of one of our networks in other programs; None where a program lacks it.

    Args:
        onnx: (graph, network, features, states) -> features and next states. Adds the nodes of one
            step to an ``onnx_graph.Graph``.
        torch: The class of PufferLib 4.0.
        puffer3: The modules of PufferLib 3.0.
        sb3: The modules of Stable-Baselines3.
    """

    onnx: Callable[[Any, Any, str, list[str]], tuple[str, list[str]]] | None = None
    torch: Puffer4Network | None = None
    puffer3: Puffer3Network | None = None
    sb3: Sb3Network | None = None


NO_NETWORK_EXPORTS = NetworkExports()


def find_exports(package: str, files: Iterable[str]) -> dict[str, Any]:
    """Import those modules of a package that exist. Returns their ``EXPORTS`` by module name."""
    modules = {file: f"{package}.{file}" for file in files}
    return {file: import_module(name).EXPORTS for file, name in modules.items() if find_spec(name)}


@cache
def network_exports() -> dict[str, NetworkExports]:
    """Return the implementations of all networks in other programs, by the network's name."""
    files = {name: folder.name for name, folder in network_folders().items()}
    exports = find_exports(__name__, files.values())
    return {name: exports[file] for name, file in files.items() if file in exports}


def network_exports_of(network: Any) -> NetworkExports:
    """Return the implementations of a network in other programs. A custom class lacks all."""
    name = type(network).__name__
    return (
        network_exports().get(name, NO_NETWORK_EXPORTS)
        if NETWORKS.get(name) is type(network)
        else NO_NETWORK_EXPORTS
    )
