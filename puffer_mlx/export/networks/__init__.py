"""Networks in other programs: PyTorch, ONNX and Stable-Baselines3. A file each.

A file is named as the network's folder in ``policy/networks`` and has ``FORMS``. A network without
a file is exported as safetensors. Files import torch inside functions only. Tensors are named
without ``network.``.
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
    """A network in PyTorch, as functions of one ``torch_modules.NetworkModule``.

    Args:
        modules: (hidden, layers) -> the submodules, by name.
        scan: (module, features (S, T, H), state) -> features (S, T, H) and the state after the last
            step.
        step: (module, features (n, H), state) -> features (n, H) and the next state.
        states: number of tensors (L, n, H) in a state.
    """

    modules: Callable[[int, int], dict[str, Any]]
    scan: Callable[..., tuple[Any, Any]]
    step: Callable[..., tuple[Any, Any]]
    states: int = 1


@dataclass(frozen=True)
class NetworkClass:
    """The class of PufferLib 4.0's torch backend.

    Args:
        network: the class, rewritten.
        keys: (layers) -> the keys of each tensor; after the first key, names that share it.
        layers: (keys) -> number of layers; 0 if the keys are another network's.
        note: (layers) -> how PufferLib's class differs from the network; empty if it doesn't.
    """

    network: TorchNetwork
    keys: Callable[[int], dict[str, list[str]]]
    layers: Callable[[Collection[str]], int]
    note: Callable[[int], str] = lambda layers: ""


@dataclass(frozen=True)
class Puffer3Form:
    """The network within PufferLib 3.0's wrapper, which has one layer.

    Args:
        network: the wrapper's modules, rewritten.
        keys: the keys of each tensor; after the first key, names that share it.
    """

    network: TorchNetwork
    keys: dict[str, list[str]]


@dataclass(frozen=True)
class Sb3Form:
    """The network within Stable-Baselines3's policy, after the encoder.

    Args:
        module: the key of the module that has the sequences of actor and critic.
        key: (tensor's name) -> its key in a sequence that begins with the encoder's two modules.
    """

    module: str
    key: Callable[[str], str]


@dataclass(frozen=True)
class NetworkForms:
    """Forms of a network in other programs. None means that a program lacks the network.

    Args:
        onnx: (graph, network, features, states) -> features and next states: adds one step's nodes
            to an ``onnx_graph.Graph``.
        torch: the class of PufferLib 4.0.
        puffer3: the modules of PufferLib 3.0.
        sb3: the modules of Stable-Baselines3.
    """

    onnx: Callable[[Any, Any, str, list[str]], tuple[str, list[str]]] | None = None
    torch: NetworkClass | None = None
    puffer3: Puffer3Form | None = None
    sb3: Sb3Form | None = None


NONE = NetworkForms()


def find_forms(package: str, files: Iterable[str]) -> dict[str, Any]:
    """Return ``FORMS`` of those modules of a package that exist, by the module's name."""
    modules = {file: f"{package}.{file}" for file in files}
    return {file: import_module(name).FORMS for file, name in modules.items() if find_spec(name)}


@cache
def export_forms() -> dict[str, NetworkForms]:
    """Return the forms of every network that has a file here, by the network's name."""
    files = {name: folder.name for name, folder in network_folders().items()}
    forms = find_forms(__name__, files.values())
    return {name: forms[file] for name, file in files.items() if file in forms}


def export_forms_of(network: Any) -> NetworkForms:
    """Return the forms of a network. A class that isn't in ``NETWORKS`` has no forms."""
    name = type(network).__name__
    return export_forms().get(name, NONE) if NETWORKS.get(name) is type(network) else NONE
