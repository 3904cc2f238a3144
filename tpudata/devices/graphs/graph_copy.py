"""Copies of a `GraphDef` in the graph that is being built."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpudata.devices.graphs.library import define_functions

# Name scope of a copy.
SCOPE = "model"


def copy_graph(
    graph_def: Any, feeds: Mapping[str, Any], tensors: Sequence[str], operations: Sequence[str] = ()
) -> list[Any]:
    """Copy a graph into the one that is being built.

    Args:
        graph_def: the `GraphDef`, with its library of functions.
        feeds: tensors in the place of those of the graph, by name.
        tensors: names of the tensors to return.
        operations: names of the operations to run.

    Returns:
        The tensors, which wait for the operations.
    """
    define_functions(graph_def.library.function, tf.compat.v1.get_default_graph())
    fetched = [name for name in tensors if name not in feeds]
    inputs = input_tensors(graph_def)
    results = tf.import_graph_def(
        graph_def,
        input_map={name: tensor for name, tensor in feeds.items() if name in inputs},
        return_elements=[*fetched, *operations],
        name=SCOPE,
    )
    found = {**feeds, **dict(zip(fetched, results, strict=False))}
    with tf.control_dependencies(results[len(fetched) :]):
        return [tf.identity(found[name]) for name in tensors]


def input_tensors(graph_def: Any) -> set[str]:
    """Return the names of all tensors that are inputs of nodes of a graph."""
    names = {name for node in graph_def.node for name in node.input if not name.startswith("^")}
    return {name if ":" in name else f"{name}:0" for name in names}
