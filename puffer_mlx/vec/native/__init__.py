"""Environments in C: PufferLib's environment folders, compiled on first use."""
