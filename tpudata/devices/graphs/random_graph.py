"""Random operations of a scratch graph, rewritten so that their draws depend on the step.

A seeded stateful operation keeps a counter in its kernel, which starts at 0 in every process. Its replacement takes the step
instead, so that training resumed at step n draws as an uninterrupted one.
"""

from collections.abc import Collection
from typing import Any

from tpudata.devices.graphs.draws.functions import DrawRewriter
from tpudata.devices.graphs.draws.nodes import Scope, rewrite_node
from tpudata.devices.graphs.draws.replacements import COUNTED


def draw_by_step(graph_def: Any, step: str, replica: str | None = None, keras_seeds: Collection[str] = ()) -> Any:
    """Return a graph in which random operations draw by the step.

    Without a replica, those with a seed draw what a session has drawn that ran them once in each step. Operations in loops,
    conditions and functions, and of other kinds than uniform and normal values, are not changed. With a replica, all draw by
    their seeds, the step and the replica, also those in functions and without a seed, as stateless operations that XLA compiles:
    on each replica other numbers, and other ones than a session's.

    Args:
        graph_def: the `GraphDef`.
        step: name of an int64 scalar, the number of steps done; the graph need not contain it.
        replica: name of an int32 scalar, the number of the replica, or None for one replica without a compiler; the graph need not
            contain it.
        keras_seeds: with a replica, names of inputs that are handles of random states of Keras 3, which replicas read as different
            ones.

    Raises:
        ModelFnValueError: with `replica`, an operation draws and XLA cannot draw it by step and replica.
    """
    if replica is not None:
        return DrawRewriter(graph_def, keras_seeds).rewrite(step, replica)
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    del result.node[:]
    scope = Scope(step, None, is_function=False)
    definitions = {}
    for node in graph_def.node:
        is_seeded = node.op in COUNTED and (node.attr["seed"].i or node.attr["seed2"].i)
        made, called = rewrite_node(node, scope) if is_seeded else ([node], ())
        # In the same position: nodes are imported in this order, which is also the order of effects.
        result.node.extend(made)
        definitions.update({item.signature.name: item for item in called})
    result.library.function.extend(definitions.values())
    return result
