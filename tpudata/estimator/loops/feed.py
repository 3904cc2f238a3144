"""The data of one run: the elements of all replicas, step by step.

Each replica takes one element per step, and element i of a step belongs to replica i. Each process reads the elements of its
replicas.
"""

import dataclasses
from collections.abc import Callable, Sequence

from tpudata.devices.batches.feeder import StackFeed
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.feeding.deployment import Deployment
from tpudata.estimator.feeding.iteration import Iteration, StepIteration
from tpudata.estimator.feeding.replica_elements import CallInputFn, ReplicaElements, choose_short_data
from tpudata.estimator.feeding.signature import check_for_devices
from tpudata.tensor_types import Specs


@dataclasses.dataclass(frozen=True)
class Feed:
    """The elements of a run: (features, labels) or features; for predictions (features, bool [batch]: whether a row is real).

    Attributes:
        element_spec: spec of one replica's element.
        is_endless: whether the data of this process repeats without end.
        iterate: function of the maximum number of steps (None for no limit) that returns an iteration over the elements. A
            StackIteration, which reads ahead, stops reading after these steps; an Iteration ignores the number.
    """

    element_spec: Specs
    is_endless: bool
    iterate: Callable[[int | None], StepIteration]


def make_feed(call_input_fn: CallInputFn, deployment: Deployment, batch_axis: Sequence[int] | None) -> Feed:
    """Call input_fn for all replicas of this process and return the data.

    Args:
        call_input_fn: function that returns input_fn's dataset for a call.
        deployment: deployment of the mode.
        batch_axis: axis of the rows for each tensor of (features, labels), in the order of `tf.nest.flatten`; None for axis 0.

    Raises:
        ValueError: batch_axis does not fit the features and labels; or, with several replicas, a feature or label has no static
            shape or not params["batch_size"] rows.
    """
    elements = ReplicaElements(call_input_fn, deployment, batch_axis)
    topology = deployment.topology
    if not topology.devices:
        (call,) = deployment.list_calls()  # One replica, so there is one call.
        dataset = elements.make_dataset(call)
        is_endless = elements.is_endless  # Known once the dataset is made.
        return Feed(dataset.element_spec, is_endless, lambda _: Iteration(dataset, is_endless=is_endless))
    # Plain TensorFlow needs no jax.
    from tpudata.devices.spmd.mesh import make_mesh

    peers = topology.peers
    dataset = elements.make_worker_dataset(topology.num_hosts, peers.index)
    check_for_devices(dataset.element_spec)
    has_end = peers.any(not elements.is_endless)
    stacks = StackFeed(
        dataset,
        make_mesh(topology.devices),
        topology.num_local_replicas,
        # Only training runs several steps in one call.
        capacity=deployment.config.steps_of_a_loop if deployment.mode == ModeKeys.TRAIN else 1,
        is_endless=not has_end,
        peers=peers,
        short_data=choose_short_data(deployment.mode, dataset.element_spec),
    )
    return Feed(dataset.element_spec, elements.is_endless, stacks.iterate)
