"""LSTM of PufferLib's torch classes, written anew, with their keys.

Imported inside functions only: it imports torch.
"""

import torch
from torch import Tensor, nn

from puffer_mlx.policy.networks.torch_network import Network, State, share


class LSTM(Network):
    """LSTM layers, and cells that share their tensors."""

    parts = 2

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__(hidden, layers)
        self.lstm = nn.LSTM(hidden, hidden, layers)
        self.cell = nn.ModuleList(nn.LSTMCell(hidden, hidden) for _ in range(layers))
        share(self.lstm, self.cell)

    def forward(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(S, T, H) and a state of S agents -> (S, T, H), the state after the last step."""
        out, after = self.lstm(h.transpose(0, 1), state)
        return out.transpose(0, 1), after

    def step(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(n, H) -> (n, H), next state."""
        after = []
        for cell, *before in zip(self.cell, *state, strict=True):
            after.append(cell(h, before))
            h = after[-1][0]
        return h, tuple(torch.stack(part) for part in zip(*after, strict=True))


class Puffer3LSTM(LSTM):
    """The one layer of PufferLib 3.0's wrapper: a cell that isn't in a list."""

    def __init__(self, hidden: int) -> None:
        Network.__init__(self, hidden, 1)
        self.lstm = nn.LSTM(hidden, hidden)
        self.cell = nn.LSTMCell(hidden, hidden)
        share(self.lstm, [self.cell])

    def step(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(n, H) -> (n, H), next state."""
        h, c = self.cell(h, (state[0][0], state[1][0]))
        return h, (h[None], c[None])
