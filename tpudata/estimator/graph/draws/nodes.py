"""Random nodes of a graph or a function, rewritten to call the functions that replace them."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tpudata.estimator.api.errors import ModelFnValueError
from tpudata.estimator.graph.draws.replacements import (
    STATEFUL,
    WITH_KEY,
    WITH_SEED,
    Replacement,
    generator_of,
    mixed_position,
    moved_seed,
    stateful_draw,
    stateless_draw,
)

# Type of the nodes that call replacements.
CALL = "PartitionedCall"
_GENERATOR_OF = "StatelessRandomGetKeyCounter"
_KERAS_SEED = "seed_generator_state"
# The place of the key in the state of a tf.random.Generator, after the two halves of its counter.
_KEY_OF_GENERATOR = 2
_ON_HOST = "Draw these values in input_fn, or from tf.random.uniform or tf.random.normal."
_BY_GENERATOR = "Use the methods of a tf.random.Generator, such as uniform and normal."
_SAMPLED = "Use the full softmax, or sample the classes in input_fn."
# Random operations that XLA cannot draw, or not by replica: what to do instead.
_FIXES = {
    "RandomGamma": _ON_HOST,
    "RandomPoisson": _ON_HOST,
    "RandomPoissonV2": _ON_HOST,
    "RandomCrop": _ON_HOST,
    "SampleDistortedBoundingBox": _ON_HOST,
    "SampleDistortedBoundingBoxV2": _ON_HOST,
    "StatefulRandomBinomial": _ON_HOST,
    "StatelessParameterizedTruncatedNormal": _ON_HOST,
    "StatelessRandomBinomial": _ON_HOST,
    "StatelessRandomGammaV2": _ON_HOST,
    "StatelessRandomGammaV3": _ON_HOST,
    "StatelessRandomPoisson": _ON_HOST,
    "StatelessSampleDistortedBoundingBox": _ON_HOST,
    "StatefulStandardNormal": _BY_GENERATOR,
    "StatefulStandardNormalV2": _BY_GENERATOR,
    "StatefulTruncatedNormal": _BY_GENERATOR,
    "StatefulUniform": _BY_GENERATOR,
    "StatefulUniformFullInt": _BY_GENERATOR,
    "StatefulUniformInt": _BY_GENERATOR,
    "AllCandidateSampler": _SAMPLED,
    "FixedUnigramCandidateSampler": _SAMPLED,
    "LearnedUnigramCandidateSampler": _SAMPLED,
    "LogUniformCandidateSampler": _SAMPLED,
    "ThreadUnsafeUnigramCandidateSampler": _SAMPLED,
    "UniformCandidateSampler": _SAMPLED,
}


@dataclasses.dataclass(frozen=True)
class Scope:
    """Nodes that draw by the same inputs: those of a graph, or of a function.

    Attributes:
        position: input that tells the runs of the nodes apart: the step of a graph (int64), or an argument of a function (uint64).
        replica: input with the number of the replica, an int32 scalar.
        is_function: whether the nodes are those of a function, where inputs name an output by its argument.
        keras_seeds: inputs that are random states of Keras 3 in a function; in a graph, their names show it.
        nodes: all nodes by name.
    """

    position: str
    replica: str
    is_function: bool
    keras_seeds: frozenset[str]
    nodes: Mapping[str, Any]

    @property
    def position_type(self) -> Any:
        """Type of the position."""
        return tf.uint64 if self.is_function else tf.int64

    def output(self, name: str, argument: str = "output", number: int = 0) -> str:
        """Return the input that takes an output of a node, the first one in a graph."""
        return f"{name}:{argument}:{number}" if self.is_function else name

    def is_keras_seed(self, item: str) -> bool:
        """Return whether an input is the handle of a random state of Keras 3."""
        if self.is_function:
            return item in self.keras_seeds
        return item.partition(":")[0].rpartition("/")[2].startswith(_KERAS_SEED)

    def has_keras_seed(self, node: Any) -> bool:
        """Return whether a node reads a random state of Keras 3."""
        return (
            node.op == "ReadVariableOp"
            and self.is_keras_seed(node.input[0])
            and bool(tf.as_dtype(attribute(node, "dtype").type).is_integer)
        )

    def needs_inputs(self, node: Any) -> bool:
        """Return whether the replacement of a node takes the position or the replica."""
        return node.op in STATEFUL or node.op == "RngReadAndSkip" or self.has_keras_seed(node)


def rewrite_node(node: Any, scope: Scope) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the nodes that replace a node, the last of the same name, and the functions that they call.

    Raises:
        ModelFnValueError: the node draws and cannot be replaced.
    """
    if node.op in _FIXES:
        raise ModelFnValueError(
            f"model_fn: {node.name!r} cannot be drawn on a TPU or on several devices (got {node.op}, expected an operation that "
            f"XLA draws). {_FIXES[node.op]}"
        )
    data = [item for item in node.input if not item.startswith("^")]
    if node.op in STATEFUL:
        inputs, result = _types(node)
        replacement = stateful_draw(node.op, inputs, result, is_by_step=not scope.is_function)
        seeds = constant(f"{node.name}/seeds", _seeds(node), node)
        taken = [*data, scope.output(seeds.name), scope.position, scope.replica]
        return [seeds, call(node, replacement, taken)], replacement.definitions
    if node.op == _GENERATOR_OF:
        replacement = generator_of(_types(node)[0][0])
        return [call(node, replacement, data)], replacement.definitions
    if node.op in WITH_SEED or (node.op in WITH_KEY and not _is_threefry(scope.nodes.get(data[-1].partition(":")[0]))):
        replacement = stateless_draw(node.op, *_types(node))
        return [call(node, replacement, data)], replacement.definitions
    if node.op == "RngReadAndSkip" or scope.has_keras_seed(node):
        stored = type(node)()
        stored.CopyFrom(node)
        stored.name = f"{node.name}/stored"
        is_keras = node.op == "ReadVariableOp"
        replacement = moved_seed(_types(node)[1], 0 if is_keras else _KEY_OF_GENERATOR)
        moved = call(node, replacement, [scope.output(stored.name, "value"), scope.replica], ())
        return [stored, moved], replacement.definitions
    return [node], ()


