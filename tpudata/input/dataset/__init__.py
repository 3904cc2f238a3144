"""Data to feed: a dataset or files without a manifest, opened, and the fields that are read."""
