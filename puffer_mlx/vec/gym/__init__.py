"""Gymnasium's environments: making them, and stepping them here or in processes."""
