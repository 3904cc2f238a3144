"""Batches from input_fn to the replicas."""
