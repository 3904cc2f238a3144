"""Sums over the replicas of a program: operations of a scratch graph, and their form for the compiler."""

from collections.abc import Iterator, MutableSequence, Sequence

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.library import find_functions, find_producer, rename_functions
from tpudata.devices.graphs.traced_code import traced_code

_SUM = "CrossReplicaSum"
# XLA's form of a sum for most dtypes.
_ALL_REDUCE = "XlaAllReduce"
# The form for the dtypes that XlaAllReduce lacks; it always sums over all replicas.
_COLLECTIVE_REDUCE = "CollectiveReduceV2"
_SUMMED_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.uint32)
# Integers wrap around, so the low bits of a 32-bit sum are the sum in these dtypes.
_NARROW_DTYPES = (tf.int8, tf.int16, tf.uint8, tf.uint16)
# Groups that TensorFlow writes if a program passes neither groups nor the number of replicas; they stand for all replicas.
_DEFAULT_GROUPS = [[0]]


def sum_replicas(value: tf.Tensor | tf.IndexedSlices, num_replicas: int) -> tf.Tensor:
    """Return the sum of a tensor over all replicas, with the tensor's dtype; its gradient is the sum of the replicas' gradients.

    Args:
        value: tensor of one replica, or `tf.IndexedSlices`, which become dense.
        num_replicas: number of replicas.

    Raises:
        ModelFnValueError: the dtype is not numeric.
    """
    tensor = tf.convert_to_tensor(value)
    dtype = tensor.dtype.base_dtype
    if dtype in _SUMMED_DTYPES:
        return tf.compat.v1.tpu.cross_replica_sum(tensor, [list(range(num_replicas))])
    if dtype in _NARROW_DTYPES:
        return tf.cast(sum_replicas(tf.cast(tensor, tf.int32), num_replicas), dtype)
    if dtype == tf.int64:
        # cross_replica_sum lacks int64. XLA compiles this collective to a sum over all replicas.
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
        real, imaginary = tf.math.real(tensor), tf.math.imag(tensor)
        return tf.complex(sum_replicas(real, num_replicas), sum_replicas(imaginary, num_replicas))
    raise ModelFnValueError(
        f"{traced_code()}: a sum over replicas needs numbers (got {tensor.name!r} of {dtype.name}, expected floats, integers or "
        "complex numbers). Cast it first."
    )


def gather_replicas(value: tf.Tensor, axis: int, replica: tf.Tensor, num_replicas: int) -> tf.Tensor:
    """Return the tensors of all replicas, concatenated along an axis in the order of the replicas.

    Args:
        value: tensor of one replica, with the same shape on all replicas.
        axis: index of the axis, counted from the end if it is negative.
        replica: index of this replica, int32 scalar.
        num_replicas: number of replicas.

    Raises:
        ModelFnValueError: the dtype is neither numeric nor bool.
    """
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype == tf.bool:
        return tf.cast(gather_replicas(tf.cast(tensor, tf.int32), axis, replica, num_replicas), tf.bool)
    # Each replica fills its slot and leaves zeros in the others, so the sum has all slots.
    is_this_replica = tf.equal(tf.range(num_replicas), replica)
    is_filled = tf.reshape(is_this_replica, [num_replicas, *[1] * tensor.shape.rank])
    slots = tf.where(is_filled, tensor[tf.newaxis], tf.zeros([], tensor.dtype))
    return tf.concat(tf.unstack(sum_replicas(slots, num_replicas), num_replicas), axis)


def is_sum_over_all(operation: tf.Operation) -> bool:
    """Return whether an operation of a scratch graph sums over all replicas, so that each replica gets the same result."""
    if operation.type in (_ALL_REDUCE, _SUM):
        groups = tf.get_static_value(operation.inputs[1])
        return groups is not None and len(groups) == 1
    # XLA compiles two other collectives: CollectiveReduceV2 sums over all replicas, and CollectivePermute moves values.
    return bool(operation.type.startswith("Collective") and operation.type != "CollectivePermute")


