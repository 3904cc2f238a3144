# ruff: noqa: ARG002, B905  (optimizers get all of their arguments, and pairs of one list are of one length)
"""Optimizers as programs for TPUEstimator define them, with kinds of updates that no optimizer of TensorFlow makes.

They only need TensorFlow. scripts/oracle_tf215 trains with them on both sides, and the tests of CrossShardOptimizer on several
replicas.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf


def make_slot(variable, name):
    """Return an additional variable of zeros, of the shape and dtype of a variable."""
    return tf.get_variable(
        f"{variable.name.split(':')[0]}/{name}",
        variable.shape,
        variable.dtype.base_dtype,
        initializer=tf.zeros_initializer(),
        trainable=False,
    )


class WeightDecayAdam(tf.train.Optimizer):
    """Adam as in BERT: decoupled weight decay, no bias correction, plain assigns, and a global step that it leaves alone."""

    def __init__(self, rate=0.02, decay=0.1, name="WeightDecayAdam"):
        super().__init__(False, name)
        self.rate, self.decay = rate, decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            gradient = tf.convert_to_tensor(gradient)
            mean, variance = make_slot(variable, "adam_m"), make_slot(variable, "adam_v")
            next_mean = 0.9 * mean + 0.1 * gradient
            next_variance = 0.99 * variance + 0.01 * tf.square(gradient)
            update = next_mean / (tf.sqrt(next_variance) + 1e-6)
            # Biases do not decay.
            if variable.shape.rank == 2:
                update += self.decay * variable
            next_variable = variable - self.compute_rate(variable, update) * update
            assignments += [variable.assign(next_variable), mean.assign(next_mean), variance.assign(next_variance)]
        return tf.group(*assignments, name=name)

    def compute_rate(self, variable, update):
        """Return the learning rate of a variable, for an update."""
        return self.rate


class Lamb(WeightDecayAdam):
    """LAMB: the rate of a variable is scaled by the ratio of its norm and the norm of its update."""

    def compute_rate(self, variable, update):
        norm, update_norm = tf.norm(variable), tf.norm(update)
        return self.rate * tf.where(norm > 0, tf.where(update_norm > 0, norm / update_norm, 1.0), 1.0)


class LayerwiseAdam(WeightDecayAdam):
    """A rate for each variable, as in ELECTRA, and a global step that it counts itself."""

    def compute_rate(self, variable, update):
        return self.rate * (0.5 if variable.shape.rank == 2 else 2.0)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        train_op = super().apply_gradients(grads_and_vars, name=name)
        return tf.group(train_op, global_step.assign(global_step + 1))


class ByHandMomentum(tf.train.Optimizer):
    """Momentum by the methods that TensorFlow's optimizers override, for gradients of whole variables and of rows."""

    def __init__(self, rate=0.05, name="ByHandMomentum"):
        super().__init__(False, name)
        self.rate = rate

    def _create_slots(self, var_list):
        for variable in var_list:
            self._zeros_slot(variable, "sum", self._name)

    def _apply_dense(self, grad, var):
        # The sum is updated before it is read.
        total = self.get_slot(var, "sum")
        with tf.control_dependencies([total.assign(0.9 * total + grad)]):
            return var.assign_sub(self.rate * total.read_value())

    def _resource_apply_dense(self, grad, handle):
        return self._apply_dense(grad, handle)

    def _resource_apply_sparse(self, grad, handle, indices):
        dense = tf.convert_to_tensor(tf.IndexedSlices(grad, indices, tf.shape(handle)))
        return self._apply_dense(dense, handle)


class DecayedMomentum(tf.train.MomentumOptimizer):
    """Momentum of TensorFlow, with weights that decay before each update."""

    def __init__(self, rate=0.05, decay=0.02):
        super().__init__(rate, 0.9)
        self.decay = decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        pairs = list(grads_and_vars)
        decays = [variable.assign_sub(self.decay * variable) for _, variable in pairs]
        with tf.control_dependencies(decays):
            return super().apply_gradients(pairs, global_step, name)


class ClippedInside(tf.train.Optimizer):
    """Clips gradients by their global norm, and lets another optimizer apply them."""

    def __init__(self, inner, norm=0.5, name="ClippedInside"):
        super().__init__(False, name)
        self.inner, self.norm = inner, norm

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        gradients, variables = zip(*grads_and_vars)
        clipped, _ = tf.clip_by_global_norm(gradients, self.norm)
        return self.inner.apply_gradients(zip(clipped, variables), global_step, name)


OPTIMIZERS = {
    "weight decay": WeightDecayAdam,
    "lamb": Lamb,
    "layerwise": LayerwiseAdam,
    "by hand": ByHandMomentum,
    "decayed": DecayedMomentum,
    "clipped inside": lambda: ClippedInside(tf.train.AdamOptimizer(0.05)),
    "clipped by hand": lambda: ClippedInside(ByHandMomentum()),
}
# Optimizers that do not count the global step, so that a program has to.
COUNT_NO_STEPS = ("weight decay", "lamb")
