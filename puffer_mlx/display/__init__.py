"""A run on a screen: dashboard, notebook, and advice on what is slow."""
