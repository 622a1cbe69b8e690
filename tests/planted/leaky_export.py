"""Leaky in PyTorch and ONNX: `tests/project/test_planted_parts.py`."""

from puffer_mlx.export.networks import NetworkExports, Puffer4Network, TorchNetwork
from puffer_mlx.policy.networks import count_matches


def modules(hidden, layers):
    """Return the leaky network's PyTorch modules: one linear gate per layer."""
    from torch import nn

    return {"gates": nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))}


def scan(module, h, state):
    """Evaluate the leaky network in PyTorch for T steps, h (S, T, H).

    Returns the outputs and the last state.
    """
    import torch

    after = []
    for gate, s in zip(module.gates, state[0], strict=True):
        z = torch.sigmoid(gate(h))
        out = []
        for t in range(h.shape[1]):
            s = s + z[:, t] * (h[:, t] - s)
            out.append(s)
        after.append(s)
        h = torch.stack(out, dim=1)
    return h, (torch.stack(after),)


def step(module, h, state):
    """Evaluate the leaky network in PyTorch for one step, h (n, H)."""
    h, state = scan(module, h[:, None], state)
    return h[:, 0], state


def onnx(graph, network, x, states):
    """Add the nodes of one step of the leaky network to an ONNX graph."""

    def layer(i, x, s):
        z = graph("Sigmoid", graph.gemm(x, f"network.{i}.gate", ""))
        s = graph.interpolate(s, x, z)
        return s, s

    return graph.apply_layers(layer, network.layers, x, states)


EXPORTS = NetworkExports(
    onnx=onnx,
    torch=Puffer4Network(
        TorchNetwork(modules, scan, step),
        lambda layers: {f"{i}.gate": [f"gates.{i}.weight"] for i in range(layers)},
        lambda keys: count_matches(r"gates\.(\d+)\.weight", keys),
    ),
)
