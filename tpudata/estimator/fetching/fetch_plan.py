"""Place and time at which values for hooks and summaries are computed.

Hooks and summaries request tensors of the scratch graph. Values that depend on the batch, or on random draws, must come from the
step itself. Values that only depend on variables are computed on the host before the step. Operations that hooks have added, and
those that make summaries, always run on the host: after the step, if they use its values.
"""

import dataclasses
import enum
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tpudata.devices.graphs.graph_walk import reached
from tpudata.estimator.state.blueprint import Blueprint

_SUMMARIES = ("ScalarSummary", "HistogramSummary", "ImageSummary", "AudioSummary", "TensorSummary", "TensorSummaryV2")
_HANDLES = (tf.resource, tf.variant)


class When(enum.Enum):
    """Time at which an operation's results are computed, relative to the step."""

    BEFORE = "on the host, before the step"
    STEP = "in the step"
    AFTER = "on the host, after the step"


class Timing:
    """Times at which operations of a scratch graph are computed.

    Attributes:
        is_on_devices: whether steps run on devices.

    Args:
        blueprint: blueprint of the scratch graph, before hooks add to it.
        writes: operations of model_fn that write summaries, if steps run on devices, which have no strings and no files; None for
            plain TensorFlow.
    """

    def __init__(self, blueprint: Blueprint, writes: Collection[Any] | None = None) -> None:
        self.is_on_devices = writes is not None
        self._writes = {item.name for item in writes or ()}
        self._graph = blueprint.graph
        self._inputs = {item.op.name for item in tf.nest.flatten(blueprint.arguments) if item is not None}
        self._model = {operation.name for operation in self._graph.get_operations()}
        self._found: dict[str, When] = {}

    def is_models(self, operation: Any) -> bool:
        """Return whether model_fn made an operation, rather than a hook."""
        return operation.name in self._model

    def of(self, operation: Any) -> When:
        """Return when an operation is computed."""
        if operation.name not in self._found:
            for item in self._graph.get_operations():  # An operation follows its inputs.
                if item.name not in self._found:
                    self._found[item.name] = self._when(item)
        return self._found[operation.name]

    def _when(self, operation: Any) -> When:
        if operation.name in self._inputs:
            return When.STEP
        inputs = {self._found.get(tensor.op.name, When.STEP) for tensor in operation.inputs}
        if operation.type == "NoOp":  # tf.group runs the operations that it waits for.
            inputs |= {self._found.get(item.name, When.STEP) for item in operation.control_inputs}
        if not self.is_models(operation) or self._is_hosts(operation) or When.AFTER in inputs:
            return When.AFTER if inputs & {When.STEP, When.AFTER} else When.BEFORE
        if When.STEP in inputs or operation.type == "Placeholder":
            return When.STEP
        if operation.type == "VarHandleOp":
            return When.BEFORE
        if operation.type == "ReadVariableOp":
            # With a control dependency, it reads the value after an update of this step.
            waits = any(self._found.get(item.name) is When.STEP for item in operation.control_inputs)
            return When.STEP if waits else When.BEFORE
        return When.STEP if operation.op_def.is_stateful else When.BEFORE

    def _is_hosts(self, operation: Any) -> bool:
        """Return whether an operation of model_fn always runs on the host."""
        if operation.type in _SUMMARIES or operation.name in self._writes:
            return True
        return self.is_on_devices and any(item.dtype == tf.string for item in (*operation.inputs, *operation.outputs))


@dataclasses.dataclass(frozen=True)
class FetchPlan:
    """Plan of when the tensors and operations of a fetch are computed.

    Attributes:
        before: tensors computed before the step.
        before_operations: operations run before the step.
        step: tensors that the step returns.
        step_operations: operations of the model that run in the step.
        after: tensors computed after the step, from those of `before` and `step`.
        after_operations: operations run after the step.
    """

    before: tuple[Any, ...]
    before_operations: tuple[Any, ...]
    step: tuple[Any, ...]
    step_operations: tuple[Any, ...]
    after: tuple[Any, ...]
    after_operations: tuple[Any, ...]


def plan(elements: Iterable[Any], timing: Timing, fed: frozenset[str] = frozenset()) -> FetchPlan:
    """Plan how to compute tensors and operations of the scratch graph.

    Args:
        elements: the tensors and operations.
        timing: timing of the graph.
        fed: names of tensors whose values hooks provide.
    """
    elements = list(elements)
    tensors: dict[When, dict[str, Any]] = {when: {} for when in When}
    operations: dict[When, dict[str, Any]] = {when: {} for when in When}
    for element in elements:
        is_tensor = isinstance(element, tf.Tensor)
        when = timing.of(element.op if is_tensor else element)
        (tensors if is_tensor else operations)[when][element.name] = element

    def parts(operation: Any) -> Iterator[Any]:
        for tensor in operation.inputs:
            when = timing.of(tensor.op)
            if tensor.name in fed:
                continue
            if when is When.AFTER or tensor.dtype in _HANDLES or tensor.op.type == "Const":
                yield tensor.op
            else:
                tensors[when][tensor.name] = tensor

    reached([*(tensor.op for tensor in tensors[When.AFTER].values()), *operations[When.AFTER].values()], parts)
    return FetchPlan(
        tuple(tensors[When.BEFORE].values()),
        tuple(operations[When.BEFORE].values()),
        tuple(tensors[When.STEP].values()),
        tuple(operations[When.STEP].values()),
        tuple(tensors[When.AFTER].values()),
        tuple(operations[When.AFTER].values()),
    )
