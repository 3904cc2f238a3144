"""Training input that continues at a record, also after the batch size changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tpudata.tensor_types import Tensors
from tpudata.train.outputs.history import Section

if TYPE_CHECKING:
    import tensorflow as tf

# As many as the pipeline of make_input_fn prefetches.
_BATCHES_AHEAD = 2


class ContinuedInput:
    """An input_fn whose batches continue the order of a section.

    The order of training follows from the seed and the batch size, so batches of another size than the order's are cut from batches
    of that order: every record comes once an epoch, as before. Each host then reads whole batches, and takes its rows.

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
        """Return the dataset from a step of the estimator on."""
        order = self._section.order_batch_size
        position = self._section.position_at(start_step)
        if order == self._section.batch_size and position % order == 0:
            return self._input_fn(params, input_context, position // order)
        return self._cut_batches(params, input_context, position)

    def _cut_batches(
        self, params: Mapping[str, Any], input_context: tf.distribute.InputContext | None, position: int
    ) -> tf.data.Dataset:
        """Return batches of the requested size, cut from those of the order."""
        import tensorflow as tf

        from tpudata.input.options.hosts import find_rows

        rows = find_rows(params["batch_size"], params, input_context)
        first, skipped = divmod(position, self._section.order_batch_size)
        dataset = self._input_fn({"batch_size": self._section.order_batch_size}, start_step=first)

        def skip_rows(batch_index: tf.Tensor, batch: Any) -> Any:
            begin = tf.where(batch_index == 0, skipped, 0)
            return tf.nest.map_structure(lambda tensor: tensor[begin:], batch)

        def take_host_rows(*batch: Tensors) -> Tensors:
            batch = batch if len(batch) > 1 else batch[0]
            return tf.nest.map_structure(lambda tensor: tensor[rows.first : rows.stop], batch)

        if skipped:
            dataset = dataset.enumerate().map(skip_rows)
        dataset = dataset.rebatch(rows.total, drop_remainder=True)
        if rows.count < rows.total:
            dataset = dataset.map(take_host_rows)
        if rows.batch_size < rows.count:
            dataset = dataset.rebatch(rows.batch_size, drop_remainder=True)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return dataset.prefetch(_BATCHES_AHEAD)
