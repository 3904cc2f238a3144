"""The index of a shard: round trip, documented layout, damage."""

from __future__ import annotations

import io
import struct
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpudata.errors import CorruptionError
from tpudata.format import RecordWriter, ShardIndex


def make(
    records: list[bytes],
    block_records: int = 2,
    summary: dict[str, object] | None = None,
    compression: str | None = None,
) -> ShardIndex:
    writer = RecordWriter(io.BytesIO(), block_records, compression)
    for record in records:
        writer.write(record)
    return ShardIndex.from_written(writer.finish(), summary or {})


@given(
    st.lists(st.binary(max_size=30), min_size=1, max_size=9),
    st.integers(1, 4),
    st.text(max_size=5),
    st.sampled_from([None, "gzip"]),
)
def test_round_trip_keeps_an_index(
    records: list[bytes], block_records: int, text: str, compression: str | None
) -> None:
    index = make(records, block_records, {"text": text, "count": len(records)}, compression)
    again = ShardIndex.from_bytes(index.to_bytes(), "x.index")
    np.testing.assert_array_equal(again.offsets, index.offsets)
    np.testing.assert_array_equal(again.block_crc32c, index.block_crc32c)
    assert (again.records, again.shard_bytes, again.block_records, again.shard_crc32c, again.summary) == (
        len(records),
        index.shard_bytes,
        block_records,
        index.shard_crc32c,
        {"text": text, "count": len(records)},
    )
    assert again.offsets[-1] == sum(len(record) + 16 for record in records)
    assert again.compression == compression
    np.testing.assert_array_equal(again.block_offsets, index.block_offsets)
    assert again.to_bytes() == index.to_bytes()


def test_bytes_follow_the_documented_layout() -> None:
    index = make([b"ab", b"", b"cde"], 2, {"n": 1})
    blocks = [int(crc) for crc in index.block_crc32c]
    body = struct.pack("<8sQQIIII", b"TPUDIDX2", 3, 53, index.shard_crc32c, 2, 8, 0)
    body += struct.pack("<4Q", 0, 18, 34, 53) + struct.pack("<2I", *blocks) + b'{"n": 1}'
    assert index.to_bytes() == body + struct.pack("<I", google_crc32c.value(body))


def test_bytes_of_a_compressed_shard_follow_the_documented_layout() -> None:
    index = make([b"ab", b"", b"cde"], 2, {"n": 1}, "gzip")
    blocks = [int(crc) for crc in index.block_crc32c]
    assert index.block_offsets is not None
    places = [int(offset) for offset in index.block_offsets]
    assert (places[0], places[-1]) == (0, index.shard_bytes)
    body = struct.pack("<8sQQIIII", b"TPUDIDX2", 3, index.shard_bytes, index.shard_crc32c, 2, 8, 2)
    body += struct.pack("<4Q", 0, 18, 34, 53) + struct.pack("<2I", *blocks) + struct.pack("<3Q", *places) + b'{"n": 1}'
    assert index.to_bytes() == body + struct.pack("<I", google_crc32c.value(body))
    assert [index.file_range(block) for block in range(index.blocks)] == [(0, places[1]), (places[1], places[2])]
    assert [index.block_range(block) for block in range(index.blocks)] == [(0, 34), (34, 53)]


def test_file_ranges_of_a_plain_shard_are_those_of_its_records() -> None:
    index = make([b"ab", b"", b"cde"])
    assert [index.file_range(block) for block in range(index.blocks)] == [(0, 34), (34, 53)]


def test_detects_every_damaged_byte_and_every_truncation() -> None:
    data = make([b"ab", b"", b"cde"], 2, {"n": 1}).to_bytes()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        for broken in (bytes(damaged), data[:position]):
            with pytest.raises(CorruptionError, match=r"x\.index at byte"):
                ShardIndex.from_bytes(broken, "x.index")
    with pytest.raises(CorruptionError):
        ShardIndex.from_bytes(data + b"\x00", "x.index")


