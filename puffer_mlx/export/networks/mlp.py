"""MLP in PyTorch, with the keys of PufferLib 4.0 and of Stable-Baselines3, and in ONNX."""

from typing import Any

from puffer_mlx.export.networks import NetworkExports, Puffer4Network, Sb3Network, TorchNetwork
from puffer_mlx.policy.networks import count_matches


def modules(hidden: int, layers: int) -> dict[str, Any]:
    """Create the PyTorch modules of an MLP: linear layers with bias and exact GELU."""
    from torch import nn

    pairs = [(nn.Linear(hidden, hidden), nn.GELU()) for _ in range(layers)]
    return {"net": nn.Sequential(*(module for pair in pairs for module in pair))}


def apply_mlp(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Compute features (..., H) of one or several steps of an MLP in PyTorch, without state."""
    return module.net(h), state


def torch_keys(layers: int) -> dict[str, list[str]]:
    """Return the keys of each tensor of our MLP in the state_dict of PufferLib's class."""
    names = [(i, name) for i in range(layers) for name in ("weight", "bias")]
    return {f"{i}.{name}": [f"net.{2 * i}.{name}"] for i, name in names}


def sb3_key(name: str) -> str:
    """Return the key of an MLP's tensor in a Stable-Baselines3 policy's sequence of modules."""
    i, tensor = name.split(".")
    return f"{2 * int(i) + 2}.{tensor}"


def onnx(graph: Any, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    """Add the nodes of an MLP to an ONNX graph."""
    for i in range(network.layers):
        x = graph.activation(graph.linear(x, f"network.{i}"), network.activation)
    return x, []


EXPORTS = NetworkExports(
    onnx=onnx,
    torch=Puffer4Network(
        TorchNetwork(modules, apply_mlp, apply_mlp, states=0),
        torch_keys,
        lambda keys: count_matches(r"net\.(\d+)\.weight", keys),
    ),
    sb3=Sb3Network("mlp_extractor", sb3_key),
)
