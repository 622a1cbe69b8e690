"""GRU of PufferLib 4.0's torch backend, written anew, with its keys.

Imported inside functions only: it imports torch.
"""

import torch
from torch import Tensor, nn

from puffer_mlx.policy.networks.torch_network import Network, State, share


class GRU(Network):
    """GRU layers, and cells that share their tensors; then RMSNorm(GRU(x) + x).

    As upstream trains them. Where it acts, it adds and normalises after every layer, which is
    something else for more than one.
    """

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__(hidden, layers)
        self.gru = nn.GRU(hidden, hidden, layers)
        self.cell = nn.ModuleList(nn.GRUCell(hidden, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden)
        share(self.gru, self.cell)

    def forward(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(S, T, H) and a state of S agents -> (S, T, H), the state after the last step."""
        out, after = self.gru(h.transpose(0, 1), state[0])
        return self.norm(out.transpose(0, 1) + h), (after,)

    def step(self, h: Tensor, state: State) -> tuple[Tensor, State]:
        """(n, H) -> (n, H), next state."""
        after = []
        for cell, before in zip(self.cell, state[0], strict=True):
            after.append(cell(after[-1] if after else h, before))
        return self.norm(after[-1] + h), (torch.stack(after),)
