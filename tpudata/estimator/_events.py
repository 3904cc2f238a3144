"""Scalars for TensorBoard, without the tensorboard package."""

from collections.abc import Mapping

import tensorflow as tf


class EventWriter:
    """Writes scalars into an event file of a folder; the file appears with the first of them.

    The records are plain `simple_value` summaries, as v1 programs wrote them. `tf.summary.scalar` would need the
    tensorboard package.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writer: tf.summary.SummaryWriter | None = None

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write `values` by tag at `step`."""
        if not values:
            return
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(self._folder)
        value = tf.compat.v1.Summary.Value
        summary = tf.compat.v1.Summary(value=[value(tag=tag, simple_value=item) for tag, item in values.items()])
        with self._writer.as_default():
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=step)

    def flush(self) -> None:
        """Make what was written visible to readers."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
