"""GRU in PyTorch, with the keys of PufferLib 4.0's torch backend, and in ONNX."""

from typing import Any

from puffer_mlx.export.networks import NetworkExports, Puffer4Network, TorchNetwork
from puffer_mlx.export.networks.recurrent import gated_keys, gated_onnx, tie_weights
from puffer_mlx.ops import EPSILON
from puffer_mlx.policy.networks import count_matches


def modules(hidden: int, layers: int) -> dict[str, Any]:
    """Create the PyTorch modules of a GRU: stacked layers, cells that share their tensors, norm."""
    from torch import nn

    gru = nn.GRU(hidden, hidden, layers)
    cell = nn.ModuleList(nn.GRUCell(hidden, hidden) for _ in range(layers))
    norm = nn.RMSNorm(hidden)
    tie_weights(gru, cell)
    return {"gru": gru, "cell": cell, "norm": norm}


def scan(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Compute T steps of a GRU in PyTorch, with residual and norm once, after all layers.

    PufferLib trains with this function.
    """
    out, after = module.gru(h.transpose(0, 1), state[0])
    return module.norm(out.transpose(0, 1) + h), (after,)


def step(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Compute one step of a GRU in PyTorch, by the same function as for T steps.

    PufferLib's own step adds and normalizes after every layer, which is another function for
    several layers.
    """
    import torch

    after = []
    for cell, previous in zip(module.cell, state[0], strict=True):
        after.append(cell(after[-1] if after else h, previous))
    return module.norm(after[-1] + h), (torch.stack(after),)


def torch_keys(layers: int) -> dict[str, list[str]]:
    """Return the keys of each tensor of our GRU in the state_dict of PufferLib's class."""
    return {**gated_keys("layers.", "gru", layers), "norm.weight": ["norm.weight"]}


def class_note(layers: int) -> str:
    """Return how PufferLib's GRU class differs from our GRU; empty for one layer."""
    if layers == 1:
        return ""
    return "PufferLib's GRU of several layers acts by another function than it trains"


def onnx(graph: Any, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    """Add the nodes of one step of a GRU to an ONNX graph."""

    def layer(i: int, x: str, h: str) -> tuple[str, str]:
        input_gates, state_gates = gated_onnx(graph, f"network.layers.{i}", x, h)
        z_r, z_u, z_n = graph.split(input_gates, 1, [network.hidden] * 3)
        h_r, h_u, h_n = graph.split(state_gates, 1, [network.hidden] * 3)
        r = graph("Sigmoid", graph("Add", z_r, h_r))
        u = graph("Sigmoid", graph("Add", z_u, h_u))
        n = graph("Tanh", graph("Add", z_n, graph("Mul", r, h_n)))
        h = graph.interpolate(n, h, u)
        return h, h

    def norm(h: str) -> str:
        x_and_h = graph("Add", h, x)
        mean = graph("ReduceMean", graph("Mul", x_and_h, x_and_h), axes=[-1])
        scaled = graph("Div", x_and_h, graph("Sqrt", graph("Add", mean, EPSILON)))
        return graph("Mul", scaled, "network.norm.weight")

    return graph.apply_layers(layer, network.layers, x, states, last=norm)


EXPORTS = NetworkExports(
    onnx=onnx,
    torch=Puffer4Network(
        TorchNetwork(modules, scan, step),
        torch_keys,
        lambda keys: count_matches(r"gru\.weight_ih_l(\d+)", keys),
        class_note,
    ),
)
