"""Gymnasium's environments: make them, wrap them, and step them as instances."""
