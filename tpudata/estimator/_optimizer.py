"""The optimizer wrapper that makes N replicas do what one would have done."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator._errors import ModelFnValueError
from tpudata.estimator._variables import Blueprint

_Reduction = tf.compat.v1.losses.Reduction
# Holds the names of the operations that apply_gradients of the wrapper made.
_APPLIED = "tpudata_cross_shard_applied"
# Holds True in a graph whose gradients are to be summed as on a TPU, where those of rows (tf.IndexedSlices) are made dense for it.
DENSE_GRADIENTS = "tpudata_dense_gradients"
# Updates by optimizers, which always differ between replicas; and assignments, which may.
_UPDATES = ("ResourceApply", "ResourceSparseApply")
_ASSIGNMENTS = (
    "AssignVariableOp",
    "AssignAddVariableOp",
    "AssignSubVariableOp",
    "ResourceScatter",
    "ResourceStridedSliceAssign",
)
_base_apply_gradients = tf.compat.v1.train.Optimizer.apply_gradients


class CrossShardOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]  # TensorFlow is untyped
    """Wraps an optimizer so that the gradients of all replicas are combined, on every device.

    The gradients of the replicas are summed when they are applied, also for an optimizer that overrides `apply_gradients`. For a
    mean, the loss of each replica (with a Keras optimizer: its gradients) is divided by the number of replicas first. As in the
    original, gradients that this wrapper does not compute, as by `tf.gradients`, are summed. On one replica nothing changes.

    Args:
        opt: a `tf.compat.v1.train.Optimizer`, or an optimizer of tf_keras or Keras 3, which then takes v1 optimizers' calls:
            `minimize(loss, global_step=...)` and `apply_gradients(pairs, global_step=...)`.
        reduction: `tf.compat.v1.losses.Reduction.MEAN` or `SUM`.
        name: name of the wrapper.

    Raises:
        TypeError: `opt` is no optimizer.
        ValueError: another reduction.
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
        super().__init__(False, name)
        self._opt = opt
        self._reduction = reduction

    def compute_gradients(self, loss: Any, var_list: Sequence[Any] | None = None, **kwargs: Any) -> Any:
        """Return (gradient, variable) pairs of this replica's share of the loss; arguments as in v1 optimizers.

        The gate GATE_OP, v1's default, counts as GATE_NONE. It kept an update from changing a variable while other gradients were
        computed from it, which variables of today are safe from, and it keeps operations from running side by side.
        """
        if kwargs.get("gate_gradients", self.GATE_OP) == self.GATE_OP:
            kwargs["gate_gradients"] = self.GATE_NONE
        if self._is_keras:
            # Gradients are the same for all v1 optimizers.
            return tf.compat.v1.train.GradientDescentOptimizer(1.0).compute_gradients(loss, var_list=var_list, **kwargs)
        return self._opt.compute_gradients(loss * self._share(), var_list=var_list, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Apply the gradients, summed over the replicas; arguments and result as in v1 optimizers."""
        graph = tf.compat.v1.get_default_graph()
        if graph.get_collection(DENSE_GRADIENTS):
            grads_and_vars = [(_dense(gradient), variable) for gradient, variable in grads_and_vars]
        before = len(graph.get_operations())
        if self._is_keras:
            applied = self._apply_with_keras(list(grads_and_vars), global_step)
        else:
            applied = self._apply(list(grads_and_vars), global_step, name)
        for operation in graph.get_operations()[before:]:
            graph.add_to_collection(_APPLIED, operation.name)
        return applied

    def _apply(self, grads_and_vars: list[Any], global_step: Any, name: str | None) -> Any:
        context = tf.distribute.get_replica_context()
        sums_itself = type(self._opt).apply_gradients is _base_apply_gradients
        if sums_itself or context is None or context.num_replicas_in_sync == 1:
            return self._opt.apply_gradients(grads_and_vars, global_step=global_step, name=name)
        given = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, [gradient for gradient, _ in given])
        pairs = [(gradient, variable) for gradient, (_, variable) in zip(summed, given, strict=True)]
        pairs += [(None, variable) for gradient, variable in grads_and_vars if gradient is None]
        with _summed_once(context):
            return self._opt.apply_gradients(pairs, global_step=global_step, name=name)

    def _apply_with_keras(self, grads_and_vars: list[Any], global_step: Any) -> Any:
        share = self._share()
        self._opt.apply_gradients([(_scaled(gradient, share), variable) for gradient, variable in grads_and_vars])
        return tf.no_op() if global_step is None else global_step.assign_add(1)

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


@contextlib.contextmanager
def _summed_once(context: Any) -> Iterator[None]:
    """Keep v1's `apply_gradients`, which an override may call, from summing again what is the same on all replicas."""
    merge_call, replicas = context.merge_call, context.num_replicas_in_sync

    def merge_summed(merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        if getattr(merge_fn, "__name__", None) == "_distributed_apply":
            pairs, *others = args
            args = ([(_scaled(gradient, 1 / replicas), variable) for gradient, variable in pairs], *others)
        return merge_call(merge_fn, args=args, kwargs=kwargs)

    context.merge_call = merge_summed
    try:
        yield
    finally:
        context.merge_call = merge_call


def _scaled(gradient: Any, share: float) -> Any:
    if gradient is None or share == 1.0:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * share, gradient.indices, gradient.dense_shape)
    return gradient * share


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def require_cross_shard(blueprint: Blueprint) -> None:
    """Check that every optimizer of a model for several replicas is wrapped in CrossShardOptimizer.

    Raises:
        ModelFnValueError: a trainable variable is changed step by step by something else.
    """
    writes = _writes_by_variable(blueprint)
    varying = _Varying(blueprint, writes)
    for info in blueprint.variables:
        for operation in writes[info.handle] if info.trainable else ():
            if operation.type.startswith(_UPDATES) or varying.has(operation):
                raise ModelFnValueError(
                    f"model_fn changes the variable {info.name!r} ({operation.name!r}) by an optimizer that is not wrapped in "
                    "CrossShardOptimizer: on several replicas it would take the sum of their gradients for one. Wrap it, as "
                    "CrossShardOptimizer(optimizer); on one device that changes nothing."
                )


def _writes_by_variable(blueprint: Blueprint) -> dict[str, list[Any]]:
    """Return the operations that change each variable, by its handle, without those of the wrapper and of first values."""
    applied = {*blueprint.graph.get_collection(_APPLIED)}
    found = {}
    for info in blueprint.variables:
        known = applied | {info.initializer, info.made_with}
        takers = blueprint.graph.get_tensor_by_name(info.handle).consumers()
        kinds = (*_UPDATES, *_ASSIGNMENTS)
        found[info.handle] = [item for item in takers if item.name not in known and item.type.startswith(kinds)]
    return found


class _Varying:
    """Tells of operations whether what they take differs between replicas: it comes from the batch, or is drawn at random.

    Args:
        blueprint: of the scratch graph.
        writes: the operations that change each variable, by its handle: what they assign can be read elsewhere.
    """

    def __init__(self, blueprint: Blueprint, writes: Mapping[str, Sequence[Any]]) -> None:
        self._arguments = {item.name for item in tf.nest.flatten(blueprint.arguments) if item is not None}
        self._writes = writes

    def has(self, operation: Any) -> bool:
        """Return whether an operation takes such a value."""
        todo, seen = [operation], {operation.name}
        while todo:
            for tensor in todo.pop().inputs:
                if tensor.name in self._arguments or "Random" in tensor.op.type:
                    return True
                fresh = [item for item in (tensor.op, *self._writes.get(tensor.name, ())) if item.name not in seen]
                seen.update(item.name for item in fresh)
                todo += fresh
        return False
