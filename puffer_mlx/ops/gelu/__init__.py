"""Exact GELU."""
