"""Rows and cells of CSV, compared with Python's csv module.

Tests make chunks small, because a conversion divides only files of many MB.
"""

from __future__ import annotations

import csv
import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.text_files.spans.csv_rows import join_rows, split_cells
from beam_jobs.text_files.spans.lines import BOM, line_spans
from tpudata.errors import SourceError

LIMIT = 1 << 20
words = st.text(st.sampled_from('ab,";\n\r \té😀'), max_size=8)
tables = st.lists(st.lists(words, min_size=2, max_size=4), min_size=1, max_size=8)


def rows_of(data: bytes, delimiter: str = ",", cuts: tuple[int, ...] = ()) -> list[str]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    chunks = [data[start:stop] for start, stop in itertools.pairwise(places)]
    spans = list(join_rows(line_spans(chunks, 0, LIMIT), delimiter, LIMIT, "a.csv"))
    for span in spans:
        assert data[span.offset : span.offset + span.size] == span.data
    return [span.data.decode() for span in spans]


@given(
    tables,
    st.sampled_from(",;\t"),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
    st.tuples(*[st.integers(0, 999)] * 3),
)
def test_reads_what_the_csv_module_writes(
    table: list[list[str]], delimiter: str, end: str, mark: bool, cuts: tuple[int, ...]
) -> None:
    buffer = io.StringIO()
    # Every cell quoted, as no row is then blank and no line end stands alone.
    csv.writer(buffer, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(table)
    data = (BOM if mark else b"") + buffer.getvalue().encode()
    assert [split_cells(row, delimiter) for row in rows_of(data, delimiter, cuts)] == table


@given(st.text(st.sampled_from('ab,"\n '), max_size=30))
def test_reads_the_rows_that_the_csv_module_reads(text: str) -> None:
    try:
        expected = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error:
        return
    found = [split_cells(row, ",") for row in rows_of(text.encode())]
    # Lines of blanks are skipped here.
    assert found == [row for row in expected if len(row) > 1 or row[0].strip()] or "" in map(str.strip, text.split('"'))
    assert [cell for row in found for cell in row if cell.strip()] == [
        cell for row in expected for cell in row if cell.strip()
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [('"a', "not closed"), ('"a"b,c', "'b' after the closing quote of cell 1"), ('x,"', "not closed")],
)
def test_rejects_wrong_quotes(row: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_cells(row, ",")


def test_keeps_a_quote_inside_a_plain_cell() -> None:
    assert rows_of(b'5" pipe,2\n"a\nb",3\n') == ['5" pipe,2', '"a\nb",3']
    assert split_cells('5" pipe,2', ",") == ['5" pipe', "2"]


def test_reads_a_row_of_200_000_lines() -> None:
    data = b'"' + b"line\n" * 200_000 + b'",1\n"x",2\n'
    assert [len(row) for row in rows_of(data)] == [1_000_004, 5]


def test_skips_rows_over_the_limit() -> None:
    spans = join_rows(line_spans([b'"aa\nbb\ncc",1\nd,2\n'], 0, 9), ",", 9, "a.csv")
    assert [(span.offset, span.size, span.data) for span in spans] == [(0, 12, b""), (13, 3, b"d,2")]
    with pytest.raises(SourceError, match=r"a\.csv at byte 4: a line is too long \(got 20 bytes, expected at most 9"):
        list(join_rows(line_spans([b"a,1\n" + b"x" * 20], 0, 9), ",", 9, "a.csv"))
