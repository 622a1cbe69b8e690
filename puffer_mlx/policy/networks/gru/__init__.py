"""GRU layers as PyTorch defines them (gates r, z, n), with PufferLib's residual and norm."""

NAME = "GRU"
