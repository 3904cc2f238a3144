"""References from a source, by column, with the bytes of a reference if no range of a file holds them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from beam_jobs.references.packs.columns import narrow
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import Digests, Reference

# Start of a reference whose bytes a range of a file holds.
NOT_HELD = -1


class ListedPack(NamedTuple):
    """Some references of a unit. A reference is held if its bytes are in no range of a file: a buffer has them.

    Attributes:
        pack: the references, without positions.
        digests: digests of their keys.
        buffers: buffers with the bytes of held references.
        buffer_indices: integers [n], index of each reference's buffer; meaningless if it is not held.
        starts: int64 [n], index of the first byte of each in its buffer, or NOT_HELD.
    """

    pack: Pack
    digests: Digests
    buffers: list[bytes]
    buffer_indices: npt.NDArray[np.intp]
    starts: npt.NDArray[np.int64]

    def take(self, rows: npt.NDArray[np.intp]) -> ListedPack:
        """Return the references of these rows, in the order of `rows`."""
        pack = self.pack.take(rows)
        digests = self.digests[rows]
        return ListedPack(pack, digests, self.buffers, self.buffer_indices[rows], self.starts[rows])

    @property
    def held_bytes(self) -> int:
        """Total size of the held references, in bytes."""
        return int(self.pack.sizes[self.starts >= 0].sum(dtype=np.int64))

    def join_held(self) -> bytes:
        """Return the concatenated bytes of the held references."""
        spans = zip(self.buffer_indices.tolist(), self.starts.tolist(), self.pack.sizes.tolist(), strict=True)
        buffers = self.buffers
        return b"".join([buffers[index][start : start + size] for index, start, size in spans if start >= 0])

    def point_into_file(self, path: str, first_offset: int) -> Pack:
        """Return the references; held ones point into the file at `path`, which has `join_held()` from byte `first_offset` on."""
        pack = self.pack
        is_held = self.starts >= 0
        if not is_held.any():
            return pack
        held_sizes = np.where(is_held, pack.sizes.astype(np.int64), 0)
        offsets = narrow(np.where(is_held, first_offset + np.cumsum(held_sizes) - held_sizes, pack.offsets))
        spools = [path] if is_held.all() else [path if is_spooled else "" for is_spooled in is_held.tolist()]
        return dataclasses.replace(pack, offsets=offsets, spools=spools)

    def references(self) -> Iterator[Reference]:
        """Yield the references, the held ones with their bytes."""
        rows = zip(self.pack.references(), self.buffer_indices.tolist(), self.starts.tolist(), strict=True)
        for reference, index, start in rows:
            data = self.buffers[index][start : start + reference.size] if start >= 0 else b""
            yield reference._replace(data=data)
