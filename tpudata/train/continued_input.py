"""Training input that continues at a record, also after the batch size changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tpudata.tensor_types import Tensors
from tpudata.train.outputs.history import Section

if TYPE_CHECKING:
    import tensorflow as tf

# As many batches as the pipeline of make_input_fn prefetches.
_BATCHES_AHEAD = 2


class ContinuedInput:
    """An input_fn whose batches continue the order of a section.

    The order of the records follows from the seed and a batch size. After the batch size has changed, the new batches are cut from
    the batches of the old order, so that every record still comes once an epoch. Each host then reads whole batches, and takes its
    rows.

    Args:
        input_fn: input_fn of `make_input_fn` for training.
        section: the section that is trained.
    """

    def __init__(self, input_fn: Callable[..., tf.data.Dataset], section: Section) -> None:
        self._input_fn = input_fn
        self._section = section

    def __call__(
        self, params: Mapping[str, Any], input_context: tf.distribute.InputContext | None = None, start_step: int = 0
    ) -> tf.data.Dataset:
        """Return the dataset that begins with the batch after `start_step` steps of the estimator."""
        order_batch_size = self._section.order_batch_size
        position = self._section.compute_position(start_step)
        # Each batch of the run is a whole batch of the order, so no batch has to be cut.
        if order_batch_size == self._section.batch_size and position % order_batch_size == 0:
            return self._input_fn(params, input_context, position // order_batch_size)
        return self._cut_batches(params, input_context, position)

    def _cut_batches(
        self, params: Mapping[str, Any], input_context: tf.distribute.InputContext | None, position: int
    ) -> tf.data.Dataset:
        """Return this host's batches of the requested size, cut from batches of the order from the record `position` on."""
        import tensorflow as tf

        from tpudata.devices.batches.step_reader import repack_element
        from tpudata.input.options.hosts import find_rows

        rows = find_rows(params["batch_size"], params, input_context)
        first_batch, skipped_rows = divmod(position, self._section.order_batch_size)
        # Without a context, each host reads whole batches of the order, and takes its rows of the new batches below.
        dataset = self._input_fn({"batch_size": self._section.order_batch_size}, start_step=first_batch)

        def skip_rows(batch_index: tf.Tensor, batch: Tensors) -> Tensors:
            first_row = tf.where(batch_index == 0, skipped_rows, 0)
            return tf.nest.map_structure(lambda tensor: tensor[first_row:], batch)

        def take_host_rows(*batch: Tensors) -> Tensors:
            return tf.nest.map_structure(lambda tensor: tensor[rows.first : rows.stop], repack_element(batch))

        if skipped_rows:
            dataset = dataset.enumerate().map(skip_rows)
        dataset = dataset.rebatch(rows.total, drop_remainder=True)
        if rows.count < rows.total:
            dataset = dataset.map(take_host_rows)
        # A host with several replicas feeds a batch for each of them in a step.
        if rows.batch_size < rows.count:
            dataset = dataset.rebatch(rows.batch_size, drop_remainder=True)
        # rebatch forgets that the data is endless.
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return dataset.prefetch(_BATCHES_AHEAD)
