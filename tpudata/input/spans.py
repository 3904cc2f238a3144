"""Where the values of a feature stand in records of any size: for many records at once.

Records of one writer hold the same features in the same order, and differ in the values and in the lengths that are written before
them. So one record tells the order, and all are walked through together, a tag or a length at a time. What a `tf.train.Example`
looks like stands in `tpudata.format.example`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Bytes of a length: up to 256 MB.
_LENGTH_BYTES = 4
# Tags of one byte, before what has a length: of field 1, and of field 2.
_ONE, _TWO = 0x0A, 0x12
_KIND_TAGS = {"bytes": 0x0A, "float": 0x12, "int64": 0x1A}


class Spans(NamedTuple):
    """Where the values of a feature stand: one bytes value, or a packed list.

    Attributes:
        begins, ends: int64 [records]: the first byte, and the one behind the last; equal where a record has no values.
    """

    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def find_spans(
    data: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    order: Sequence[str],
    kinds: Mapping[str, str],
) -> tuple[dict[str, Spans], npt.NDArray[np.bool_]]:
    """Walks through records.

    Args:
        data: uint8 [bytes].
        begins, ends: int64 [records]: where each record stands.
        order: the names of all features, as they follow each other in a record.
        kinds: by name of the wanted ones, the list that holds them: "bytes", "int64" or "float".

    Returns:
        The spans by name, and bool [records]: which records are built so. For the others the spans mean nothing.
    """
    walk = _Walk(data, begins)
    walk.expect(bytes([_ONE]))
    walk.fits &= walk.length() == ends
    spans = {}
    for name in order:
        key = name.encode()
        walk.expect(bytes([_ONE]))
        entry_ends = walk.length()
        walk.expect(bytes([_ONE]) + _length_bytes(len(key)) + key + bytes([_TWO]))
        walk.fits &= walk.length() == entry_ends
        if name in kinds:
            # A feature without values has no list, or an empty one.
            full = np.ones_like(walk.fits)
            for tag in (_KIND_TAGS[kinds[name]], _ONE):
                full &= walk.at < entry_ends
                walk.expect(bytes([tag]), full)
                walk.fits &= (walk.length() == entry_ends) | ~full
            walk.fits &= full | (kinds[name] != "bytes")
            spans[name] = Spans(np.where(full, walk.at, entry_ends), entry_ends)
        walk.at = entry_ends.copy()
    walk.fits &= walk.at == ends
    return spans, walk.fits


class _Walk:
    """A place in each record, that moves on."""

    def __init__(self, data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> None:
        self._data = data
        self.at = at.copy()
        self.fits = np.ones(len(at), np.bool_)

    def expect(self, wanted: bytes, where: npt.NDArray[np.bool_] | None = None) -> None:
        """Passes some bytes, that are equal in all records, or in some of them."""
        places = self.at[:, None] + np.arange(len(wanted))
        # A record that does not fit may lead anywhere.
        found = (self._data.take(places, mode="clip") == np.frombuffer(wanted, np.uint8)).all(axis=1)
        self.fits &= found if where is None else found | ~where
        self.at += len(wanted)

    def length(self) -> npt.NDArray[np.int64]:
        """Passes a length; returns the end of what it is the length of."""
        lengths = np.zeros(len(self.at), np.int64)
        going_on = np.ones(len(self.at), np.bool_)
        for place in range(_LENGTH_BYTES):
            found = self._bytes()
            lengths += (found & np.int64(0x7F)) * going_on << 7 * place
            self.at += going_on
            going_on = going_on & (found >= 0x80)
            if not going_on.any():
                break
        self.fits &= ~going_on
        ends: npt.NDArray[np.int64] = self.at + lengths
        return ends

    def _bytes(self) -> npt.NDArray[np.int64]:
        # A record that does not fit may lead anywhere.
        found: npt.NDArray[np.int64] = self._data.take(self.at, mode="clip").astype(np.int64)
        return found


def _length_bytes(length: int) -> bytes:
    """A short length as it is written."""
    return bytes([length]) if length < 0x80 else bytes([length & 0x7F | 0x80, length >> 7])
