"""The window of the shuffle: the records that are in memory together, and the memory that they take."""

from __future__ import annotations

import dataclasses
import functools
import logging

from tpudata.console.tables import count_text
from tpudata.errors import UsageError
from tpudata.input.dataset.fields import Fields
from tpudata.input.graph.reading.free_memory import MEMORY_SHARE, measure_free_memory
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.options.hosts import Rows
from tpudata.input.options.options import Options

# Records are decoded as they are read if they then take at most this many times their stored bytes in the window.
_MAX_GROWTH = 1.25
# Warn if hosts together fetch more than this number of bytes for each byte of the split.
_WARN_FETCH_RATIO = 1.5

_log = logging.getLogger("tpudata")


@dataclasses.dataclass(frozen=True, eq=False)
class ShuffleWindow:
    """The window of the shuffle.

    Attributes:
        plan: plan of reading.
        fields: fields that are read of each record.
        options: options of feeding.
    """

    plan: ReadPlan
    fields: Fields
    options: Options

    @functools.cached_property
    def is_decoded(self) -> bool:
        """Whether records are decoded as they are read, many at a time, instead of a batch at a time."""
        fields = self.fields.all
        # Decoded images and padded lists are larger than stored ones, and the size of strings is unknown.
        if any(field.bytes is None or field.feature.is_image_file or field.is_list for field in fields):
            return False
        return self.fields.estimate_record_bytes(self.plan.sizes.mean) <= _MAX_GROWTH * self.plan.record_bytes

    @property
    def num_records(self) -> int:
        """Number of records that are shuffled together."""
        return min(self.plan.count_window_records(self.options.shuffle_buffer, self._record_bytes), self.plan.count)

    @property
    def bytes(self) -> int:
        """Approximate size of the records that are shuffled together, in bytes."""
        return self.num_records * self._record_bytes

    @property
    def has_all(self) -> bool:
        """Whether training holds all records in memory."""
        return self.options.training and self.num_records == self.plan.count

    @property
    def _record_bytes(self) -> int:
        """Approximate size of a record in the window, in bytes."""
        # A record is read as stored before it is decoded, so it takes at least its stored bytes.
        decoded_bytes = self.fields.estimate_record_bytes(self.plan.sizes.mean) if self.is_decoded else 0
        return max(self.plan.record_bytes, decoded_bytes)

    def check_memory(self) -> None:
        """Check that the records fit the free memory if the user requests a window that holds all of them.

        Raises:
            UsageError: the records do not fit the memory.
        """
        # The default window is small. If the split is read in pieces, `check_streams` checks windows of fewer records.
        if self.options.shuffle_buffer is None or self.num_records < self.plan.count:
            return
        free, size = measure_free_memory(), self._record_bytes * self.plan.count
        if free is not None and size > MEMORY_SHARE * free:
            raise UsageError(
                f"shuffle={self.options.shuffle}: the records take {size / 1e9:.3g} GB, more than"
                f" {MEMORY_SHARE:.0%} of the free memory of {free / 1e9:.3g} GB. Pass a smaller number, or omit it."
            )

    def check_streams(self, rows: Rows, source: str) -> None:
        """Check that a host's streams and windows fit the free memory, and warn if hosts fetch the same pieces.

        Does nothing if files are not read in pieces.

        Args:
            rows: rows of each global batch that the host feeds.
            source: name of the split, for messages.

        Raises:
            UsageError: streams and windows do not fit the memory.
        """
        if self.plan.piece_memory is None:
            return
        num_hosts, num_lanes = rows.total // rows.count, self.plan.count_lanes(rows.total)
        ratio = self.plan.compute_fetch_ratio(rows.total, num_hosts)
        if ratio > _WARN_FETCH_RATIO:
            _log.warning(
                "%s: %d hosts together fetch %.1f bytes for each byte of the split, since it has %s for them. Smaller shards "
                "give more (tpudata reshard --shard-size); with cache=PATH each host fetches it once, and not in each epoch.",
                source,
                num_hosts,
                ratio,
                count_text(num_lanes, "lane"),
            )
        # The slots of the host's rows, as in `TrainingOrder.find_slots`: each reads one lane.
        turns_per_step = rows.total // num_lanes
        num_slots = -(-rows.stop // turns_per_step) - rows.first // turns_per_step
        # One window is read while batches are made of the other.
        free, size = measure_free_memory(), num_slots * self.plan.piece_memory + 2 * self.bytes
        # The workers of a tf.data service have separate memory.
        if self.options.service is None and free is not None and size > free:
            raise UsageError(
                f"shuffle={self.options.shuffle}: {count_text(num_slots, 'lane')} of large pieces and two windows take"
                f" {size / 1e9:.3g} GB, more than the free memory of {free / 1e9:.3g} GB. Pass a smaller number, or fewer lanes:"
                f" reading=tpudata.Reading(lanes={max(1, num_slots // 4)})."
            )
