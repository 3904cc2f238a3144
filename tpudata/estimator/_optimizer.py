"""The optimizer wrapper that makes N replicas do what one would have done."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_Reduction = tf.compat.v1.losses.Reduction


class CrossShardOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]  # TensorFlow is untyped
    """Wraps a v1 optimizer so that the gradients of all replicas are combined.

    v1 optimizers sum the gradients of the replicas themselves when they apply them. For a mean, the loss of each
    replica is therefore divided by the number of replicas first; on one replica nothing changes.

    Args:
        opt: a `tf.compat.v1.train.Optimizer`.
        reduction: `tf.compat.v1.losses.Reduction.MEAN` or `SUM`.
        name: name of the wrapper.

    Raises:
        TypeError: `opt` is not a v1 optimizer.
        ValueError: another reduction.
    """

    def __init__(self, opt: Any, reduction: str = _Reduction.MEAN, name: str = "CrossShardOptimizer") -> None:
        if not isinstance(opt, tf.compat.v1.train.Optimizer):
            raise TypeError(
                f"CrossShardOptimizer wraps a tf.compat.v1.train.Optimizer, got {type(opt).__name__}. "
                "A Keras optimizer is used without the wrapper."
            )
        if reduction not in (_Reduction.MEAN, _Reduction.SUM):
            raise ValueError(f"CrossShardOptimizer(reduction=...) must be Reduction.MEAN or SUM, got {reduction!r}.")
        super().__init__(False, name)
        self._opt = opt
        self._reduction = reduction

    def compute_gradients(self, loss: Any, var_list: Sequence[Any] | None = None, **kwargs: Any) -> Any:
        """Return (gradient, variable) pairs of this replica's share of the loss; arguments as in v1 optimizers."""
        context = tf.distribute.get_replica_context()
        replicas = 1 if context is None else context.num_replicas_in_sync
        if self._reduction == _Reduction.MEAN and replicas > 1:
            loss = loss * (1.0 / replicas)
        return self._opt.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply the gradients, summed over the replicas; arguments and result as in v1 optimizers."""
        return self._opt.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def get_slot(self, var: Any, name: str) -> Any:
        """Return the slot `name` that the wrapped optimizer made for `var`, or None."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Return the wrapped optimizer's slot names."""
        return list(self._opt.get_slot_names())

    def variables(self) -> list[Any]:
        """Return the wrapped optimizer's variables."""
        return list(self._opt.variables())
