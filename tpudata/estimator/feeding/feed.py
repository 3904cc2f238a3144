"""The data of one run: what input_fn gives, split over the replicas.

Each replica takes one element per step. The datasets of all calls of input_fn are brought to the elements of their replicas, and
those put in turn: element i of a step is replica i's. All steps are whole: training ends before one that would not be; evaluation
and prediction fill it up with rows of zeros, whose features["weights"] are 0 and which no prediction is made of.

A TPU's host makes and reads the data of its replicas: input_fn is called for it, and its dataset made, on its CPU. Hosts know
nothing of each other's data, so each marks where its own ends.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.config.tpu_config import InputPipelineConfig
from tpudata.estimator.feeding.deployment import Call, Deployment
from tpudata.estimator.feeding.iteration import ENDS_WITHIN_STEP, End, Iteration
from tpudata.estimator.feeding.python_operations import PYTHON_FIX, python_operations
from tpudata.estimator.feeding.row_masks import with_row_masks
from tpudata.estimator.feeding.signature import leaves, row_weights, split_element

CallInputFn = Callable[[Call], Any]


@dataclasses.dataclass(frozen=True)
class Feed:
    """The elements of a run: (features, labels) or features; for predictions (features, bool [batch]: which rows are real).

    Attributes:
        element_spec: of one replica's element.
        endless: whether the data is known to repeat for ever.
    """

    _dataset: Any
    element_spec: Any
    endless: bool
    _end: End = End.ASKED
    _strategy: Any = None
    _can_fill: bool = True

    def iterate(self) -> Iteration:
        """Begin with the steps' elements, which are per-replica values if there are several replicas."""
        iteration = Iteration(self._dataset, self._end, self._strategy, can_fill=self._can_fill)
        iteration.is_endless = self.endless
        return iteration


def make_feed(call_input_fn: CallInputFn, deployment: Deployment, batch_axis: Sequence[int] | None) -> Feed:
    """Call input_fn as often as the deployment says.

    Args:
        call_input_fn: returns input_fn's dataset for a call.
        deployment: how the mode is fed.
        batch_axis: of each tensor of (features, labels), in the order of `tf.nest.flatten`, the axis along which its rows lie;
            None: 0.

    Raises:
        ValueError: on several replicas, a feature or label without a static shape, or of another batch size than announced;
            a batch_axis that does not fit; or, for hosts that are other processes, Python in the dataset, or hosts whose elements
            differ in shapes or dtypes.
    """
    source = _Source(call_input_fn, deployment, batch_axis)
    if not deployment.topology.is_sharded:
        dataset = source.dataset(deployment.calls()[0])
        return Feed(dataset, dataset.element_spec, source.endless)
    peers = deployment.topology.peers
    hosts = deployment.topology.host_devices
    datasets = source.datasets_of(hosts)
    endless: list[bool] = []

    def worker_dataset(context: Any) -> Any:
        if not hosts:
            datasets.append(source.worker_dataset(context.num_input_pipelines, context.input_pipeline_id))
        dataset = datasets[context.input_pipeline_id if hosts else 0]
        endless.append(not peers.any(not source.endless))
        if not endless[0]:
            dataset = with_marks(dataset)
        # Not all of what was done to it can tell. Without an end, no step need be prepared for it.
        return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    strategy = deployment.topology.strategy
    distributed = strategy.distribute_datasets_from_function(worker_dataset)
    spec = datasets[0].element_spec
    end = End.NONE if endless[0] else End.MARKED
    return Feed(distributed, spec, source.endless, end, strategy, can_fill(deployment.mode, spec))


def can_fill(mode: str, element_spec: Any) -> bool:
    """Return whether a step may have replicas without data: rows of zeros, which have no weight or are dropped."""
    return mode == ModeKeys.PREDICT or row_weights(split_element(element_spec)[0]) is not None


def with_marks(dataset: Any) -> Any:
    """Return (element, True) for each element, and then (zeros, False) for ever.

    Hosts stop at the same step, so the one whose data ends first still takes part in finding that out.
    """
    zeros = tf.nest.map_structure(
        lambda item: tf.zeros([size or 0 for size in item.shape], item.dtype), dataset.element_spec
    )
    endings = tf.data.Dataset.from_tensors((zeros, False)).repeat()
    return dataset.map(lambda *element: (_whole(element), True)).concatenate(endings)


