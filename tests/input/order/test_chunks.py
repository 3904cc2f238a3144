"""Chunks, the records read at once: their length, and that none crosses the end of a shard.

Chunks are private: batches in order do not show which records were read at once.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpudata.input.order.chunks import Chunks, count_chunk_records


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.sampled_from([1, 2, 8, 64]))
def test_chunks_cover_all_records_and_end_with_shards(shards: list[int], length: int) -> None:
    chunks = Chunks.cut(shards, length)
    assert chunks.num_records == sum(shards)
    spans = list(zip(chunks.firsts.tolist(), chunks.stops.tolist(), strict=True))
    assert [record for a, b in spans for record in range(a, b)] == list(range(sum(shards)))
    places = [(shard, place // length) for shard, count in enumerate(shards) for place in range(count)]
    assert [{places[record] for record in range(a, b)} for a, b in spans] == [
        {place} for place in dict.fromkeys(places)
    ]


@pytest.mark.parametrize(
    ("records", "size", "least", "length"),
    [
        (60_000, 842, 1, 512),
        (60_000, 842, 256, 128),
        (10**6, 110_000, 256, 4),
        (1000, 10**7, 1, 1),
        (3, 10, 1, 2),
        (3, 10, 9, 1),
    ],
)
def test_chunks_take_a_quarter_of_a_megabyte(records: int, size: int, least: int, length: int) -> None:
    assert count_chunk_records(records, size, 1 << 18, least) == length
