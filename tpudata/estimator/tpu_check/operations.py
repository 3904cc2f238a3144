"""Rehearsal of the operations: list the operations of a step, and find the ones that a TPU lacks."""

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from tpudata.estimator.api.findings import Report
from tpudata.estimator.fetching.replay import Replay
from tpudata.estimator.state.blueprint import Blueprint
from tpudata.tensorflow_internals import find_function_graph, kernels

# Device for which the kernels of XLA are registered.
_XLA = "XLA_CPU_JIT"
_LIBRARIES = ("tensorflow", "keras", "tf_keras", "tensorboard")
# Types of the operations that a step does not compute: its inputs, constants, handles of variables and files, and sums over the
# replicas, which become XLA's own.
_NOT_COMPUTED = (
    "Placeholder",
    "PlaceholderWithDefault",
    "VarHandleOp",
    "SummaryWriter",
    "_Arg",
    "Const",
    "NoOp",
    "CrossReplicaSum",
)
# Types of other operations, by what they do.
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_PRINTS = ("Print", "PrintV2", "StringFormat")
_FILTERS = ("Where", "Unique", "UniqueV2", "UniqueWithCounts", "ListDiff", "DynamicPartition", "NonMaxSuppressionV3")
# Types of the operations whose unknown output shapes are not a finding: inputs, and batch norm, whose reserved outputs depend on
# the device.
_IGNORED_SHAPES = ("Placeholder", "PlaceholderWithDefault", "_Arg", "FusedBatchNormV3", "FusedBatchNormV2")
_CONTROL_FLOW = ("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase")
_LISTS = ("TensorListStack", "TensorListConcatV2", "TensorListConcat")
# (attribute, allowed values of tf.DType.as_datatype_enum) for each constraint of a kernel.
_Constraints: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]


@dataclasses.dataclass(frozen=True)
class Roots:
    """Tensors and operations from which the graph of a step is found.

    Attributes:
        tensors: tensors of the scratch graph that the step computes.
        updates: operations of the scratch graph that the step runs for their effect.
    """

    tensors: Sequence[tf.Tensor]
    updates: Sequence[tf.Operation]


class StepGraph:
    """The part of a scratch graph that a step runs.

    Attributes:
        blueprint: blueprint of the scratch graph.
        tensors: tensors that the step computes.
        updates: operations that the step runs for their effect.
        operations: all operations that the step runs, in the order of creation.

    Args:
        blueprint: blueprint of the scratch graph.
        roots: tensors and operations of the step.
    """

    def __init__(self, blueprint: Blueprint, roots: Roots) -> None:
        self.blueprint = blueprint
        self.tensors = list(roots.tensors)
        self.updates = list(roots.updates)
        needed_operations = Replay(blueprint, self.tensors, self.updates).operations
        # The set of needed operations has no order.
        self.operations = [
            operation for operation in blueprint.graph.get_operations() if operation in needed_operations
        ]

    def iterate_nested(self, operation: tf.Operation) -> Iterator[tf.Operation]:
        """Yield the operations in the functions of an operation: the branches of a condition, the body of a loop."""
        for name in _list_functions(operation):
            inner_graph = find_function_graph(operation.graph, name)
            if inner_graph is None:
                continue
            for inner_operation in inner_graph.get_operations():
                yield inner_operation
                yield from self.iterate_nested(inner_operation)

    def iterate_all(self) -> Iterator[tuple[tf.Operation, tf.Operation]]:
        """Yield each operation, also of nested functions, with the operation of the outermost graph that is or contains it."""
        for operation in self.operations:
            yield operation, operation
            for nested in self.iterate_nested(operation):
                yield nested, operation


def _list_functions(operation: tf.Operation) -> list[str]:
    """Return the names of the functions that an operation calls."""
    names = []
    for attribute in operation.op_def.attr:
        if attribute.type in ("func", "list(func)"):
            functions = operation.get_attr(attribute.name)  # A function or a list of them.
            functions = functions if isinstance(functions, list) else [functions]
            names += [function.name for function in functions if function.name]
    return names


