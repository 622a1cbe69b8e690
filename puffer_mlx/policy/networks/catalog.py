"""Networks: what is between encoder and decoder, and remembers. The contract, and those there are.

Weights and state are arguments; nothing here holds arrays. ``T`` times ``step`` equals ``scan``.
Features may be of another dtype than the weights; they are cast. Outputs have the weights' dtype,
states are float32.
"""

from typing import Any, Protocol

import mlx.core as mx

from puffer_mlx.policy.networks.gru import GRU
from puffer_mlx.policy.networks.lstm import LSTM
from puffer_mlx.policy.networks.mingru import MinGRU
from puffer_mlx.policy.networks.mlp import MLP

__all__ = ["GRU", "LSTM", "MLP", "NETWORKS", "MinGRU", "Network"]

Weights = Any  # a tree of arrays
State = Any  # a tree of arrays (n, ...), each agent's part along the first axis


class Network(Protocol):
    """From features to features, both H wide. Made as ``Class(hidden, layers)``."""

    @property
    def hidden(self) -> int:
        """H."""
        ...

    def init(self, key: mx.array) -> Weights:
        """Fresh weights."""
        ...

    def initial_state(self, n: int) -> State:
        """The state of n agents before their first step."""
        ...

    def scan(
        self, weights: Weights, h: mx.array, state: State, keep: mx.array | None = None
    ) -> tuple[mx.array, State]:
        """T steps of S segments.

        Args:
            weights: as ``init`` makes them.
            h: (T, S, H).
            state: of S segments, before the first step.
            keep: (T, S), what the state is multiplied by before each step: 0 forgets; None is ones.

        Returns:
            Outputs (T, S, H) and the state after the last step, which carries no gradient.
        """
        ...

    def step(
        self, weights: Weights, h: mx.array, state: State, keep: mx.array | None = None
    ) -> tuple[mx.array, State]:
        """One step of n agents: h (n, H), keep (n,) -> outputs (n, H) and their next state."""
        ...


NETWORKS: dict[str, type] = {"MinGRU": MinGRU, "LSTM": LSTM, "GRU": GRU, "MLP": MLP}
