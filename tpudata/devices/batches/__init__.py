"""Batches on the devices, read ahead; jax is imported by the functions that use it."""