def lower_collectives(graph_def: tf.compat.v1.GraphDef, num_replicas: int) -> tf.compat.v1.GraphDef:
    """Return a graph whose sums over replicas are operations that XLA compiles.

    With one replica, a sum is the value itself.

    Args:
        graph_def: the `GraphDef`, with its library of functions.
        num_replicas: number of replicas.

    Raises:
        ModelFnValueError: groups are not constant or do not list each replica once, or a float64 sum has several groups.
    """
    summing_functions = find_functions(graph_def, _is_sum)
    if not summing_functions and not any(map(_is_sum, graph_def.node)):
        return graph_def
    lowered_graph = type(graph_def)()
    lowered_graph.CopyFrom(graph_def)
    lowering = _Lowering(graph_def, num_replicas)
    for index, (nodes, lowered_nodes) in enumerate(
        zip(_list_bodies(graph_def), _list_bodies(lowered_graph), strict=True)
    ):
        if any(map(_is_sum, nodes)):
            del lowered_nodes[:]
            lowered_nodes.extend(lowering.lower_all(nodes, is_in_function=index > 0))  # The first body is the graph's.
    # TensorFlow's runtime keeps the first function registered under a name, so the lowered functions need new names.
    rename_functions(lowered_graph, {name: f"{name}_of_{num_replicas}_replicas" for name in summing_functions})
    return lowered_graph


def _is_sum(node: tf.compat.v1.NodeDef) -> bool:
    return bool(node.op == _SUM)


def _list_bodies(graph_def: tf.compat.v1.GraphDef) -> list[MutableSequence[tf.compat.v1.NodeDef]]:
    """Return the list of nodes of the graph, and then of each function."""
    return [graph_def.node, *(function.node_def for function in graph_def.library.function)]


class _Lowering:
    """Replacement of the sums over replicas in a graph and its functions.

    Args:
        graph_def: the `GraphDef`.
        num_replicas: number of replicas.
    """

    def __init__(self, graph_def: tf.compat.v1.GraphDef, num_replicas: int) -> None:
        self._graph_def = graph_def
        self._num_replicas = num_replicas
        self._all_groups = [list(range(num_replicas))]

    def lower_all(
        self, nodes: Sequence[tf.compat.v1.NodeDef], *, is_in_function: bool
    ) -> Iterator[tf.compat.v1.NodeDef]:
        """Yield the nodes of a graph or of a function's body, with each sum replaced.

        Args:
            nodes: the nodes.
            is_in_function: whether the nodes are in a function, where an input also names the output of its producer.
        """
        nodes_by_name = {node.name: node for node in nodes}
        for node in nodes:
            if not _is_sum(node):
                yield node
            elif self._num_replicas == 1:
                # The same inputs without the groups, which are the second.
                yield _make_node(node, "Identity", node.name, [node.input[0], *node.input[2:]])
            else:
                groups_node = nodes_by_name.get(find_producer(node.input[1]))
                groups = self._find_groups(node, groups_node)
                # New constants take the groups' control inputs, so that they run in the same loop.
                controls = [] if groups_node is None else [name for name in groups_node.input if name.startswith("^")]
                is_float64 = tf.as_dtype(node.attr["T"].type) == tf.float64
                lower_sum = self._lower_float64_sum if is_float64 else self._lower_sum
                yield from lower_sum(node, groups, controls, is_in_function)

    def _lower_sum(
        self, node: tf.compat.v1.NodeDef, groups: list[list[int]], controls: Sequence[str], is_in_function: bool
    ) -> Iterator[tf.compat.v1.NodeDef]:
        """Yield the nodes that replace a sum; the last has the name of the sum, and its output the name of the sum's output.

        Args:
            node: the sum.
            groups: its replica groups.
            controls: control inputs of new constants.
            is_in_function: whether the node is in a function, see `lower_all`.
        """
        groups_node = _make_constant(node, f"{node.name}/groups", groups, controls)
        yield groups_node
        tensor, _, *control_inputs = node.input  # The second input has the groups.
        inputs = [tensor, _name_output(groups_node, is_in_function), *control_inputs]
        all_reduce = _make_node(node, _ALL_REDUCE, node.name, inputs)
        all_reduce.attr["reduce_op"].s = b"Add"
        all_reduce.attr["mode"].s = b"CrossReplica"
        yield all_reduce

    def _lower_float64_sum(
        self, node: tf.compat.v1.NodeDef, groups: list[list[int]], controls: Sequence[str], is_in_function: bool
    ) -> Iterator[tf.compat.v1.NodeDef]:
        """Yield the nodes that replace a sum of float64, which XlaAllReduce lacks: a collective over all replicas.

        Args:
            node: the sum.
            groups: its replica groups.
            controls: control inputs of new constants.
            is_in_function: whether the node is in a function, see `lower_all`.

        Raises:
            ModelFnValueError: there are several groups.
        """
        if len(groups) > 1:
            raise ModelFnValueError(
                f"{traced_code()}: a sum of float64 is over all replicas (got {node.name!r} over {groups}, expected "
                f"{self._all_groups}). Cast it to float32."
            )
        scalars = {"group_size": self._num_replicas, "group_key": 1, "instance_key": 1}
        scalar_nodes = [
            _make_constant(node, f"{node.name}/{name}", scalar, controls) for name, scalar in scalars.items()
        ]
        yield from scalar_nodes
        tensor, _, *control_inputs = node.input  # The second input has the groups.
        inputs = [tensor, *(_name_output(scalar_node, is_in_function) for scalar_node in scalar_nodes), *control_inputs]
        all_reduce = _make_node(node, _COLLECTIVE_REDUCE, f"{node.name}/sum", inputs)
        all_reduce.attr["merge_op"].s = b"Add"
        all_reduce.attr["final_op"].s = b"Id"
        yield all_reduce
        # Its output is called "data", while functions refer to the "output" of the sum.
        yield _make_node(node, "Identity", node.name, [all_reduce.name + (":data:0" if is_in_function else "")])

    def _find_groups(self, node: tf.compat.v1.NodeDef, groups_node: tf.compat.v1.NodeDef | None) -> list[list[int]]:
        """Return the replica groups of a sum.

        Args:
            node: the sum.
            groups_node: node that holds the groups; None if they are an argument of a function.

        Raises:
            ModelFnValueError: the groups are not constant, or do not list each replica once.
        """
        # The gradient of a function gets its groups as an argument from the function; if all groups that the graph holds cover
        # all replicas, the argument's groups also do.
        if groups_node is None and all(
            self._covers_all_replicas(constant) for constant in self._list_constant_groups()
        ):
            return self._all_groups
        if groups_node is None or groups_node.op != "Const":
            raise ModelFnValueError(
                f"{traced_code()}: the groups of a sum over replicas must be constant (got a computed group_assignment of "
                f"{node.name!r}, expected lists of numbers). Pass lists."
            )
        if self._covers_all_replicas(groups_node):
            return self._all_groups
        groups = _read_groups(groups_node)
        if sorted(number for group in groups for number in group) != self._all_groups[0]:
            raise ModelFnValueError(
                f"{traced_code()}: the groups of {node.name!r} must have each replica once (got {groups}, expected the numbers "
                f"0 to {self._num_replicas - 1}). Change group_assignment, or omit it for a sum over all."
            )
        return groups

    def _list_constant_groups(self) -> Iterator[tf.compat.v1.NodeDef]:
        """Yield the constant nodes that hold the groups of sums."""
        for nodes in _list_bodies(self._graph_def):
            names = {find_producer(node.input[1]) for node in nodes if _is_sum(node)}
            yield from (node for node in nodes if node.name in names and node.op == "Const")

    def _covers_all_replicas(self, constant: tf.compat.v1.NodeDef) -> bool:
        return _read_groups(constant) in (self._all_groups, _DEFAULT_GROUPS)


