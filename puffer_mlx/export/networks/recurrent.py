"""Shared by GRU and LSTM, whose gates depend on the state: keys, shared tensors, ONNX nodes."""

from collections.abc import Iterable
from typing import Any

from puffer_mlx.policy.networks.recurrent import GATED_TENSORS


def tie_weights(stack: Any, cells: Iterable[Any]) -> None:
    """Make PyTorch's recurrent cells share the tensors of a module with the same layers."""
    for i, cell in enumerate(cells):
        for name in GATED_TENSORS:
            setattr(cell, name, getattr(stack, f"{name}_l{i}"))


def gated_keys(prefix: str, stack: str, layers: int) -> dict[str, list[str]]:
    """Map the names of GRU or LSTM tensors to their two state_dict keys: stack's and cell's.

    Args:
        prefix: Start of the tensors' names.
        stack: Key of the module with all layers.
        layers: Number of layers.
    """
    return {
        f"{prefix}{i}.{name}": [f"{stack}.{name}_l{i}", f"cell.{i}.{name}"]
        for i in range(layers)
        for name in GATED_TENSORS
    }


def gated_onnx(graph: Any, layer: str, x: str, h: str) -> tuple[str, str]:
    """Add the gates of a GRU or LSTM layer to an ONNX graph, before their activations.

    Returns the names of two products with weights: of the input x and of the state h (n, H).
    """
    input_gates = graph.gemm(x, f"{layer}.weight_ih", f"{layer}.bias_ih")
    state_gates = graph.gemm(h, f"{layer}.weight_hh", f"{layer}.bias_hh")
    return input_gates, state_gates
