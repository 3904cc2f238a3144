"""Draws inside functions: of conditions, loops and calls, which get a position and the number of the replica as further inputs.

The position distinguishes the runs of a function: it follows from the caller's position and the calling node's name. A loop carries
it from one iteration to the next.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.draws.nodes import (
    KERAS_READ,
    Scope,
    data_inputs,
    derive_position,
    is_moved,
    needs_inputs,
    rewrite_node,
)
from tpudata.devices.graphs.keras_state import has_seed_name
from tpudata.devices.graphs.library import called_functions, functions_with, rename_functions
from tpudata.devices.graphs.traced_code import traced_code

_POSITION, _REPLICA = "tpudata_position", "tpudata_replica"
_TYPES = {_POSITION: tf.int64.as_datatype_enum, _REPLICA: tf.int32.as_datatype_enum}
_IN_FUNCTION = Scope(_POSITION, _REPLICA, is_function=True)
_LOOPS = ("While", "StatelessWhile")
# Types of nodes that call functions, and the attribute with the types of the functions' arguments.
_CALLS = {
    **dict.fromkeys(
        ("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase"), "Tin"
    ),
    **dict.fromkeys(_LOOPS, "T"),
}


class DrawRewriter:
    """Rewriter of the random operations of a graph and of all functions that it calls.

    Args:
        graph_def: the `GraphDef`, which is not changed.
        keras_seeds: names of further inputs of the graph that are handles of random states of Keras 3, next to those of variables
            that it makes.
    """

    def __init__(self, graph_def: Any, keras_seeds: Collection[str] = ()) -> None:
        self._graph_def = type(graph_def).FromString(graph_def.SerializeToString())
        self._functions = {item.signature.name: item for item in self._graph_def.library.function}
        # Names of the functions that the graph calls, and those of their arguments that are random states of Keras 3.
        self._called: set[tuple[str, frozenset[str]]] = set()
        self._find_calls(
            self._graph_def.node, lambda item: has_seed_name(_node_of(item)) or _node_of(item) in keras_seeds
        )
        self._names = sorted({name for name, _ in self._called})
        self._drawing = self._find_drawing()
        self._added: dict[str, Any] = {}

    def rewrite(self, step: str, replica: str) -> Any:
        """Return the graph in which all random operations draw by their seeds, the step and the replica.

        Args:
            step: name of an int64 scalar, the number of steps done; the graph need not contain it.
            replica: name of an int32 scalar, the number of the replica; the graph need not contain it.

        Raises:
            ModelFnValueError: an operation draws and cannot be replaced.
        """
        bodies = {node.attr["body"].func.name for node in self._nodes() if node.op in _LOOPS}
        self._rewrite_nodes(self._graph_def.node, Scope(step, replica, is_function=False))
        for name in self._names:
            function = self._functions[name]
            moved = [node.name for node in function.node_def if is_moved(node)]
            self._rewrite_nodes(function.node_def, _IN_FUNCTION)
            if name in self._drawing:
                _rename_values(function, moved)
                _add_arguments(function)
            if name in self._drawing & bodies:
                self._return_arguments(function)
        library = self._graph_def.library.function
        for name in self._drawing.difference(self._names):  # Functions that are not called, as other code does not run.
            library.remove(self._functions[name])
        library.extend(self._added.values())
        rename_functions(self._graph_def, {name: f"{name}_by_replica" for name in self._drawing})
        return self._graph_def

    def _nodes(self) -> Iterator[Any]:
        """Yield the nodes of the graph and of all functions that it calls."""
        yield from self._graph_def.node
        for name in self._names:
            yield from self._functions[name].node_def

    def _functions_of(self, node: Any) -> list[str]:
        return [name for name in called_functions(node) if name in self._functions]

    def _find_calls(self, nodes: Iterable[Any], is_seed: Callable[[str], bool]) -> None:
        """Collect the functions that nodes call, and mark the nodes that read a random state of Keras 3.

        Args:
            nodes: nodes of the graph or of a function.
            is_seed: function from an input to whether it is the handle of such a state.
        """
        for node in nodes:
            data = data_inputs(node)
            if node.op == "ReadVariableOp" and is_seed(data[0]):
                node.attr[KERAS_READ].b = True
            for name in self._functions_of(node) if node.op in _CALLS else ():
                function = self._functions[name]
                arguments = [item.name for item in function.signature.input_arg]
                values = data[len(data) - len(arguments) :]  # Conditions take their predicate before the arguments.
                seeds = frozenset(item for item, value in zip(arguments, values, strict=True) if is_seed(value))
                if (name, seeds) not in self._called:
                    self._called.add((name, seeds))
                    self._find_calls(function.node_def, seeds.__contains__)

    def _find_drawing(self) -> set[str]:
        """Return the names of functions that draw, or are called by a node in place of one that does."""
        drawing: set[str] = set()
        while True:
            found = functions_with(self._graph_def, functools.partial(self._is_drawing, drawing))
            calls = [names for names in map(self._functions_of, self._nodes()) if not found.isdisjoint(names)]
            found.update(*calls)
            if found == drawing:
                return found
            drawing = found

    def _is_drawing(self, drawing: set[str], node: Any) -> bool:
        return needs_inputs(node) or not drawing.isdisjoint(self._functions_of(node))

    def _rewrite_nodes(self, nodes: Any, scope: Scope) -> None:
        # In the same position: nodes are imported in this order, which is also the order of effects.
        made = [one for node in nodes for one in self._rewrite_node(node, scope)]
        del nodes[:]
        nodes.extend(made)

    def _rewrite_node(self, node: Any, scope: Scope) -> list[Any]:
        if self._drawing.isdisjoint(self._functions_of(node)):
            made, definitions = rewrite_node(node, scope)
            self._added.update({item.signature.name: item for item in definitions})
            return made
        if node.op not in _CALLS:
            raise ModelFnValueError(
                f"{traced_code()}: {node.name!r} cannot draw on a TPU or on several devices (got a random operation in the "
                f"function of {node.op}, expected it in a condition, a loop or a tf.function). Draw outside, and pass the values."
            )
        before, data = self._derive_position(node, scope), data_inputs(node)
        node.input[:] = [*data, scope.output(before[-1].name), scope.replica, *node.input[len(data) :]]
        node.attr[_CALLS[node.op]].list.type.extend(_TYPES.values())
        if node.op in _LOOPS and node.attr["output_shapes"].list.shape:
            node.attr["output_shapes"].list.shape.extend(tf.TensorShape([]).as_proto() for _ in _TYPES)
        return [*before, node]

    def _return_arguments(self, function: Any) -> None:
        """Return the replica and the next iteration's position from the body of a loop."""
        nodes = self._derive_position(tf.compat.v1.NodeDef(name="tpudata_next"), _IN_FUNCTION)
        function.node_def.extend(nodes)
        for name, value in ((_POSITION, _IN_FUNCTION.output(nodes[-1].name)), (_REPLICA, _REPLICA)):
            function.signature.output_arg.add(name=f"{name}_out", type=_TYPES[name])
            function.ret[f"{name}_out"] = value

    def _derive_position(self, node: Any, scope: Scope) -> list[Any]:
        nodes, definition = derive_position(node, scope)
        self._added[definition.signature.name] = definition
        return nodes


def _node_of(item: str) -> str:
    """Return the name of the node with an output."""
    return item.partition(":")[0]


def _add_arguments(function: Any) -> None:
    for name, dtype in _TYPES.items():
        function.signature.input_arg.add(name=name, type=dtype)
    if "_input_shapes" in function.attr:
        function.attr["_input_shapes"].list.shape.extend(tf.TensorShape([]).as_proto() for _ in _TYPES)


def _rename_values(function: Any, moved: Iterable[str]) -> None:
    """Take the values of replaced nodes, which read variables, by the name that results of calls have."""
    names = {f"{name}:value:0": _IN_FUNCTION.output(name) for name in moved}
    for node in function.node_def:
        node.input[:] = [names.get(item, item) for item in node.input]
    for key, value in function.ret.items():
        function.ret[key] = names.get(value, value)
