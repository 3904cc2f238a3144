"""Encoding of many Examples (`tf.train.Example`) of integers together: the bytes of `tpudata.format.encode_example`, with numpy.

For lists of int64, the values of all records are encoded as varints together (the wire format is in tpudata.format.example.wire),
and then cut into records. Records with bytes of int32 of one length differ only in these bytes, which are copied into one record.
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
from tpudata.format.example.encode import encode_key, encode_varint

# Values that are encoded together, so that their intermediate arrays fit a CPU's cache.
_BLOCK_VALUES = 1 << 15
# Bytes of records whose values are copied together, for the same reason.
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
        """Return the lists in the rows of an array, [records, length]."""
        return cls(rows.ravel(), range(0, rows.size + 1, rows.shape[1]))

    @classmethod
    def from_sizes(cls, values: npt.NDArray[np.integer], sizes: npt.NDArray[np.int64]) -> IntLists:
        """Return the lists from the concatenated values [values] and the number of values in each record, int64 [records]."""
        return cls(values, [0, *np.cumsum(sizes).tolist()])


def encode_int_examples(
    features: Mapping[str, IntLists], others: Mapping[str, Sequence[Any]] = MappingProxyType({})
) -> list[bytes]:
    """Serialize records with features of integers, and other features.

    Args:
        features: lists of integers by name, all for the same number of records.
        others: columns of the other features by name: a value for each record, as `encode_entry` takes it.
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
    """Serialize records whose features are the bytes of little-endian int32.

    Args:
        features: arrays by name, int32 [records, length], for the same number of records; lengths may differ.
        block_bytes: bytes of the records that are encoded together.
    """
    record_count = len(next(iter(features.values())))
    # Records differ only in their values, so each is a copy of a record of zeros, with its values written over them.
    zeros = {name: bytes(4 * values.shape[1]) for name, values in features.items()}
    zero_record = np.frombuffer(encode_example(zeros), np.uint8)
    record_bytes = len(zero_record)
    records_per_block = max(1, block_bytes // record_bytes)
    rows = np.empty((min(records_per_block, record_count), record_bytes), np.uint8)
    rows[:] = zero_record
    for start in range(0, record_count, records_per_block):
        # The last block may have fewer records.
        examples = rows[: record_count - start]
        # From the last feature to the first: each entry ends with its values.
        end = record_bytes
        for name in sorted(features, reverse=True):
            values = np.ascontiguousarray(features[name][start : start + records_per_block], "<i4")
            examples[:, end - len(zeros[name]) : end] = values.view(np.uint8)
            end -= len(encode_entry(name, zeros[name]))
        data = examples.tobytes()
        for record_start in range(0, len(data), record_bytes):
            yield data[record_start : record_start + record_bytes]


def encode_varints(values: npt.NDArray[np.integer], ends: Sequence[int]) -> list[bytes]:
    """Return the concatenated varints of each run of integers.

    Args:
        values: integers [values] that fit int64; negative ones take 10 bytes each, by protobuf's rules.
        ends: end of each run, after an initial 0; ascending.
    """
    if not values.size:
        return [b""] * (len(ends) - 1)
    largest = int(values.max())
    if largest < 0x80 and int(values.min()) >= 0:
        # Each number is its own varint.
        data = values.astype(np.uint8).tobytes()
        return [data[start:end] for start, end in itertools.pairwise(ends)]
    unsigned_type = np.uint32 if values.min() >= 0 and largest < (1 << 32) else np.uint64
    parts: list[bytes] = []
    # First a 0 and the number of bytes of each value, which become the offsets of the values once they are summed up below.
    starts = np.ones(len(values) + 1, np.int64)
    starts[0] = 0
    for start in range(0, len(values), _BLOCK_VALUES):
        # A negative number is encoded as the unsigned number of its 64 bits.
        block: npt.NDArray[Any] = values[start : start + _BLOCK_VALUES].astype(unsigned_type)
        # Bytes of the largest number, which have 7 bits each; 0 takes one, too.
        width = max(1, -(-int(block.max()).bit_length() // 7))
        octets = np.empty((len(block), width), np.uint8)
        present = np.ones((len(block), width), np.bool_)
        octets[:, 0] = block & 0x7F
        for byte_index in range(1, width):
            # A byte is present if it or a later one has bits; then the byte before has the continuation flag.
            np.greater_equal(block, unsigned_type(1 << (7 * byte_index)), out=present[:, byte_index])
            octets[:, byte_index] = (block >> unsigned_type(7 * byte_index)) & unsigned_type(0x7F)
            octets[:, byte_index - 1] |= present[:, byte_index].view(np.uint8) << 7
            starts[start + 1 : start + 1 + len(block)] += present[:, byte_index]
        parts.append(octets[present].tobytes())
    np.cumsum(starts, out=starts)
    data = b"".join(parts)
    byte_ends = starts[np.asarray(ends, np.int64)].tolist()
    return [data[start:end] for start, end in itertools.pairwise(byte_ends)]


def _encode_entries(name: str, lists: IntLists) -> list[bytes]:
    """Return the map entry of a feature in each record."""
    return [_encode_head(name, len(varints)) + varints for varints in encode_varints(*lists)]


def _encode_example(entries: bytes) -> bytes:
    """Return the Example with the map entries of all features."""
    return b"\x0a" + encode_varint(len(entries)) + entries


@functools.lru_cache(maxsize=8192)
def _encode_head(name: str, varint_bytes: int) -> bytes:
    """Return the map entry of a feature up to its varints; cached, because sizes recur from record to record.

    Args:
        name: name of the feature.
        varint_bytes: number of bytes of the varints that follow.
    """
    key = encode_key(name)
    if not varint_bytes:
        # An empty list: a feature with an int64 list of no bytes.
        return b"\x0a" + encode_varint(len(key) + 4) + key + b"\x12\x02\x1a\x00"
    # From the values outwards: each level is a tag, a length, and the next inner level.
    head = b"\x0a" + encode_varint(varint_bytes)
    head = b"\x1a" + encode_varint(len(head) + varint_bytes) + head
    head = key + b"\x12" + encode_varint(len(head) + varint_bytes) + head
    return b"\x0a" + encode_varint(len(head) + varint_bytes) + head
