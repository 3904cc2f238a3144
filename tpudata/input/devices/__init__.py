"""Batches on devices, as global arrays of JAX; jax is imported by the functions that use it."""
