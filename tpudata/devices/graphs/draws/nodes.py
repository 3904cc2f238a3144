"""Random nodes of a graph or a function, and the nodes that replace them."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.draws.replacements import STATEFUL, make_draw, make_position, make_seed_shift
from tpudata.devices.graphs.library import FunctionDef
from tpudata.devices.graphs.traced_code import traced_code
from tpudata.tensorflow_internals import op_def_registry

# Attribute that marks nodes that read a random state of Keras 3.
KERAS_READ = "_tpudata_keras_read"
# Index of the key in a tf.random.Generator's state, after the two halves of its counter.
_KEY_OF_GENERATOR = 2
# Random operations that XLA cannot compile, or cannot draw separately for each replica, by the fix in the message.
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
_FIX_BY_OPERATION = {operation: fix for fix, operations in _REJECTED.items() for operation in operations.split()}


@dataclasses.dataclass(frozen=True)
class Scope:
    """Inputs that determine the draws of the nodes of a graph or of a function.

    Attributes:
        position: name of an int64 scalar that distinguishes the runs of the nodes.
        replica: name of an int32 scalar, the index of the replica; None for one replica, which draws as a session does.
        is_in_function: whether the nodes are in a function, where an input also names the output of its producer.
    """

    position: str
    replica: str | None
    is_in_function: bool

    def name_output(self, name: str, argument: str = "output") -> str:
        """Return the name by which inputs refer to a node's output; `argument` is the output's name in the operation."""
        return f"{name}:{argument}:0" if self.is_in_function else name


def is_replaced(node: tf.compat.v1.NodeDef) -> bool:
    """Return whether `rewrite_node` replaces a node with one that takes the position or the replica."""
    return node.op in STATEFUL or reads_random_state(node)


def reads_random_state(node: tf.compat.v1.NodeDef) -> bool:
    """Return whether a node reads a random state; the state is then shifted, so that it differs between replicas."""
    return node.op == "RngReadAndSkip" or KERAS_READ in node.attr


def rewrite_node(node: tf.compat.v1.NodeDef, scope: Scope) -> tuple[list[tf.compat.v1.NodeDef], FunctionDef | None]:
    """Return the nodes that replace a node, and the `FunctionDef` that the last of these nodes calls.

    The last node has the name of the replaced node. A node that is not random is returned unchanged, with None.

    Raises:
        ModelFnValueError: the node is a random operation without a replacement.
    """
    if node.op in _FIX_BY_OPERATION:
        raise ModelFnValueError(
            f"{traced_code()}: {node.name!r} cannot be drawn on a TPU or on several devices (got {node.op}, expected an operation "
            f"that XLA draws). {_FIX_BY_OPERATION[node.op].format(before=traced_code().before)}"
        )
    if node.op in STATEFUL:
        return _replace_draw(node, scope)
    if reads_random_state(node):
        return _shift_state(node, scope)
    return [node], None


def _replace_draw(node: tf.compat.v1.NodeDef, scope: Scope) -> tuple[list[tf.compat.v1.NodeDef], FunctionDef]:
    """Return the nodes that replace a stateful draw, and the called function.

    The nodes are a constant with the seeds, and a call of a stateless draw.
    """
    input_dtypes, result_dtype = _find_dtypes(node)
    definition = make_draw(node.op, input_dtypes, result_dtype, uses_replica=scope.replica is not None)
    seeds = _make_constant(f"{node.name}/seeds", _find_seeds(node), node)
    data_inputs = list_data_inputs(node)
    control_inputs = node.input[len(data_inputs) :]
    replica_inputs = [] if scope.replica is None else [scope.replica]
    # In the order of the arguments of `make_draw`'s function; control inputs come last.
    inputs = [*data_inputs, scope.name_output(seeds.name), scope.position, *replica_inputs, *control_inputs]
    return [seeds, _make_call(node, definition, inputs)], definition


def _shift_state(node: tf.compat.v1.NodeDef, scope: Scope) -> tuple[list[tf.compat.v1.NodeDef], FunctionDef]:
    """Return the two nodes that replace a read of a random state, and the function that the second of them calls.

    The first node reads the stored state. The second has the old name, and shifts the state by a distance for the replica.
    """
    assert scope.replica is not None  # A session's draws shift no state.
    stored_state = type(node).FromString(node.SerializeToString())
    stored_state.name = f"{node.name}/stored"
    stored_state.attr.pop(KERAS_READ, None)
    _, state_dtype = _find_dtypes(node)
    index = _KEY_OF_GENERATOR if node.op == "RngReadAndSkip" else 0  # A Keras state begins with its seed.
    definition = make_seed_shift(state_dtype, index)
    inputs = [scope.name_output(stored_state.name, "value"), scope.replica]
    return [stored_state, _make_call(node, definition, inputs)], definition


def derive_position(node: tf.compat.v1.NodeDef, scope: Scope) -> tuple[list[tf.compat.v1.NodeDef], FunctionDef]:
    """Return the nodes that compute the position for the functions that a node calls, and the `FunctionDef` that they call.

    The last node is the position. It follows from the caller's position, and from the node's name, so that two calls of one
    function draw different values.
    """
    salt = _make_constant(f"{node.name}/salt", _hash_name(node.name)[0], node)
    definition = make_position()
    position = _make_call(node, definition, [scope.position, scope.name_output(salt.name)])
    position.name = f"{node.name}/position"
    return [salt, position], definition


def list_data_inputs(node: tf.compat.v1.NodeDef) -> list[str]:
    """Return the inputs of a node without its control inputs, which come last."""
    return [name for name in node.input if not name.startswith("^")]


def _make_constant(name: str, value: int | Sequence[int], like: tf.compat.v1.NodeDef) -> tf.compat.v1.NodeDef:
    """Return a constant node of uint64 numbers, on the device of the node `like`."""
    new_node = type(like)(name=name, op="Const", device=like.device)
    new_node.attr["dtype"].type = tf.uint64.as_datatype_enum
    new_node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.uint64))
    return new_node


def _make_call(node: tf.compat.v1.NodeDef, definition: FunctionDef, inputs: Sequence[str]) -> tf.compat.v1.NodeDef:
    """Return a node that calls a function, with the name and the device of `node`."""
    new_node = type(node)(name=node.name, op="PartitionedCall", device=node.device, input=inputs)
    new_node.attr["f"].func.name = definition.signature.name
    new_node.attr["Tin"].list.type.extend(argument.type for argument in definition.signature.input_arg)
    new_node.attr["Tout"].list.type.extend(argument.type for argument in definition.signature.output_arg)
    return new_node


def _find_dtypes(node: tf.compat.v1.NodeDef) -> tuple[tuple[tf.DType, ...], tf.DType]:
    """Return the dtypes of the data inputs and of the first output of a node."""

    # An argument has a fixed dtype, or the dtype in one of the node's attributes.
    def find_dtype(argument: Any) -> tf.DType:
        return tf.as_dtype(argument.type or node.attr[argument.type_attr].type)

    definition = op_def_registry.get(node.op)
    return tuple(map(find_dtype, definition.input_arg)), find_dtype(definition.output_arg[0])


def _find_seeds(node: tf.compat.v1.NodeDef) -> list[int]:
    """Return a node's two uint64 seeds; an unseeded node gets seeds hashed from its name, equal in all processes."""
    # Attributes are signed; seeds of 31 bits, as TensorFlow's are, keep the draws of replicas apart.
    seeds = [node.attr[name].i % 2**64 for name in ("seed", "seed2")]
    return seeds if any(seeds) else [half % 2**31 for half in _hash_name(node.name)]


def _hash_name(name: str) -> list[int]:
    """Return two 64-bit numbers that follow from a name, the same in all processes."""
    digest = hashlib.sha256(name.encode()).digest()
    return [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")]
