"""Sums over the replicas of a program: operations of a scratch graph, and their form for the compiler."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnValueError

_SUM = "CrossReplicaSum"
# The operation that the compiler lowers for most dtypes, and the one for the others, which sums over all replicas only.
_LOWERED = "XlaAllReduce"
_LOWERED_WIDE = "CollectiveReduceV2"
_SUMMED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.uint32)
# A sum of 32 bits, cut to these, is their sum: integers wrap around.
_NARROW = (tf.int8, tf.int16, tf.uint8, tf.uint16)
# Groups that TensorFlow assumes if a program names none and does not say how many replicas there are.
_DEFAULT_GROUPS = [[0]]


def sum_replicas(value: Any, num_replicas: int) -> Any:
    """Return the sum of a tensor over all replicas, with the tensor's dtype; its gradient is the sum of the replicas' gradients.

    Args:
        value: tensor or `tf.IndexedSlices` of one replica, which becomes dense.
        num_replicas: number of replicas.

    Raises:
        ModelFnValueError: values of this dtype have no sum.
    """
    tensor = tf.convert_to_tensor(value)
    dtype = tensor.dtype.base_dtype
    if dtype in _SUMMED:
        return tf.compat.v1.tpu.cross_replica_sum(tensor, [list(range(num_replicas))])
    if dtype in _NARROW:
        return tf.cast(sum_replicas(tf.cast(tensor, tf.int32), num_replicas), dtype)
    if dtype == tf.int64:
        return tf.raw_ops.CollectiveReduceV2(
            input=tensor,
            group_size=num_replicas,
            group_key=1,
            instance_key=1,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )
    if dtype == tf.uint64:
        return tf.bitcast(sum_replicas(tf.bitcast(tensor, tf.int64), num_replicas), dtype)
    if dtype.is_complex:
        parts = (sum_replicas(part, num_replicas) for part in (tf.math.real(tensor), tf.math.imag(tensor)))
        return tf.complex(*parts)
    raise ModelFnValueError(
        f"model_fn: a sum over replicas needs numbers (got {tensor.name!r} of {dtype.name}, expected floats, integers or complex "
        "numbers). Cast it first."
    )


def gather_replicas(value: Any, axis: int, replica: Any, num_replicas: int) -> Any:
    """Return the tensors of all replicas, concatenated along an axis in the order of the replicas.

    Args:
        value: tensor of one replica, with the same shape on all.
        axis: number of the axis, counted from the end if it is negative.
        replica: number of this replica, int32 scalar.
        num_replicas: number of replicas.
    """
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype == tf.bool:
        return tf.cast(gather_replicas(tf.cast(tensor, tf.int32), axis, replica, num_replicas), tf.bool)
    # Each replica fills its place, and the sum puts the places together.
    is_own = tf.reshape(tf.equal(tf.range(num_replicas), replica), [num_replicas, *[1] * tensor.shape.rank])
    places = tf.where(is_own, tensor[tf.newaxis], tf.zeros([], tensor.dtype))
    return tf.concat(tf.unstack(sum_replicas(places, num_replicas), num_replicas), axis)


def is_sum_over_all(operation: Any) -> bool:
    """Return whether the results of an operation of a scratch graph are one sum over all replicas, the same on each."""
    if operation.type in (_LOWERED, _SUM):
        groups = tf.get_static_value(operation.inputs[1])
        return groups is not None and len(groups) == 1
    return bool(operation.type.startswith("Collective") and operation.type != "CollectivePermute")


def lower_collectives(graph_def: Any, num_replicas: int) -> Any:
    """Return a graph in which sums over the replicas are operations that the compiler lowers.

    With one replica, a sum is the value itself.

    Args:
        graph_def: the `GraphDef`, with its library of functions.
        num_replicas: number of replicas.

    Raises:
        ModelFnValueError: groups are not constant or not of the replicas, or there are several for a sum of float64.
    """
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    if not any(node.op == _SUM for body in bodies for node in body):
        return graph_def
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    _lower_nodes(result.node, num_replicas)
    for function in result.library.function:
        _lower_nodes(function.node_def, num_replicas)
    return result


def _lower_nodes(nodes: Any, num_replicas: int) -> None:
    by_name = {node.name: node for node in nodes}
    lowered = [item for node in nodes for item in (_lower(node, by_name, num_replicas) if node.op == _SUM else [node])]
    copies = [type(node).FromString(node.SerializeToString()) for node in lowered]
    del nodes[:]
    nodes.extend(copies)


def _lower(node: Any, by_name: Mapping[str, Any], num_replicas: int) -> Iterator[Any]:
    """Yield the nodes that replace a sum; the last one has its name, and the same name for its result."""
    value, groups_input, *waits = node.input
    result = type(node)(name=node.name, device=node.device)
    result.attr["T"].CopyFrom(node.attr["T"])
    if num_replicas == 1:
        result.op = "Identity"
        result.input.extend([value, *waits])
        yield result
        return
    constant = by_name.get(groups_input.partition(":")[0])
    groups = _groups(node.name, constant, num_replicas)
    if tf.as_dtype(node.attr["T"].type) != tf.float64:
        yield _constant_like(constant, f"{node.name}/groups", groups)
        result.op = _LOWERED
        result.attr["reduce_op"].s = b"Add"
        result.attr["mode"].s = b"CrossReplica"
        result.input.extend([value, _output(groups_input, f"{node.name}/groups"), *waits])
        yield result
        return
    if len(groups) > 1:
        raise ModelFnValueError(
            f"model_fn: a sum of float64 is over all replicas (got {node.name!r} over {groups}, expected [0, ..., "
            f"{num_replicas - 1}]). Cast it to float32."
        )
    wide = type(node)(name=f"{node.name}/sum", op=_LOWERED_WIDE, device=node.device)
    wide.attr["T"].CopyFrom(node.attr["T"])
    wide.attr["merge_op"].s = b"Add"
    wide.attr["final_op"].s = b"Id"
    wide.input.append(value)
    for name, number in (("group_size", num_replicas), ("group_key", 1), ("instance_key", 1)):
        yield _constant_like(constant, f"{wide.name}/{name}", number)
        wide.input.append(_output(groups_input, f"{wide.name}/{name}"))
    wide.input.extend(waits)
    yield wide
    # Its result has another name, which functions refer to.
    result.op = "Identity"
    result.input.append(f"{wide.name}:data:0" if groups_input.count(":") == 2 else wide.name)
    yield result


def _groups(name: str, constant: Any, num_replicas: int) -> list[list[int]]:
    """Return the groups of replicas of a sum, from the node that is its input."""
    if constant is None or constant.op != "Const":
        raise ModelFnValueError(
            f"model_fn: the groups of a sum over replicas must be constant (got a computed group_assignment of {name!r}, expected "
            "lists of numbers). Pass lists."
        )
    groups: list[list[int]] = tf.make_ndarray(constant.attr["value"].tensor).tolist()
    if groups == _DEFAULT_GROUPS:
        return [list(range(num_replicas))]
    if sorted(number for group in groups for number in group) != list(range(num_replicas)):
        raise ModelFnValueError(
            f"model_fn: the groups of {name!r} must have each replica once (got {groups}, expected the numbers 0 to "
            f"{num_replicas - 1}). Change group_assignment, or omit it for a sum over all."
        )
    return groups


def _constant_like(constant: Any, name: str, value: int | Sequence[Sequence[int]]) -> Any:
    """Return a node for a constant in the place of another, which may be inside a loop."""
    made = type(constant)()
    made.CopyFrom(constant)
    made.name = name
    made.attr["dtype"].type = tf.int32.as_datatype_enum
    made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
    made.attr.pop("_output_shapes", None)
    return made


def _output(like: str, name: str) -> str:
    """Return the name of a constant's result, as the graph or the function names it."""
    return name + "".join(like.partition(":")[1:])
