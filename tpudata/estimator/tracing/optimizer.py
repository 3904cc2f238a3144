"""The optimizer wrapper that makes training on N replicas equivalent to training on one."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tpudata.checks import require, require_type
from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.collectives import sum_replicas
from tpudata.devices.graphs.keras_effects import KERAS_UPDATES
from tpudata.devices.graphs.replica_context import count_replicas, hide_replicas
from tpudata.estimator.state.blueprint import Blueprint

_log = logging.getLogger("tpudata")
_Reduction = tf.compat.v1.losses.Reduction
# Collection of the names of operations made by the wrapper's apply_gradients.
APPLIED = "tpudata_cross_shard_applied"
# Collection that contains True in a graph whose gradients are summed as on a TPU, which makes tf.IndexedSlices dense first.
DENSE_GRADIENTS = "tpudata_dense_gradients"
# Optimizer of v1, tf_keras or Keras 3.
Optimizer: TypeAlias = "tf.compat.v1.train.Optimizer | tf.keras.optimizers.Optimizer"
# A `tf.Tensor` or `tf.IndexedSlices`; None if the loss does not depend on the variable.
Gradient: TypeAlias = Any
GradientAndVariable: TypeAlias = tuple[Gradient, tf.Variable]


class CrossShardOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]  # TensorFlow is untyped
    """Optimizer that sums the gradients of all replicas and lets another optimizer apply them, on every device.

    `compute_gradients` divides the loss of a replica by the number of replicas for a mean (with a Keras optimizer,
    `apply_gradients` divides the gradients), and `apply_gradients` sums over the replicas: clipping in between sees one replica's
    gradients, as in TensorFlow's TPUEstimator. The wrapped optimizer gets the same gradients on all replicas. With one replica,
    nothing changes.

    Args:
        opt: a `tf.compat.v1.train.Optimizer`, or an optimizer of tf_keras or Keras 3, which then takes the calls of v1 optimizers:
            `minimize(loss, global_step=...)` and `apply_gradients(pairs, global_step=...)`.
        reduction: `tf.compat.v1.losses.Reduction.MEAN` or `SUM`.
        name: name of the wrapper.

    Raises:
        TypeError: `opt` is not an optimizer.
        ValueError: the reduction is not MEAN or SUM.
        ModelFnValueError: a Keras optimizer has an option that has no effect in a graph.
    """

    def __init__(self, opt: Optimizer, reduction: str = _Reduction.MEAN, name: str = "CrossShardOptimizer") -> None:
        is_keras = not isinstance(opt, tf.compat.v1.train.Optimizer)
        is_optimizer = not is_keras or callable(getattr(opt, "apply_gradients", None))
        allowed = "a tf.compat.v1.train.Optimizer or an optimizer of tf_keras or Keras 3"
        require_type("CrossShardOptimizer(opt=...)", opt, is_optimizer, allowed)
        is_known = reduction in (_Reduction.MEAN, _Reduction.SUM)
        require("CrossShardOptimizer", "reduction", reduction, is_known, "Reduction.MEAN or SUM", ValueError)
        if is_keras:
            _reject_periodic_options(opt)
        super().__init__(use_locking=False, name=name)
        self._opt = opt
        self._is_keras = is_keras
        self._reduction = reduction
        self._has_computed_gradients = False

    def compute_gradients(
        self, loss: tf.Tensor, var_list: Sequence[tf.Variable] | None = None, **kwargs: object
    ) -> list[GradientAndVariable]:
        """Return (gradient, variable) pairs of this replica's loss; with a v1 optimizer and MEAN, of loss / number of replicas.

        Arguments are those of v1 optimizers; var_list may also have variables of Keras 3. The gate GATE_OP, v1's default, is
        treated as GATE_NONE. GATE_OP prevents an update of a variable while other gradients are computed from it, which cannot
        happen with resource variables, and keeps operations from running in parallel.
        """
        if kwargs.get("gate_gradients", self.GATE_OP) == self.GATE_OP:
            kwargs["gate_gradients"] = self.GATE_NONE
        if var_list is not None:
            var_list = list(map(_unwrap, tf.nest.flatten(var_list)))
        self._has_computed_gradients = True
        if self._is_keras:
            # Any v1 optimizer computes these gradients; `_sum_over_replicas` multiplies them by the factor.
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        else:
            optimizer = self._opt
            loss = loss * self._choose_factor()
        pairs: list[GradientAndVariable] = optimizer.compute_gradients(loss, var_list=var_list, **kwargs)
        return pairs

    def apply_gradients(
        self,
        grads_and_vars: Iterable[GradientAndVariable],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation | tf.Variable:
        """Apply the gradients, summed over the replicas; arguments as in v1 optimizers.

        Returns:
            For a v1 optimizer, the operation that applies the gradients. For a Keras optimizer, whose updates the step runs anyway,
            `global_step` after its increment, or a no-op without one.
        """
        graph = tf.compat.v1.get_default_graph()
        pairs = self._sum_over_replicas(list(grads_and_vars))
        num_operations_before = len(graph.get_operations())
        # The gradients are the same on all replicas, and optimizers of TensorFlow and Keras would sum them again.
        with hide_replicas():
            if self._is_keras:
                self._opt.apply_gradients(pairs)
                update = tf.no_op() if global_step is None else global_step.assign_add(1)
            else:
                pairs = [(gradient, _unwrap(variable)) for gradient, variable in pairs]
                update = self._opt.apply_gradients(pairs, global_step, name)
        for operation in graph.get_operations()[num_operations_before:]:
            graph.add_to_collection(APPLIED, operation.name)
            if self._is_keras:  # Keras returns nothing to wait for.
                graph.add_to_collection(KERAS_UPDATES, operation.name)
        return update

    def _sum_over_replicas(self, pairs: list[GradientAndVariable]) -> list[GradientAndVariable]:
        """Return the pairs with gradients summed over the replicas; None stays None."""
        num_replicas = count_replicas()
        factor = self._choose_factor()
        # Several replicas sum dense gradients; DENSE_GRADIENTS lets a single core of a TPU compute like them.
        if num_replicas > 1 or tf.compat.v1.get_default_graph().get_collection(DENSE_GRADIENTS):
            pairs = [(_make_dense(gradient), variable) for gradient, variable in pairs]
        if self._is_keras and factor != 1.0:  # For v1 optimizers, compute_gradients multiplies the loss by the factor.
            pairs = [(None if gradient is None else gradient * factor, variable) for gradient, variable in pairs]
        elif factor != 1.0 and not self._has_computed_gradients:
            _log.warning(
                "CrossShardOptimizer: apply_gradients got gradients that its compute_gradients did not compute (got "
                "tf.gradients or a tape, expected compute_gradients). They are summed over %d replicas, not averaged, as in the "
                "original TPUEstimator. Compute them with compute_gradients of the CrossShardOptimizer.",
                num_replicas,
            )
        if num_replicas == 1:
            return pairs
        return [
            (None if gradient is None else sum_replicas(gradient, num_replicas), variable)
            for gradient, variable in pairs
        ]

    def _choose_factor(self) -> float:
        """Return the factor for this replica's loss or gradients: 1 for a sum, 1 / replicas for a mean."""
        return 1.0 if self._reduction == _Reduction.SUM else 1.0 / count_replicas()

    def get_slot(self, var: tf.Variable, name: str) -> tf.Variable | None:
        """Return the slot `name` that the wrapped v1 optimizer made for `var`, or None."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Return the wrapped v1 optimizer's slot names."""
        return list(self._opt.get_slot_names())

    def variables(self) -> list[tf.Variable]:
        """Return the wrapped optimizer's variables."""
        variables = self._opt.variables
        return list(variables() if callable(variables) else variables)


