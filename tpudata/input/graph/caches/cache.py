"""A cache, which keeps the records of a split once they are read."""

from __future__ import annotations

from tpudata.input.graph.reading.read import CacheWrapper
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.graph.reading.stored_records import StoredRecords
from tpudata.input.options.hosts import Rows
from tpudata.input.order.order import Order


class Cache:
    """Cache that keeps no records. Other caches are subclasses.

    Attributes:
        is_decoded: whether the records are decoded before they are kept.
        is_in_memory: whether all records are kept in memory.
    """

    is_decoded = False
    is_in_memory = False

    def open(self, stored: StoredRecords) -> StoredRecords:
        """Return the records to read: `stored` itself; `DecodedCache` overrides it, to return the same records from its files.

        Args:
            stored: the records in the split's files; all, or some of them.
        """
        return stored

    def choose_wrapper(self, _plan: ReadPlan, _order: Order, _rows: Rows) -> CacheWrapper | None:
        """Return a wrapper of functions that read stored records, which caches the records.

        None if the cache keeps no stored records, as here; `PieceCache` overrides it.

        Args:
            plan: plan of reading.
            order: order of the records.
            rows: rows of each global batch that the host feeds.
        """
        return None


class MemoryCache(Cache):
    """Cache of decoded records in memory."""

    is_decoded = is_in_memory = True
