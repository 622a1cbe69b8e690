"""LSTM layers as PyTorch defines them: gates i, f, g, o, two biases."""

NAME = "LSTM"