def find_code_line(operation: tf.Operation) -> str:
    """Return the "FILE:LINE" of the program that made an operation; the operation's name if the line is unknown."""
    forward_operation = getattr(operation, "_original_op", None)  # Set in gradients: the operation of the forward pass.
    if forward_operation is not None:
        return find_code_line(forward_operation)
    for frame in reversed(operation.traceback or ()):
        # "<" begins the names of code without a file, such as "<string>".
        if not frame.filename.startswith(("<", *_list_library_folders())):
            return f"{frame.filename}:{frame.lineno}"
    return f"operation {operation.name!r}"


@functools.cache
def _list_library_folders() -> tuple[str, ...]:
    """Return the folders of code that does not belong to the program, each with a separator at its end."""
    specs = [importlib.util.find_spec(name) for name in _LIBRARIES]
    files = [spec.origin for spec in specs if spec is not None and spec.origin is not None]
    package = Path(__file__).parents[2]  # tpudata, whose other folders may hold programs.
    folders = [*(Path(file).parent for file in files), package / "estimator", package / "devices"]
    return tuple(f"{folder}{os.sep}" for folder in folders)


def check_operations(graph: StepGraph, report: Report) -> set[tf.Operation]:
    """Report the operations of a step that a TPU rejects, and the operations at which a dynamic shape or float64 begins.

    Returns:
        Operations of the outermost graph that a TPU rejects, or that contain a rejected operation.
    """
    unsupported_operations: set[tf.Operation] = set()
    # Types of the rejected operations by (line of the program, reason, fix).
    rejected_types: dict[tuple[str, str, str], list[str]] = {}
    for operation, outermost in graph.iterate_all():
        code_line = find_code_line(operation)
        rejection = _find_rejection(operation)
        if rejection is not None:
            unsupported_operations.add(outermost)
            rejected_types.setdefault((code_line, *rejection), []).append(operation.type)
            continue
        shape = _find_dynamic_shape(operation)
        if shape is not None:
            report(
                code_line,
                f"the shape of the result of {operation.type} depends on the data: {shape}",
                _choose_shape_fix(operation),
            )
        returns_float64 = any(tensor.dtype == tf.float64 for tensor in operation.outputs)
        takes_float64 = any(tensor.dtype == tf.float64 for tensor in operation.inputs)
        # Report only the operation at which float64 begins.
        if returns_float64 and not takes_float64 and operation.type != "Const":
            report(
                code_line,
                "it computes in float64, which a TPU makes of several numbers of 32 bits: slow",
                "use tf.cast to float32, or pass dtype=tf.float32",
                is_rejected=False,
            )
    for (code_line, what, fix), types in rejected_types.items():
        report(code_line, f"{', '.join(dict.fromkeys(types))}: {what}", fix)
    return unsupported_operations


