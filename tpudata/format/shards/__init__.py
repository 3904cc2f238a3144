"""Shards with the files that belong to them: index, keys, and an index for DALI."""
