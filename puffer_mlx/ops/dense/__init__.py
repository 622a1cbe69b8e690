"""A product with bias and what follows it: tanh, ReLU or GELU."""
