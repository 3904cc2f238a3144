"""Place and time at which values for hooks and summaries are computed.

Hooks and summaries request tensors of the scratch graph. Values that depend on the batch, or on random draws, must come from the
step itself. Values that only depend on variables are computed on the host before the step. Operations that hooks have added, and
operations that make summaries, always run on the host: after the step, if they use its values.
"""

import dataclasses
import enum
from collections.abc import Collection, Iterable, Iterator

import tensorflow as tf

from tpudata.devices.graphs.graph_walk import walk_graph
from tpudata.estimator.state.blueprint import Blueprint
from tpudata.tensor_types import GraphElement

_SUMMARY_TYPES = (
    "ScalarSummary",
    "HistogramSummary",
    "ImageSummary",
    "AudioSummary",
    "TensorSummary",
    "TensorSummaryV2",
)
_HANDLE_DTYPES = (tf.resource, tf.variant)


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
        host_writes: operations of model_fn that write summaries, if steps run on devices: the host runs them; None if steps run in
            plain TensorFlow, and write summaries themselves.
    """

    def __init__(self, blueprint: Blueprint, host_writes: Collection[tf.Operation] | None = None) -> None:
        self.is_on_devices = host_writes is not None
        self._summary_write_names = {operation.name for operation in host_writes or ()}
        self._graph = blueprint.graph
        self._input_names = {placeholder.op.name for placeholder in blueprint.placeholders}
        self._model_names = {operation.name for operation in self._graph.get_operations()}
        self._times: dict[str, When] = {}

    def is_made_by_model_fn(self, operation: tf.Operation) -> bool:
        """Return whether model_fn made an operation, rather than a hook."""
        return operation.name in self._model_names

    def find_time(self, operation: tf.Operation) -> When:
        """Return the time at which an operation is computed."""
        if operation.name not in self._times:
            for new_operation in self._graph.get_operations():  # In the order of creation: inputs come first.
                if new_operation.name not in self._times:
                    self._times[new_operation.name] = self._compute_time(new_operation)
        return self._times[operation.name]

    def _compute_time(self, operation: tf.Operation) -> When:
        """Return the time of an operation from its type and the times of its inputs."""
        if operation.name in self._input_names:
            return When.STEP
        # In a v1 loop, an input from the next iteration has no time yet; it counts as part of the step.
        input_times = {self._times.get(tensor.op.name, When.STEP) for tensor in operation.inputs}
        if operation.type == "NoOp":  # Made by tf.group, which runs its control inputs.
            input_times |= {self._times.get(control.name, When.STEP) for control in operation.control_inputs}
        # The compiled step contains only model_fn's operations, so the host runs the operations that hooks have added.
        if not self.is_made_by_model_fn(operation) or self._runs_on_host(operation) or When.AFTER in input_times:
            return When.AFTER if input_times & {When.STEP, When.AFTER} else When.BEFORE
        if When.STEP in input_times or operation.type == "Placeholder":
            return When.STEP
        if operation.type == "VarHandleOp":
            return When.BEFORE
        if operation.type == "ReadVariableOp":
            # A read that waits for an operation of the step reads the value after an update of this step.
            waits_for_step = any(self._times.get(control.name) is When.STEP for control in operation.control_inputs)
            return When.STEP if waits_for_step else When.BEFORE
        # The step itself must draw random numbers and assign variables; anything else is a function of variables and constants.
        return When.STEP if operation.op_def.is_stateful else When.BEFORE

    def _runs_on_host(self, operation: tf.Operation) -> bool:
        """Return whether the host runs an operation of model_fn, rather than the step."""
        if operation.type in _SUMMARY_TYPES or operation.name in self._summary_write_names:
            return True
        # Devices cannot hold strings.
        return self.is_on_devices and any(
            tensor.dtype == tf.string for tensor in (*operation.inputs, *operation.outputs)
        )


@dataclasses.dataclass(frozen=True)
class FetchPlan:
    """Tensors and operations of a fetch, by the time at which they are computed.

    Attributes:
        before: tensors computed before the step.
        before_operations: operations run before the step.
        step: tensors that the step returns.
        step_operations: operations of the model that run in the step.
        after: tensors computed after the step, from the tensors of `before` and `step`.
        after_operations: operations run after the step.
    """

    before: tuple[tf.Tensor, ...]
    before_operations: tuple[tf.Operation, ...]
    step: tuple[tf.Tensor, ...]
    step_operations: tuple[tf.Operation, ...]
    after: tuple[tf.Tensor, ...]
    after_operations: tuple[tf.Operation, ...]


def plan_fetches(
    elements: Iterable[GraphElement], timing: Timing, fed_names: frozenset[str] = frozenset()
) -> FetchPlan:
    """Plan when to compute requested tensors and operations of the scratch graph: before, in or after the step.

    The plan also has the tensors from which the host computes the results after the step.

    Args:
        elements: the requested tensors and operations.
        timing: timing of the graph.
        fed_names: names of tensors whose values hooks provide, which are not computed.
    """
    # Elements by name, in the order of the request.
    tensors: dict[When, dict[str, tf.Tensor]] = {when: {} for when in When}
    operations: dict[When, dict[str, tf.Operation]] = {when: {} for when in When}
    for element in elements:
        is_tensor = isinstance(element, tf.Tensor)
        when = timing.find_time(element.op if is_tensor else element)
        (tensors if is_tensor else operations)[when][element.name] = element

    def list_host_inputs(operation: tf.Operation) -> Iterator[tf.Operation]:
        """Yield the inputs that the host computes together with an operation; plan to compute its other inputs earlier."""
        for tensor in operation.inputs:
            when = timing.find_time(tensor.op)
            if tensor.name in fed_names:
                continue
            # Handles cannot be passed as values, and constants need not be.
            if when is When.AFTER or tensor.dtype in _HANDLE_DTYPES or tensor.op.type == "Const":
                yield tensor.op
            else:
                tensors[when][tensor.name] = tensor

    # The walk adds to `tensors` the inputs that the host needs; its result is not used.
    walk_graph(
        [*(tensor.op for tensor in tensors[When.AFTER].values()), *operations[When.AFTER].values()], list_host_inputs
    )
    return FetchPlan(
        before=tuple(tensors[When.BEFORE].values()),
        before_operations=tuple(operations[When.BEFORE].values()),
        step=tuple(tensors[When.STEP].values()),
        step_operations=tuple(operations[When.STEP].values()),
        after=tuple(tensors[When.AFTER].values()),
        after_operations=tuple(operations[When.AFTER].values()),
    )
