"""The optimizer wrapper with which N replicas train as one does."""

import logging
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnValueError
from tpudata.estimator.graph.graph_walk import reached
from tpudata.estimator.graph.keras_effects import KERAS_UPDATES
from tpudata.estimator.state.blueprint import Blueprint
from tpudata.estimator.tracing.reduction import reduced_once, summed

_log = logging.getLogger("tpudata")
_Reduction = tf.compat.v1.losses.Reduction
# Collection of the names of operations made by the wrapper's apply_gradients.
_APPLIED = "tpudata_cross_shard_applied"
# Collection that contains True in a graph whose gradients are summed as on a TPU, which makes tf.IndexedSlices dense first.
DENSE_GRADIENTS = "tpudata_dense_gradients"
_OPTIMIZERS = ("ResourceApply", "ResourceSparseApply")
_UPDATES = (
    *_OPTIMIZERS,
    "ResourceScatter",
    "ResourceStridedSliceAssign",
    "AssignVariableOp",
    "AssignAddVariableOp",
    "AssignSubVariableOp",
)
# Operations whose results are the same on all replicas.
_REDUCTIONS = ("CrossReplicaSum", "Collective")


class CrossShardOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]  # TensorFlow is untyped
    """Optimizer that sums the gradients of all replicas and lets another optimizer apply them, on every device.

    `compute_gradients` divides the loss of a replica by the number of replicas for a mean (with a Keras optimizer,
    `apply_gradients` divides the gradients), and `apply_gradients` sums over the replicas: clipping in between sees one replica's
    share, as in the original TPUEstimator. The wrapped optimizer gets the same gradients on all replicas. With one replica, nothing
    changes.

    Args:
        opt: a `tf.compat.v1.train.Optimizer`, or an optimizer of tf_keras or Keras 3, which then takes the calls of v1 optimizers:
            `minimize(loss, global_step=...)` and `apply_gradients(pairs, global_step=...)`.
        reduction: `tf.compat.v1.losses.Reduction.MEAN` or `SUM`.
        name: name of the wrapper.

    Raises:
        TypeError: `opt` is not an optimizer.
        ValueError: the reduction is another one.
        ModelFnValueError: a Keras optimizer has an option that has no effect in a graph.
    """

    def __init__(self, opt: Any, reduction: str = _Reduction.MEAN, name: str = "CrossShardOptimizer") -> None:
        self._is_keras = not isinstance(opt, tf.compat.v1.train.Optimizer)
        if self._is_keras and not callable(getattr(opt, "apply_gradients", None)):
            raise TypeError(
                "CrossShardOptimizer(opt=...) must be a tf.compat.v1.train.Optimizer or an optimizer of tf_keras or Keras 3, got "
                f"{type(opt).__name__}."
            )
        if reduction not in (_Reduction.MEAN, _Reduction.SUM):
            raise ValueError(f"CrossShardOptimizer(reduction=...) must be Reduction.MEAN or SUM, got {reduction!r}.")
        if self._is_keras:
            _require_no_counting(opt)
        super().__init__(False, name)
        self._opt = opt
        self._reduction = reduction
        self._has_computed = False

    def compute_gradients(self, loss: Any, var_list: Sequence[Any] | None = None, **kwargs: Any) -> Any:
        """Return (gradient, variable) pairs of this replica's share of the loss; arguments as in v1 optimizers.

        The gate GATE_OP, v1's default, is treated as GATE_NONE. It prevents an update of a variable while other gradients are
        computed from it, which cannot happen with resource variables, and keeps operations from running in parallel.
        """
        if kwargs.get("gate_gradients", self.GATE_OP) == self.GATE_OP:
            kwargs["gate_gradients"] = self.GATE_NONE
        self._has_computed = True
        if self._is_keras:
            # All v1 optimizers compute the same gradients.
            return tf.compat.v1.train.GradientDescentOptimizer(1.0).compute_gradients(loss, var_list=var_list, **kwargs)
        return self._opt.compute_gradients(loss * self._share(), var_list=var_list, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply the gradients, summed over the replicas; arguments and result as in v1 optimizers."""
        graph = tf.compat.v1.get_default_graph()
        if graph.get_collection(DENSE_GRADIENTS):
            grads_and_vars = [(_dense(gradient), variable) for gradient, variable in grads_and_vars]
        pairs = self._reduced(list(grads_and_vars))
        with reduced_once(pairs) as made:
            if self._is_keras:
                self._opt.apply_gradients(pairs)
                applied = tf.no_op() if global_step is None else global_step.assign_add(1)
            else:
                applied = self._opt.apply_gradients(pairs, global_step, name)
        for operation in made():
            graph.add_to_collection(_APPLIED, operation.name)
            if self._is_keras:  # Keras returns nothing to wait for.
                graph.add_to_collection(KERAS_UPDATES, operation.name)
        return applied

    def _reduced(self, pairs: list[Any]) -> list[Any]:
        """Return the pairs with gradients reduced over the replicas."""
        share = self._share()
        if self._is_keras:
            pairs = [(_scaled(gradient, share), variable) for gradient, variable in pairs]
        elif share != 1.0 and not self._has_computed and _is_first_replica():
            _log.warning(
                "CrossShardOptimizer: apply_gradients got gradients that its compute_gradients did not compute (got "
                "tf.gradients or a tape, expected compute_gradients). They are summed over %d replicas, not averaged, as in the "
                "original TPUEstimator. Compute them with compute_gradients of the CrossShardOptimizer.",
                round(1 / share),
            )
        return summed(pairs)

    def _share(self) -> float:
        """Return the factor of this replica's loss or gradients."""
        context = tf.distribute.get_replica_context()
        if context is None or self._reduction == _Reduction.SUM:
            return 1.0
        return 1.0 / int(context.num_replicas_in_sync)

    def get_slot(self, var: Any, name: str) -> Any:
        """Return the slot `name` that the wrapped v1 optimizer made for `var`, or None."""
        return self._opt.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """Return the wrapped v1 optimizer's slot names."""
        return list(self._opt.get_slot_names())

    def variables(self) -> list[Any]:
        """Return the wrapped optimizer's variables."""
        variables = self._opt.variables
        return list(variables() if callable(variables) else variables)


def _require_no_counting(opt: Any) -> None:
    """Check that a Keras optimizer has no option for every n-th step, which it finds by `==`, a comparison of objects in a graph.

    Raises:
        ModelFnValueError: it has such an option.
    """
    options = ["gradient_accumulation_steps", *(["ema_overwrite_frequency"] if getattr(opt, "use_ema", False) else [])]
    for option in options:
        value = getattr(opt, option, None)
        if value:
            raise ModelFnValueError(
                f"CrossShardOptimizer: {type(opt).__name__}({option}=...) has no effect in a graph (got {value!r}, expected "
                "None). Set it to None and update at every step."
            )


def _scaled(gradient: Any, share: float) -> Any:
    if gradient is None or share == 1.0:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * share, gradient.indices, gradient.dense_shape)
    return gradient * share


