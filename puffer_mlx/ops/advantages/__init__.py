"""Advantages on a GPU: what is around the recursion, too. The formulas: ``ppo/advantage.py``."""
