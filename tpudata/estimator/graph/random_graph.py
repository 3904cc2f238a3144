"""Seeded random operations of a scratch graph, rewritten so that their draws depend on the step.

A seeded stateful operation keeps a counter in its kernel, which starts at 0 in every process. After n runs the counter is known:
each run advances it by 256 times the number of values drawn. The stateless operation that starts at that counter draws the same
numbers, so that training resumed at step n draws as an uninterrupted one. This holds for operations that run once a step; those
inside loops, conditions and functions of model_fn are not changed.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tpudata.estimator.graph.draws.functions import DrawRewriter

_MULTIPLIER = 256
# Types of the operations to replace, and of their replacements.
_STATELESS_TYPES = {
    "RandomUniform": "StatelessRandomUniformV2",
    "RandomStandardNormal": "StatelessRandomNormalV2",
    "TruncatedNormal": "StatelessTruncatedNormalV2",
    "RandomUniformInt": "StatelessRandomUniformIntV2",
}


def draw_by_step(graph_def: Any, step: str, replica: str | None = None) -> Any:
    """Return a graph in which seeded random operations draw as if they had run once in each step so far.

    Args:
        graph_def: the `GraphDef`.
        step: name of an int64 scalar, the number of steps done; the graph need not contain it.
        replica: name of an int32 scalar, the number of the replica, or None for one replica without a compiler; the graph need not
            contain it. With it, the operations inside functions and those without a seed are changed, too, so that XLA compiles
            none that keeps a counter. Replica 0 draws what one replica draws, but inside functions.

    Raises:
        ModelFnValueError: with `replica`, an operation draws and XLA cannot draw it by step and replica.
    """
    if replica is not None:
        return DrawRewriter(graph_def).rewrite(step, replica)
    result = type(graph_def)()
    result.CopyFrom(graph_def)
    del result.node[:]
    for node in graph_def.node:
        is_seeded = node.op in _STATELESS_TYPES and (node.attr["seed"].i or node.attr["seed2"].i)
        # In the same position: nodes are imported in this order, which is also the order of effects.
        result.node.extend(_stateless(node, step) if is_seeded else [node])
    return result


def _stateless(node: Any, step: str) -> Iterator[Any]:
    """Yield the nodes that replace a seeded random operation; the last one takes its name."""
    data = [name for name in node.input if not name.startswith("^")]
    # The same nodes are made in a small graph, where TensorFlow checks them.
    with tf.Graph().as_default() as graph:
        kind = tf.as_dtype(node.attr["T"].type)
        values = [
            tf.compat.v1.placeholder(tf.int64, [], name="step"),
            tf.compat.v1.placeholder(kind, [None], name="in0"),
        ]
        arguments: dict[str, Any] = {"shape": values[1]}
        dtype = tf.as_dtype(node.attr["Tout" if node.op == "RandomUniformInt" else "dtype"].type)
        if node.op == "RandomUniformInt":
            bounds = [tf.compat.v1.placeholder(dtype, [], name=f"in{number}") for number in (1, 2)]
            arguments |= {"minval": bounds[0], "maxval": bounds[1]}
        else:
            arguments["dtype"] = dtype
        drawn = tf.reduce_prod(tf.cast(values[1], tf.int64)) * _MULTIPLIER
        offset = tf.cast(values[0], tf.uint64) * tf.cast(drawn, tf.uint64)
        counter = tf.stack([offset, tf.constant(node.attr["seed2"].i % 2**64, tf.uint64)])
        key = tf.constant([node.attr["seed"].i % 2**64], tf.uint64)
        make = getattr(tf.raw_ops, _STATELESS_TYPES[node.op])
        make(**arguments, key=key, counter=counter, alg=tf.random.Algorithm.PHILOX.value, name="drawn")
    names = {"drawn": node.name, "step": step, **{f"in{number}": name for number, name in enumerate(data)}}
    for made in graph.as_graph_def().node:
        if made.op == "Placeholder":
            continue
        made.name = names.get(made.name, f"{node.name}/{made.name}")
        inputs = [names.get(name, f"{node.name}/{name}") for name in made.input]
        del made.input[:]
        made.input.extend(inputs)
        if made.name == node.name:
            made.input.extend(name for name in node.input if name.startswith("^"))
        made.device = node.device
        for name, value in node.attr.items():
            if name.startswith("_"):  # Such as the TPU computation that contains the operation.
                made.attr[name].CopyFrom(value)
        yield made
