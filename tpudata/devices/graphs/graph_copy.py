"""Copies of a `GraphDef` in TensorFlow's default graph."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tpudata.devices.graphs.library import define_functions

# Name scope of a copy.
SCOPE = "model"


def copy_graph(
    graph_def: tf.compat.v1.GraphDef,
    feeds: Mapping[str, tf.Tensor],
    tensors: Sequence[str],
    operations: Sequence[str] = (),
) -> list[tf.Tensor]:
    """Copy a graph into TensorFlow's default graph.

    Args:
        graph_def: the `GraphDef`, with its library of functions.
        feeds: tensors that replace tensors of the graph, by the name of the replaced tensor.
        tensors: names of the tensors to return.
        operations: names of operations that run before the returned tensors.

    Returns:
        The tensors, with control dependencies on the operations.
    """
    define_functions(graph_def.library.function, tf.compat.v1.get_default_graph())
    fetched_names = [name for name in tensors if name not in feeds]
    # Import rejects an input_map with names that no node takes.
    inputs = list_input_tensors(graph_def)
    imported = tf.import_graph_def(
        graph_def,
        input_map={name: tensor for name, tensor in feeds.items() if name in inputs},
        return_elements=[*fetched_names, *operations],
        name=SCOPE,
    )
    fetched, imported_operations = imported[: len(fetched_names)], imported[len(fetched_names) :]
    tensors_by_name = {**feeds, **dict(zip(fetched_names, fetched, strict=True))}
    with tf.control_dependencies(imported_operations):
        return [tf.identity(tensors_by_name[name]) for name in tensors]


def list_input_tensors(graph_def: tf.compat.v1.GraphDef) -> set[str]:
    """Return the names of all tensors that are inputs of nodes of a graph, without control inputs."""
    names = {name for node in graph_def.node for name in node.input if not name.startswith("^")}
    return {name if ":" in name else f"{name}:0" for name in names}
