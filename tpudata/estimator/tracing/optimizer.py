"""The optimizer wrapper that makes N replicas do what one would have done."""

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
# Holds the names of the operations that apply_gradients of the wrapper made.
_APPLIED = "tpudata_cross_shard_applied"
# Holds True in a graph whose gradients are to be summed as on a TPU, where those of rows (tf.IndexedSlices) are made dense for it.
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
# What they give is the same on all replicas.
_REDUCTIONS = ("CrossReplicaSum", "Collective")


class CrossShardOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]  # TensorFlow is untyped
    """Optimizer that reduces the gradients of all replicas and lets another one apply them, on every device.

    `compute_gradients` divides the loss of a replica by the number of replicas for a mean (with a Keras optimizer,
    `apply_gradients` divides the gradients), and `apply_gradients` sums over the replicas: clipping in between sees one replica's
    share, as in the original TPUEstimator. The wrapped optimizer gets the same gradients on all replicas, however it applies
    them. On one replica nothing changes.

    Args:
        opt: a `tf.compat.v1.train.Optimizer`, or an optimizer of tf_keras or Keras 3, which then takes v1 optimizers' calls:
            `minimize(loss, global_step=...)` and `apply_gradients(pairs, global_step=...)`.
        reduction: `tf.compat.v1.losses.Reduction.MEAN` or `SUM`.
        name: name of the wrapper.

    Raises:
        TypeError: `opt` is no optimizer.
        ValueError: another reduction.
        ModelFnValueError: an option of a Keras optimizer that has no effect in a graph.
    """

    def __init__(self, opt: Any, reduction: str = _Reduction.MEAN, name: str = "CrossShardOptimizer") -> None:
        self._is_keras = not isinstance(opt, tf.compat.v1.train.Optimizer)
        if self._is_keras and not callable(getattr(opt, "apply_gradients", None)):
            raise TypeError(
                "CrossShardOptimizer wraps a tf.compat.v1.train.Optimizer or an optimizer of tf_keras or Keras 3, got "
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

        The gate GATE_OP, v1's default, counts as GATE_NONE. It kept an update from changing a variable while other gradients were
        computed from it, which variables of today are safe from, and it keeps operations from running side by side.
        """
        if kwargs.get("gate_gradients", self.GATE_OP) == self.GATE_OP:
            kwargs["gate_gradients"] = self.GATE_NONE
        self._has_computed = True
        if self._is_keras:
            # Gradients are the same for all v1 optimizers.
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
            if self._is_keras:  # It returns nothing to wait for.
                graph.add_to_collection(KERAS_UPDATES, operation.name)
        return applied

    def _reduced(self, pairs: list[Any]) -> list[Any]:
        """Return the pairs with gradients that are the same on all replicas."""
        share = self._share()
        if self._is_keras:
            pairs = [(_scaled(gradient, share), variable) for gradient, variable in pairs]
        elif share != 1.0 and not self._has_computed and _is_first_replica():
            _log.warning(
                "CrossShardOptimizer: apply_gradients was given gradients that its compute_gradients did not compute (got "
                "tf.gradients or a tape, expected compute_gradients). They are summed over %d replicas, not averaged, as the "
                "original TPUEstimator does. Compute them with compute_gradients of the CrossShardOptimizer.",
                round(1 / share),
            )
        return summed(pairs)

    def _share(self) -> float:
        """Return what this replica's loss or gradients are multiplied by."""
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
    """Check that a Keras optimizer does nothing every n-th step: it finds that step with `==`, which in a graph compares objects.

    Raises:
        ModelFnValueError: it does.
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
    # A TPU's replicas share one trace, which does not know the number.
    return not tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def reject_other_cross_shard(blueprint: Blueprint) -> None:
    """Check that model_fn does not use TensorFlow's own CrossShardOptimizer.

    Raises:
        ModelFnValueError: it does. Outside of the original's TPU system that one sums gradients and forgets their mean, and on a
            CPU its operation has no kernel.
    """
    for operation in blueprint.graph.get_operations():
        # Models may sum over cores themselves, so what made the operation decides.
        if operation.type == "CrossReplicaSum" and any(
            "tpu_optimizer" in frame.filename for frame in operation.traceback
        ):
            raise ModelFnValueError(
                "model_fn uses the CrossShardOptimizer of TensorFlow (tf.compat.v1.tpu), which needs the original TPUEstimator. "
                "Use tpudata.estimator.CrossShardOptimizer, on every device."
            )


def require_cross_shard(blueprint: Blueprint) -> None:
    """Check that every optimizer of a model for several replicas is wrapped in CrossShardOptimizer.

    Outside of it, a trainable variable may be assigned what is the same on all replicas, such as its own clipped value, but
    nothing that is computed from the batch.

    Raises:
        ModelFnValueError: a trainable variable is changed step by step by something else.
    """
    applied = {*blueprint.graph.get_collection(_APPLIED)}
    # First values are no updates.
    applied |= {name for info in blueprint.variables for name in (info.initializer, info.made_with)}
    handles = {info.handle: blueprint.graph.get_tensor_by_name(info.handle) for info in blueprint.variables}
    updates = {
        handle: [item for item in tensor.consumers() if item.type.startswith(_UPDATES) and item.name not in applied]
        for handle, tensor in handles.items()
    }
    batch = {item.name for item in tf.nest.flatten(blueprint.arguments) if item is not None}
    # Variables that hold what replicas computed from their batches, and the operation that gives it to them.
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
        update: the operation that changes it.
        handle: name of its handle.
        sources: names of tensors that stand for different values on each replica: of the batch, and handles of variables.
    """
    if update.type.startswith(_OPTIMIZERS):
        return True
    graph = update.graph

    def before(name: str) -> list[str]:
        operation = graph.get_tensor_by_name(name).op
        return [] if operation.type.startswith(_REDUCTIONS) else [item.name for item in operation.inputs]

    starts = [tensor.name for tensor in update.inputs if tensor.name != handle]
    return any(name in sources for name in reached(starts, before))
