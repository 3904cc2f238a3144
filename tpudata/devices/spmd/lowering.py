"""Lowering: a TensorFlow function of one replica becomes a program that runs on every device."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import jax
import tensorflow as tf

from tpudata.devices.errors import ModelFnValueError
from tpudata.devices.graphs.graph_copy import SCOPE
from tpudata.devices.graphs.traced_code import traced_code
from tpudata.devices.spmd.stablehlo import export_module
from tpudata.error_text import libraries as texts

# The operation for a size that is known only at run time: its name in StableHLO, and a pattern for it with its node in XLA's HLO.
_DYNAMIC_SIZE = b"set_dimension_size"
_DYNAMIC_SIZE_NODE = re.compile(r'set-dimension-size\(.*op_name="(?:model/)?([^"]+)"')


@dataclasses.dataclass(frozen=True)
class ReplicaProgram:
    """A function of one replica, with collectives over all replicas.

    Attributes:
        exported: the program as a `jax.export.Exported`: a function of the inputs, followed by the variables, that returns the
            results, followed by the new values of `updates`.
        inputs: shapes and dtypes of the inputs.
        results: shapes and dtypes of the results.
        variables: names of the variables that the function reads or writes, in the order of the program's arguments.
        updates: names of the variables that the function writes, in the order of their new values.
    """

    exported: jax.export.Exported
    inputs: tuple[jax.ShapeDtypeStruct, ...]
    results: tuple[jax.ShapeDtypeStruct, ...]
    variables: tuple[str, ...]
    updates: tuple[str, ...]

    def __call__(
        self, inputs: Sequence[jax.Array], variables: Mapping[str, jax.Array]
    ) -> tuple[list[jax.Array], dict[str, jax.Array]]:
        """Run the program on one replica, inside jax's `shard_map`.

        Args:
            inputs: inputs of this replica.
            variables: values of the variables (arrays of their shapes and dtypes), by name.

        Returns:
            The results, and the new values of the written variables by name.
        """
        outputs = self.exported.call(*inputs, *(variables[name] for name in self.variables))
        num_results = len(self.results)
        return list(outputs[:num_results]), dict(zip(self.updates, outputs[num_results:], strict=True))


def lower(
    function: Callable[..., list[tf.Tensor]], specs: Sequence[tf.TensorSpec], variables: Mapping[str, tf.Variable]
) -> ReplicaProgram:
    """Lower a function of tensors and variables to StableHLO for one replica.

    Args:
        function: function of tensors, which returns a flat sequence of tensors and may read and assign to variables.
        specs: specs of the function's arguments, with static shapes.
        variables: `tf.Variable`s that the function may use, by name.

    Raises:
        ModelFnValueError: XLA cannot compile an operation, a shape depends on values, a result has strings, or the function uses
            tensors or variables from outside.
        UsageError: this version of jax is not supported.
    """
    code = traced_code()
    compiled = tf.function(function, jit_compile=True, autograph=False)
    with tf.device("CPU:0"):  # Never a GPU, which jax uses.
        graph = compiled.get_concrete_function(*specs).graph
    string_names = [tensor.name for tensor in graph.outputs if tensor.dtype == tf.string]
    if string_names:
        raise ModelFnValueError(
            f"{code}: {string_names[0]!r} has strings (expected numbers on several devices and a TPU). Make them on the host."
        )
    captures = graph.captures
    names_by_handle_id = {id(variable.handle): name for name, variable in variables.items()}
    foreign_tensors = [external for external, _ in captures if id(external) not in names_by_handle_id]
    if foreign_tensors:
        raise ModelFnValueError(
            f"{code}: it uses a tensor or a variable that was made outside of it (got {foreign_tensors[0]!r}, expected arguments "
            "and the variables that it makes). Make it inside."
        )
    try:
        with tf.device("CPU:0"):
            get_ir = compiled.experimental_get_compiler_ir(*specs)
            serialized = get_ir(stage="stablehlo_serialized")
    except (ValueError, tf.errors.OpError) as error:
        # An operation without a kernel, such as tf.py_function, often causes the missing shape: report the operation instead.
        shape_message = "" if texts.NO_KERNEL.search(str(error)) else _describe_dynamic_shape(graph.outputs)
        raise ModelFnValueError(shape_message or _describe_xla_error(str(error))) from None
    shape_message = _describe_dynamic_shape(graph.outputs)
    if shape_message:
        raise ModelFnValueError(shape_message)
    # A size inside the function may depend on values although all results have static shapes.
    if _DYNAMIC_SIZE in serialized:
        match = _DYNAMIC_SIZE_NODE.search(get_ir(stage="hlo"))
        name = "" if match is None else f" of {match[1]!r}"
        raise ModelFnValueError(
            f"{code}: the shape{name} depends on values (expected static shapes on several devices and a TPU). Keep all rows and "
            "mask them: tf.where(condition, x, 0), or weights of 0."
        )
    module = export_module(serialized)
    # The module's arguments are the inputs and then the variables; its results end with the variables' new values.
    num_inputs, num_results = len(specs), len(module.results) - len(module.updates)
    variable_names = tuple(names_by_handle_id[id(external)] for external, _ in captures)
    updates = tuple(
        variable_names[module.updates[index] - num_inputs] for index in range(num_results, len(module.results))
    )
    inputs, results = module.arguments[:num_inputs], module.results[:num_results]
    return ReplicaProgram(module.exported, inputs, results, variable_names, updates)


def _describe_dynamic_shape(outputs: Sequence[tf.Tensor]) -> str:
    """Return the error message for the first result without a static shape; "" if all results have static shapes."""
    for tensor in outputs:
        if not tensor.shape.is_fully_defined():
            return (
                f"{traced_code()}: {tensor.name!r} has the shape {tensor.shape}, which depends on values (expected a static shape "
                "on several devices and a TPU). Pad it to one size."
            )
    return ""


def _describe_xla_error(error: str) -> str:
    """Return the error message for a function that XLA rejects with the message `error`."""
    code = traced_code()
    match = texts.NO_KERNEL.search(error)
    if match is not None:
        operation_type, node_text = match.groups()
        return (
            f"{code}: the operation {texts.find_nodes(node_text, SCOPE)[0]!r} does not run on several devices or a TPU "
            f"(got {operation_type}, expected operations that XLA compiles). Compute it {code.before}, or {code.after}."
        )
    nodes = texts.find_nodes(error, SCOPE)
    location = f" at {nodes[0]!r}" if nodes else ""
    reason = texts.find_xla_reason(error, SCOPE)
    return f"{code}: XLA cannot compile it{location} (got: {reason}). Use static shapes, or compute it {code.before}."
