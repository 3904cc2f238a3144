"""The steps of evaluation and prediction on several devices."""

from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.devices.processes.topology import Topology
from tpudata.devices.spmd.mesh import local_parts
from tpudata.devices.spmd.variables import DeviceState, DeviceVariables
from tpudata.estimator.state.store import VariableStore
from tpudata.estimator.steps.batch_call import BatchCall
from tpudata.estimator.steps.eval_step import EvalStep
from tpudata.estimator.steps.predict_step import PredictStep
from tpudata.estimator.steps.step import Step
from tpudata.estimator.tracing.traced_model import TracedModel


def device_state(step: Step, store: VariableStore) -> DeviceState:
    """Return the variables of a step on the devices, and let the step read its own variables from there."""
    assert isinstance(store.copies, DeviceVariables)  # The store is of devices.
    state = DeviceState(store.copies, step.variables, step.local.by_name)
    step.own = state.own
    return state


class DeviceEvalStep(EvalStep):
    """Step of an evaluation: replicas compute the loss and the tensors of metrics of their rows; eval_metrics run on the host."""

    def __init__(self, traced: TracedModel, topology: Topology, store: VariableStore, *, broadcast: bool) -> None:
        super().__init__(traced, topology, store, broadcast=broadcast)
        self._state = device_state(self, store)

    def _build(self) -> None:
        wanted, updates = self.wanted()
        self._wanted = wanted
        self._call = BatchCall(self._traced, self._traced.specs, tf.nest.flatten(wanted), updates, self._state)
        self._writes = self._call.writes

    def _run_batch(self, features: Any, labels: Any) -> Any:
        found = iter(self._call((features, labels)))
        weighted, *others = self._wanted
        loss, weight = (np.sum(next(found), dtype=np.float32) for _ in weighted)
        of_metrics, of_host_call = (
            tf.nest.map_structure(lambda _: self.replicas.concatenated(next(found)), part) for part in others[:2]
        )
        if self._host is not None:
            self._host.run(of_metrics)
        if self._host_call is not None:
            self._host_call.run(of_host_call)
        return loss, weight, [self.replicas.joined(parts) for parts in found]

    def rows(self, feature: Any) -> Any:
        """Return a feature of a batch as a NumPy array, with the rows of all replicas."""
        return self.replicas.concatenated([part[0] for part in local_parts(feature, axis=1)])


class DevicePredictStep(PredictStep):
    """Step of a prediction: replicas predict for their rows."""

    def __init__(self, traced: TracedModel, topology: Topology, store: VariableStore, *, broadcast: bool) -> None:
        super().__init__(traced, topology, store, broadcast=broadcast)
        self._state = device_state(self, store)

    def _build(self) -> None:
        wanted, updates = self.wanted()
        self._predictions = wanted[0]
        self._call = BatchCall(self._traced, self._traced.specs[:1], tf.nest.flatten(wanted), updates, self._state)
        self._writes = self._call.writes

    def _run_batch(self, features: Any) -> Any:
        found = iter(self._call((features,)))
        predictions = tf.nest.map_structure(lambda _: self._rows(next(found)), self._predictions)
        return predictions, [self.replicas.joined(parts) for parts in found]

    def _rows(self, parts: list[Any]) -> Any:
        return parts[0] if np.ndim(parts[0]) == 0 else self.replicas.concatenated(parts)

    def rows(self, mask: Any) -> Any:
        """Return a batch's mask of real rows as a NumPy array, with the rows of all replicas."""
        return self.replicas.concatenated([part[0] for part in local_parts(mask, axis=1)])