class _Source:
    def __init__(self, call_input_fn: CallInputFn, deployment: Deployment, batch_axis: Sequence[int] | None) -> None:
        self._call_input_fn = call_input_fn
        self._deployment = deployment
        self._batch_axis = batch_axis
        self.endless = True

    def dataset(self, call: Call) -> Any:
        """Return the dataset of one call, checked, and for predictions with row masks."""
        deployment = self._deployment
        dataset = self._call_input_fn(call)
        if deployment.topology.has_remote_hosts:
            self._require_no_python(dataset, call)
        self.endless &= bool(dataset.cardinality() == tf.data.INFINITE_CARDINALITY)
        axes = self._axes(dataset)
        if deployment.mode == ModeKeys.PREDICT:
            dataset = with_row_masks(dataset, deployment.batch_size, axes)
        if deployment.topology.is_sharded:
            self._require_static(dataset)
        return dataset

    def datasets_of(self, hosts: Sequence[str]) -> list[Any]:
        """Return the elements of each host's replicas, made on the host."""
        datasets: list[Any] = []
        for index, device in enumerate(hosts):
            with tf.device(device):
                datasets.append(self.worker_dataset(len(hosts), index))
            found, expected = datasets[-1].element_spec, datasets[0].element_spec
            if found != expected:
                raise ValueError(
                    f"input_fn: all hosts need elements of the same shapes and dtypes (got {found} on host {index}, expected "
                    f"{expected} as on host 0). Let no shape depend on the host."
                )
        return datasets

    def worker_dataset(self, num_workers: int, worker: int) -> Any:
        """Return the elements of the replicas that one input worker feeds, in turn."""
        topology, pipeline = self._deployment.topology, self._deployment.pipeline
        count = topology.num_replicas // num_workers
        first, last = worker * count, (worker + 1) * count
        datasets, shares, replica = [], [], 0
        for call in self._deployment.calls():
            begin, end = max(first, replica), min(last, replica + call.replicas)
            if begin < end:
                part = slice(begin - replica, end - replica)
                datasets.append(self._split(self.dataset(call), call.replicas, part))
                shares.append(end - begin)
            replica += call.replicas
        one_batch_a_call = pipeline in (InputPipelineConfig.PER_HOST_V2, InputPipelineConfig.PER_SHARD_V1)
        if len(datasets) == 1 and not one_batch_a_call:
            return datasets[0]  # Its steps are whole.
        return self._whole_steps(datasets, shares)

    def _require_no_python(self, dataset: Any, call: Call) -> None:
        found = python_operations(dataset)
        if found:
            host = self._deployment.topology.host_device(call.host)
            raise ValueError(
                f"input_fn: its dataset runs Python, and is run by {host}, another process (got {', '.join(found)}, expected "
                f"TensorFlow's operations). Use {PYTHON_FIX}."
            )

    def _axes(self, dataset: Any) -> list[int] | None:
        """Return the batch axis of each tensor of an element."""
        if self._batch_axis is None:
            return None
        axes = list(self._batch_axis)
        tensors = tf.nest.flatten(dataset.element_spec)
        if len(axes) != len(tensors):
            raise ValueError(
                f"TPUEstimator(batch_axis={self._batch_axis}) has {len(axes)} entries, input_fn gives {len(tensors)} tensors of "
                "features and labels: one for each, in the order of tf.nest.flatten."
            )
        for axis, tensor in zip(axes, tensors, strict=True):
            if not 0 <= axis < max(1, tensor.shape.rank):
                raise ValueError(
                    f"TPUEstimator(batch_axis={self._batch_axis}): a tensor of shape {tensor.shape} has no axis {axis}."
                )
        return axes

    def _element_axes(self, element_spec: Any) -> list[int]:
        # For predictions, the mask has taken the labels' place.
        count = len(tf.nest.flatten(element_spec))
        if self._batch_axis is None:
            return [0] * count
        if self._deployment.mode != ModeKeys.PREDICT:
            return list(self._batch_axis)
        return [*list(self._batch_axis)[: count - 1], 0]

    def _require_static(self, dataset: Any) -> None:
        deployment = self._deployment
        size = deployment.batch_size
        if size is None:  # One replica of each process takes what its input_fn gives.
            return
        specs = split_element(dataset.element_spec)
        axes = split_element(tf.nest.pack_sequence_as(dataset.element_spec, self._element_axes(dataset.element_spec)))
        if deployment.mode == ModeKeys.PREDICT:
            specs, axes = (specs[0], None), (axes[0], None)  # The mask was made here.
        for (path, spec), (_, axis) in zip(leaves(specs), leaves(axes), strict=True):
            rows = spec.shape[axis] if spec.shape.rank else None
            if not spec.shape.is_fully_defined():
                fix = "set_shape in the dataset's map"
                if rows is None:
                    fix = "batch(..., drop_remainder=True), or make_input_fn, which pads the last batch with rows of weight 0"
                raise ValueError(
                    f"input_fn: {path} has the shape {spec.shape}; {deployment.topology.num_replicas} replicas need static shapes: "
                    f"use {fix}."
                )
            if rows != size:
                raise ValueError(
                    f"input_fn: {path} has the shape {spec.shape}, which is no batch of params['batch_size']={size} rows."
                )

    def _split(self, dataset: Any, replicas: int, part: slice) -> Any:
        """Return the elements of the replicas in `part`, of the `replicas` that the dataset feeds."""
        pipeline = self._deployment.pipeline
        count = part.stop - part.start
        if pipeline in (InputPipelineConfig.PER_HOST_V2, InputPipelineConfig.PER_SHARD_V1):
            return dataset
        if pipeline is InputPipelineConfig.BROADCAST:
            return dataset.flat_map(lambda *element: tf.data.Dataset.from_tensors(_whole(element)).repeat(count))
        axes = self._element_axes(dataset.element_spec)

        def split(*element: Any) -> Any:
            tensors = tf.nest.flatten(element)
            parts = [
                tf.stack(tf.split(tensor, replicas, axis)[part]) for tensor, axis in zip(tensors, axes, strict=True)
            ]
            return _whole(tf.nest.pack_sequence_as(element, parts))

        return dataset.map(split, num_parallel_calls=tf.data.AUTOTUNE).unbatch()

    def _whole_steps(self, datasets: list[Any], shares: list[int]) -> Any:
        """Put the elements of several datasets in turn, `shares` of each to a step; no step lacks one."""
        count = sum(shares)
        turns = [i for i, share in enumerate(shares) for _ in range(share)]
        choice = tf.data.Dataset.from_tensor_slices(tf.constant(turns, tf.int64)).repeat()
        endless = all(bool(dataset.cardinality() == tf.data.INFINITE_CARDINALITY) for dataset in datasets)
        if endless or self._deployment.mode == ModeKeys.TRAIN:
            mixed = tf.data.Dataset.choose_from_datasets(datasets, choice, stop_on_empty_dataset=True)
            return mixed if endless else mixed.batch(count, drop_remainder=True).unbatch()
        spec = datasets[0].element_spec
        padding = tf.nest.map_structure(lambda item: tf.zeros(item.shape, item.dtype), spec)
        endings = tf.data.Dataset.from_tensors((padding, False)).repeat()
        filled = [dataset.map(lambda *element: (_whole(element), True)).concatenate(endings) for dataset in datasets]
        steps = tf.data.Dataset.choose_from_datasets(filled, choice).batch(count, drop_remainder=True)
        steps = steps.take_while(lambda _, real: tf.reduce_any(real))
        fills = can_fill(self._deployment.mode, spec)

        def checked(element: Any, real: Any) -> Any:
            with tf.control_dependencies([] if fills else [tf.debugging.assert_equal(real, True, ENDS_WITHIN_STEP)]):
                return tf.nest.map_structure(tf.identity, element)

        return steps.map(checked).unbatch()


def _whole(element: tuple[Any, ...]) -> Any:
    """Return a dataset's element as it was before `map` took its tuple apart."""
    return element[0] if len(element) == 1 else element
