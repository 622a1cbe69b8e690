"""LSTM in PyTorch, with the keys of PufferLib 4.0's torch backend and of 3.0, and in ONNX."""

from typing import Any

from puffer_mlx.export.networks import NetworkExports, Puffer3Network, Puffer4Network, TorchNetwork
from puffer_mlx.export.networks.recurrent import gated_keys, gated_onnx, tie_weights
from puffer_mlx.policy.networks import count_matches
from puffer_mlx.policy.networks.recurrent import GATED_TENSORS


def modules(hidden: int, layers: int) -> dict[str, Any]:
    """Create the PyTorch modules of an LSTM: layers, and cells that share their tensors."""
    from torch import nn

    lstm = nn.LSTM(hidden, hidden, layers)
    cell = nn.ModuleList(nn.LSTMCell(hidden, hidden) for _ in range(layers))
    tie_weights(lstm, cell)
    return {"lstm": lstm, "cell": cell}


def scan(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Compute T steps of an LSTM in PyTorch."""
    out, after = module.lstm(h.transpose(0, 1), state)
    return out.transpose(0, 1), after


def step(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Compute one step of an LSTM in PyTorch."""
    import torch

    after = []
    for cell, *previous in zip(module.cell, *state, strict=True):
        after.append(cell(h, previous))
        h = after[-1][0]
    return h, tuple(torch.stack(states) for states in zip(*after, strict=True))


def puffer3_modules(hidden: int, layers: int) -> dict[str, Any]:
    """Create the PyTorch modules of PufferLib 3.0's recurrent wrapper: an LSTM and its cell."""
    from torch import nn

    lstm = nn.LSTM(hidden, hidden)
    cell = nn.LSTMCell(hidden, hidden)
    tie_weights(lstm, [cell])
    return {"lstm": lstm, "cell": cell}


def puffer3_step(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Compute one step of the LSTM layer of PufferLib 3.0's wrapper."""
    h, c = module.cell(h, (state[0][0], state[1][0]))
    return h, (h[None], c[None])


def onnx(graph: Any, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    """Add the nodes of one step of an LSTM to an ONNX graph."""

    def layer(i: int, x: str, h: str, c: str) -> tuple[str, str, str]:
        gates = graph("Add", *gated_onnx(graph, f"network.{i}", x, h))
        inward, forget, new, outward = graph.split(gates, 1, [network.hidden] * 4)
        remembered = graph("Mul", graph("Sigmoid", forget), c)
        c = graph("Add", remembered, graph("Mul", graph("Sigmoid", inward), graph("Tanh", new)))
        h = graph("Mul", graph("Sigmoid", outward), graph("Tanh", c))
        return h, h, c

    return graph.apply_layers(layer, network.layers, x, states)


EXPORTS = NetworkExports(
    onnx=onnx,
    torch=Puffer4Network(
        TorchNetwork(modules, scan, step, states=2),
        lambda layers: gated_keys("", "lstm", layers),
        lambda keys: count_matches(r"lstm\.weight_ih_l(\d+)", keys),
    ),
    puffer3=Puffer3Network(
        TorchNetwork(puffer3_modules, scan, puffer3_step, states=2),
        {f"0.{name}": [f"lstm.{name}_l0", f"cell.{name}"] for name in GATED_TENSORS},
    ),
)
