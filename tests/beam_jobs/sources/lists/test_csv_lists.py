"""Rows of CSV lists compared with Python's csv module, and rows split in bulk compared with rows split one by one.

Tests read rows directly: they try thousands of lists in blocks of any size, and a conversion divides only large lists.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.sources.lists.csv_lists import CsvForm, read_csv_header, read_csv_rows
from beam_jobs.text_files.spans.csv_rows import locate_rows, split_cells
from beam_jobs.text_files.spans.lines import line_spans
from tpudata.errors import SourceError

COLUMNS = ("path", "label")
# The csv module writes a CR without quotes if lines end with LF.
words = st.text(st.sampled_from('ab,"\n \té😀'), max_size=6)
cuts = st.lists(st.integers(0, 999), max_size=4)
# Few quotes and bare CRs, so that many pieces of a file have none.
lines = st.sampled_from(["a,b", "é,b\r", 'a,"b"', '"a', '",b', "", " \t", "a\rb,c", "a", "a\tb", "a\r\tb\r", 'a"\tb'])


def pieces(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:stop] for start, stop in itertools.pairwise(ends)]


def rows_one_by_one(data: bytes, form: CsvForm) -> Iterator[tuple[int, int, dict[str, str]]]:
    """Yield the rows as `read_csv_rows`, by the rules of text."""
    spans = line_spans([data], 0, 1 << 20)
    for placed in locate_rows(spans, form.delimiter, 1 << 20, "", is_raw=form.is_raw):
        text = placed.span.data.decode()
        values = text.split(form.delimiter) if form.is_raw else split_cells(text, form.delimiter)
        yield placed.line_count, min(placed.end, len(data)), dict(zip(COLUMNS, values, strict=True))


@given(st.lists(lines, max_size=12), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.sampled_from(",\t"), cuts)
def test_splits_rows_in_bulk_as_one_by_one(
    texts: list[str], end: str, is_raw: bool, delimiter: str, places: list[int]
) -> None:
    data, form = end.join(texts).encode(), CsvForm("a.csv", delimiter, is_raw)
    expected = rows_one_by_one(data, form)
    found = read_csv_rows(pieces(data, places), form, COLUMNS, offset=0, lines_before=0)
    while True:
        try:
            row = next(expected, None)
        except ValueError:
            with pytest.raises(SourceError):
                next(found)
            return
        assert next(found, None) == row
        if row is None:
            return


@given(st.lists(st.tuples(words, words), min_size=1, max_size=9), st.sampled_from(["\n", "\r\n"]), cuts)
def test_reads_the_rows_that_the_csv_module_wrote(table: list[tuple[str, str]], end: str, places: list[int]) -> None:
    buffer = io.StringIO()
    table = [(f"x{first}", second) for first, second in table]
    csv.writer(buffer, lineterminator=end).writerows([COLUMNS, *table])
    data = buffer.getvalue().encode()
    rows = list(read_csv_rows(pieces(data, places), CsvForm("a.csv", ","), COLUMNS, offset=0, lines_before=0))
    assert [tuple(row.values.values()) for row in rows] == [COLUMNS, *table]
    assert [data[: row.end].decode().count("\n") for row in rows] == [row.line for row in rows]
    assert rows[-1].end == len(data)


def test_reading_the_header_takes_no_piece_after_its_row() -> None:
    taken = iter([b"\n", b'"a\n', b'",label\n', b"1,2\n", b"3,4\n"])
    assert read_csv_header(taken, CsvForm("a.csv", ",")) == (("a", "label"), (3, 12, {}))
    assert next(taken) == b"1,2\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1,2\n3\n4,5\n", "a.csv line 2: 1 cell "),
        (b"1,2\n\n3\xff,4\n", "a.csv line 3: byte 1 of the row is not UTF-8"),
        (b"1,2\r\n3\r,4\r\n", "a.csv line 2: not CSV: a CR without LF"),
        (b'1,2\n3,"4\n', "a.csv line 2: not CSV: a quote is not closed"),
        (b"\xff\xfe1\0,\x002\0\n", "a.csv line 1: it is UTF-16"),
    ],
)
def test_errors_name_the_line(data: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        list(read_csv_rows([data], CsvForm("a.csv", ","), COLUMNS, offset=0, lines_before=0))
