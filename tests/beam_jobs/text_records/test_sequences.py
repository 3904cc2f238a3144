"""Rows of one length: they hold every token once, in order, and mark padding and documents.

Tests make windows small, because a conversion fills one only with tens of thousands of documents.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.text_records.sequences import Documents, TokenRows, pack_rows, split_windows, stream_rows
from tpudata.tokenizers import Ids

PAD = 999
lengths = st.lists(st.integers(0, 25), max_size=40)
cuts = st.lists(st.integers(0, 10**6), max_size=4)


def documents_of(sizes: list[int]) -> list[Ids]:
    """Documents whose tokens are all different."""
    ends = np.cumsum([0, *sizes])
    return [np.arange(start, start + size, dtype=np.int32) for start, size in zip(ends, sizes, strict=False)]


def batches_of(documents: list[Ids], places: list[int]) -> list[Documents]:
    """The documents in batches that are cut at some places."""
    cuts = sorted({0, len(documents), *(place % (len(documents) + 1) for place in places)})
    return [Documents.of(documents[start:stop]) for start, stop in itertools.pairwise(cuts)]


def segments(rows: list[TokenRows]) -> list[list[int]]:
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


@given(lengths, cuts, st.integers(1, 10), st.integers(1, 9))
def test_cuts_a_stream_without_losing_a_token(sizes: list[int], places: list[int], length: int, most: int) -> None:
    documents = batches_of(documents_of(sizes), places)
    rows = list(stream_rows(split_windows(documents, most), length, PAD))
    tokens = [token for some in rows for token in some.input_ids.ravel().tolist()]
    total = sum(sizes)
    assert tokens[:total] == list(range(total))
    assert tokens[total:] == [PAD] * (-total % length)
    assert sum(some.real_count for some in rows) == total
    assert all(some.input_ids.shape[1] == length and some.input_ids.dtype == np.int32 for some in rows)


@given(lengths, cuts, st.integers(1, 12), st.integers(1, 50), st.sampled_from(["split", "cut"]))
def test_packs_documents_whole(
    sizes: list[int], places: list[int], length: int, most: int, long_documents: str
) -> None:
    documents = documents_of(sizes)
    rows = list(pack_rows(split_windows(batches_of(documents, places), most), length, PAD, long_documents))
    pieces = [
        document[start : start + length].tolist()
        for document in documents
        for start in range(0, len(document) if long_documents == "split" else min(1, len(document)), length)
    ]
    found = segments(rows)
    assert sorted(found) == sorted(pieces)
    assert sum(some.real_count for some in rows) == sum(map(len, pieces))
    assert sum(some.dropped_count for some in rows) == sum(sizes) - sum(map(len, pieces))
    for some in rows:
        # Every row has something in it, and its documents in their order.
        assert some.segment_ids is not None
        assert (some.segment_ids[:, 0] == 1).all()
        for ids, numbers in zip(some.input_ids, some.segment_ids, strict=True):
            assert (np.diff(ids[numbers > 0]) > 0).all()


def test_equal_documents_give_equal_rows() -> None:
    sizes = np.random.default_rng(1).integers(1, 90, 500).tolist()
    one, two = (next(pack_rows([Documents.of(documents_of(sizes))], 64, PAD)) for _ in range(2))
    for first, second in zip(one[:3], two[:3], strict=True):
        assert first is not None
        assert second is not None
        assert first.tobytes() == second.tobytes()


def test_packing_does_not_order_rows_by_length() -> None:
    random = np.random.default_rng(2)
    documents = documents_of(random.integers(1, 400, 4000).tolist())
    rows = next(pack_rows([Documents.of(documents)], 512, PAD))
    assert rows.segment_ids is not None
    counts = rows.segment_ids.max(axis=1)
    # Documents come in random order, and so should rows of few and of many documents.
    assert abs(np.corrcoef(np.arange(len(counts)), counts)[0, 1]) < 0.1


@given(lengths, cuts, st.integers(1, 9), st.integers(1, 60))
def test_windows_end_at_their_limit_of_documents_or_tokens(
    sizes: list[int], places: list[int], max_documents: int, max_tokens: int
) -> None:
    documents = documents_of(sizes)
    expected: list[list[Ids]] = [[]]
    for document in documents:
        expected[-1].append(document)
        if len(expected[-1]) == max_documents or sum(map(len, expected[-1])) >= max_tokens:
            expected.append([])
    found = split_windows(batches_of(documents, places), max_documents, max_tokens)
    pairs = list(zip(found, (some for some in expected if some), strict=True))
    for window, some in pairs:
        assert window.sizes.tolist() == list(map(len, some))
        assert window.tokens.tolist() == [token for document in some for token in document.tolist()]
        assert window.tokens.dtype == np.int32


def test_ends_each_document_with_the_end_token() -> None:
    tokens, sizes = Documents.of(documents_of([2, 0, 1])).add_ends(7)
    assert (tokens.tolist(), sizes.tolist()) == ([0, 1, 7, 7, 2, 7], [3, 1, 2])
    tokens, sizes = Documents.of([]).add_ends(7)
    assert (tokens.tolist(), sizes.tolist()) == ([], [])
    assert tokens.dtype == np.int32
    assert list(split_windows([Documents.of([])])) == []


def test_packs_a_window_into_the_expected_rows() -> None:
    # Worked out by hand: 5 and 3 fill a row; 4, 2 and the rest of 9, which is 1, the next; 8 of the 9 fill a third.
    (rows,) = pack_rows([Documents.of(documents_of([5, 3, 4, 2, 9]))], 8, PAD)
    assert rows.segment_ids is not None
    assert rows.positions is not None
    assert rows.input_ids.tolist() == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [8, 9, 10, 11, 12, 13, 22, PAD],
        [14, 15, 16, 17, 18, 19, 20, 21],
    ]
    assert rows.segment_ids.tolist() == [[1] * 5 + [2] * 3, [1] * 4 + [2] * 2 + [3, 0], [1] * 8]
    assert rows.positions.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 0, 1, 0, 0], list(range(8))]
    assert (rows.real_count, rows.dropped_count) == (23, 0)


@pytest.mark.parametrize("mean", [40, 150, 600])
def test_mixed_lengths_fill_98_percent_of_the_rows(mean: int) -> None:
    # Log-normal lengths, as documents have; the longest are split.
    random = np.random.default_rng(3)
    sizes = np.maximum(1, random.lognormal(np.log(mean), 0.8, 8000)).astype(int).tolist()
    rows = list(pack_rows(split_windows([Documents.of(documents_of(sizes))]), 512, PAD))
    real = sum(some.real_count for some in rows) / sum(some.input_ids.size for some in rows)
    assert real >= 0.98
