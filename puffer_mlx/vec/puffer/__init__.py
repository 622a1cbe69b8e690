"""PufferLib 3.x's Python environments, with or without PufferLib."""
