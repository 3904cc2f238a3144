"""Elements of the replicas: the datasets of input_fn, checked and split over the replicas.

All steps are complete: training ends before a step that would lack an element; evaluation and prediction fill the step with rows
of zeros, whose features["weights"] are 0 and which yield no prediction. An evaluation without weights raises an error instead.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tpudata.devices.batches.feeder import ENDS_WITHIN_STEP, ShortData
from tpudata.devices.batches.step_reader import mark_elements, repack_element
from tpudata.estimator.api.mode_keys import ModeKeys
from tpudata.estimator.config.tpu_config import InputPipelineConfig
from tpudata.estimator.feeding.deployment import Call, Deployment
from tpudata.estimator.feeding.row_masks import add_row_masks
from tpudata.estimator.feeding.signature import find_row_weights, list_leaves, split_element
from tpudata.tensor_types import Specs, Tensors

CallInputFn = Callable[[Call], tf.data.Dataset]


class ReplicaElements:
    """Source of the elements of one mode's replicas.

    Attributes:
        is_endless: whether all datasets so far repeat without end.

    Args:
        call_input_fn: function that returns input_fn's dataset for a call.
        deployment: deployment of the mode.
        batch_axis: axis of the rows for each tensor of (features, labels), in the order of `tf.nest.flatten`; None for axis 0.
    """

    def __init__(self, call_input_fn: CallInputFn, deployment: Deployment, batch_axis: Sequence[int] | None) -> None:
        self._call_input_fn = call_input_fn
        self._deployment = deployment
        self._batch_axis = batch_axis
        self.is_endless = True  # Until `make_dataset` finds a dataset that ends.

    def make_dataset(self, call: Call) -> tf.data.Dataset:
        """Return the checked dataset of one call; for predictions, of (features, mask of the real rows)."""
        deployment = self._deployment
        dataset = self._call_input_fn(call)
        self.is_endless &= _is_endless(dataset)
        axes = self._check_axes(dataset)
        if deployment.mode == ModeKeys.PREDICT:
            dataset = add_row_masks(dataset, deployment.batch_size, axes)
        if deployment.topology.is_sharded:
            self._check_static_shapes(dataset)
        return dataset

    def make_worker_dataset(self, num_workers: int, worker_index: int) -> tf.data.Dataset:
        """Return a dataset of the elements of the replicas that one input worker feeds, in turn.

        Args:
            num_workers: number of input workers, each of which feeds the same number of replicas.
            worker_index: index of the worker, from 0.
        """
        deployment = self._deployment
        replicas_per_worker = deployment.topology.num_replicas // num_workers
        # The worker feeds the replicas from `worker_first` up to `worker_stop`.
        worker_first = worker_index * replicas_per_worker
        worker_stop = worker_first + replicas_per_worker
        # For each call that feeds some of them: its dataset, and the number of elements that it yields for each step.
        datasets, element_counts = [], []
        call_first = 0  # Index of the first replica that the call feeds.
        for call in deployment.list_calls():
            first, stop = max(worker_first, call_first), min(worker_stop, call_first + call.num_replicas)
            if first < stop:
                share = slice(first - call_first, stop - call_first)
                datasets.append(self._split(self.make_dataset(call), call.num_replicas, share))
                element_counts.append(stop - first)
            call_first += call.num_replicas
        if len(datasets) == 1 and not deployment.has_replica_batches:
            return datasets[0]  # Each of its batches is split into the elements of one step.
        return self._interleave_steps(datasets, element_counts)

    def _check_axes(self, dataset: tf.data.Dataset) -> list[int] | None:
        """Return the batch axis of each tensor of input_fn's elements, checked; None if batch_axis is None (axis 0).

        Raises:
            ValueError: batch_axis does not have an entry for each tensor, or a tensor lacks the axis in its entry.
        """
        if self._batch_axis is None:
            return None
        axes = list(self._batch_axis)
        tensors = tf.nest.flatten(dataset.element_spec)
        if len(axes) != len(tensors):
            raise ValueError(
                f"TPUEstimator(batch_axis={self._batch_axis}) must have an entry for each tensor of features and labels (got "
                f"{len(axes)}, expected {len(tensors)}). Put them into the order of tf.nest.flatten."
            )
        for axis, tensor in zip(axes, tensors, strict=True):
            # A scalar has no axis, and is accepted with the entry 0.
            if not 0 <= axis < max(1, tensor.shape.rank):
                raise ValueError(
                    f"TPUEstimator(batch_axis={self._batch_axis}): a tensor of shape {tensor.shape} has no axis {axis}. Fix the "
                    "entry."
                )
        return axes

    def _list_element_axes(self, element_spec: Specs) -> list[int]:
        """Return the axis of the rows for each tensor of an element; in prediction, of (features, mask of the real rows)."""
        num_tensors = len(tf.nest.flatten(element_spec))
        if self._batch_axis is None:
            return [0] * num_tensors
        axes = list(self._batch_axis)
        if self._deployment.mode == ModeKeys.PREDICT:
            # The mask, the last tensor, replaces the labels, and its axis is 0.
            return [*axes[: num_tensors - 1], 0]
        return axes

    def _check_static_shapes(self, dataset: tf.data.Dataset) -> None:
        """Raise ValueError if a tensor has a dynamic shape, or its number of rows is not params["batch_size"]."""
        deployment = self._deployment
        size = deployment.batch_size
        if size is None:  # Each process has one replica, which takes the batches unsplit.
            return
        specs = split_element(dataset.element_spec)
        axes = split_element(
            tf.nest.pack_sequence_as(dataset.element_spec, self._list_element_axes(dataset.element_spec))
        )
        if deployment.mode == ModeKeys.PREDICT:
            specs, axes = (specs[0], None), (axes[0], None)  # Skip the mask, which was added here.
        for (path, spec), (_, axis) in zip(list_leaves(specs), list_leaves(axes), strict=True):
            num_rows = spec.shape[axis] if spec.shape.rank else None
            if not spec.shape.is_fully_defined():
                fix = "set_shape in the dataset's map"
                if num_rows is None:
                    fix = "batch(..., drop_remainder=True), or make_input_fn, which pads the last batch with rows of weight 0"
                raise ValueError(
                    f"input_fn: {path} has the shape {spec.shape}, and {deployment.topology.num_replicas} replicas need static "
                    f"shapes. Use {fix}."
                )
            if num_rows != size:
                raise ValueError(
                    f"input_fn: {path} has the shape {spec.shape} (expected params['batch_size']={size} rows). Batch the dataset "
                    "by params['batch_size']."
                )

    def _split(self, dataset: tf.data.Dataset, num_replicas: int, share: slice) -> tf.data.Dataset:
        """Return a dataset with an element for each replica in `share`.

        Args:
            dataset: dataset of a call.
            num_replicas: number of replicas that an element of the dataset feeds.
            share: range of the indices of the replicas that get elements, among these `num_replicas`.
        """
        if self._deployment.has_replica_batches:  # Each element is one replica's already.
            return dataset
        if self._deployment.pipeline is InputPipelineConfig.BROADCAST:  # Every replica gets the whole element.
            count = share.stop - share.start
            return dataset.flat_map(
                lambda *element: tf.data.Dataset.from_tensors(repack_element(element)).repeat(count)
            )
        axes = self._list_element_axes(dataset.element_spec)

        def stack_shares(*element: Tensors) -> Tensors:
            """Split an element into the replicas' elements, and stack those in `share` along a new first axis."""
            tensors = tf.nest.flatten(element)
            stacks = [
                tf.stack(tf.split(tensor, num_replicas, axis)[share])
                for tensor, axis in zip(tensors, axes, strict=True)
            ]
            return repack_element(tf.nest.pack_sequence_as(element, stacks))

        return dataset.map(stack_shares, num_parallel_calls=tf.data.AUTOTUNE).unbatch()

    def _interleave_steps(self, datasets: list[tf.data.Dataset], element_counts: list[int]) -> tf.data.Dataset:
        """Interleave datasets, with `element_counts[i]` elements of `datasets[i]` in a step.

        Training drops an incomplete last step; for the other modes see `_pad_last_step`.
        """
        # Index of the dataset that yields each element of a step.
        dataset_indices = [index for index, count in enumerate(element_counts) for _ in range(count)]
        step_size = len(dataset_indices)
        choice = tf.data.Dataset.from_tensor_slices(tf.constant(dataset_indices, tf.int64)).repeat()
        if all(map(_is_endless, datasets)):
            return tf.data.Dataset.choose_from_datasets(datasets, choice, stop_on_empty_dataset=True)
        if self._deployment.mode == ModeKeys.TRAIN:
            elements = tf.data.Dataset.choose_from_datasets(datasets, choice, stop_on_empty_dataset=True)
            return elements.batch(step_size, drop_remainder=True).unbatch()  # Drops an incomplete step.
        return self._pad_last_step(datasets, choice, step_size)

    def _pad_last_step(
        self, datasets: list[tf.data.Dataset], choice: tf.data.Dataset, step_size: int
    ) -> tf.data.Dataset:
        """Interleave datasets and fill the last step with zeros; without weights, let an evaluation's incomplete last step fail.

        Args:
            datasets: the datasets, at least one of which ends.
            choice: endless dataset of the index of each element's dataset.
            step_size: number of elements in a step.
        """
        spec = datasets[0].element_spec
        # Endless datasets of (element, whether it is real): zeros follow the data.
        marked_datasets = [mark_elements(dataset) for dataset in datasets]
        steps = tf.data.Dataset.choose_from_datasets(marked_datasets, choice).batch(step_size, drop_remainder=True)
        steps = steps.take_while(lambda _, is_real: tf.reduce_any(is_real))
        if can_fill_with_zeros(self._deployment.mode, spec):
            return steps.map(lambda step_elements, _: step_elements).unbatch()

        def reject_padding(step_elements: Tensors, is_real: tf.Tensor) -> Tensors:
            """Return the stacked elements of a step unchanged; reading them fails if one of them is padding."""
            with tf.control_dependencies([tf.debugging.assert_equal(is_real, True, ENDS_WITHIN_STEP)]):
                return tf.nest.map_structure(tf.identity, step_elements)

        return steps.map(reject_padding).unbatch()


def _is_endless(dataset: tf.data.Dataset) -> bool:
    return bool(dataset.cardinality() == tf.data.INFINITE_CARDINALITY)


def can_fill_with_zeros(mode: str, element_spec: Specs) -> bool:
    """Return whether replicas without data may get zeros: predictions drop these rows, and weights of 0 exclude them."""
    return mode == ModeKeys.PREDICT or find_row_weights(split_element(element_spec)[0]) is not None


def choose_short_data(mode: str, element_spec: Specs) -> ShortData:
    """Return how a step treats a process whose data ends before the data of other processes."""
    if mode == ModeKeys.TRAIN:
        return ShortData.STOP
    return ShortData.FILL if can_fill_with_zeros(mode, element_spec) else ShortData.REJECT
