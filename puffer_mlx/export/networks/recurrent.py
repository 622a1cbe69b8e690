"""Shared by GRU and LSTM, whose gates depend on the state: keys, shared tensors, ONNX nodes."""

from collections.abc import Iterable
from typing import Any

from puffer_mlx.policy.networks.recurrent import GATED_TENSORS


def tie_weights(stack: Any, cells: Iterable[Any]) -> None:
    """Make PyTorch's recurrent cells use the tensors of a stack of layers."""
    for i, cell in enumerate(cells):
        for name in GATED_TENSORS:
            setattr(cell, name, getattr(stack, f"{name}_l{i}"))


def gated_keys(prefix: str, stack: str, layers: int) -> dict[str, list[str]]:
    """Return the keys of each tensor of recurrent layers: in the stack, then in the cell.

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
    """Add a recurrent layer's products to an ONNX graph: gates from input x and state h (n, H)."""
    input_gates = graph.gemm(x, f"{layer}.weight_ih", f"{layer}.bias_ih")
    state_gates = graph.gemm(h, f"{layer}.weight_hh", f"{layer}.bias_hh")
    return input_gates, state_gates
