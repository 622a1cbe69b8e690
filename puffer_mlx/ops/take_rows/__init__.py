"""A gather of segments."""
