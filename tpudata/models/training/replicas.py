"""Sums over the replicas that train together."""

import tensorflow as tf


def count_replicas() -> int:
    """Return the number of replicas that train together."""
    # None in a cross-replica context, where code runs once for all replicas.
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def sum_over_replicas(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return each tensor's sum over all replicas; with one replica, the tensors themselves."""
    if count_replicas() == 1:
        return tensors
    return list(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors))
