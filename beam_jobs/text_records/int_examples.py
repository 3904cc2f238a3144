"""Examples (`tf.train.Example`) of integers, many at once: the bytes of `tpudata.format.encode_example`, made with numpy.

Lists of int64: the values of all records are encoded as varints in one go (the wire format is in tpudata.format.example.wire), and
then cut into records. Bytes of int32: records of one length differ in these bytes alone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tpudata.format import encode_entry, encode_example

# Values that are encoded at once: their intermediate arrays fit a CPU's cache.
_BLOCK = 1 << 15
# The same for rows that are copied into their places.
BLOCK_BYTES = 1 << 18


class IntLists(NamedTuple):
    """The integers of one feature in many records.

    Attributes:
        values: integers [values] of all records, concatenated.
        ends: end of each record's values, after an initial 0; ascending.
    """

    values: npt.NDArray[np.integer]
    ends: Sequence[int]

    @classmethod
    def from_rows(cls, rows: npt.NDArray[np.integer]) -> IntLists:
        """Return the lists of an array with a row for each record, [records, length]."""
        return cls(rows.ravel(), range(0, rows.size + 1, rows.shape[1]))

    @classmethod
    def from_sizes(cls, values: npt.NDArray[np.integer], sizes: npt.NDArray[np.int64]) -> IntLists:
        """Return the lists of the concatenated values [values] and their number in each record, int64 [records]."""
        return cls(values, [0, *np.cumsum(sizes).tolist()])


def encode_int_examples(
    features: Mapping[str, IntLists], others: Mapping[str, Sequence[Any]] = MappingProxyType({})
) -> list[bytes]:
    """Serialise records whose features are integers, and perhaps others.

    Args:
        features: lists by name, all of the same number of records.
        others: values of each record by name, for `encode_entry`.
    """
    columns = [
        _encode_entries(name, features[name])
        if name in features
        else [encode_entry(name, value) for value in others[name]]
        for name in sorted({*features, *others})
    ]
    return [_encode_example(b"".join(entries)) for entries in zip(*columns, strict=True)]


def encode_row_examples(
    features: Mapping[str, npt.NDArray[np.int32]], block_bytes: int = BLOCK_BYTES
) -> Iterator[bytes]:
    """Serialise records whose features are the bytes of little-endian int32.

    Args:
        features: arrays by name, int32 [records, length], of as many records; lengths may differ.
        block_bytes: bytes of the records that are encoded at once.
    """
    count = len(next(iter(features.values())))
    empty = {name: bytes(4 * values.shape[1]) for name, values in features.items()}
    record = np.frombuffer(encode_example(empty), np.uint8)
    block = max(1, block_bytes // len(record))
    rows = np.empty((min(block, count), len(record)), np.uint8)
    rows[:] = record
    for start in range(0, count, block):
        examples = rows[: count - start]
        # From the last feature to the first: each entry ends with its values.
        end = len(record)
        for name in sorted(features, reverse=True):
            ids = np.ascontiguousarray(features[name][start : start + block], "<i4")
            examples[:, end - len(empty[name]) : end] = ids.view(np.uint8)
            end -= len(encode_entry(name, empty[name]))
        data = examples.tobytes()
        for record_start in range(0, len(data), len(record)):
            yield data[record_start : record_start + len(record)]


def encode_varints(values: npt.NDArray[np.integer], ends: Sequence[int]) -> list[bytes]:
    """Return the varints of runs of integers.

    Args:
        values: integers [values] that fit int64; negative ones take 10 bytes each, as in protobuf.
        ends: end of each run, after an initial 0; ascending.
    """
    if not values.size:
        return [b""] * (len(ends) - 1)
    largest = int(values.max())
    if largest < 0x80 and int(values.min()) >= 0:
        data = values.astype(np.uint8).tobytes()
        return [data[start:end] for start, end in itertools.pairwise(ends)]
    unsigned = np.uint32 if values.min() >= 0 and largest < 1 << 32 else np.uint64
    parts: list[bytes] = []
    # Bytes of each value; their sums are the places of the values.
    starts = np.ones(len(values) + 1, np.int64)
    starts[0] = 0
    for start in range(0, len(values), _BLOCK):
        # A negative number is encoded as the unsigned number of its 64 bits.
        block: npt.NDArray[Any] = values[start : start + _BLOCK].astype(unsigned)
        width = max(1, -(-int(block.max()).bit_length() // 7))
        octets = np.empty((len(block), width), np.uint8)
        present = np.ones((len(block), width), np.bool_)
        octets[:, 0] = block & 0x7F
        for byte_index in range(1, width):
            # A byte is present if it or a later one has bits; then the byte before has the continuation flag.
            np.greater_equal(block, unsigned(1 << 7 * byte_index), out=present[:, byte_index])
            octets[:, byte_index] = (block >> unsigned(7 * byte_index)) & unsigned(0x7F)
            octets[:, byte_index - 1] |= present[:, byte_index].view(np.uint8) << 7
            starts[start + 1 : start + 1 + len(block)] += present[:, byte_index]
        parts.append(octets[present].tobytes())
    np.cumsum(starts, out=starts)
    data = b"".join(parts)
    cuts = starts[np.asarray(ends, np.int64)].tolist()
    return [data[start:end] for start, end in itertools.pairwise(cuts)]


def _encode_entries(name: str, lists: IntLists) -> list[bytes]:
    key = _encode_key(name)
    return [_encode_head(key, len(varints)) + varints for varints in encode_varints(*lists)]


def _encode_example(entries: bytes) -> bytes:
    return b"\x0a" + _encode_varint(len(entries)) + entries


@functools.lru_cache(maxsize=8192)
def _encode_head(key: bytes, size: int) -> bytes:
    """Return the map entry of a feature up to its varints; cached, because sizes recur from record to record."""
    if not size:
        return b"\x0a" + _encode_varint(len(key) + 4) + key + b"\x12\x02\x1a\x00"
    # From the values outwards: each level is a tag, a length, and the next inner level.
    head = b"\x0a" + _encode_varint(size)
    head = b"\x1a" + _encode_varint(len(head) + size) + head
    head = key + b"\x12" + _encode_varint(len(head) + size) + head
    return b"\x0a" + _encode_varint(len(head) + size) + head


def _encode_key(name: str) -> bytes:
    data = name.encode()
    return b"\x0a" + _encode_varint(len(data)) + data


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
