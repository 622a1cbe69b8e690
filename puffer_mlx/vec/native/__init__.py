"""Environments in C: compile, load and step PufferLib's environment folders."""
