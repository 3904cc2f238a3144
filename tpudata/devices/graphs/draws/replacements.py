"""Functions that a graph calls in place of its random operations: stateless draws.

A replacement is a function of the library of a `GraphDef`, so that one node replaces an operation, in the graph and in other
functions alike. All draw from the Philox generator, a function from a key (64 bits) and a counter (128 bits) to random words. On
several devices, key and counter follow from the two seeds of an operation, a position and the replica's index:

    key = seed + position * _GOLDEN        counter = [0, seed2 + replica * 2**32]

The position is the step or, inside functions, a number that follows from the step and the run of the function. Seeds of TensorFlow
have 31 bits, so that operations, steps and replicas never share a generator. One replica follows the rule of a session instead,
whose kernels count from 0: each step advances the counter by 256 for each value that it draws.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tpudata.devices.graphs.library import FunctionDef

# Distance between the seeds of consecutive replicas: a large prime, so that nearby seeds of a program never meet on two replicas.
_SEED_DISTANCE = 999983
# 2**64 divided by the golden ratio: its multiples are far from each other.
_GOLDEN = 0x9E3779B97F4A7C15
# Number by which a session's kernels advance the counter for each value.
_COUNTS_PER_VALUE = 256
_ops = tf.raw_ops


def _draw_classes(data: Sequence[tf.Tensor], dtype: tf.DType, philox: Mapping[str, tf.Tensor | int]) -> tf.Tensor:
    """Draw class indices [rows, samples] by the Gumbel-max trick: the largest sum of logit and Gumbel noise.

    `data` holds the logits [rows, classes] and the number of samples; see `_DRAWS` for the arguments.
    """
    logits, num_samples = data
    shape = tf.stack([tf.shape(logits)[0], num_samples, tf.shape(logits)[1]])
    noise = -tf.math.log(-tf.math.log(_ops.StatelessRandomUniformV2(shape=shape, dtype=tf.float32, **philox)))
    return tf.argmax(tf.cast(logits, tf.float32)[:, tf.newaxis] + noise, axis=2, output_type=dtype)


def _shuffle_rows(data: Sequence[tf.Tensor], _: tf.DType, philox: Mapping[str, tf.Tensor | int]) -> tf.Tensor:
    """Return the rows of `data[0]` in random order: sorted by random numbers; see `_DRAWS` for the arguments."""
    sort_keys = _ops.StatelessRandomUniformFullIntV2(shape=tf.shape(data[0])[:1], dtype=tf.int32, **philox)
    return tf.gather(data[0], tf.argsort(sort_keys))


# For each stateful operation, a function of its inputs, the type of its result, and `philox`: the arguments `key`, `counter` and
# `alg` (the algorithm) of stateless operations, by name.
_DRAWS: dict[str, Callable[[Sequence[tf.Tensor], tf.DType, Mapping[str, tf.Tensor | int]], tf.Tensor]] = {
    "RandomUniform": lambda data, dtype, philox: _ops.StatelessRandomUniformV2(shape=data[0], dtype=dtype, **philox),
    "RandomStandardNormal": lambda data, dtype, philox: _ops.StatelessRandomNormalV2(
        shape=data[0], dtype=dtype, **philox
    ),
    "TruncatedNormal": lambda data, dtype, philox: _ops.StatelessTruncatedNormalV2(
        shape=data[0], dtype=dtype, **philox
    ),
    "RandomUniformInt": lambda data, _, philox: _ops.StatelessRandomUniformIntV2(
        **dict(zip(("shape", "minval", "maxval"), data, strict=True)), **philox
    ),
    "Multinomial": _draw_classes,
    "RandomShuffle": _shuffle_rows,
}
STATEFUL = frozenset(_DRAWS)
# Operations whose kernels advance the counter by a fixed number, so that their draws in a session follow from the step.
COUNTED = STATEFUL - {"Multinomial", "RandomShuffle"}


@functools.cache
def make_draw(
    operation_type: str, input_dtypes: tuple[tf.DType, ...], result_dtype: tf.DType, *, uses_replica: bool
) -> FunctionDef:
    """Return the `FunctionDef` that replaces a stateful operation.

    The function's inputs are the operation's inputs, the two seeds (uint64 [2]), the position (int64 scalar) and, with
    `uses_replica`, the replica (int32 scalar).

    Args:
        operation_type: type of the operation, such as "RandomUniform".
        input_dtypes: types of the operation's inputs.
        result_dtype: type of its result.
        uses_replica: whether the function follows the rule for several devices; otherwise it repeats a session's draws and has no
            replica input.
    """

    def draw(*arguments: tf.Tensor) -> tf.Tensor:
        """Return the stateless draw for the inputs, the seeds, the position and, with `uses_replica`, the replica."""
        data = arguments[: len(input_dtypes)]
        seeds, position, *replica = arguments[len(input_dtypes) :]
        key, counter_low, counter_high = seeds[:1], tf.zeros([], tf.uint64), seeds[1]
        if uses_replica:
            key += tf.cast(position, tf.uint64) * tf.constant(_GOLDEN, tf.uint64)
            counter_high += tf.cast(replica[0], tf.uint64) * tf.constant(2**32, tf.uint64)
        else:
            # The counts of the session's earlier steps; `data[0]` is the shape of the values that each of them draws.
            counter_low = tf.cast(position * tf.reduce_prod(tf.cast(data[0], tf.int64)) * _COUNTS_PER_VALUE, tf.uint64)
        philox = {"key": key, "counter": tf.stack([counter_low, counter_high]), "alg": tf.random.Algorithm.PHILOX.value}
        return _DRAWS[operation_type](data, result_dtype, philox)

    label = f"{operation_type}_by_{'replica' if uses_replica else 'step'}"
    replica_types = (tf.int32,) if uses_replica else ()
    return _trace(label, draw, (*input_dtypes, tf.uint64, tf.int64, *replica_types))


@functools.cache
def make_seed_shift(dtype: tf.DType, index: int) -> FunctionDef:
    """Return the `FunctionDef` that shifts the seed in a state vector by a distance for the replica (int32 scalar).

    Args:
        dtype: type of the vector.
        index: index of the seed in the vector.
    """

    def shift(vector: tf.Tensor, replica: tf.Tensor) -> tf.Tensor:
        distance = tf.cast(tf.cast(replica, tf.int64) * _SEED_DISTANCE, dtype)
        return tf.concat([vector[:index], vector[index : index + 1] + distance, vector[index + 1 :]], 0)

    return _trace(f"seed_{index}", shift, (dtype, tf.int32))


@functools.cache
def make_position() -> FunctionDef:
    """Return the `FunctionDef` that derives a new position from a position (int64 scalar) and a salt (uint64 scalar)."""

    def mix(position: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.cast(position, tf.uint64) * tf.constant(_GOLDEN, tf.uint64) + salt, tf.int64)

    return _trace("position", mix, (tf.int64, tf.uint64))


def _trace(label: str, function: Callable[..., tf.Tensor], input_dtypes: tuple[tf.DType, ...]) -> FunctionDef:
    """Return the `FunctionDef` of a function, with a name that is unique for its label and dtypes."""
    signature = [tf.TensorSpec(None, dtype) for dtype in input_dtypes]
    with tf.Graph().as_default():  # Another graph's devices and scopes would stay in the function.
        traced = tf.function(function, input_signature=signature, autograph=False).get_concrete_function()
    # A copy, which can be renamed.
    definition = type(traced.function_def).FromString(traced.function_def.SerializeToString())
    dtypes = [dtype.name for dtype in (*input_dtypes, traced.outputs[0].dtype)]
    definition.signature.name = "_".join(["tpudata", label, *dtypes])
    return definition
