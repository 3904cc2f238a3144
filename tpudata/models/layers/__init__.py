"""Layers of the bundled models, on `tf.compat.v1.get_variable`."""
