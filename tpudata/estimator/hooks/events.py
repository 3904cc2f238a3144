"""Summaries for TensorBoard, without the tensorboard package."""

import contextlib
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tpudata.error_text.lines import one_line
from tpudata.errors import StorageError
from tpudata.estimator.api.errors import SPACE_AND_PERMISSION


class EventWriter:
    """Writer of summaries to an event file; the first summary creates the file.

    Scalars are plain `simple_value` summaries, as v1 programs wrote them. `tf.summary.scalar` would need the
    tensorboard package.

    Args:
        folder: folder of the file; None to write nothing.

    Raises:
        StorageError: raised by each method if the file could not be written.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._writer: tf.summary.SummaryWriter | None = None

    def write_scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write `values` by tag at `step`."""
        if not values:
            return
        summary = tf.compat.v1.Summary()
        for tag, number in values.items():
            summary.value.add(tag=tag, simple_value=number)
        self.write_summary(step, summary.SerializeToString())

    def write_text(self, step: int, tag: str, text: str) -> None:
        """Write a string at `step`."""
        tensor = tf.make_tensor_proto(text, dtype=tf.string)
        plugin = tf.compat.v1.SummaryMetadata.PluginData(plugin_name="text")
        metadata = tf.compat.v1.SummaryMetadata(plugin_data=plugin)
        summary = tf.compat.v1.Summary()
        summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
        self.write_summary(step, summary.SerializeToString())

    def write_summary(self, step: int, serialized: bytes) -> None:
        """Write a serialized `tf.compat.v1.Summary` at `step`."""
        if self._folder is None:  # This process writes nothing.
            return
        with self._translate_errors():
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(self._folder)
            with self._writer.as_default():
                tf.summary.experimental.write_raw_pb(serialized, step=step)

    def flush(self) -> None:
        """Flush the file, so that readers see all summaries."""
        if self._writer is not None:
            with self._translate_errors():
                self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            with self._translate_errors():
                writer.close()

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise StorageError instead of TensorFlow's errors inside the context."""
        try:
            yield
        except tf.errors.OpError as error:
            raise StorageError(
                f"the summaries in {self._folder} could not be written: {one_line(error.message)}. {SPACE_AND_PERMISSION}"
            ) from error
