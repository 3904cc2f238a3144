"""Random nodes of a graph or a function, and the nodes that replace them."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.draws.replacements import STATEFUL, inner_position, moved_seed, stateful_draw
from tpudata.devices.graphs.traced_code import traced_code
from tpudata.tensorflow_internals import op_def_registry

# Mark of the nodes that read a random state of Keras 3.
KERAS_READ = "_tpudata_keras_read"
# The place of the key in the state of a tf.random.Generator, after the two halves of its counter.
_KEY_OF_GENERATOR = 2
# Random operations that XLA cannot draw, or not by replica, by what to do instead.
_REJECTED = {
    "Draw these values {before}, or from tf.random.uniform or tf.random.normal.": """
        ParameterizedTruncatedNormal RandomCrop RandomGamma RandomPoisson RandomPoissonV2 SampleDistortedBoundingBox
        SampleDistortedBoundingBoxV2 StatefulRandomBinomial StatelessRandomBinomial StatelessRandomGammaV2 StatelessRandomGammaV3
        StatelessRandomPoisson StatelessSampleDistortedBoundingBox StatelessShuffle
    """,
    "Use the methods of a tf.random.Generator, such as uniform and normal.": """
        StatefulStandardNormal StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt
        StatefulUniformInt
    """,
    "Use the full softmax, or sample the classes {before}.": """
        AllCandidateSampler FixedUnigramCandidateSampler LearnedUnigramCandidateSampler LogUniformCandidateSampler
        ThreadUnsafeUnigramCandidateSampler UniformCandidateSampler
    """,
}
_FIXES = {kind: fix for fix, kinds in _REJECTED.items() for kind in kinds.split()}


@dataclasses.dataclass(frozen=True)
class Scope:
    """Inputs by which the nodes of a graph or of a function draw.

    Attributes:
        position: int64 scalar that distinguishes the runs of the nodes.
        replica: int32 scalar, the number of the replica; None for a session's draws.
        is_function: whether the nodes are those of a function, where inputs name an output by its argument.
    """

    position: str
    replica: str | None
    is_function: bool

    def output(self, name: str, argument: str = "output") -> str:
        """Return the input that takes the first output of a node."""
        return f"{name}:{argument}:0" if self.is_function else name


def needs_inputs(node: Any) -> bool:
    """Return whether the replacement of a node takes the position or the replica."""
    return node.op in STATEFUL or is_moved(node)


def is_moved(node: Any) -> bool:
    """Return whether a node reads a random state, of which each replica gets another one."""
    return node.op == "RngReadAndSkip" or KERAS_READ in node.attr


def rewrite_node(node: Any, scope: Scope) -> tuple[list[Any], tuple[Any, ...]]:
    """Return the nodes that replace a node, the last of the same name, and the `FunctionDef`s that they call.

    Raises:
        ModelFnValueError: the node draws and cannot be replaced.
    """
    if node.op in _FIXES:
        raise ModelFnValueError(
            f"{traced_code()}: {node.name!r} cannot be drawn on a TPU or on several devices (got {node.op}, expected an operation "
            f"that XLA draws). {_FIXES[node.op].format(before=traced_code().before)}"
        )
    if node.op in STATEFUL:
        seeds = _constant(f"{node.name}/seeds", _seeds(node), node)
        definition = stateful_draw(node.op, *_types(node), by_replica=scope.replica is not None)
        data = data_inputs(node)
        numbers = [scope.output(seeds.name), scope.position, *filter(None, [scope.replica])]
        return [seeds, _call(node, definition, [*data, *numbers, *node.input[len(data) :]])], (definition,)
    if is_moved(node):
        stored = type(node).FromString(node.SerializeToString())
        stored.name = f"{node.name}/stored"
        stored.attr.pop(KERAS_READ, None)
        definition = moved_seed(_types(node)[1], _KEY_OF_GENERATOR if node.op == "RngReadAndSkip" else 0)
        return [stored, _call(node, definition, [scope.output(stored.name, "value"), scope.replica])], (definition,)
    return [node], ()


def derive_position(node: Any, scope: Scope) -> tuple[list[Any], Any]:
    """Return nodes that compute the position of draws in the functions that a node calls, the last one, and their `FunctionDef`."""
    salt = _constant(f"{node.name}/salt", _hash(node.name)[0], node)
    definition = inner_position()
    position = _call(node, definition, [scope.position, scope.output(salt.name)])
    position.name = f"{node.name}/position"
    return [salt, position], definition


def data_inputs(node: Any) -> list[str]:
    """Return the inputs of a node without those that it only waits for, which come last."""
    return [item for item in node.input if not item.startswith("^")]


def _constant(name: str, value: Any, like: Any) -> Any:
    """Return a node with a uint64 value, on the device of another node."""
    made = type(like)(name=name, op="Const", device=like.device)
    made.attr["dtype"].type = tf.uint64.as_datatype_enum
    made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.uint64))
    return made


def _call(node: Any, definition: Any, inputs: Sequence[Any]) -> Any:
    """Return a node that calls a function, with the name and device of another node."""
    made = type(node)(name=node.name, op="PartitionedCall", device=node.device, input=inputs)
    made.attr["f"].func.name = definition.signature.name
    made.attr["Tin"].list.type.extend(item.type for item in definition.signature.input_arg)
    made.attr["Tout"].list.type.extend(item.type for item in definition.signature.output_arg)
    return made


def _types(node: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the types of the data inputs and of the first output of a node."""

    def type_of(argument: Any) -> Any:
        return tf.as_dtype(argument.type or node.attr[argument.type_attr].type)

    definition = op_def_registry.get(node.op)
    return tuple(map(type_of, definition.input_arg)), type_of(definition.output_arg[0])


def _seeds(node: Any) -> list[int]:
    """Return the two seeds of a node, from its name if it has none, so that they are the same in each process."""
    seeds = [node.attr[name].i % 2**64 for name in ("seed", "seed2")]
    return seeds if any(seeds) else [half % 2**31 for half in _hash(node.name)]


def _hash(name: str) -> list[int]:
    digest = hashlib.sha256(name.encode()).digest()
    return [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
