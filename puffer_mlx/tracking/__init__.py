"""Logs of a run: a line of JSON for each epoch, trackers, and the score that ranks checkpoints."""
