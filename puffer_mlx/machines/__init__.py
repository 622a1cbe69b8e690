"""Several processes that train one policy together: their parts, and what they exchange."""
