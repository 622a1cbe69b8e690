"""MLP: products with GELU, without memory, with the interface of the recurrent networks."""

NAME = "MLP"
