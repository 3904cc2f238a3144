"""The window of the shuffle: the records that are in memory together, and the memory that they take."""

from __future__ import annotations

import dataclasses
import functools
import logging

from tpudata.console.tables import count_text
from tpudata.errors import UsageError
from tpudata.input.dataset.fields import Fields
from tpudata.input.graph.reading.free_memory import MEMORY_SHARE, free_memory
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.options.hosts import Rows
from tpudata.input.options.options import Options

# Records are decoded as they are read if that takes at most this many times their stored bytes in the window.
_MAX_GROWTH = 1.25
# Warn if hosts together fetch more than so many bytes for each byte of the split.
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
        if any(field.bytes is None or field.feature.is_image_file or field.is_list for field in fields):
            return False
        return self.fields.record_bytes(self.plan.split) <= _MAX_GROWTH * self.plan.record_bytes

    @property
    def records(self) -> int:
        """Number of records that are shuffled together."""
        return min(self.plan.window(self.options.shuffle_buffer, self._record_bytes), self.plan.count)

    @property
    def bytes(self) -> int:
        """Approximate size of these records."""
        return self.records * self._record_bytes

    @property
    def has_all(self) -> bool:
        """Whether training holds all records in memory."""
        return self.options.training and self.records == self.plan.count

    @property
    def _record_bytes(self) -> int:
        """Approximate size of a record in the window."""
        return max(self.plan.record_bytes, self.fields.record_bytes(self.plan.split) if self.is_decoded else 0)

    def check_memory(self) -> None:
        """Raise UsageError if a requested window holds all records and they do not fit the free memory.

        Raises:
            UsageError: they do not fit.
        """
        if self.options.shuffle_buffer is None or self.records < self.plan.count:
            return
        free, size = free_memory(), self._record_bytes * self.plan.count
        if free is not None and size > MEMORY_SHARE * free:
            raise UsageError(
                f"shuffle={self.options.shuffle}: the records take {size / 1e9:.3g} GB, more than"
                f" {MEMORY_SHARE:.0%} of the free memory of {free / 1e9:.3g} GB. Pass a smaller number, or omit it."
            )

    def check_streams(self, rows: Rows, source: str) -> None:
        """Raise UsageError if a host's streams and windows do not fit the free memory; warn if hosts fetch the same pieces.

        Args:
            rows: rows of each global batch that the host feeds.
            source: name of the split, for messages.

        Raises:
            UsageError: they do not fit.
        """
        if self.plan.piece_memory is None:
            return
        hosts, lanes = rows.total // rows.count, self.plan.lanes(rows.total)
        ratio = self.plan.fetch_ratio(rows.total, hosts)
        if ratio > _WARN_FETCH_RATIO:
            _log.warning(
                "%s: %d hosts together fetch %.1f bytes for each byte of the split, since it has %s for them. Smaller shards "
                "give more (tpudata reshard --shard-size); with cache=PATH each host fetches it once, and not in each epoch.",
                source,
                hosts,
                ratio,
                count_text(lanes, "stream"),
            )
        stride = rows.total // lanes
        free, slots = free_memory(), -(-rows.stop // stride) - rows.first // stride
        size = slots * self.plan.piece_memory + 2 * self.bytes
        # The workers of a tf.data service have separate memory.
        if self.options.service is None and free is not None and size > free:
            raise UsageError(
                f"shuffle={self.options.shuffle}: {count_text(slots, 'stream')} of large pieces and two windows take"
                f" {size / 1e9:.3g} GB, more than the free memory of {free / 1e9:.3g} GB. Pass a smaller number, or fewer streams:"
                f" reading=tpudata.Reading(lanes={max(1, slots // 4)})."
            )
