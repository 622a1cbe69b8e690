"""A sweep under way: Optuna's study of it, its runs' processes, and what a person sees.

Modules here are made of Optuna's classes, which is an extra: they are imported inside functions.
"""
