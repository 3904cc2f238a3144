"""The shard plan: what is counted of the input, and how it is cut into shards."""
