"""Leaky: each channel follows its input, as fast as a gate that sees the input lets it."""

NAME = "Leaky"
