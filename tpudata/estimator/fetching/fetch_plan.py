"""Place and time at which values for hooks and summaries are computed.

Hooks and summaries request tensors of the scratch graph. Values that depend on the batch, or on random draws, must come from the
step itself. Values that only depend on variables are computed on the host before the step. Operations that hooks have added, and
those that make summaries, always run on the host: after the step, if they use its values.
"""

import dataclasses
import enum
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.errors import ModelFnValueError
from tpudata.estimator.graph.graph_walk import reached
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

    Args:
        blueprint: blueprint of the scratch graph, before hooks add to it.
    """

    def __init__(self, blueprint: Blueprint) -> None:
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
        if not self.is_models(operation) or operation.type in _SUMMARIES or When.AFTER in inputs:
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


class Counterparts:
    """Lookup of the scratch graph's tensors and operations in a later trace of the same function.

    Names may differ: a graph numbers equal ones, and in another trace some may be taken. The name without its numbers, the type of
    the operation and the number of earlier ones like it are the same.

    Args:
        blueprint: blueprint of the scratch graph.
        names: names of the tensors.
        operations: names of the operations.
    """

    def __init__(self, blueprint: Blueprint, names: Iterable[str], operations: Iterable[str] = ()) -> None:
        self._arguments = [item.name for item in tf.nest.flatten(blueprint.arguments) if item is not None]
        self._wanted = [blueprint.graph.get_tensor_by_name(name) for name in names]
        places = _places(blueprint.graph.get_operations())
        self._places = [
            None if tensor.name in self._arguments else (places[tensor.op.name], tensor.value_index)
            for tensor in self._wanted
        ]
        self._operations = {name: places[name] for name in operations}

    def find(self, operations: Iterable[Any], arguments: Any) -> list[Any]:
        """Return the counterparts of the tensors among the outputs of `operations`, or among `arguments`.

        Raises:
            ModelFnValueError: a tensor has no counterpart.
        """
        made = {place: operation for operation, place in _placed(operations)}
        given = dict(
            zip(self._arguments, [item for item in tf.nest.flatten(arguments) if item is not None], strict=True)
        )
        return [
            given[tensor.name] if place is None else self._output(made.get(place[0]), place[1], tensor)
            for tensor, place in zip(self._wanted, self._places, strict=True)
        ]

    def find_operations(self, operations: Iterable[Any]) -> list[Any]:
        """Return the counterparts of the operations among `operations`.

        Raises:
            ModelFnValueError: an operation has no counterpart.
        """
        made = {place: operation for operation, place in _placed(operations)}
        for name, place in self._operations.items():
            if place not in made:
                raise _not_found(name)
        return [made[place] for place in self._operations.values()]

    def _output(self, operation: Any, index: int, wanted: Any) -> Any:
        found = None if operation is None else operation.outputs[index]
        if found is None or found.dtype != wanted.dtype or not found.shape.is_compatible_with(wanted.shape):
            raise _not_found(wanted.name)
        return found


def _not_found(name: str) -> ModelFnValueError:
    return ModelFnValueError(
        f"A hook or a summary uses {name!r}, which cannot be found in the step that runs. Let it use tf.identity(tensor, "
        "name=...), or tf.group(operation, name=...), made in model_fn outside of the optimizer, with a unique name."
    )


def _placed(operations: Iterable[Any]) -> Iterable[tuple[Any, tuple[str, str, int]]]:
    counts: Counter[tuple[str, str]] = Counter()
    for operation in operations:
        key = operation.type, re.sub(r"_\d+(?=/|$)", "", operation.name)
        counts[key] += 1
        yield operation, (*key, counts[key])


def _places(operations: Iterable[Any]) -> dict[str, tuple[str, str, int]]:
    return {operation.name: place for operation, place in _placed(operations)}
