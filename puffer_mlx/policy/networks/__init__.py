"""Networks: what is between encoder and decoder, and remembers."""

from puffer_mlx.policy.networks.catalog import (
    GRU,
    LSTM,
    MLP,
    NETWORKS,
    MinGRU,
    Network,
)

__all__ = [
    "GRU",
    "LSTM",
    "MLP",
    "NETWORKS",
    "MinGRU",
    "Network",
]
