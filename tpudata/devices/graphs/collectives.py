"""Sums over the replicas of a program: operations of a scratch graph, and their form for the compiler."""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.library import functions_with, rename_functions
from tpudata.devices.graphs.traced_code import traced_code

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
        f"{traced_code()}: a sum over replicas needs numbers (got {tensor.name!r} of {dtype.name}, expected floats, integers or "
        "complex numbers). Cast it first."
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
    changed = functions_with(graph_def, _is_sum)
    if not changed and not any(map(_is_sum, graph_def.node)):
        return graph_def
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    lowering = _Lowering(graph_def, num_replicas)
    for number, (nodes, made) in enumerate(zip(_bodies(graph_def), _bodies(result), strict=True)):
        if any(map(_is_sum, nodes)):
            del made[:]
            made.extend(lowering.lower_all(nodes, is_function=number > 0))
    rename_functions(result, {name: f"{name}_of_{num_replicas}_replicas" for name in changed})
    return result


def _is_sum(node: Any) -> bool:
    return bool(node.op == _SUM)


def _bodies(graph_def: Any) -> list[Any]:
    """Return the nodes of the graph, and then those of each function."""
    return [graph_def.node, *(function.node_def for function in graph_def.library.function)]


class _Lowering:
    """The replacement of sums.

    Args:
        graph_def: the `GraphDef`.
        num_replicas: number of replicas.
    """

    def __init__(self, graph_def: Any, num_replicas: int) -> None:
        self._graph_def = graph_def
        self._count = num_replicas
        self._all = [list(range(num_replicas))]

    def lower_all(self, nodes: Sequence[Any], *, is_function: bool) -> Iterator[Any]:
        """Yield the nodes of a body, with others in the place of sums."""
        by_name = {node.name: node for node in nodes}
        for node in nodes:
            if not _is_sum(node):
                yield node
            elif self._count == 1:
                yield _node_like(node, "Identity", node.name, [node.input[0], *node.input[2:]])
            else:
                yield from self._lower(node, by_name.get(_producer(node.input[1])), is_function)

    def _lower(self, node: Any, constant: Any, is_function: bool) -> Iterator[Any]:
        """Yield the nodes that replace a sum; the last one has its name, and the same name for its result."""
        value, _, *waits = node.input
        groups = self._groups(node, constant)
        # Functions name the results of operations, too.
        result = ":output:0" if is_function else ""
        # A constant stands in the same loop as the one that it replaces.
        controls = [] if constant is None else [name for name in constant.input if name.startswith("^")]
        if tf.as_dtype(node.attr["T"].type) != tf.float64:
            made = _constant(node, f"{node.name}/groups", groups, controls)
            yield made
            lowered = _node_like(node, _LOWERED, node.name, [value, made.name + result, *waits])
            lowered.attr["reduce_op"].s = b"Add"
            lowered.attr["mode"].s = b"CrossReplica"
            yield lowered
            return
        if len(groups) > 1:
            raise ModelFnValueError(
                f"{traced_code()}: a sum of float64 is over all replicas (got {node.name!r} over {groups}, expected {self._all}). "
                "Cast it to float32."
            )
        numbers = {"group_size": self._count, "group_key": 1, "instance_key": 1}
        constants = [_constant(node, f"{node.name}/{name}", number, controls) for name, number in numbers.items()]
        yield from constants
        inputs = [value, *(made.name + result for made in constants), *waits]
        wide = _node_like(node, _LOWERED_WIDE, f"{node.name}/sum", inputs)
        wide.attr["merge_op"].s = b"Add"
        wide.attr["final_op"].s = b"Id"
        yield wide
        # Its result has another name, which functions refer to.
        yield _node_like(node, "Identity", node.name, [wide.name + (":data:0" if is_function else "")])

    def _groups(self, node: Any, constant: Any) -> list[list[int]]:
        """Return the groups of replicas of a sum, from the node that is its input; None for an argument of a function."""
        if constant is None and all(self._is_over_all(other) for other in self._constants()):
            return self._all  # The gradient of a function gets its groups from that function.
        if constant is None or constant.op != "Const":
            raise ModelFnValueError(
                f"{traced_code()}: the groups of a sum over replicas must be constant (got a computed group_assignment of "
                f"{node.name!r}, expected lists of numbers). Pass lists."
            )
        if self._is_over_all(constant):
            return self._all
        groups: list[list[int]] = _value(constant)
        if sorted(number for group in groups for number in group) != self._all[0]:
            raise ModelFnValueError(
                f"{traced_code()}: the groups of {node.name!r} must have each replica once (got {groups}, expected the numbers "
                f"0 to {self._count - 1}). Change group_assignment, or omit it for a sum over all."
            )
        return groups

    def _constants(self) -> Iterator[Any]:
        """Yield the nodes of all constant groups."""
        for nodes in _bodies(self._graph_def):
            names = {_producer(node.input[1]) for node in nodes if _is_sum(node)}
            yield from (node for node in nodes if node.name in names and node.op == "Const")

    def _is_over_all(self, constant: Any) -> bool:
        return _value(constant) in (self._all, _DEFAULT_GROUPS)


def _producer(name: str) -> str:
    """Return the name of the node with a result."""
    return name.partition(":")[0]


def _value(constant: Any) -> Any:
    return tf.make_ndarray(constant.attr["value"].tensor).tolist()


def _node_like(node: Any, kind: str, name: str, inputs: Sequence[str]) -> Any:
    """Return a node with the dtype and the device of another."""
    made = type(node)(name=name, op=kind, device=node.device, input=inputs)
    made.attr["T"].CopyFrom(node.attr["T"])
    return made


def _constant(node: Any, name: str, value: int | Sequence[Sequence[int]], controls: Sequence[str]) -> Any:
    """Return a node for a constant on the device of another node."""
    made = type(node)(name=name, op="Const", device=node.device, input=controls)
    made.attr["dtype"].type = tf.int32.as_datatype_enum
    made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
    return made
