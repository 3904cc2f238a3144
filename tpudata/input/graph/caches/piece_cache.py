"""Cache of stored records in pieces in a folder: a host keeps those that it reads in every epoch."""

from __future__ import annotations

from tpudata.input.graph.caches.cache import Cache
from tpudata.input.graph.caches.piece_files import PieceFiles
from tpudata.input.graph.reading.read import Keep
from tpudata.input.graph.reading.read_plan import ReadPlan
from tpudata.input.options.hosts import Rows
from tpudata.input.order.order import Order


class PieceCache(Cache):
    """Cache of pieces.

    Args:
        folder: the user's folder of caches.
        name: name of the split and its records.
        is_elsewhere: whether other processes read them, with separate disks, as the workers of a tf.data service.
    """

    def __init__(self, folder: str, name: str, *, is_elsewhere: bool) -> None:
        self._folder = folder
        self._name = name
        self._is_elsewhere = is_elsewhere

    def keep(self, plan: ReadPlan, order: Order, rows: Rows) -> Keep:
        """Return what takes ranges from pieces in the folder, and fills it with those that the host reads."""
        assert plan.pieces is not None
        files = PieceFiles.of(self._folder, self._name, plan.pieces, plan.sizes)
        files = files.keep(plan.pieces_of(order.starts(rows)))
        if not self._is_elsewhere:
            files.prepare()
        return files.reads
