"""Logging of a run: a JSON log, trackers such as W&B, and the score that ranks checkpoints."""
