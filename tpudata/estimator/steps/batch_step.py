"""Common base of the steps of evaluation and prediction: one batch, computed by all replicas."""

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from tpudata.devices.processes.topology import Topology
from tpudata.estimator.fetching.replay import Replay, make_handle_getter
from tpudata.estimator.graph.structure import make_batch_function
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.step import Step
from tpudata.estimator.tracing.traced_model import TracedModel
from tpudata.tensor_types import Array, Specs, Tensors

# Function from the values of replicas to the values that a call returns: for each tensor a list, with a value for each replica.
# Values are NumPy, or tensors of a `tf.function` that is being built.
Finish: TypeAlias = Callable[[list[list[Tensors]]], list[list[Tensors]]]


class BatchCall(NamedTuple):
    """Part of a scratch graph, computed by each replica on its rows of a batch.

    Attributes:
        writes: names of the variables that it may change.
        run: function of the features, or of the features and labels, of a batch. It returns NumPy values: for each tensor that
            `finish` returns a list, with a value for each replica of this process.
    """

    writes: frozenset[str]
    run: Callable[..., list[list[Array]]]


class BatchCallBuilder(Protocol):
    """Interface of builders of the calls of a step."""

    def build(
        self,
        traced: TracedModel,
        specs: tuple[Specs, ...],
        outputs: Sequence[tf.Tensor],
        updates: Sequence[tf.Operation],
        finish: Finish,
    ) -> BatchCall:
        """Return a call that computes `outputs` and runs `updates` on each replica's rows of a batch.

        Args:
            traced: the model.
            specs: specs of the call's arguments on one replica: the features, or the features and labels.
            outputs: tensors of the scratch graph to compute.
            updates: operations of the scratch graph to run.
            finish: function from the replicas' values of each of `outputs` to the values to return.
        """

    def read_rows(self, feature: Tensors) -> list[Array]:
        """Return a feature of a batch as NumPy arrays, one for each replica."""


class PlainCallBuilder:
    """Builder of calls of plain TensorFlow.

    Args:
        step: the step.
        store: store of its variables.
    """

    def __init__(self, step: Step, store: VariableStore) -> None:
        del store  # The step has its variables.
        self._variables = {**step.variables, **step.local.by_name}

    def build(
        self,
        traced: TracedModel,
        specs: tuple[Specs, ...],
        outputs: Sequence[tf.Tensor],
        updates: Sequence[tf.Operation],
        finish: Finish,
    ) -> BatchCall:
        """Return a call, as described in BatchCallBuilder, with `finish` in its `tf.function`."""
        replay = Replay(traced.blueprint, list(outputs), updates)

        def compute(*batch: Tensors) -> list[list[tf.Tensor]]:
            """Add the call to a tf.function; each tensor has one value, since there is one replica."""
            return finish([[tensor] for tensor in replay(batch, make_handle_getter(self._variables))])

        call = make_batch_function(compute, specs)
        # `numpy()` would return a scalar string as bytes, and arrays made from bytes drop trailing zeros.
        return BatchCall(replay.writes, lambda *batch: [[np.asarray(tensor)] for (tensor,) in call(*batch)])

    def read_rows(self, feature: Tensors) -> list[Array]:
        """Return a feature of a batch as a list of one NumPy array, since there is one replica."""
        return [feature.numpy()]


class BatchStep(Step, abc.ABC):
    """Step of evaluation or prediction.

    Args:
        traced: the model.
        topology: devices that run the steps.
        store: store of the variables that checkpoints contain.
        is_broadcast: whether all replicas get the same rows.
        builder_class: class of the builder of calls on the step's devices.
    """

    def __init__(
        self,
        traced: TracedModel,
        topology: Topology,
        store: VariableStore,
        *,
        is_broadcast: bool,
        builder_class: Callable[[Step, VariableStore], BatchCallBuilder] = PlainCallBuilder,
    ) -> None:
        super().__init__(traced, topology, store, is_broadcast=is_broadcast)
        self._builder = builder_class(self, store)
        # Key of the fetches for which `_call` is built.
        self._built_key: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    @abc.abstractmethod
    def plan_outputs(self) -> tuple[Tensors, list[tf.Operation]]:
        """Return the tensors that a replica computes for a batch, the fetched tensors last, and the operations that it runs."""

    def _finish(self, values: list[list[Array]]) -> list[list[Array]]:
        """Consume the values that only the host needs, and return the others. This class consumes none; EvalStep overrides it.

        Args:
            values: for each tensor of `plan_outputs`, the values of the replicas.
        """
        return values

    def _compute(self, *batch: Tensors) -> tuple[list[list[Array]], dict[str, Array]]:
        """Compute a batch.

        Args:
            batch: features and labels for model_fn, or only the features.

        Returns:
            For each tensor that `_finish` returns, except the fetched tensors, the values (NumPy) of the replicas; and the fetched
            values by name.
        """
        if self._built_key != self.fetches.key:
            self._outputs, updates = self.plan_outputs()
            specs = self._traced.specs[: len(batch)]  # Predictions pass no labels.
            outputs = tf.nest.flatten(self._outputs)
            self._call = self._builder.build(self._traced, specs, outputs, updates, self._finish)
            self._writes = self._call.writes
            self._built_key = self.fetches.key
        values = self._call.run(*batch)
        num_results = len(values) - len(self.fetches.names)  # The fetched tensors are last.
        fetched = map(self.replicas.join, values[num_results:])
        return values[:num_results], dict(zip(self.fetches.names, fetched, strict=True))

    def read_rows(self, feature: Tensors) -> Array:
        """Return a feature of a batch as a NumPy array, with the rows of all replicas."""
        return self.replicas.concatenate(self._builder.read_rows(feature))
