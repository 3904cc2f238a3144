"""Functions in the library of a `GraphDef`: bodies of conditions and loops, and functions that nodes call."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from tpudata.devices.graphs.graph_walk import walk_graph
from tpudata.tensorflow_internals import FuncGraph, eager_context

# The proto, which TensorFlow's public API does not name.
FunctionDef: TypeAlias = Any


def find_functions(graph_def: tf.compat.v1.GraphDef, is_match: Callable[[tf.compat.v1.NodeDef], bool]) -> set[str]:
    """Return the names of library functions that contain a matching node, directly or through functions that they call.

    Args:
        graph_def: the `GraphDef`.
        is_match: predicate of a node.
    """
    calls: dict[str, set[str]] = {}
    matching: set[str] = set()
    for function in graph_def.library.function:
        name = function.signature.name
        calls[name] = {called_name for node in function.node_def for called_name in list_called_functions(node)}
        if any(map(is_match, function.node_def)):
            matching.add(name)
    # Add the callers of matching functions, and then their callers, until nothing changes.
    last_count = -1
    while len(matching) > last_count:
        last_count = len(matching)
        matching.update(name for name, called_names in calls.items() if called_names & matching)
    return matching


def find_producer(input_name: str) -> str:
    """Return the name of the node that an input names: the producer of a tensor, or a control input."""
    return input_name.removeprefix("^").partition(":")[0]


def list_called_functions(node: tf.compat.v1.NodeDef) -> Iterator[str]:
    """Yield the names of the functions that a node may call; a node's operation can itself be a function."""
    yield node.op
    yield from (reference.name for reference in _list_references(node))


def rename_functions(graph_def: tf.compat.v1.GraphDef, new_names: Mapping[str, str]) -> None:
    """Rename functions of a library, and all references to them.

    The runtime keeps the first function registered under a name, so a changed function needs a new name.

    Args:
        graph_def: the `GraphDef`, which is changed.
        new_names: new names by the old names.
    """
    for function in graph_def.library.function:
        function.signature.name = new_names.get(function.signature.name, function.signature.name)
    for gradient in graph_def.library.gradient:
        gradient.function_name = new_names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = new_names.get(gradient.gradient_func, gradient.gradient_func)
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            node.op = new_names.get(node.op, node.op)
            for reference in _list_references(node):
                reference.name = new_names.get(reference.name, reference.name)


def prune_functions(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Return a graph whose functions lack the nodes that TensorFlow skips; XLA would run skipped nodes with side effects.

    A function keeps the nodes on which its results and control outputs depend.

    Args:
        graph_def: the `GraphDef`, which is not changed.
    """
    needed_nodes = {function.signature.name: _find_needed_nodes(function) for function in graph_def.library.function}
    pruned_names = {
        function.signature.name
        for function in graph_def.library.function
        if len(function.node_def) > len(needed_nodes[function.signature.name])
    }
    if not pruned_names:
        return graph_def
    pruned_graph = type(graph_def)()
    pruned_graph.CopyFrom(graph_def)
    for function in pruned_graph.library.function:
        names = needed_nodes[function.signature.name]
        nodes = [node for node in function.node_def if node.name in names]
        del function.node_def[:]
        function.node_def.extend(nodes)
    # Callers change as well: they refer to new names.
    changed_names = pruned_names | find_functions(
        pruned_graph, lambda node: any(name in pruned_names for name in list_called_functions(node))
    )
    rename_functions(pruned_graph, {name: f"{name}_pruned" for name in changed_names})
    return pruned_graph


def _find_needed_nodes(function: FunctionDef) -> set[str]:
    """Return the names of the nodes that a function's results and control outputs depend on."""
    nodes = {node.name: node for node in function.node_def}

    def list_inputs(name: str) -> Iterator[str]:
        producers = map(find_producer, nodes[name].input)
        return (producer for producer in producers if producer in nodes)  # Others are the function's arguments.

    outputs = map(find_producer, (*function.ret.values(), *function.control_ret.values()))
    return {*walk_graph((name for name in outputs if name in nodes), list_inputs)}


def define_functions(functions: Iterable[FunctionDef], graph: tf.Graph) -> None:
    """Register the functions of an imported `GraphDef` with TensorFlow's runtime, which import does not do.

    Args:
        functions: all `FunctionDef`s of the library. Other graphs may register equal ones: the runtime counts registrations, and
            keeps a function until each has been removed.
        graph: graph that calls the functions. They are removed once this graph, or the outermost traced function around it, is
            garbage collected.
    """
    while isinstance(getattr(graph, "outer_graph", None), FuncGraph):
        graph = graph.outer_graph
    runtime = eager_context.context()
    for function in functions:
        runtime.add_function_def(function)
        # The finalizer does not run at exit, when the runtime may already be closed.
        weakref.finalize(graph, _forget_function, runtime, function.signature.name).atexit = False


def _forget_function(runtime: Any, name: str) -> None:
    if runtime is eager_context.context():  # Tests may replace the runtime.
        runtime.remove_function(name)


def _list_references(node: tf.compat.v1.NodeDef) -> Iterator[tf.compat.v1.NameAttrList]:
    """Yield the references to functions in a node's attributes."""
    for attribute in node.attr.values():
        if attribute.HasField("func"):
            yield attribute.func
        yield from attribute.list.func