def _is_first_replica() -> bool:
    # A TPU's replicas share one trace, in which the number is unknown.
    return not tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def reject_other_cross_shard(blueprint: Blueprint) -> None:
    """Check that model_fn does not use TensorFlow's CrossShardOptimizer.

    Raises:
        ModelFnValueError: it does. Outside of the original's TPU system, that optimizer sums gradients without the mean, and its
            operation has no kernel for CPUs.
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


def require_cross_shard(blueprint: Blueprint) -> None:
    """Check that every optimizer of a model for several replicas is wrapped in CrossShardOptimizer.

    Other operations may only assign values to a trainable variable that are the same on all replicas, such as its clipped value,
    not values computed from the batch.

    Raises:
        ModelFnValueError: another operation assigns a value computed from the batch to a trainable variable.
    """
    applied = {*blueprint.graph.get_collection(_APPLIED)}
    # Assignments of initial values are not updates.
    applied |= {name for info in blueprint.variables for name in (info.initializer, info.made_with)}
    handles = {info.handle: blueprint.graph.get_tensor_by_name(info.handle) for info in blueprint.variables}
    updates = {
        handle: [item for item in tensor.consumers() if item.type.startswith(_UPDATES) and item.name not in applied]
        for handle, tensor in handles.items()
    }
    batch = {item.name for item in tf.nest.flatten(blueprint.arguments) if item is not None}
    # Variables with values that replicas compute from their batches, and the operations that assign them.
    mixed: dict[str, Any] = {}
    size = -1
    while len(mixed) > size:
        size = len(mixed)
        for handle, operations in updates.items():
            for operation in operations:
                if handle not in mixed and _differs(operation, handle, batch | mixed.keys()):
                    mixed[handle] = operation
    for info in blueprint.variables:
        if info.trainable and info.handle in mixed:
            raise ModelFnValueError(
                f"model_fn: {mixed[info.handle].name!r} changes the trainable variable {info.name!r} by an optimizer that is "
                "not wrapped in CrossShardOptimizer (got an update from one replica's rows, expected one from those of all). "
                "Wrap the optimizer, as CrossShardOptimizer(optimizer), which changes nothing on one device; make a variable "
                "that no optimizer updates with trainable=False, and it is assigned the mean of the replicas' values."
            )


def _differs(update: Any, handle: str, sources: Collection[str]) -> bool:
    """Return whether replicas change a variable in different ways.

    Args:
        update: operation that changes the variable.
        handle: name of the variable's handle.
        sources: names of tensors whose values differ between replicas: tensors of the batch, and handles of variables.
    """
    if update.type.startswith(_OPTIMIZERS):
        return True
    graph = update.graph

    def before(name: str) -> list[str]:
        operation = graph.get_tensor_by_name(name).op
        return [] if operation.type.startswith(_REDUCTIONS) else [item.name for item in operation.inputs]

    starts = [tensor.name for tensor in update.inputs if tensor.name != handle]
    return any(name in sources for name in reached(starts, before))
