"""The command line: one module for each of ``scripts/``."""