@pytest.mark.parametrize(
    ("records", "block_records", "compression", "summary", "message"),
    [
        (5, 2, 0, b"{}", "wrong length"),
        (3, 2, 2, b"{}", "wrong length"),
        (3, 0, 0, b"{}", "3 records in blocks of 0"),
        (3, 2, 1, b"{}", "compression 1"),
        (3, 2, 0, b"{]", "the summary is not JSON as it was written"),
    ],
)
def test_rejects_inconsistent_fields_despite_a_valid_checksum(
    records: int, block_records: int, compression: int, summary: bytes, message: str
) -> None:
    body = struct.pack("<8sQQIIII", b"TPUDIDX2", records, 53, 0, block_records, len(summary), compression)
    body += struct.pack("<4Q", 0, 18, 34, 53) + struct.pack("<2I", 0, 0) + summary
    with pytest.raises(CorruptionError, match=message):
        ShardIndex.from_bytes(body + struct.pack("<I", google_crc32c.value(body)), "x.index")


def test_rejects_an_index_of_another_layout_by_name() -> None:
    body = struct.pack("<8sQQIII", b"TPUDIDX1", 1, 18, 0, 2, 2) + struct.pack("<2QI", 0, 18, 0) + b"{}"
    with pytest.raises(CorruptionError, match=r"layout \(got b'TPUDIDX1', expected b'TPUDIDX2'\)"):
        ShardIndex.from_bytes(body + struct.pack("<I", google_crc32c.value(body)), "x.index")


def test_keeps_a_summary_with_names_that_are_not_utf8() -> None:
    index = make([b"a"], summary={"é": "caf\udce9.png"})
    assert b'{"\xc3\xa9": "caf\\udce9.png"}' in index.to_bytes()
    assert ShardIndex.from_bytes(index.to_bytes(), "x.index").summary == {"é": "caf\udce9.png"}


@pytest.mark.parametrize(
    ("offsets", "blocks", "shard_bytes", "message"),
    [
        ([1, 20, 40, 60], None, 60, "not contiguous from byte 0"),
        ([0, 20, 30, 60], None, 60, "each with 16 bytes or more"),
        ([0, 40, 20, 60], None, 60, "not contiguous"),
        ([0, 20, 40, 60], None, 61, "the records end at byte 60 of 61"),
        ([0, 20, 40, 2**63], None, 60, "beyond"),
        ([0, 20, 40, 2**64 - 1], None, 2**64 - 1, "beyond"),
        ([0, 20, 40, 60], [0, 30, 20], 20, "do not ascend from byte 0 to 20"),
        ([0, 20, 40, 60], [0, 0, 20], 20, "do not ascend"),
        ([0, 20, 40, 60], [0, 10, 2**63], 20, "beyond"),
        ([0, 20, 40, 10**9], [0, 10, 20], 20, "smaller than gzip can make it"),
    ],
)
def test_rejects_offsets_that_do_not_fill_the_shard(
    offsets: list[int], blocks: list[int] | None, shard_bytes: int, message: str
) -> None:
    packed = None if blocks is None else np.array(blocks, np.uint64)
    index = ShardIndex(np.array(offsets, np.uint64), np.zeros(2, np.uint32), 2, shard_bytes, 0, packed, {})
    with pytest.raises(CorruptionError, match=rf"^x\.index at byte 0: .*{message}"):
        ShardIndex.from_bytes(index.to_bytes(), "x.index")


@pytest.mark.parametrize(
    "summary",
    [[1], "x", {"a": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}, {"a": float("inf")}],
)
def test_rejects_summaries_of_another_kind(summary: Any) -> None:
    index = ShardIndex(np.array([0, 20], np.uint64), np.zeros(1, np.uint32), 2, 20, 0, None, summary)
    with pytest.raises(CorruptionError, match="the summary is not JSON as it was written"):
        ShardIndex.from_bytes(index.to_bytes(), "x.index")
