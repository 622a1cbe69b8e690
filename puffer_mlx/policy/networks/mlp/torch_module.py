"""MLP of PufferLib 4.0's torch backend, written anew, with its keys.

Imported inside functions only: it imports torch.
"""

from torch import Tensor, nn

from puffer_mlx.policy.networks.torch_network import Network, State


class MLP(Network):
    """Products with bias and exact GELU, without memory."""

    parts = 0

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__(hidden, layers)
        pairs = [(nn.Linear(hidden, hidden), nn.GELU()) for _ in range(layers)]
        self.net = nn.Sequential(*(module for pair in pairs for module in pair))

    def forward(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(..., H) -> (..., H) and the empty state."""
        return self.net(h), state

    step = forward
