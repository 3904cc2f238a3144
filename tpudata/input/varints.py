"""Protobuf's varints, many at once: the integers of whole blocks of records, with numpy and not one by one.

A varint is seven bits to a byte, the lowest first; every byte but its last one has the bit 0x80. So the bytes below 0x80 are as
many as the integers, and say where each ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# Bytes decoded at once: their intermediate arrays stay in a processor's cache.
_BLOCK = 1 << 16
# Bytes of an integer that leave room in int32.
_NARROW = 4
# Protobuf's longest, a 64-bit integer.
_LONGEST = 10


def decode_varints(
    data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The integers of runs of varints.

    Args:
        data: uint8 [bytes].
        ends: int64 [runs + 1]: where each run ends in them, after a first 0. A run begins with an integer and ends with one.

    Returns:
        The integers, one behind the other, and how many each run has, int64 [runs]. The integers are int32 where all take up
        to four bytes, as those from 0 to 2**28 - 1 do, and otherwise int64.

    Raises:
        ValueError: a varint has more than ten bytes, or one does not end.
    """
    if not (data & 0x80).any():
        return data.astype(np.int32), np.diff(ends)
    values, counts = np.empty(len(data), np.int32), np.empty(len(ends) - 1, np.int64)
    place = run = 0
    while run < len(counts):
        # Whole runs, so that no integer is in two blocks.
        until = max(run + 1, int(np.searchsorted(ends, ends[run] + _BLOCK, "right")) - 1)
        block = data[ends[run] : ends[until]]
        if len(block) and block[-1] >= 0x80:
            raise ValueError("the last integer is cut off")
        lasts = np.flatnonzero(block < 0x80)
        found = _narrow(block, lasts)
        if found is None:
            return _wide(data), count_varints(data, ends)
        values[place : place + len(found)] = found
        counts[run:until] = _counts(lasts, ends[run : until + 1] - ends[run])
        place, run = place + len(found), until
    return values[:place], counts


def count_varints(data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many integers each run of varints has.

    Args:
        data: uint8 [bytes].
        ends: int64 [runs + 1]: where each run ends in them, after a first 0.
    """
    return _counts(np.flatnonzero(data < 0x80), ends)


def _counts(lasts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many of the integers, whose last bytes stand at `lasts`, each run has."""
    return np.diff(np.searchsorted(lasts, ends))


def _narrow(data: npt.NDArray[np.uint8], lasts: npt.NDArray[np.int64]) -> npt.NDArray[Any] | None:
    """Integers of up to four bytes, whose last bytes stand at `lasts`; or None where one is longer.

    For each byte the integer that would begin there is put together, from the bytes behind it as far as they go on; then those are
    taken where one does begin. They are taken by their places: by a mask, which a processor cannot foresee, takes twice as long as
    all the rest.
    """
    goes_on, bits = data >> 7, data & 0x7F
    # Whether the integer that begins at a byte reaches the one `place` bytes on.
    reaches = [goes_on[:-1]]
    while reaches[-1].any():
        place = len(reaches)
        if place == _NARROW:
            return None
        reaches.append(reaches[-1][:-1] & goes_on[place:-1])
    # Two bytes have 14 bits.
    values = bits.astype(np.uint16 if len(reaches) <= 2 else np.int32)
    for place, reach in enumerate(reaches[:-1], 1):
        values[:-place] += (bits[place:] * reach).astype(values.dtype) << 7 * place
    found = np.empty(len(lasts), values.dtype)
    if len(lasts):
        found[0] = values[0]
        np.take(values[1:], lasts[:-1], out=found[1:], mode="clip")
    return found


def _wide(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Integers of any length."""
    ends = np.flatnonzero(data < 0x80)
    begins = np.append(0, ends[:-1] + 1)
    sizes = ends + 1 - begins
    if sizes.max() > _LONGEST:
        raise ValueError(f"an integer of {sizes.max()} bytes")
    values = np.zeros(len(ends), np.uint64)
    for place in range(int(sizes.max())):
        here = np.flatnonzero(sizes > place)
        values[here] |= (data[begins[here] + place] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
    return values.view(np.int64)
