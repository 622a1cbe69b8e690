"""Execution of a sweep: its Optuna study, the processes of its runs, and the progress output.

These modules subclass Optuna's classes. Optuna is optional, so other modules import them inside
functions.
"""
