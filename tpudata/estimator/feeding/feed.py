"""The data of one run: the elements of all replicas, step by step.

Each replica takes one element per step, and element i of a step belongs to replica i. A TPU's host makes and reads the data of its
replicas: input_fn is called for it, and its dataset is made, on its CPU. Hosts do not know each other's data, so each marks the
end of its data.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.feeding.deployment import Deployment
from tpudata.estimator.feeding.iteration import End, Iteration
from tpudata.estimator.feeding.replica_elements import CallInputFn, ReplicaElements, can_fill, whole


@dataclasses.dataclass(frozen=True)
class Feed:
    """The elements of a run: (features, labels) or features; for predictions (features, bool [batch]: whether a row is real).

    Attributes:
        element_spec: spec of one replica's element.
        endless: whether the data is known to repeat without end.
    """

    _dataset: Any
    element_spec: Any
    endless: bool
    _end: End = End.ASKED
    _strategy: Any = None
    _can_fill: bool = True

    def iterate(self) -> Iteration:
        """Return an iteration over the elements of steps, which are per-replica values if there are several replicas."""
        iteration = Iteration(self._dataset, self._end, self._strategy, can_fill=self._can_fill)
        iteration.is_endless = self.endless
        return iteration


def make_feed(call_input_fn: CallInputFn, deployment: Deployment, batch_axis: Sequence[int] | None) -> Feed:
    """Call input_fn for all replicas and return the data.

    Args:
        call_input_fn: function that returns input_fn's dataset for a call.
        deployment: deployment of the mode.
        batch_axis: axis of the rows for each tensor of (features, labels), in the order of `tf.nest.flatten`; None for 0.

    Raises:
        ValueError: batch_axis does not fit; with several replicas, a feature or label has no static shape or another batch size
            than params["batch_size"]; or, with hosts in other processes, the dataset runs Python, or the elements of hosts differ
            in shape or dtype.
    """
    elements = ReplicaElements(call_input_fn, deployment, batch_axis)
    if not deployment.topology.is_sharded:
        dataset = elements.dataset(deployment.calls()[0])
        return Feed(dataset, dataset.element_spec, elements.endless)
    peers = deployment.topology.peers
    hosts = deployment.topology.host_devices
    datasets = elements.datasets_of(hosts)
    endless: list[bool] = []

    def worker_dataset(context: Any) -> Any:
        if not hosts:
            datasets.append(elements.worker_dataset(context.num_input_pipelines, context.input_pipeline_id))
        dataset = datasets[context.input_pipeline_id if hosts else 0]
        endless.append(not peers.any(not elements.endless))
        if not endless[0]:
            dataset = with_marks(dataset)
        # TensorFlow does not always know that the dataset has no end; if it does, steps need no code for the end.
        return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    strategy = deployment.topology.strategy
    distributed = strategy.distribute_datasets_from_function(worker_dataset)
    spec = datasets[0].element_spec
    end = End.NONE if endless[0] else End.MARKED
    return Feed(distributed, spec, elements.endless, end, strategy, can_fill(deployment.mode, spec))


def with_marks(dataset: Any) -> Any:
    """Return a dataset of (element, True) for each element, followed by (zeros, False) without end.

    Hosts stop at the same step, so a host whose data ends first still takes part in the decision.
    """
    zeros = tf.nest.map_structure(
        lambda item: tf.zeros([size or 0 for size in item.shape], item.dtype), dataset.element_spec
    )
    endings = tf.data.Dataset.from_tensors((zeros, False)).repeat()
    return dataset.map(lambda *element: (whole(element), True)).concatenate(endings)
