"""MinGRU of PufferLib 4.0's torch backend, written anew, with its keys.

Imported inside functions only: it imports torch.
"""

import torch
from torch import Tensor, nn

from puffer_mlx.policy.networks.torch_network import Network, State


class MinGRU(Network):
    """MinGRU layers with highway connections, as the plain recurrence."""

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__(hidden, layers)
        self.layers = nn.ModuleList(
            nn.Linear(hidden, 3 * hidden, bias=False) for _ in range(layers)
        )

    def forward(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(S, T, H) and a state of S agents -> (S, T, H), the state after the last step."""
        after = []
        for layer, s in zip(self.layers, state[0], strict=True):
            hidden, gate, projection = layer(h).chunk(3, dim=-1)
            g = torch.where(hidden >= 0, hidden + 0.5, torch.sigmoid(hidden))
            z, q, states = torch.sigmoid(gate), torch.sigmoid(projection), []
            for t in range(h.shape[1]):
                s = s + z[:, t] * (g[:, t] - s)
                states.append(s)
            after.append(s)
            h = h + q * (torch.stack(states, dim=1) - h)
        return h, (torch.stack(after),)

    def step(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(n, H) -> (n, H), next state."""
        h, state = self(h[:, None], state)
        return h[:, 0], state
