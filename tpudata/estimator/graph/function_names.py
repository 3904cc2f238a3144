"""Functions of a rewritten GraphDef, under new names.

TensorFlow registers functions by name for the whole process: it ignores another definition of a name that it has, and finds none
that only a graph has. So functions of a rewritten graph get new names, under which they are registered.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

_numbers = itertools.count()


def register_functions(graph_def: Any) -> Any:
    """Return a graph with new names for its library functions, and register them in this process.

    Args:
        graph_def: the `GraphDef`.
    """
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    suffix = f"_{next(_numbers)}"
    names = {function.signature.name: f"{function.signature.name}{suffix}" for function in result.library.function}
    for function in result.library.function:
        function.signature.name = names[function.signature.name]
    for gradient in result.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    for node in itertools.chain(result.node, *(function.node_def for function in result.library.function)):
        node.op = names.get(node.op, node.op)
        for attribute in node.attr.values():
            _rename(attribute, names)
    if names:
        # Outside of graphs, an import registers functions.
        with tf.init_scope():
            tf.import_graph_def(tf.compat.v1.GraphDef(library=result.library, versions=result.versions))
    return result


def _rename(attribute: Any, names: Mapping[str, str]) -> None:
    for function in _functions(attribute):
        function.name = names.get(function.name, function.name)
        for inner in function.attr.values():
            _rename(inner, names)


def _functions(attribute: Any) -> Iterator[Any]:
    if attribute.HasField("func"):
        yield attribute.func
    yield from attribute.list.func
