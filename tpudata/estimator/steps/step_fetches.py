"""Values that hooks and summaries fetch from a step."""

from collections.abc import Callable, Iterable

import tensorflow as tf

from tpudata.devices.graphs.graph_walk import find_needed_operations, is_effect
from tpudata.estimator.tracing.traced_model import TracedModel
from tpudata.tensor_types import GraphElement


class StepFetches:
    """Tensors that a step returns, and operations that it runs, by name.

    Once requested, a tensor stays requested, so that a hook that fetches at intervals does not cause new builds of the step.
    Tensors and operations with side effects only run in the steps for which they are requested.

    Attributes:
        value_names: names of the tensors without side effects.
        effect_names: names of the requested operations, and of the requested tensors with side effects.

    Args:
        traced: the model.
        list_always_run: function from a trace to the operations of its scratch graph that every step runs.
    """

    def __init__(self, traced: TracedModel, list_always_run: Callable[[TracedModel], list[tf.Operation]]) -> None:
        self.value_names: tuple[str, ...] = ()
        self.effect_names: tuple[str, ...] = ()
        self._list_always_run = list_always_run
        self.switch_to(traced)

    def switch_to(self, traced: TracedModel) -> None:
        """Switch to the tensors and operations of another trace of the same model."""
        self._traced = traced
        # Operations that every step needs; None until `has_effect` searches for them.
        self._always_run: set[tf.Operation] | None = None
        # Results of `has_effect`, by name of the tensor.
        self._effect_cache: dict[str, bool] = {}

    def request(self, elements: Iterable[GraphElement]) -> None:
        """Request tensors and operations of the scratch graph from the next step.

        Elements with side effects replace the earlier ones with side effects. Other tensors remain requested, since fetching them
        again costs less than building the step without them.
        """
        unique_elements = {element.name: element for element in elements}
        self.effect_names = tuple(
            name
            for name, element in unique_elements.items()
            if not isinstance(element, tf.Tensor) or self.has_effect(element)
        )
        self.value_names += tuple(
            name for name in unique_elements if name not in self.effect_names and name not in self.value_names
        )

    @property
    def key(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Key of the built step; also valid in other traces, which have the same names."""
        return self.value_names, self.effect_names

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors that the next step returns."""
        # Tensors are named OPERATION:OUTPUT; names of operations have no colon.
        return *self.value_names, *(name for name in self.effect_names if ":" in name)

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The tensors of the scratch graph with the names `names`."""
        return [self._traced.blueprint.graph.get_tensor_by_name(name) for name in self.names]

    @property
    def operations(self) -> list[tf.Operation]:
        """The operations of the scratch graph that were requested from the next step, besides those that every step runs."""
        graph = self._traced.blueprint.graph
        # Names with a colon are of tensors.
        return [graph.get_operation_by_name(name) for name in self.effect_names if ":" not in name]

    def has_effect(self, tensor: tf.Tensor) -> bool:
        """Return whether fetching a tensor makes the step run further operations with side effects."""
        if tensor.name not in self._effect_cache:
            input_names = {placeholder.name for placeholder in self._traced.blueprint.placeholders}
            if self._always_run is None:
                self._always_run = find_needed_operations(self._list_always_run(self._traced), input_names)
            added_operations = find_needed_operations([tensor.op], input_names) - self._always_run
            self._effect_cache[tensor.name] = any(map(is_effect, added_operations))
        return self._effect_cache[tensor.name]
