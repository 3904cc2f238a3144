"""Variables whose assignments are reduced over the replicas by the variable's aggregation, as tf.distribute does."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.keras_effects import is_called_by_keras_metric
from tpudata.devices.graphs.traced_code import traced_code
from tpudata.tensor_types import Tensors

_REDUCTIONS = {
    tf.VariableAggregation.MEAN: tf.distribute.ReduceOp.MEAN,
    tf.VariableAggregation.SUM: tf.distribute.ReduceOp.SUM,
}
_ASSIGNMENTS = ("assign", "assign_add", "assign_sub")


def make_variable(create: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Make a variable whose assignments are reduced over the replicas by its aggregation; for `tf.variable_creator_scope`."""
    variable = create(**kwargs)
    reduction = find_reduction(variable)
    # A metric of Keras counts the rows of its replica, and its counts are added up when they are read.
    if reduction is not None and not is_called_by_keras_metric():
        for name in _ASSIGNMENTS:
            setattr(variable, name, _make_reducing_method(variable, getattr(variable, name), reduction))
    return variable


def find_reduction(variable: object) -> tf.distribute.ReduceOp | None:
    """Return the reduction of a variable's assignments over the replicas; None if each replica assigns its own values.

    Replicas assign their own values to variables that are synchronized when they are read, such as batch norm's moving averages.
    """
    # Variables of Keras 3 have strings in place of enumerations.
    if getattr(variable, "synchronization", None) in (tf.VariableSynchronization.ON_READ, "on_read"):
        return None
    aggregation = getattr(variable, "aggregation", None)
    # tf.compat.v1.VariableAggregation is a separate enumeration.
    if isinstance(aggregation, str):
        aggregation = tf.VariableAggregation[aggregation.upper()]
    return None if aggregation is None else _REDUCTIONS.get(tf.VariableAggregation(aggregation.value))


def _make_reducing_method(
    variable: tf.Variable, assign: Callable[..., Tensors], reduction: tf.distribute.ReduceOp
) -> Callable[..., Tensors]:
    """Return a method that reduces the values of the replicas, and passes the result to the variable's method `assign`.

    Raises:
        ModelFnValueError: the method is called, and would assign a mean of integers.
    """

    def assign_reduced(value: tf.Tensor, *args: object, **kwargs: object) -> Tensors:
        """Assign the reduced value; on one replica, or in code that runs once for all replicas, the value itself."""
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:  # The value is the same on all replicas.
            return assign(value, *args, **kwargs)
        if reduction is tf.distribute.ReduceOp.MEAN and variable.dtype.is_integer:
            raise ModelFnValueError(
                f"{traced_code()}: replicas assign to {variable.name!r}, whose aggregation is MEAN (got {variable.dtype.name}, "
                "expected floats, as a mean of integers is not exact). Make it float32, or use the aggregation SUM."
            )
        return assign(context.all_reduce(reduction, tf.convert_to_tensor(value, variable.dtype)), *args, **kwargs)

    return assign_reduced
