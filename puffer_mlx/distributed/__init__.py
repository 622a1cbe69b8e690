"""Train one policy with several processes (ranks): shards, exchange of data, lost ranks."""
