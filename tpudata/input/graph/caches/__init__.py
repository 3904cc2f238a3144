"""Caches: where the records of a split are kept once they are read."""
