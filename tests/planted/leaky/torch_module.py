"""Leaky in PyTorch."""

import torch
from torch import nn

from puffer_mlx.policy.networks.torch_network import Network


class Leaky(Network):
    """One gate a layer."""

    def __init__(self, hidden, layers):
        super().__init__(hidden, layers)
        self.gates = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))

    def forward(self, h, state):
        """(S, T, H) and a state of S agents -> (S, T, H), the state after the last step."""
        after = []
        for gate, s in zip(self.gates, state[0], strict=True):
            z, out = torch.sigmoid(gate(h)), []
            for t in range(h.shape[1]):
                s = s + z[:, t] * (h[:, t] - s)
                out.append(s)
            after.append(s)
            h = torch.stack(out, dim=1)
        return h, (torch.stack(after),)

    def step(self, h, state):
        """(n, H) -> (n, H), next state."""
        h, state = self(h[:, None], state)
        return h[:, 0], state