def _unwrap(variable: Any) -> tf.Variable:
    """Return the `tf.Variable` of a variable of Keras 3, which v1 optimizers do not take; return other variables unchanged."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else variable


def _reject_periodic_options(opt: Optimizer) -> None:
    """Reject options that act only at every n-th step: a Keras optimizer tests the step by `==`, which in a graph compares objects.

    Raises:
        ModelFnValueError: one of these options is set.
    """
    options = ["gradient_accumulation_steps"]
    if getattr(opt, "use_ema", False):
        options.append("ema_overwrite_frequency")
    for option in options:
        setting = getattr(opt, option, None)
        if setting:
            raise ModelFnValueError(
                f"CrossShardOptimizer: {type(opt).__name__}({option}=...) has no effect in a graph (got {setting!r}, expected "
                "None). Set it to None and update at every step."
            )


def _make_dense(gradient: Gradient) -> tf.Tensor | None:
    """Return a gradient as one tensor; None stays None."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def reject_other_cross_shard(blueprint: Blueprint) -> None:
    """Reject TensorFlow's CrossShardOptimizer in model_fn.

    Raises:
        ModelFnValueError: model_fn uses it. Outside of TensorFlow's TPU system, this optimizer sums gradients without the mean, and
            its operation has no kernel for CPUs.
    """
    for operation in blueprint.graph.get_operations():
        # Models may sum over cores themselves, so the code that made the operation decides.
        if operation.type == "CrossReplicaSum" and any(
            "tpu_optimizer" in frame.filename for frame in operation.traceback
        ):
            raise ModelFnValueError(
                "model_fn uses the CrossShardOptimizer of TensorFlow (tf.compat.v1.tpu), which needs the original TPUEstimator. "
                "Use tpudata.estimator.CrossShardOptimizer, on every device."
            )
