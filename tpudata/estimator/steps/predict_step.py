"""Prediction: the predictions of a batch."""

import numpy as np
import tensorflow as tf

from tpudata.estimator.steps.batch_step import BatchStep
from tpudata.tensor_types import Array, Arrays, Tensors


class PredictStep(BatchStep):
    """Step of a prediction: one batch."""

    def plan_outputs(self) -> tuple[Tensors, list[tf.Operation]]:
        """Return (predictions, fetched tensors), which a replica computes for a batch, and the operations that it runs."""
        with self.blueprint.graph.as_default():
            predictions = tf.nest.map_structure(tf.convert_to_tensor, self.spec.predictions)
        return (predictions, self.fetches.tensors), self.fetches.operations

    def run(self, features: Tensors) -> tuple[Arrays, dict[str, Array]]:
        """Return the predictions for a batch as NumPy values, with the rows of all replicas, and the fetched values by name."""
        values, fetched = self._compute(features)
        # Scalars pass through unchanged: `predict` rejects them later, and names them.
        predictions = [
            replica_values[0] if np.ndim(replica_values[0]) == 0 else self.replicas.concatenate(replica_values)
            for replica_values in values
        ]
        structure, _ = self._outputs
        return tf.nest.pack_sequence_as(structure, predictions), fetched
