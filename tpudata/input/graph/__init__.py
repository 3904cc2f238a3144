"""The tf.data graph from a split to batches."""
