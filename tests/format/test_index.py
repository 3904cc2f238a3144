"""The index of a shard: round trip, documented layout, damage."""

from __future__ import annotations

import io
import struct

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpudata.errors import CorruptionError
from tpudata.format import RecordWriter, ShardIndex


def make(records: list[bytes], block_records: int = 2, summary: dict[str, object] | None = None) -> ShardIndex:
    writer = RecordWriter(io.BytesIO(), block_records)
    for record in records:
        writer.write(record)
    return ShardIndex.of(writer.written(), summary or {})


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=9), st.integers(1, 4), st.text(max_size=5))
def test_round_trip(records: list[bytes], block_records: int, text: str) -> None:
    index = make(records, block_records, {"text": text, "count": len(records)})
    again = ShardIndex.from_bytes(index.to_bytes(), "x.index")
    np.testing.assert_array_equal(again.offsets, index.offsets)
    np.testing.assert_array_equal(again.block_crc32c, index.block_crc32c)
    assert (again.records, again.shard_bytes, again.block_records, again.shard_crc32c, again.summary) == (
        len(records),
        sum(len(record) + 16 for record in records),
        block_records,
        index.shard_crc32c,
        {"text": text, "count": len(records)},
    )
    assert again.to_bytes() == index.to_bytes()


def test_the_bytes_are_as_documented() -> None:
    index = make([b"ab", b"", b"cde"], 2, {"n": 1})
    blocks = [int(crc) for crc in index.block_crc32c]
    body = struct.pack("<8sQQIII", b"TPUDIDX1", 3, 53, index.shard_crc32c, 2, 8)
    body += struct.pack("<4Q", 0, 18, 34, 53) + struct.pack("<2I", *blocks) + b'{"n": 1}'
    assert index.to_bytes() == body + struct.pack("<I", google_crc32c.value(body))


def test_every_damaged_byte_and_every_cut_is_found() -> None:
    data = make([b"ab", b"", b"cde"], 2, {"n": 1}).to_bytes()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        for broken in (bytes(damaged), data[:position]):
            with pytest.raises(CorruptionError, match=r"x\.index at byte"):
                ShardIndex.from_bytes(broken, "x.index")
    with pytest.raises(CorruptionError):
        ShardIndex.from_bytes(data + b"\x00", "x.index")


def test_a_size_that_does_not_fit_is_found_though_the_checksum_does() -> None:
    body = struct.pack("<8sQQIII", b"TPUDIDX1", 5, 53, 0, 2, 0) + struct.pack("<4Q", 0, 18, 34, 53)
    with pytest.raises(CorruptionError, match="should have"):
        ShardIndex.from_bytes(body + struct.pack("<I", google_crc32c.value(body)), "x.index")