def derive_position(node: Any, scope: Scope) -> tuple[list[Any], tuple[Any, ...]]:
    """Return nodes that compute a position of draws in the functions that a node calls, and the functions that these call.

    The last of the nodes computes it.
    """
    replacement = mixed_position(scope.position_type)
    salt = constant(f"{node.name}/salt", _hash(node.name, 1)[0], node)
    position = call(node, replacement, [scope.position, scope.output(salt.name)], (), f"{node.name}/position")
    return [salt, position], replacement.definitions


def constant(name: str, value: Any, like: Any) -> Any:
    """Return a node with a uint64 value, on the device of another node."""
    made = type(like)(name=name, op="Const", device=like.device)
    made.attr["dtype"].type = tf.uint64.as_datatype_enum
    made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.uint64))
    return made


def call(
    node: Any,
    replacement: Replacement,
    inputs: Sequence[str],
    waits_for: Iterable[str] | None = None,
    name: str | None = None,
) -> Any:
    """Return a node that calls a replacement, on the device of another node.

    Args:
        node: the other node.
        replacement: the function.
        inputs: the data inputs.
        waits_for: control inputs; None for those of the other node.
        name: name of the node; None for that of the other node.
    """
    made = type(node)(name=name or node.name, op=CALL, device=node.device)
    made.input.extend(inputs)
    made.input.extend([item for item in node.input if item.startswith("^")] if waits_for is None else waits_for)
    made.attr["f"].func.name = replacement.name
    made.attr["Tin"].list.type.extend(item.as_datatype_enum for item in replacement.inputs)
    made.attr["Tout"].list.type.extend(item.as_datatype_enum for item in replacement.results)
    return made


def attribute(node: Any, name: str) -> Any:
    """Return an attribute of a node, which may be omitted if it is the default."""
    if name in node.attr:
        return node.attr[name]
    return next(item.default_value for item in _definition(node.op).attr if item.name == name)


def output_arguments(node: Any) -> list[str]:
    """Return the names by which inputs of a function name the outputs of a node."""
    return [str(item.name) for item in _definition(node.op).output_arg]


def _types(node: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the types of the data inputs and of the first output of a node."""

    def type_of(argument: Any) -> Any:
        return tf.as_dtype(argument.type or attribute(node, argument.type_attr).type)

    definition = _definition(node.op)
    return tuple(map(type_of, definition.input_arg)), type_of(definition.output_arg[0])


@functools.cache
def _definition(kind: str) -> Any:
    return op_def_registry.get(kind)


def _seeds(node: Any) -> list[int]:
    """Return the two seeds of a node, from its name if it has none, so that they are the same in each process."""
    seeds = [attribute(node, name).i % 2**64 for name in ("seed", "seed2")]
    return seeds if any(seeds) else _hash(node.name, 2)


def _hash(name: str, count: int) -> list[int]:
    digest = hashlib.sha256(name.encode()).digest()
    return [int.from_bytes(digest[8 * number : 8 * number + 8], "little") for number in range(count)]


def _is_threefry(node: Any) -> bool:
    """Return whether a node is a constant that names another generator than Philox; on CPUs, automatic choice is Philox."""
    if node is None or node.op != "Const":
        return False
    return bool(tf.make_ndarray(node.attr["value"].tensor) == tf.random.Algorithm.THREEFRY.value)
