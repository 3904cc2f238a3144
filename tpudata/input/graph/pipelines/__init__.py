"""Pipelines from records to batches, one for each kind of input."""