def _find_rejection(operation: tf.Operation) -> tuple[str, str] | None:
    """Return the reason why a TPU rejects an operation, and the fix; None if it accepts it."""
    operation_type = operation.type
    if operation_type in _NOT_COMPUTED:
        return None
    if operation_type in _PYTHON:
        return (
            "runs Python in the middle of the step, which runs on the TPU",
            "use TensorFlow's operations instead of tf.py_function and tf.numpy_function, or do it in the dataset's map",
        )
    if operation_type in _PRINTS:
        return "prints in the middle of the step", "use host_call of TPUEstimatorSpec, or a LoggingTensorHook"
    if "Summary" in operation_type:
        return (
            "writes a summary in the middle of the step",
            "use tf.compat.v1.summary, which is written between two loops, or host_call of TPUEstimatorSpec",
        )
    dtypes = {tensor.dtype for tensor in (*operation.inputs, *operation.outputs)}
    # XLA drops assertions with their messages. Operations inside a loop or condition are checked one by one, so the loop or
    # condition as a whole may pass strings.
    if tf.string in dtypes and operation_type not in ("Assert", *_CONTROL_FLOW):
        return (
            "works on strings, which a TPU does not have",
            "do it in the dataset's map, or with the results of predict",
        )
    if tf.complex128 in dtypes:
        return "computes in complex128, which a TPU does not have", "use complex64"
    kernel_constraints = _list_kernels(operation_type)
    if not kernel_constraints:
        return (
            "has no XLA kernel",
            "do it in the dataset's map, in metric_fn or host_fn, which run on the host, or use other operations",
        )
    if not any(_allows_dtypes(operation, constraints) for constraints in kernel_constraints):
        names = sorted({dtype.name for dtype in dtypes if dtype != tf.resource}) or [tf.resource.name]
        # A FakeParam stands for what a gradient needs of the branch that does not run: it has kernels for tensors, but none for
        # stacks of tensors.
        if operation_type == "FakeParam":
            fix = (
                "use no tf.while_loop and no tf.TensorArray in a branch of tf.cond if the gradient passes through it: compute"
                " both results, and select one with tf.where"
            )
        else:
            fix = "use tf.cast to float32 or int32"
        return f"has no XLA kernel for {', '.join(names)}", fix
    return None


@functools.cache
def _list_kernels(operation_type: str) -> tuple[_Constraints, ...]:
    """Return the constraints of each XLA kernel of an operation type; () if XLA has none."""
    _start_xla()
    registered_kernels = kernels.get_registered_kernels_for_op(operation_type).kernel
    return tuple(
        tuple((constraint.name, tuple(constraint.allowed_values.list.type)) for constraint in kernel.constraint)
        for kernel in registered_kernels
        if kernel.device_type == _XLA
    )


@functools.cache
def _start_xla() -> None:
    """Compile a small function, since XLA registers its kernels at its first compilation."""
    tf.function(tf.identity, jit_compile=True)(tf.constant(0.0))


def _allows_dtypes(operation: tf.Operation, constraints: _Constraints) -> bool:
    """Return whether a kernel with these constraints supports the dtypes of an operation."""
    for name, allowed in constraints:
        dtypes = operation.get_attr(name)  # A dtype or a list of them.
        dtypes = dtypes if isinstance(dtypes, list) else [dtypes]
        if any(dtype.as_datatype_enum not in allowed for dtype in dtypes):
            return False
    return True


def _find_dynamic_shape(operation: tf.Operation) -> str | None:
    """Return the unknown shape of an operation's output, as a string, if all its inputs have known shapes; otherwise None.

    This way, a dynamic shape is found where it begins, and not in all the operations that follow.
    """
    if operation.type in _IGNORED_SHAPES:
        return None
    if not all(has_known_shape(tensor) for tensor in operation.inputs):
        return None
    return next((str(tensor.shape) for tensor in operation.outputs if not has_known_shape(tensor)), None)


def has_known_shape(tensor: tf.Tensor) -> bool:
    """Return whether a tensor has a static shape; handles count as having one, since their shape does not matter."""
    return tensor.dtype in (tf.resource, tf.variant) or tensor.shape.is_fully_defined()


def _choose_shape_fix(operation: tf.Operation) -> str:
    """Return advice on how to give a static shape to the results of an operation whose shape depends on the data."""
    if operation.type in _FILTERS:
        return "keep all rows and mask: tf.where(condition, x, 0), or weights of 0 in the loss and the metrics"
    if operation.type in _CONTROL_FLOW:
        return "keep the shape of each of a loop's tensors, and use the same shapes in both branches of a condition"
    if operation.type in _LISTS:
        return "pass a Python number as the size of the tf.TensorArray, and element_shape"
    return "compute sizes from Python numbers and static shapes, as in x.shape, or mask the surplus"
