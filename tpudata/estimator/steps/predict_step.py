"""Prediction: the predictions of a batch."""

import functools
from typing import Any

import tensorflow as tf

from tpudata.estimator.devices.topology import Topology
from tpudata.estimator.fetching.replay import Replay
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.step import Step
from tpudata.estimator.tracing.traced_model import TracedModel


class PredictStep(Step):
    """Step of a prediction: one batch. The arguments are those of Step."""

    def __init__(self, traced: TracedModel, topology: Topology, store: VariableStore, *, broadcast: bool) -> None:
        super().__init__(traced, topology, store, broadcast=broadcast)
        self._build()

    def _build(self) -> None:
        self._built_for = self.fetches.version
        with self.blueprint.graph.as_default():
            predictions = tf.nest.map_structure(tf.convert_to_tensor, self.spec.predictions)
        replay = Replay(self.blueprint, (predictions, self.fetches.tensors), self.fetches.operations)
        self._writes = replay.writes
        self._run_batch = self.replicas.compiled(functools.partial(self._batch, replay), self._traced.specs[:1])

    def _batch(self, replay: Replay, features: Any) -> Any:
        predictions, fetched = self._replay(replay, (features,))
        return predictions, [self.replicas.joined(item) for item in fetched]

    def run(self, features: Any) -> tuple[Any, dict[str, Any]]:
        """Return the predictions for a batch, per-replica values if there are several, and the fetched tensors by name."""
        if self._built_for != self.fetches.version:
            self._build()
        predictions, fetched = self._run_batch(features)
        return predictions, dict(zip(self.fetches.names, fetched, strict=True))
