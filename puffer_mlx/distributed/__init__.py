"""Several processes (ranks) that train one policy together: shards, exchanges, lost ranks."""
