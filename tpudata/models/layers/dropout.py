"""Dropout with a seed for each step and replica."""

import tensorflow as tf

# Distance between the seeds of consecutive replicas: a prime, larger than the index of a dropout, which is added to the seed.
_REPLICA_STRIDE = 7919


def make_step_seed(seed: int) -> tf.Tensor:
    """Return a seed for stateless draws, int32 [2], which differs between training steps and replicas.

    It follows only from `seed`, the global step and the replica, so a step that is run again draws the same numbers.
    """
    step = tf.compat.v1.train.get_or_create_global_step()
    # None in a cross-replica context, where code runs once for all replicas.
    context = tf.distribute.get_replica_context()
    replica = 0 if context is None else context.replica_id_in_sync_group
    return tf.stack([tf.cast(step, tf.int32), seed + _REPLICA_STRIDE * tf.cast(replica, tf.int32)])


def dropout(inputs: tf.Tensor, rate: float, seed: tf.Tensor | tuple[int, int], index: int = 0) -> tf.Tensor:
    """Set a share of the values to 0 and scale the other values up; the same seed and index drop the same values.

    Args:
        inputs: floats of any shape.
        rate: share of the values to drop, in [0, 1).
        seed: int32 [2], from `make_step_seed`.
        index: index of this dropout in the model. Without it, dropouts of equal shape would drop the same positions in a step.
    """
    if rate == 0:
        return inputs
    return tf.nn.experimental.stateless_dropout(inputs, rate=rate, seed=tf.stack([seed[0], seed[1] + index]))
