"""References from a source, by column, with the bytes of those without an address."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from beam_jobs.references.packs.columns import narrow
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import Digests, Reference

Numbers = npt.NDArray[np.int64]
NOT_HELD = -1


class ListedPack(NamedTuple):
    """Some references of a unit.

    Attributes:
        pack: the references, without positions.
        digests: digests of their keys.
        buffers: bytes of references without an address.
        rows: integers [n], the buffer of each reference.
        starts: int64 [n], place of the first byte of each in its buffer, or NOT_HELD if it is read from its file.
    """

    pack: Pack
    digests: Digests
    buffers: list[bytes]
    rows: npt.NDArray[np.intp]
    starts: Numbers

    def take(self, rows: npt.NDArray[np.intp]) -> ListedPack:
        """Return the references of these rows, in the order of `rows`."""
        return ListedPack(self.pack.take(rows), self.digests[rows], self.buffers, self.rows[rows], self.starts[rows])

    @property
    def held_bytes(self) -> int:
        """Bytes of the references without an address."""
        return int(self.pack.sizes[self.starts >= 0].sum(dtype=np.int64))

    def join_held(self) -> bytes:
        """Return the concatenated bytes of the references without an address."""
        sizes = self.pack.sizes.tolist()
        held_rows = zip(self.rows.tolist(), self.starts.tolist(), sizes, strict=True)
        buffers = self.buffers
        return b"".join([buffers[row][start : start + size] for row, start, size in held_rows if start >= 0])

    def point_into_file(self, path: str, begin: int) -> Pack:
        """Return the references; those without an address point into a file that has `join_held()` from byte `begin` on."""
        pack, is_held = self.pack, self.starts >= 0
        if not is_held.any():
            return pack
        sizes = np.where(is_held, pack.sizes.astype(np.int64), 0)
        offsets = narrow(np.where(is_held, begin + np.cumsum(sizes) - sizes, pack.offsets))
        spools = [path] if is_held.all() else [path if is_one else "" for is_one in is_held.tolist()]
        return dataclasses.replace(pack, offsets=offsets, spools=spools)

    def references(self) -> Iterator[Reference]:
        """Yield the references, those without an address with their bytes."""
        listed_rows = zip(self.pack.references(), self.rows.tolist(), self.starts.tolist(), strict=True)
        for reference, row, start in listed_rows:
            data = self.buffers[row][start : start + reference.size] if start >= 0 else b""
            yield reference._replace(data=data)
