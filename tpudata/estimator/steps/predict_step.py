"""Prediction: the predictions of a batch."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.devices.processes.topology import Topology
from tpudata.estimator.fetching.replay import Replay, handles_of
from tpudata.estimator.graph.structure import batch_function
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.step import Step
from tpudata.estimator.tracing.traced_model import TracedModel


class PredictStep(Step):
    """Step of a prediction: one batch. The arguments are those of Step."""

    def __init__(self, traced: TracedModel, topology: Topology, store: VariableStore, *, broadcast: bool) -> None:
        super().__init__(traced, topology, store, broadcast=broadcast)
        self._built_for: Any = None

    def wanted(self) -> tuple[Any, list[Any]]:
        """Return what a replica computes for a batch, the predictions and the fetched tensors, and the operations that it runs."""
        with self.blueprint.graph.as_default():
            predictions = tf.nest.map_structure(tf.convert_to_tensor, self.spec.predictions)
        return (predictions, self.fetches.tensors), self.fetches.operations

    def _build(self) -> None:
        replay = Replay(self.blueprint, *self.wanted())
        self._writes = replay.writes
        self._run_batch = batch_function(functools.partial(self._batch, replay), self._traced.specs[:1])

    def _batch(self, replay: Replay, features: Any) -> Any:
        return replay((features,), handles_of(self._by_name))

    def run(self, features: Any) -> tuple[Any, dict[str, Any]]:
        """Return the predictions for a batch as NumPy values, with the rows of all replicas, and the fetched values by name."""
        if self._built_for != self.fetches.key:
            self._build()
            self._built_for = self.fetches.key
        predictions, fetched = self._run_batch(features)
        predictions = tf.nest.map_structure(np.asarray, predictions)
        return predictions, dict(zip(self.fetches.names, fetched, strict=True))

    def rows(self, mask: Any) -> Any:
        """Return a batch's mask of real rows as a NumPy array, with the rows of all replicas."""
        return mask.numpy()
