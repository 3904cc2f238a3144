"""Functions of a GraphDef that differ from those in TensorFlow's runtime."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tpudata.devices.graphs.library import (
    define_functions,
    find_functions,
    list_called_functions,
    prune_functions,
    rename_functions,
)


def graph_of_nested_functions() -> Any:
    def outer(x: Any) -> Any:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x), lambda: tf.zeros_like(x))

    with tf.Graph().as_default() as graph:
        tf.function(outer, autograph=False)(tf.compat.v1.placeholder(tf.float32, [2], name="x"))
        tf.function(lambda x: tf.cos(x), autograph=False)(tf.zeros([2]))
    return graph.as_graph_def()


def change(graph_def: Any) -> set[str]:
    """Replace sines by exponentials, and return the names of the changed functions."""
    names = find_functions(graph_def, lambda node: node.op == "Sin")
    for function in graph_def.library.function:
        for node in function.node_def:
            node.op = "Exp" if node.op == "Sin" else node.op
    rename_functions(graph_def, {name: f"{name}_changed" for name in names})
    return {f"{name}_changed" for name in names}


def test_callers_of_a_changed_function_count_as_changed() -> None:
    graph_def = graph_of_nested_functions()
    library = {function.signature.name for function in graph_def.library.function}
    names = find_functions(graph_def, lambda node: node.op == "Sin")
    assert len(names) == 2  # The branch, and the function with the condition.
    assert names < library
    assert find_functions(graph_def, lambda node: node.op == "Tan") == set()


def test_a_changed_function_replaces_the_original_while_its_caller_lives() -> None:
    graph_def = graph_of_nested_functions()
    names = change(graph_def)
    gc.collect()  # The runtime has dropped all functions of the first graph, the unchanged ones, too.
    (call,) = (node.name for node in graph_def.node if not names.isdisjoint(list_called_functions(node)))

    def imported(x: Any) -> Any:
        define_functions(graph_def.library.function, tf.compat.v1.get_default_graph())
        return tf.import_graph_def(graph_def, {"x:0": x}, [f"{call}:0"])[0]

    called = tf.function(imported, autograph=False)
    np.testing.assert_allclose(called(tf.constant([0.0, 1.0])), [1.0, np.e], rtol=1e-6)
    assert names <= context.context().list_function_names()
    del called, imported
    gc.collect()
    assert names.isdisjoint(context.context().list_function_names())


def test_pruning_keeps_results_and_control_dependencies() -> None:
    """No result of the condition needs the unused draw; the tf.function has a control dependency on its assignment."""

    def chosen() -> Any:
        tf.random.normal([2], name="unused")
        return tf.ones([2])

    with tf.Graph().as_default() as graph:
        counter = tf.compat.v1.get_variable("counter", initializer=0.0, use_resource=True)
        flag = tf.compat.v1.placeholder(tf.bool, [], name="flag")
        tf.function(lambda: tf.cond(flag, chosen, lambda: tf.zeros([2])), autograph=False)()
        tf.function(lambda: [counter.assign_add(1.0), tf.constant(0.0)][1], autograph=False)()
    before = graph.as_graph_def()
    after = prune_functions(before)

    def kinds(graph_def: Any) -> set[str]:
        return {node.op for function in graph_def.library.function for node in function.node_def}

    assert {"RandomStandardNormal", "AssignAddVariableOp"} <= kinds(before)
    assert "RandomStandardNormal" not in kinds(after)
    assert "AssignAddVariableOp" in kinds(after)
    names = {function.signature.name for function in after.library.function}
    called = {
        name
        for function in after.library.function
        for node in function.node_def
        for name in list_called_functions(node)
    }
    assert {name for name in called if name.endswith("_pruned")} <= names
    with tf.Graph().as_default():
        tf.import_graph_def(after)
    assert prune_functions(after) is after
