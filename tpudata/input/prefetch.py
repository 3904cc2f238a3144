"""How many batches wait to be asked for."""

from __future__ import annotations

import tensorflow as tf

# What waits in memory, where that is 2 to 16 batches. TensorFlow's own choice (AUTOTUNE) doubles after every pause of the
# consumer, as at a checkpoint: batches of 6 MB had taken 200 MB after four of them. And what waits in the processor's cache costs
# less to make: with 64 MB, a training step's 6 MB took a fifth longer.
_BYTES = 16 << 20
_LEAST, _MOST = 2, 16


def prefetched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset of batches of static shape, some of which are made before they are asked for: of 16 MB together, and 2 at least."""
    size = sum(
        leaf.shape.num_elements() * leaf.dtype.size
        for leaf in tf.nest.flatten(dataset.element_spec)
        if leaf.shape.is_fully_defined()
    )
    return dataset.prefetch(max(_LEAST, min(_MOST, _BYTES // max(1, size))))
