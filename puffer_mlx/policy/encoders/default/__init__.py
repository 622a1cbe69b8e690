"""One product, with bias and GELU or without, as the dialect has it: upstream's default."""

NAME = "DefaultEncoder"
