"""Files to feed: a split of a dataset, or files without a manifest, and what their records have."""
