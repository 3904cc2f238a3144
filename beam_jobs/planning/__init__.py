"""The shard plan: counts of the input, and its division into shards."""
