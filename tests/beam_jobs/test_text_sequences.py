"""Rows of one length: every token is in them once, in order, and marked as what it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.text_sequences import Rows, ended, packed_rows, stream_rows, windows
from beam_jobs.tokenizers import Ids

PAD = 999
lengths = st.lists(st.integers(0, 25), max_size=40)


def documents_of(sizes: list[int]) -> list[Ids]:
    """Documents whose tokens are all different."""
    ends = np.cumsum([0, *sizes])
    return [np.arange(start, start + size, dtype=np.int32) for start, size in zip(ends, sizes, strict=False)]


def segments(rows: list[Rows]) -> list[list[int]]:
    """The documents in rows, read with a plain loop from segment ids and positions."""
    found: list[list[int]] = []
    for some in rows:
        assert some.segment_ids is not None
        assert some.positions is not None
        for ids, numbers, positions in zip(some.input_ids, some.segment_ids, some.positions, strict=True):
            last = 0
            for token, number, position in zip(ids.tolist(), numbers.tolist(), positions.tolist(), strict=True):
                if number == 0:
                    assert (token, position) == (PAD, 0)
                    last = -1
                    continue
                # Padding is at the end, and numbers count up.
                assert number in (last, last + 1)
                if number == last + 1:
                    assert position == 0
                    found.append([])
                assert position == len(found[-1])
                found[-1].append(token)
                last = number
    return found


@given(lengths, st.integers(1, 10), st.integers(1, 9))
def test_a_stream_is_cut_and_nothing_lost(sizes: list[int], length: int, most: int) -> None:
    documents = documents_of(sizes)
    rows = list(stream_rows(windows(documents, most), length, PAD))
    tokens = [token for some in rows for token in some.input_ids.ravel().tolist()]
    total = sum(sizes)
    assert tokens[:total] == list(range(total))
    assert tokens[total:] == [PAD] * (-total % length)
    assert sum(some.real for some in rows) == total
    assert all(some.input_ids.shape[1] == length and some.input_ids.dtype == np.int32 for some in rows)


@given(lengths, st.integers(1, 12), st.integers(1, 50), st.sampled_from(["split", "cut"]))
def test_packed_documents_are_whole(sizes: list[int], length: int, most: int, long_documents: str) -> None:
    documents = documents_of(sizes)
    rows = list(packed_rows(windows(documents, most), length, PAD, long_documents))
    pieces = [
        document[start : start + length].tolist()
        for document in documents
        for start in range(0, len(document) if long_documents == "split" else min(1, len(document)), length)
    ]
    found = segments(rows)
    assert sorted(found) == sorted(pieces)
    assert sum(some.real for some in rows) == sum(map(len, pieces))
    assert sum(some.dropped for some in rows) == sum(sizes) - sum(map(len, pieces))
    for some in rows:
        # Every row has something in it, and its documents in their order.
        assert some.segment_ids is not None
        assert (some.segment_ids[:, 0] == 1).all()
        for ids, numbers in zip(some.input_ids, some.segment_ids, strict=True):
            assert (np.diff(ids[numbers > 0]) > 0).all()


def test_equal_documents_give_equal_rows() -> None:
    sizes = np.random.default_rng(1).integers(1, 90, 500).tolist()
    one, two = (next(packed_rows([documents_of(sizes)], 64, PAD)) for _ in range(2))
    for first, second in zip(one[:3], two[:3], strict=True):
        assert first is not None
        assert second is not None
        assert first.tobytes() == second.tobytes()


def test_packing_does_not_order_rows_by_length() -> None:
    random = np.random.default_rng(2)
    documents = documents_of(random.integers(1, 400, 4000).tolist())
    rows = next(packed_rows([documents], 512, PAD))
    assert rows.segment_ids is not None
    counts = rows.segment_ids.max(axis=1)
    # Documents come in random order, and so should rows of few and of many documents.
    assert abs(np.corrcoef(np.arange(len(counts)), counts)[0, 1]) < 0.1


def test_windows_are_full_with_documents_or_tokens() -> None:
    documents = documents_of([3] * 10)
    assert [len(window) for window in windows(documents, most_documents=4)] == [4, 4, 2]
    assert [len(window) for window in windows(documents, most_tokens=7)] == [3, 3, 3, 1]
    assert list(windows([])) == []


def test_ends() -> None:
    assert [ids.tolist() for ids in ended(documents_of([2, 0, 1]), 7)] == [[0, 1, 7], [7], [2, 7]]
    assert ended([], 7) == []


@pytest.mark.parametrize("mean", [40, 150, 600])
def test_mixed_lengths_leave_little_free(mean: int) -> None:
    # Log-normal lengths, as documents have; the longest are split.
    random = np.random.default_rng(3)
    sizes = np.maximum(1, random.lognormal(np.log(mean), 0.8, 8000)).astype(int).tolist()
    rows = list(packed_rows(windows(documents_of(sizes)), 512, PAD))
    real = sum(some.real for some in rows) / sum(some.input_ids.size for some in rows)
    assert real >= 0.98
