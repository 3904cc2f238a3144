"""Functions that a graph calls in place of its random operations, for draws of (seeds, step, replica).

A replacement is a function of the library of a `GraphDef`, so that an operation is replaced by one node, in the graph and in other
functions alike. XLA inlines it.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.graph.draws import distributions
from tpudata.estimator.graph.draws.words import key_and_counter, mix

# Distance between the seeds of two replicas: a large prime, so that seeds 1, 2, 3 of a program do not collide with a replica's.
SEED_STEP = 999983
# Counters that a stateful kernel skips in each run, for each value that it draws.
_SKIPPED = 256
# Of a function's inputs, outputs and keys: the inputs of the operation, the type of its result, key and counter of the generator.
_Draw = Callable[[Sequence[Any], Any, Any, Any], Any]


@dataclasses.dataclass(frozen=True)
class Replacement:
    """A function of a library.

    Attributes:
        name: its name.
        inputs, results: types of its inputs and of its results.
        definitions: its `FunctionDef`, and those of functions that it calls.
    """

    name: str
    inputs: tuple[Any, ...]
    results: tuple[Any, ...]
    definitions: tuple[Any, ...]


# Stateful random operations.
_STATEFUL: dict[str, _Draw] = {
    "RandomUniform": lambda inputs, dtype, *keys: distributions.uniform(inputs[0], dtype, *keys),
    "RandomUniformInt": lambda inputs, _, *keys: distributions.uniform_integer(*inputs, *keys),
    "RandomStandardNormal": lambda inputs, dtype, *keys: distributions.normal(inputs[0], dtype, *keys),
    "TruncatedNormal": lambda inputs, dtype, *keys: distributions.truncated_normal(inputs[0], dtype, *keys),
    "ParameterizedTruncatedNormal": lambda inputs, _, *keys: distributions.parameterized_truncated_normal(
        *inputs, *keys
    ),
    "Multinomial": lambda inputs, dtype, *keys: distributions.categorical(inputs[0], inputs[1], dtype, *keys),
    "RandomShuffle": lambda inputs, _, *keys: distributions.shuffle(*inputs, *keys),
}
# Stateless ones, whose last inputs are a key, a counter and an algorithm. XLA draws other numbers than the CPU kernels, or none.
_WITH_KEY: dict[str, _Draw] = {
    "StatelessRandomUniformV2": _STATEFUL["RandomUniform"],
    "StatelessRandomNormalV2": _STATEFUL["RandomStandardNormal"],
    "StatelessTruncatedNormalV2": _STATEFUL["TruncatedNormal"],
    "StatelessShuffle": _STATEFUL["RandomShuffle"],
}
# Stateless ones whose last input is a seed.
_WITH_SEED: dict[str, _Draw] = {"StatelessMultinomial": _STATEFUL["Multinomial"]}
STATEFUL = frozenset(_STATEFUL)
WITH_KEY = frozenset(_WITH_KEY)
WITH_SEED = frozenset(_WITH_SEED)


@functools.cache
def stateful_draw(kind: str, inputs: tuple[Any, ...], result: Any, is_by_step: bool) -> Replacement:
    """Return the function for a stateful operation.

    Its further inputs are the two seeds (uint64 [2]), the position (scalar) and the replica (int32 scalar).

    Args:
        kind: type of the operation.
        inputs: types of the operation's inputs.
        result: type of its result.
        is_by_step: whether the position is the number of steps done (int64), so that the operation draws as if it had run once in
            each; otherwise it is a uint64 that is another one for each run of the operation.
    """

    def draw(*arguments: Any) -> Any:
        *data, seeds, position, replica = arguments
        key, counter = seeds[:1], tf.zeros([], tf.uint64)
        if is_by_step:
            counter = tf.cast(position, tf.uint64) * tf.cast(_counters_of_a_run(kind, data), tf.uint64)
        else:
            key += position
        moved = seeds[1] + tf.cast(replica, tf.uint64) * tf.constant(SEED_STEP, tf.uint64)
        return _STATEFUL[kind](data, result, key, tf.stack([counter, moved]))

    position = tf.int64 if is_by_step else tf.uint64
    return _trace(
        f"{kind}_by_{'step' if is_by_step else 'run'}", draw, (*inputs, tf.uint64, position, tf.int32), (result,)
    )


@functools.cache
def stateless_draw(kind: str, inputs: tuple[Any, ...], result: Any) -> Replacement:
    """Return the function for a stateless operation, with the operation's inputs, which draws what the CPU kernel draws."""

    def draw(*arguments: Any) -> Any:
        if kind in _WITH_KEY:
            *data, key, counter, _ = arguments
            return _WITH_KEY[kind](data, result, key, counter)
        *data, seed = arguments
        key, counter = key_and_counter(seed)
        return _WITH_SEED[kind](data, result, key, counter)

    return _trace(kind, draw, inputs, (result,))


