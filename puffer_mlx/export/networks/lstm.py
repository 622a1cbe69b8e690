"""LSTM in PyTorch, with the keys of PufferLib 4.0's torch backend and of 3.0, and in ONNX."""

from typing import Any

from puffer_mlx.export.networks import NetworkClass, NetworkForms, Puffer3Form, TorchNetwork
from puffer_mlx.export.networks.recurrent import gated_keys, gated_onnx, tie_weights
from puffer_mlx.policy.networks import count_matches
from puffer_mlx.policy.networks.recurrent import GATED_TENSORS


def modules(hidden: int, layers: int) -> dict[str, Any]:
    """Return LSTM layers, and cells that share their tensors."""
    from torch import nn

    lstm = nn.LSTM(hidden, hidden, layers)
    cell = nn.ModuleList(nn.LSTMCell(hidden, hidden) for _ in range(layers))
    tie_weights(lstm, cell)
    return {"lstm": lstm, "cell": cell}


def scan(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Compute T steps."""
    out, after = module.lstm(h.transpose(0, 1), state)
    return out.transpose(0, 1), after


def step(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Compute one step."""
    import torch

    after = []
    for cell, *before in zip(module.cell, *state, strict=True):
        after.append(cell(h, before))
        h = after[-1][0]
    return h, tuple(torch.stack(part) for part in zip(*after, strict=True))


def puffer3_modules(hidden: int, layers: int) -> dict[str, Any]:
    """Return the one layer of PufferLib 3.0's wrapper: its cell isn't in a list."""
    from torch import nn

    lstm = nn.LSTM(hidden, hidden)
    cell = nn.LSTMCell(hidden, hidden)
    tie_weights(lstm, [cell])
    return {"lstm": lstm, "cell": cell}


def puffer3_step(module: Any, h: Any, state: Any) -> tuple[Any, Any]:
    """Compute one step of the wrapper's layer."""
    h, c = module.cell(h, (state[0][0], state[1][0]))
    return h, (h[None], c[None])


def onnx(graph: Any, network: Any, x: str, states: list[str]) -> tuple[str, list[str]]:
    """Add one step's nodes."""

    def layer(i: int, x: str, h: str, c: str) -> tuple[str, str, str]:
        gates = graph("Add", *gated_onnx(graph, f"network.{i}", x, h))
        inward, forget, new, outward = graph.split(gates, 1, [network.hidden] * 4)
        kept = graph("Mul", graph("Sigmoid", forget), c)
        c = graph("Add", kept, graph("Mul", graph("Sigmoid", inward), graph("Tanh", new)))
        h = graph("Mul", graph("Sigmoid", outward), graph("Tanh", c))
        return h, h, c

    return graph.through_layers(layer, network.layers, x, states)


FORMS = NetworkForms(
    onnx=onnx,
    torch=NetworkClass(
        TorchNetwork(modules, scan, step, states=2),
        lambda layers: gated_keys("", "lstm", layers),
        lambda keys: count_matches(r"lstm\.weight_ih_l(\d+)", keys),
    ),
    puffer3=Puffer3Form(
        TorchNetwork(puffer3_modules, scan, puffer3_step, states=2),
        {f"0.{name}": [f"lstm.{name}_l0", f"cell.{name}"] for name in GATED_TENSORS},
    ),
)
