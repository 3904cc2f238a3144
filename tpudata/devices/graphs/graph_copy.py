"""Copies of a `GraphDef` in TensorFlow's default graph."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tpudata.devices.graphs.library import define_functions

# Name scope of a copy.
SCOPE = "model"


def copy_graph(
    graph_def: tf.compat.v1.GraphDef,
    feeds: Mapping[str, tf.Tensor],
    tensor_names: Sequence[str],
    operation_names: Sequence[str] = (),
) -> list[tf.Tensor]:
    """Copy a graph into TensorFlow's default graph.

    Args:
        graph_def: the `GraphDef`, with its library of functions.
        feeds: tensors that replace tensors of the graph, by the name of the replaced tensor.
        tensor_names: names of the tensors to return.
        operation_names: names of operations that run before the returned tensors.

    Returns:
        The tensors, with control dependencies on the operations.
    """
    define_functions(graph_def.library.function, tf.compat.v1.get_default_graph())
    fetched_names = [name for name in tensor_names if name not in feeds]
    # Import rejects an input_map with names that no node takes.
    input_names = list_input_tensor_names(graph_def)
    imported = tf.import_graph_def(
        graph_def,
        input_map={name: tensor for name, tensor in feeds.items() if name in input_names},
        return_elements=[*fetched_names, *operation_names],
        name=SCOPE,
    )
    fetched, imported_operations = imported[: len(fetched_names)], imported[len(fetched_names) :]
    tensors_by_name = {**feeds, **dict(zip(fetched_names, fetched, strict=True))}
    with tf.control_dependencies(imported_operations):
        return [tf.identity(tensors_by_name[name]) for name in tensor_names]


def list_input_tensor_names(graph_def: tf.compat.v1.GraphDef) -> set[str]:
    """Return the names of all tensors that are inputs of nodes of a graph, without control inputs."""
    names = {name for node in graph_def.node for name in node.input if not name.startswith("^")}
    return {name if ":" in name else f"{name}:0" for name in names}
