"""What the networks' torch modules share. Imported inside functions only: it imports torch."""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from puffer_mlx.policy.networks.recurrent import GATED

State = tuple[Tensor, ...]  # each (L, n, H)


class Network(nn.Module):
    """What all networks have: a number of layers, and tensors of their state."""

    parts = 1  # tensors of a state
    step: Any  # (n, H), state -> (n, H), next state

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.size = layers, hidden

    def initial_state(self, n: int, device: Any = None) -> State:
        """Zeros: the state of n agents before their first step."""
        layers, hidden = self.size
        return tuple(torch.zeros(layers, n, hidden, device=device) for _ in range(self.parts))


def share(stack: nn.Module, cells: Iterable[nn.Module]) -> None:
    """Have cells use the tensors of the layers of a stack."""
    for i, cell in enumerate(cells):
        for name in GATED:
            setattr(cell, name, getattr(stack, f"{name}_l{i}"))


def torch_class(network: Any) -> type[Network]:
    """The class in ``torch_module.py`` of the folder that a network of ours is from."""
    cls = type(network)
    return getattr(import_module(f"{cls.__module__}.torch_module"), cls.__name__)