@functools.cache
def generator_of(seed: Any) -> Replacement:
    """Return the function from a seed to the key and the counter of its generator.

    Args:
        seed: type of the seed.
    """
    return _trace("generator", key_and_counter, (seed,), (tf.uint64, tf.uint64))


@functools.cache
def moved_seed(dtype: Any, index: int) -> Replacement:
    """Return the function from a vector and the replica (int32 scalar) to the vector with another seed for each replica.

    Args:
        dtype: type of the vector.
        index: place of the seed in the vector.
    """

    def move(vector: Any, replica: Any) -> Any:
        distance = tf.cast(tf.cast(replica, tf.int64) * SEED_STEP, dtype)
        return tf.concat([vector[:index], vector[index : index + 1] + distance, vector[index + 1 :]], 0)

    return _trace(f"seed_{index}", move, (dtype, tf.int32), (dtype,))


@functools.cache
def mixed_position(position: Any) -> Replacement:
    """Return the function from a position and a salt (uint64 scalar) to the position of other draws.

    Args:
        position: type of the position, int64 or uint64.
    """
    return _trace("position", mix, (position, tf.uint64), (tf.uint64,))


def _counters_of_a_run(kind: str, data: Sequence[Any]) -> Any:
    """Return the number of counters by which a run of a stateful CPU kernel advances its generator."""
    if kind == "RandomShuffle":
        return (tf.shape(data[0])[0] + 2) // 4
    if kind == "Multinomial":
        logits, samples = data
        # Rows take multiples of four words, twice, since a draw takes two.
        return tf.cast(tf.shape(logits)[0], tf.int64) * tf.cast((samples + 3) // 4 * 4, tf.int64) * (2 * _SKIPPED)
    return tf.reduce_prod(tf.cast(data[0], tf.int64)) * _SKIPPED


def _trace(label: str, function: Callable[..., Any], inputs: tuple[Any, ...], results: tuple[Any, ...]) -> Replacement:
    signature = [tf.TensorSpec(None, dtype) for dtype in inputs]
    with tf.Graph().as_default() as graph:
        arguments = [tf.compat.v1.placeholder(dtype) for dtype in inputs]
        returned = tf.function(function, input_signature=signature, autograph=False)(*arguments)
        called = tf.nest.flatten(returned)[0].op
    # TensorFlow forgets functions of the original names when it collects the traces.
    definitions = tuple(sorted(graph.as_graph_def().library.function, key=lambda item: item.signature.name))
    label = "_".join(["tpudata", label, *(item.name for item in (*inputs, *results))])
    names = {item.signature.name: f"{label}_{number}" for number, item in enumerate(definitions)}
    for definition in definitions:
        definition.signature.name = names[definition.signature.name]
        for node in definition.node_def:
            for item in (item for value in node.attr.values() for item in (value.func, *value.list.func) if item.name):
                item.name = names[item.name]
    return Replacement(names[called.get_attr("f").name], inputs, results, definitions)
