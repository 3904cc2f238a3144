"""Functions in the library of a `GraphDef`: bodies of conditions and loops, and functions that nodes call."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tpudata.devices.graphs.graph_walk import reached
from tpudata.tensorflow_internals import FuncGraph, eager_context


def functions_with(graph_def: Any, is_wanted: Callable[[Any], bool]) -> set[str]:
    """Return the names of the functions of a library that contain certain nodes, themselves or in functions that they call.

    Args:
        graph_def: the `GraphDef`.
        is_wanted: function from a node to whether it is such a node.
    """
    calls: dict[str, set[str]] = {}
    found: set[str] = set()
    for function in graph_def.library.function:
        name = function.signature.name
        calls[name] = {one for node in function.node_def for one in called_functions(node)}
        if any(map(is_wanted, function.node_def)):
            found.add(name)
    size = -1
    while len(found) > size:
        size = len(found)
        found.update(name for name, called in calls.items() if not called.isdisjoint(found))
    return found


def called_functions(node: Any) -> Iterator[str]:
    """Yield the names of the functions that a node may call: its operation can be one, too."""
    yield node.op
    yield from (reference.name for reference in _references(node))


def rename_functions(graph_def: Any, names: Mapping[str, str]) -> None:
    """Rename functions of a library, and all references to them.

    A process keeps the first function that it gets of each name, so a changed one needs a new name.

    Args:
        graph_def: the `GraphDef`, which is changed.
        names: new names by the old ones.
    """
    for function in graph_def.library.function:
        function.signature.name = names.get(function.signature.name, function.signature.name)
    for gradient in graph_def.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            node.op = names.get(node.op, node.op)
            for reference in _references(node):
                reference.name = names.get(reference.name, reference.name)


def prune_functions(graph_def: Any) -> Any:
    """Return a graph whose functions have only the nodes that TensorFlow runs; XLA would run all that have an effect.

    These are the nodes on which a function's results and its control outputs depend.

    Args:
        graph_def: the `GraphDef`, which is not changed.
    """
    needed = {function.signature.name: _needed_nodes(function) for function in graph_def.library.function}
    pruned = {
        item.signature.name
        for item in graph_def.library.function
        if len(item.node_def) > len(needed[item.signature.name])
    }
    if not pruned:
        return graph_def
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    for function in result.library.function:
        names = needed[function.signature.name]
        nodes = [node for node in function.node_def if node.name in names]
        del function.node_def[:]
        function.node_def.extend(nodes)
    changed = pruned | functions_with(result, lambda node: not pruned.isdisjoint(called_functions(node)))
    rename_functions(result, {name: f"{name}_pruned" for name in changed})
    return result


def _needed_nodes(function: Any) -> set[str]:
    nodes = {node.name: node for node in function.node_def}

    def before(name: str) -> Iterator[str]:
        found = (item.lstrip("^").partition(":")[0] for item in nodes[name].input)
        return (item for item in found if item in nodes)

    ends = [item.partition(":")[0] for item in (*function.ret.values(), *function.control_ret.values())]
    return {*reached((name for name in ends if name in nodes), before)}


def define_functions(functions: Iterable[Any], graph: Any) -> None:
    """Define functions for TensorFlow's runtime, which has those of a living traced graph, but not those of an imported `GraphDef`.

    Args:
        functions: all definitions of the graph's library; the runtime counts equal ones.
        graph: graph that calls them. The definitions end with the outermost function that is being traced around it.
    """
    while isinstance(getattr(graph, "outer_graph", None), FuncGraph):
        graph = graph.outer_graph
    runtime = eager_context.context()
    for function in functions:
        runtime.add_function_def(function)
        weakref.finalize(graph, _forget_function, runtime, function.signature.name).atexit = False


def _forget_function(runtime: Any, name: str) -> None:
    if runtime is eager_context.context():  # Tests may replace the runtime.
        runtime.remove_function(name)


def _references(node: Any) -> Iterator[Any]:
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func
        yield from value.list.func
