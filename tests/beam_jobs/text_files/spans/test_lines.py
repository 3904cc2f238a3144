"""Lines and paragraphs: each record is found once and whole, for any ranges and chunks.

Tests make ranges and chunks small, because a conversion divides only files of many MB.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_jobs.compression.streams import READ_SIZES, ReadSizes
from beam_jobs.text_files.spans.blocks import SpanBlock, find_line_blocks, find_line_blocks_in_range
from beam_jobs.text_files.spans.lines import (
    BOM,
    Span,
    drop_blank_lines,
    join_paragraphs,
    join_paragraphs_in_range,
    line_spans,
)
from tpudata.storage import storage_for

LIMIT = 1 << 20
# What goes wrong at a boundary: line ends of both kinds, blank lines, characters of several bytes, byte order marks.
PIECES = (b"a", b"bc", b"\n", b"\r\n", b"\n\n", b" ", b"\t", b"\r", "é".encode(), "日本".encode(), "😀".encode(), BOM)
contents = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)


def plain_lines(data: bytes) -> list[tuple[int, bytes]]:
    found, offset = [], 0
    for line in data.split(b"\n"):
        begin, end = offset, line
        if begin == 0 and line.startswith(BOM):
            begin, end = len(BOM), line[len(BOM) :]
        if end.strip():
            found.append((begin, end.removesuffix(b"\r")))
        offset += len(line) + 1
    return found


def plain_paragraphs(data: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    offset, inside = 0, False
    for line in data.split(b"\n"):
        begin, end = offset, line
        if begin == 0 and line.startswith(BOM):
            begin, end = len(BOM), line[len(BOM) :]
        if not end.strip():
            inside = False
        elif inside:
            found[-1] = (found[-1][0], found[-1][1] + b"\n" + end)
        else:
            found.append((begin, end))
            inside = True
        offset += len(line) + 1
    return [(begin, text.removesuffix(b"\r")) for begin, text in found]


def spans_of(blocks: Iterable[SpanBlock], limit: int) -> Iterator[Span]:
    """The spans of blocks, one by one."""
    for block in blocks:
        for start, size, offset in zip(*(column.tolist() for column in block[1:]), strict=True):
            yield Span(offset, size, block.data[start : start + size] if size <= limit else b"")


def lines_in_range(path: str, start: int, stop: int, limit: int, sizes: ReadSizes = READ_SIZES) -> Iterator[Span]:
    return spans_of(find_line_blocks_in_range(path, start, stop, limit, sizes), limit)


def cut(data: bytes, places: list[int]) -> list[int]:
    return sorted({0, len(data), *(place % (len(data) + 1) for place in places)})


@given(contents, st.lists(st.integers(0, 10**6), max_size=6))
def test_finds_the_same_lines_in_any_chunks(data: bytes, places: list[int]) -> None:
    chunks = [data[start:stop] for start, stop in itertools.pairwise(cut(data, places))]
    spans = list(line_spans(chunks, 7, LIMIT))
    # The oracle is the split of the whole.
    expected = data.split(b"\n") if data else []
    expected = expected[:-1] if expected and not expected[-1] else expected
    assert [span.data for span in spans] == expected
    for span in spans:
        assert data[span.offset - 7 : span.offset - 7 + span.size] == span.data


@pytest.mark.parametrize(
    ("in_range", "plain"), [(lines_in_range, plain_lines), (join_paragraphs_in_range, plain_paragraphs)]
)
@given(data=contents, places=st.lists(st.integers(0, 10**6), max_size=6), step=st.integers(1, 9))
@settings(max_examples=300)
def test_finds_each_record_once_in_any_ranges(
    in_range: Callable[..., Iterator[Span]],
    plain: Callable[[bytes], list[tuple[int, bytes]]],
    tmp_path_factory: pytest.TempPathFactory,
    data: bytes,
    places: list[int],
    step: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "ranges.txt"
    path.write_bytes(data)
    found = [
        span
        for start, stop in itertools.pairwise(cut(data, places))
        for span in in_range(str(path), start, stop, LIMIT, ReadSizes(step, step, step))
    ]
    assert [(span.offset, span.data) for span in found] == plain(data)
    assert all(data[span.offset :].startswith(span.data) and span.size == len(span.data) for span in found)


@given(contents, st.lists(st.integers(0, 10**6), max_size=6), st.integers(0, 12))
@settings(max_examples=300)
def test_blocks_hold_the_lines_that_a_plain_loop_finds(data: bytes, places: list[int], limit: int) -> None:
    chunks = [data[start:stop] for start, stop in itertools.pairwise(cut(data, places))]
    # Line by line, with a limit that some of the lines exceed.
    assert list(spans_of(find_line_blocks(chunks, 0, limit), limit)) == list(
        drop_blank_lines(line_spans(chunks, 0, limit))
    )


def test_finds_each_record_once_in_ranges_of_one_byte(tmp_path: Path) -> None:
    data = BOM + "öne\r\n\r\n two\nthree\n\n\nfour".encode()
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    ranges = [(place, place + 1) for place in range(len(data))]
    assert [span.data.decode() for one in ranges for span in lines_in_range(str(path), *one, LIMIT)] == [
        "öne",
        " two",
        "three",
        "four",
    ]
    assert [span.data.decode() for one in ranges for span in join_paragraphs_in_range(str(path), *one, LIMIT)] == [
        "öne",
        " two\nthree",
        "four",
    ]


def test_skips_a_line_over_the_limit() -> None:
    held = []

    def chunks() -> Iterator[bytes]:
        yield b"short\n"
        for _ in range(1000):
            held.append(1)
            yield b"x" * 1000
        yield b"\nafter"

    spans = list(spans_of(find_line_blocks(chunks(), 0, 5000), 5000))
    assert [(span.offset, span.size, span.data) for span in spans] == [
        (0, 5, b"short"),
        (6, 1_000_000, b""),
        (1_000_007, 5, b"after"),
    ]
    assert len(held) == 1000


def test_a_paragraph_over_the_limit_has_no_data() -> None:
    spans = list(join_paragraphs(line_spans([b"aa\nbb\ncc\n\nd\n"], 0, 5), 5))
    assert [(span.offset, span.size, span.data) for span in spans] == [(0, 8, b""), (10, 1, b"d")]


def test_reads_a_range_no_further_than_its_last_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"line of text\n" * 100_000)
    read = []
    storage = storage_for(str(path))
    plain = storage.read_range

    def counted(*args: Any) -> bytes:
        data = plain(*args)
        read.append(len(data))
        return data

    monkeypatch.setattr(storage, "read_range", counted)
    assert len(list(lines_in_range(str(path), 13_000, 26_000, LIMIT))) == 1000
    assert 13_001 <= sum(read) <= 13_001 + READ_SIZES.after