def _read_groups(constant: tf.compat.v1.NodeDef) -> list[list[int]]:
    """Return the lists of numbers that a node with replica groups holds."""
    groups: list[list[int]] = tf.make_ndarray(constant.attr["value"].tensor).tolist()
    return groups


def _name_output(constant: tf.compat.v1.NodeDef, is_in_function: bool) -> str:
    """Return the name by which an input refers to a constant; inside functions, it includes the name of the output."""
    return f"{constant.name}:output:0" if is_in_function else constant.name


def _make_node(
    node: tf.compat.v1.NodeDef, operation_type: str, name: str, inputs: Sequence[str]
) -> tf.compat.v1.NodeDef:
    """Return a new node with the dtype and the device of `node`.

    Args:
        node: the node that is replaced.
        operation_type: type of the new node's operation, such as "Identity".
        name: name of the new node.
        inputs: its inputs, control inputs included.
    """
    new_node = type(node)(name=name, op=operation_type, device=node.device, input=inputs)
    new_node.attr["T"].CopyFrom(node.attr["T"])
    return new_node


def _make_constant(
    node: tf.compat.v1.NodeDef, name: str, value: int | Sequence[Sequence[int]], controls: Sequence[str]
) -> tf.compat.v1.NodeDef:
    """Return a node with an int32 constant, on the device of `node`.

    Args:
        node: the node that is replaced.
        name: name of the new node.
        value: the constant: a number, or lists of numbers of equal length.
        controls: control inputs of the new node.
    """
    new_node = type(node)(name=name, op="Const", device=node.device, input=controls)
    new_node.attr["dtype"].type = tf.int32.as_datatype_enum
    new_node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
    return new_node
