"""Optimizers that TensorFlow's v1 API lacks: Adam with decoupled weight decay, and LARS.

Both get the gradient summed over all replicas, because CrossShardOptimizer calls them after the sum.
"""

from collections.abc import Callable

import tensorflow as tf


class AdamW(tf.compat.v1.train.AdamOptimizer):  # type: ignore[misc]  # TensorFlow is untyped
    """Adam that also subtracts learning_rate * weight_decay times the weights (Loshchilov and Hutter, 2019).

    Args:
        learning_rate: a float or a scalar tensor.
        weight_decay: share of the weights to subtract at each step, times the learning rate.
        has_decay: predicate of the variables that decay.
        beta1, beta2: decay of the moving means of the gradient and of its square.
    """

    def __init__(
        self,
        learning_rate: float | tf.Tensor,
        weight_decay: float,
        has_decay: Callable[[tf.Variable], bool],
        beta1: float,
        beta2: float,
    ) -> None:
        super().__init__(learning_rate, beta1=beta1, beta2=beta2, name="AdamW")
        self._decay = weight_decay
        self._has_decay = has_decay

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        """Return Adam's update of a variable, followed by its decay; TensorFlow calls this for each dense gradient."""
        if not self._has_decay(var):
            return super()._resource_apply_dense(grad, var)
        # Computed from the weights before the step, so that the order of the two updates does not matter.
        decay = self._lr_t * self._decay * var
        with tf.control_dependencies([decay]):
            adam_update = super()._resource_apply_dense(grad, var)
        with tf.control_dependencies([adam_update]):
            return var.assign_sub(decay).op


class Lars(tf.compat.v1.train.Optimizer):  # type: ignore[misc]  # TensorFlow is untyped
    """Momentum whose rate is scaled, for each kernel, by the ratio of the norms of weights and gradient (You et al., 2017).

    For a weight w with gradient g: ratio = trust_coefficient * |w| / (|g| + weight_decay * |w|), then
    m = momentum * m + learning_rate * ratio * (g + weight_decay * w), and w = w - m. If a norm is 0, the ratio is 1. Variables
    that do not decay (biases, normalization) have the ratio 1 and no weight decay.

    Args:
        learning_rate: a float or a scalar tensor.
        momentum: decay of the moving sum m.
        weight_decay: share of the weights that is added to their gradient.
        trust_coefficient: factor of the ratio.
        has_decay: predicate of the variables that decay.
    """

    def __init__(
        self,
        learning_rate: float | tf.Tensor,
        momentum: float,
        weight_decay: float,
        trust_coefficient: float,
        has_decay: Callable[[tf.Variable], bool],
    ) -> None:
        super().__init__(use_locking=False, name="Lars")
        self._rate = learning_rate
        self._momentum = momentum
        self._decay = weight_decay
        self._trust = trust_coefficient
        self._has_decay = has_decay

    def _create_slots(self, var_list: list[tf.Variable]) -> None:
        """Make the moving sum m of each variable; TensorFlow calls this before it applies gradients."""
        for var in var_list:
            self._zeros_slot(var, "momentum", self._name)

    def _prepare(self) -> None:
        """Make the tensor of the learning rate; TensorFlow calls this before it applies gradients."""
        self._rate_tensor = tf.convert_to_tensor(self._rate, tf.float32, name="learning_rate")

    def _resource_apply_dense(self, grad: tf.Tensor, var: tf.Variable) -> tf.Operation:
        """Return the update of a variable by the class's formula; TensorFlow calls this for each dense gradient."""
        rate, gradient = self._rate_tensor, grad
        if self._has_decay(var):
            weight_norm, gradient_norm = tf.norm(var), tf.norm(grad)
            ratio = self._trust * weight_norm / (gradient_norm + self._decay * weight_norm)
            rate *= tf.where((weight_norm > 0) & (gradient_norm > 0), ratio, 1.0)
            gradient = grad + self._decay * var
        slot = self.get_slot(var, "momentum")
        change = slot.assign(self._momentum * slot + rate * gradient)
        return var.assign_sub(change).op
