"""MinGRU in PyTorch, with the keys of PufferLib 4.0's torch backend, and in ONNX."""

from typing import Any

from puffer_mlx.export.networks import NetworkExports, Puffer4Network, TorchNetwork
from puffer_mlx.policy.networks import count_matches


def modules(hidden: int, layers: int) -> dict[str, Any]:
    """Create the PyTorch modules of a MinGRU: one linear layer per layer."""
    from torch import nn

    products = [nn.Linear(hidden, 3 * hidden, bias=False) for _ in range(layers)]
    return {"layers": nn.ModuleList(products)}


def scan(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Compute T steps of a MinGRU in PyTorch, one after the other."""
    import torch

    after = []
    for layer, s in zip(module.layers, state[0], strict=True):
        hidden, gate, projection = layer(h).chunk(3, dim=-1)
        g = torch.where(hidden >= 0, hidden + 0.5, torch.sigmoid(hidden))
        z = torch.sigmoid(gate)
        q = torch.sigmoid(projection)
        states = []
        for t in range(h.shape[1]):
            s = s + z[:, t] * (g[:, t] - s)
            states.append(s)
        after.append(s)
        h = h + q * (torch.stack(states, dim=1) - h)
    return h, (torch.stack(after),)


def step(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Compute one step of a MinGRU in PyTorch."""
    h, state = scan(module, h[:, None], state)
    return h[:, 0], state


def onnx(graph: Any, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    """Add the nodes of one step of a MinGRU to an ONNX graph."""

    def layer(i: int, x: str, s: str) -> tuple[str, str]:
        u = graph.gemm(x, f"network.{i}.weight", "")
        hidden, gate, projection = graph.split(u, 1, [network.hidden] * 3)
        positive = graph("GreaterOrEqual", hidden, 0.0)
        g = graph("Where", positive, graph("Add", hidden, 0.5), graph("Sigmoid", hidden))
        s = graph.interpolate(s, g, graph("Sigmoid", gate))
        return graph.interpolate(x, s, graph("Sigmoid", projection)), s

    return graph.apply_layers(layer, network.layers, x, states)


EXPORTS = NetworkExports(
    onnx=onnx,
    torch=Puffer4Network(
        TorchNetwork(modules, scan, step),
        lambda layers: {f"{i}.weight": [f"layers.{i}.weight"] for i in range(layers)},
        lambda keys: count_matches(r"layers\.(\d+)\.weight", keys),
    ),
)
