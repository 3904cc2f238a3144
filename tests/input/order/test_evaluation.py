"""The order of evaluation: each record once, in the order of the dataset, in the rows of its host.

Ranges are private: batches show the records, but not at which ones a read begins.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tpudata.input.order.chunks import Chunks
from tpudata.input.order.evaluation import EvaluationOrder


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 9), st.integers(1, 6), st.data())
def test_ranges_cover_a_hosts_rows_without_padding(
    shards: list[int], length: int, rows: int, data: st.DataObject
) -> None:
    hosts = data.draw(st.integers(1, 4))
    order, records = EvaluationOrder(Chunks.cut(shards, length), rows * hosts), sum(shards)
    host = data.draw(st.integers(0, hosts - 1))
    step = data.draw(st.integers(0, order.steps + 1))
    firsts, lasts = order.list_ranges(step, host * rows, (host + 1) * rows)
    found = [record for first, last in zip(firsts, lasts, strict=True) for record in range(first, last)]
    places = [place for place in range(step * rows * hosts, records) if place // rows % hosts == host]
    assert found == places
    starts = order.chunks.firsts.tolist()
    assert not any(first < start < last for first, last in zip(firsts, lasts, strict=True) for start in starts)
    assert order.steps == -(-records // (rows * hosts))
