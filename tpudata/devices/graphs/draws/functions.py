"""Draws inside the functions that conditions, loops and calls run.

A function that draws gets two more arguments: a position, and the index of the replica. The position distinguishes the runs of the
function: it follows from the caller's position and the name of the calling node. The body of a loop also returns the next
iteration's position.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, MutableSequence

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.draws.nodes import (
    KERAS_READ,
    Scope,
    derive_position,
    is_replaced,
    list_data_inputs,
    reads_random_state,
    rewrite_node,
)
from tpudata.devices.graphs.keras_state import has_seed_name
from tpudata.devices.graphs.library import (
    FunctionDef,
    find_functions,
    find_producer,
    list_called_functions,
    rename_functions,
)
from tpudata.devices.graphs.traced_code import traced_code

_POSITION, _REPLICA = "tpudata_position", "tpudata_replica"
_ARGUMENT_TYPES = {_POSITION: tf.int64.as_datatype_enum, _REPLICA: tf.int32.as_datatype_enum}
_IN_FUNCTION = Scope(_POSITION, _REPLICA, is_in_function=True)
_LOOPS = ("While", "StatelessWhile")
# For each type of node that calls functions, its attribute with the types of their arguments.
_TYPES_ATTRIBUTES = {
    **dict.fromkeys(
        ("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase"), "Tin"
    ),
    **dict.fromkeys(_LOOPS, "T"),
}


class DrawRewriter:
    """Rewriter of the random operations of a graph and of all functions that it calls.

    Args:
        graph_def: the `GraphDef`, which is not changed.
        keras_seeds: names of graph inputs that are handles of Keras 3 seed generators' states; variables that the graph makes are
            recognized by name.
    """

    def __init__(self, graph_def: tf.compat.v1.GraphDef, keras_seeds: Collection[str] = ()) -> None:
        self._graph_def = type(graph_def).FromString(graph_def.SerializeToString())
        self._functions = {function.signature.name: function for function in self._graph_def.library.function}
        # Calls by the graph and its functions: the function, and its arguments that are states of Keras 3 seed generators.
        self._calls: set[tuple[str, frozenset[str]]] = set()
        self._collect_calls_and_mark_reads(
            self._graph_def.node,
            lambda name: has_seed_name(find_producer(name)) or find_producer(name) in keras_seeds,
        )
        self._called_names = sorted({name for name, _ in self._calls})
        self._drawing_functions = self._find_drawing_functions()
        self._replacements: dict[str, FunctionDef] = {}

    def rewrite(self, step: str, replica: str) -> tf.compat.v1.GraphDef:
        """Return the graph whose random operations draw numbers that follow from their seeds, the step and the replica.

        It may be called only once, since it changes the graph of this object.

        Args:
            step: name of an int64 scalar, the number of steps done; it may be missing from the graph.
            replica: name of an int32 scalar, the replica's index; it may be missing from the graph.

        Raises:
            ModelFnValueError: a random operation has no stateless replacement.
        """
        loop_bodies = {node.attr["body"].func.name for node in self._list_nodes() if node.op in _LOOPS}
        self._rewrite_nodes(self._graph_def.node, Scope(step, replica, is_in_function=False))
        for name in self._called_names:
            function = self._functions[name]
            # Listed before the rewriting, which turns these nodes into calls.
            state_reads = [node.name for node in function.node_def if reads_random_state(node)]
            self._rewrite_nodes(function.node_def, _IN_FUNCTION)
            if name in self._drawing_functions:
                _rename_read_outputs(function, state_reads)
                _add_arguments(function)
            if name in self._drawing_functions & loop_bodies:
                self._return_arguments(function)
        library = self._graph_def.library.function
        # Functions that nothing calls still have operations that XLA would reject.
        for name in self._drawing_functions.difference(self._called_names):
            library.remove(self._functions[name])
        library.extend(self._replacements.values())
        rename_functions(self._graph_def, {name: f"{name}_by_replica" for name in self._drawing_functions})
        return self._graph_def

    def _list_nodes(self) -> Iterator[tf.compat.v1.NodeDef]:
        """Yield the nodes of the graph and of all functions that it calls."""
        yield from self._graph_def.node
        for name in self._called_names:
            yield from self._functions[name].node_def

    def _list_functions(self, node: tf.compat.v1.NodeDef) -> list[str]:
        """Return the names of the library's functions that a node may call."""
        return [name for name in list_called_functions(node) if name in self._functions]

    def _collect_calls_and_mark_reads(
        self, nodes: Iterable[tf.compat.v1.NodeDef], is_seed: Callable[[str], bool]
    ) -> None:
        """Collect the functions that nodes call, also through functions, and mark all reads of Keras 3 seed generators' states.

        Args:
            nodes: nodes of the graph or of a function.
            is_seed: function that returns whether an input's name is the handle of a seed generator's state.
        """
        for node in nodes:
            inputs = list_data_inputs(node)
            if node.op == "ReadVariableOp" and is_seed(inputs[0]):
                node.attr[KERAS_READ].b = True
            if node.op not in _TYPES_ATTRIBUTES:
                continue
            for function_name in self._list_functions(node):
                function = self._functions[function_name]
                arguments = [argument.name for argument in function.signature.input_arg]
                # Conditions take their predicate before the arguments.
                passed_inputs = inputs[len(inputs) - len(arguments) :]
                seed_arguments = frozenset(
                    argument for argument, name in zip(arguments, passed_inputs, strict=True) if is_seed(name)
                )
                if (function_name, seed_arguments) not in self._calls:
                    self._calls.add((function_name, seed_arguments))
                    self._collect_calls_and_mark_reads(function.node_def, seed_arguments.__contains__)

    def _find_drawing_functions(self) -> set[str]:
        """Return the names of functions that draw, directly or through a call, and of the functions that a node may call in their
        place: the other branches of a condition, and the condition or the body of a loop.
        """
        drawing_names: set[str] = set()
        while True:
            new_names = find_functions(self._graph_def, functools.partial(self._is_drawing, drawing_names))
            for alternatives in map(self._list_functions, self._list_nodes()):
                if not new_names.isdisjoint(alternatives):
                    new_names.update(alternatives)
            if new_names == drawing_names:
                return drawing_names
            drawing_names = new_names

    def _is_drawing(self, drawing_names: set[str], node: tf.compat.v1.NodeDef) -> bool:
        return is_replaced(node) or any(name in drawing_names for name in self._list_functions(node))

    def _rewrite_nodes(self, nodes: MutableSequence[tf.compat.v1.NodeDef], scope: Scope) -> None:
        """Replace the nodes of a graph or of a function, in place, with the results of `_rewrite_node`."""
        # New nodes take the place of the old node: nodes are imported in this order, which is also the order of their effects.
        rewritten = [new_node for node in nodes for new_node in self._rewrite_node(node, scope)]
        del nodes[:]
        nodes.extend(rewritten)

    def _rewrite_node(self, node: tf.compat.v1.NodeDef, scope: Scope) -> list[tf.compat.v1.NodeDef]:
        """Return the nodes that replace a random operation or a call of a drawing function; other nodes are returned unchanged.

        Raises:
            ModelFnValueError: a random operation has no replacement, or is in a function that takes no further arguments.
        """
        if self._drawing_functions.isdisjoint(self._list_functions(node)):
            new_nodes, definition = rewrite_node(node, scope)
            if definition is not None:
                self._replacements[definition.signature.name] = definition
            return new_nodes
        if node.op not in _TYPES_ATTRIBUTES:
            raise ModelFnValueError(
                f"{traced_code()}: {node.name!r} cannot draw on a TPU or on several devices (got a random operation in the "
                f"function of {node.op}, expected it in a condition, a loop or a tf.function). Draw outside, and pass the values."
            )
        # The call passes a new position and the replica after its data; the types and shapes of arguments grow by these two.
        position_nodes = self._derive_position(node, scope)
        inputs = list_data_inputs(node)
        control_inputs = node.input[len(inputs) :]
        node.input[:] = [*inputs, scope.name_output(position_nodes[-1].name), scope.replica, *control_inputs]
        node.attr[_TYPES_ATTRIBUTES[node.op]].list.type.extend(_ARGUMENT_TYPES.values())
        if node.op in _LOOPS and node.attr["output_shapes"].list.shape:
            node.attr["output_shapes"].list.shape.extend(tf.TensorShape([]).as_proto() for _ in _ARGUMENT_TYPES)
        return [*position_nodes, node]

    def _return_arguments(self, function: FunctionDef) -> None:
        """Add the next iteration's position and the replica to the results of a loop's body, which returns all its arguments."""
        # No node calls the next iteration: this node, which is not part of the graph, only lends the position its name.
        nodes = self._derive_position(tf.compat.v1.NodeDef(name="tpudata_next"), _IN_FUNCTION)
        function.node_def.extend(nodes)
        for name, output in ((_POSITION, _IN_FUNCTION.name_output(nodes[-1].name)), (_REPLICA, _REPLICA)):
            function.signature.output_arg.add(name=f"{name}_out", type=_ARGUMENT_TYPES[name])
            function.ret[f"{name}_out"] = output

    def _derive_position(self, node: tf.compat.v1.NodeDef, scope: Scope) -> list[tf.compat.v1.NodeDef]:
        """Return the nodes that compute the position for the functions that a node calls; the last is the position."""
        nodes, definition = derive_position(node, scope)
        self._replacements[definition.signature.name] = definition
        return nodes


def _add_arguments(function: FunctionDef) -> None:
    """Add the position and the replica to the arguments of a function."""
    for name, dtype in _ARGUMENT_TYPES.items():
        function.signature.input_arg.add(name=name, type=dtype)
    # TensorFlow may note a shape for each argument; both new arguments are scalars.
    if "_input_shapes" in function.attr:
        function.attr["_input_shapes"].list.shape.extend(tf.TensorShape([]).as_proto() for _ in _ARGUMENT_TYPES)


def _rename_read_outputs(function: FunctionDef, state_reads: Iterable[str]) -> None:
    """Rename inputs and results that refer to reads of states: the reads are calls now, whose output is "output", not "value".

    Args:
        function: the function, which is changed.
        state_reads: names of the nodes that read a state, and now call a function.
    """
    new_names = {f"{node_name}:value:0": _IN_FUNCTION.name_output(node_name) for node_name in state_reads}
    for node in function.node_def:
        node.input[:] = [new_names.get(name, name) for name in node.input]
    for result, name in function.ret.items():
        function.ret[result] = new_names.get(name, name)
