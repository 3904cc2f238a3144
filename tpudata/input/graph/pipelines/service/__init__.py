"""Batches that the workers of a tf.data service make."""
