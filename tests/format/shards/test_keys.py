"""The keys of a shard: their bytes on disk, and the damage that is detected.

Keys are private: an append shows only which inputs it skips.
"""

from __future__ import annotations

import struct

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpudata.errors import CorruptionError
from tpudata.format import Shard
from tpudata.format.shards.keys import ENTRY, ENTRY_BYTES, ShardKeys

CRC = 0x89ABCDEF
ENTRIES = st.lists(
    st.builds(lambda head, last: head + last, st.binary(min_size=15, max_size=15), st.sampled_from([b"\0", b"\1"])),
    min_size=1,
    max_size=40,
)


@given(ENTRIES)
def test_bytes_follow_the_documented_layout(entries: list[bytes]) -> None:
    head = b"TPUDKEY1" + struct.pack("<QI", len(entries), CRC)
    body = head + b"".join(sorted(entries))
    data = ShardKeys.of(np.array(entries, ENTRY), CRC).to_bytes()
    assert data == body + struct.pack("<I", google_crc32c.value(body))
    keys = ShardKeys.from_bytes(data, "x.keys")
    assert keys.entries.tobytes() == b"".join(sorted(entries))
    assert keys.shard_crc32c == CRC
    assert keys.record_count == sum(entry.endswith(b"\0") for entry in entries)


@given(ENTRIES, st.data())
def test_detects_any_changed_bit_and_any_truncation(entries: list[bytes], draw: st.DataObject) -> None:
    data = bytearray(ShardKeys.of(np.array(entries, ENTRY), CRC).to_bytes())
    place = draw.draw(st.integers(0, 8 * len(data) - 1))
    cut = draw.draw(st.integers(0, len(data) - 1))
    with pytest.raises(CorruptionError, match=r"^x\.keys at byte 0: "):
        ShardKeys.from_bytes(bytes(data[:cut]), "x.keys")
    data[place // 8] ^= 1 << place % 8
    with pytest.raises(CorruptionError, match=r"^x\.keys at byte 0: "):
        ShardKeys.from_bytes(bytes(data), "x.keys")


def test_rejects_a_count_that_differs_from_the_entries() -> None:
    body = b"TPUDKEY1" + struct.pack("<QI", 3, CRC) + bytes(2 * ENTRY_BYTES)
    with pytest.raises(CorruptionError, match="expected 3 entries"):
        ShardKeys.from_bytes(body + struct.pack("<I", google_crc32c.value(body)), "x.keys")


def test_rejects_keys_of_another_shard() -> None:
    keys = ShardKeys.of(np.array([bytes(16), bytes(15) + b"\1"], ENTRY), CRC)
    assert keys.entries.dtype == np.dtype("S16")
    keys.check(Shard("train-00000-of-00001.tfrecord", 1, 100, CRC), "x.keys")
    for records, crc in ((2, CRC), (1, CRC + 1)):
        with pytest.raises(CorruptionError, match="the keys of another shard: 1 record, checksum 89abcdef"):
            keys.check(Shard("train-00000-of-00001.tfrecord", records, 100, crc), "x.keys")
