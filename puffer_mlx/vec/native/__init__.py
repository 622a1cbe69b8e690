"""Environments in C: PufferLib's folders, compiled on first use."""
