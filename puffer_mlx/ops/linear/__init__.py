"""Linear layers and their gradients."""
