"""Random operations of a scratch graph, rewritten so that their draws depend on the step.

A seeded stateful operation keeps a counter in its kernel, which starts at 0 in every process. Its replacement takes the step
instead, so that training that resumes at step n draws as uninterrupted training does.
"""

from collections.abc import Collection

import tensorflow as tf

from tpudata.devices.graphs.draws.functions import DrawRewriter
from tpudata.devices.graphs.draws.nodes import Scope, rewrite_node
from tpudata.devices.graphs.draws.replacements import COUNTED


def rewrite_random_operations(
    graph_def: tf.compat.v1.GraphDef, step: str, replica: str | None = None, keras_seeds: Collection[str] = ()
) -> tf.compat.v1.GraphDef:
    """Return a graph whose random operations draw numbers that depend on the step.

    Without `replica`, seeded uniform and normal operations repeat a session's draws for that step; unseeded and other random
    operations, and all in loops, conditions and functions, are unchanged. With `replica`, all random operations become
    stateless ones that XLA compiles. Their numbers follow from seed, step and replica, so they differ between replicas and from
    a session's.

    Args:
        graph_def: the `GraphDef`.
        step: name of an int64 scalar, the number of steps done; it may be missing from the graph.
        replica: name of an int32 scalar, the replica's index, which may be missing from the graph; None for one replica that is
            not compiled.
        keras_seeds: with `replica`, names of inputs that are handles of Keras 3 seed generators' states; each replica reads a
            different state.

    Raises:
        ModelFnValueError: with `replica`, a random operation has no stateless replacement.
    """
    if replica is not None:
        return DrawRewriter(graph_def, keras_seeds).rewrite(step, replica)
    rewritten_graph = type(graph_def)()
    rewritten_graph.CopyFrom(graph_def)
    del rewritten_graph.node[:]
    scope = Scope(step, replica=None, is_in_function=False)
    definitions = {}  # FunctionDefs by name.
    for node in graph_def.node:
        is_seeded = node.op in COUNTED and (node.attr["seed"].i or node.attr["seed2"].i)
        nodes, definition = rewrite_node(node, scope) if is_seeded else ([node], None)
        # New nodes take the place of the old node: nodes are imported in this order, which is also the order of their effects.
        rewritten_graph.node.extend(nodes)
        if definition is not None:
            definitions[definition.signature.name] = definition
    rewritten_graph.library.function.extend(definitions.values())
    return rewritten_graph
