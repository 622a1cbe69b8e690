"""MLP in PyTorch, with the keys of PufferLib 4.0 and of Stable-Baselines3, and in ONNX."""

from typing import Any

from puffer_mlx.export.networks import NetworkClass, NetworkForms, Sb3Form, TorchNetwork
from puffer_mlx.policy.networks import count_matches


def modules(hidden: int, layers: int) -> dict[str, Any]:
    """Return a sequence of products with bias and exact GELU."""
    from torch import nn

    pairs = [(nn.Linear(hidden, hidden), nn.GELU()) for _ in range(layers)]
    return {"net": nn.Sequential(*(module for pair in pairs for module in pair))}


def apply(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Return features (..., H) of one or several steps, and the empty state."""
    return module.net(h), state


def torch_keys(layers: int) -> dict[str, list[str]]:
    """Return the keys of each tensor."""
    names = [(i, name) for i in range(layers) for name in ("weight", "bias")]
    return {f"{i}.{name}": [f"net.{2 * i}.{name}"] for i, name in names}


def sb3_key(name: str) -> str:
    """Return the key of a tensor in the sequence of Stable-Baselines3."""
    i, part = name.split(".")
    return f"{2 * int(i) + 2}.{part}"


def onnx(graph: Any, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    """Add one step's nodes."""
    for i in range(network.layers):
        x = graph.activated(graph.product(x, f"network.{i}"), network.activation)
    return x, []


FORMS = NetworkForms(
    onnx=onnx,
    torch=NetworkClass(
        TorchNetwork(modules, apply, apply, states=0),
        torch_keys,
        lambda keys: count_matches(r"net\.(\d+)\.weight", keys),
    ),
    sb3=Sb3Form("mlp_extractor", sb3_key),
)
