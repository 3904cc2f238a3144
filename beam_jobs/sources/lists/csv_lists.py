"""The rows of CSV lists, by the rules of `text_files.spans.csv_rows`.

The csv module splits whole lines in bulk, in a fifth to a third of the time that our own rules take. Our rules apply only if the
module reports an error, or would accept what is an error by them.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from beam_jobs.file_kinds import UTF16_BOMS
from beam_jobs.sources.lists.rows import MAX_ROW_BYTES, ListRow
from beam_jobs.text_files.spans.csv_rows import locate_rows
from beam_jobs.text_files.spans.csv_rows import split_cells as split_csv_cells
from beam_jobs.text_files.spans.lines import BOM, line_spans
from tpudata.console.tables import count_text
from tpudata.errors import SourceError

DELIMITERS = (",", "\t", ";")


class CsvForm(NamedTuple):
    """Rules for reading the rows of a CSV list.

    Attributes:
        path: path of the list, for messages.
        delimiter: character between two cells.
        is_raw: whether quotes are ordinary characters.
    """

    path: str
    delimiter: str
    is_raw: bool = False


# (cells of a row, number of its last line, byte offset after it).
_LocatedCells = tuple[list[str], int, int]


def read_csv_header(pieces: Iterable[bytes], form: CsvForm) -> tuple[tuple[str, ...], ListRow]:
    """Return the names of a CSV list's columns, and its header row as a `ListRow` whose `values` are empty.

    Only `line` and `end` of that row matter. Rows of empty cells before it are skipped. A list without rows has no columns, and
    `end` is 0. A row that is not CSV is a SourceError.
    """
    rows = _split_cells(pieces, form, offset=0, lines_before=0)
    for cells, line, end in rows:
        names = tuple(cell.strip() for cell in cells)
        if any(names):
            return names, ListRow(line, end, values={})
    return (), ListRow(line=0, end=0, values={})


def read_csv_rows(
    pieces: Iterable[bytes], form: CsvForm, columns: Sequence[str], *, offset: int, lines_before: int
) -> Iterator[ListRow]:
    """Yield the rows of a CSV list, omitting blank lines.

    Args:
        pieces: bytes that begin after the end of a row, in pieces of any size, which are taken one by one.
        form: rules for reading the rows.
        columns: columns of the list.
        offset: offset of the first piece in the file.
        lines_before: number of lines before the first piece.

    Raises:
        SourceError: a row has more or fewer cells than columns, or is not CSV; the message names file and line.
    """
    for cells, last_line, end in _split_cells(pieces, form, offset, lines_before):
        if len(cells) != len(columns):
            raise SourceError(
                f"{form.path} line {last_line}: {count_text(len(cells), 'cell')} (expected {count_text(len(columns), 'column')} as"
                f" in the first row: {', '.join(columns)}). Fix the row, or quote cells that contain the delimiter."
            )
        yield ListRow(last_line, end, dict(zip(columns, cells, strict=True)))


def _split_cells(pieces: Iterable[bytes], form: CsvForm, offset: int, lines_before: int) -> Iterator[_LocatedCells]:
    """Split pieces into the cells of rows: with one call of the csv module for each piece if possible, otherwise row by row.

    Args:
        pieces: bytes that begin after the end of a row, in pieces of any size.
        form: rules for reading the rows.
        offset: offset of the first piece in the file.
        lines_before: number of lines before the first piece.
    """
    aligned_pieces = _LineAlignedPieces(pieces, offset)
    line_count = lines_before
    for piece in aligned_pieces:
        start = aligned_pieces.end - len(piece)
        rows = _split_in_bulk(piece, form, start)
        if rows is not None:
            yield from _locate_bulk_rows(rows, piece, start, line_count)
            line_count += piece.count(b"\n")
            continue
        # Split row by row until a row ends where a piece does; the pieces after it are split in bulk again.
        remaining_pieces = itertools.chain((piece,), aligned_pieces)
        for cells, last_line, end in _split_one_by_one(remaining_pieces, form, start, line_count):
            # `end` is one too high if the file's last line has no line end.
            yield cells, last_line, min(end, aligned_pieces.end)
            if end >= aligned_pieces.end:
                line_count = last_line
                break


def _split_in_bulk(piece: bytes, form: CsvForm, start: int) -> list[list[str]] | None:
    """Return the cells of each row, including blank ones; None if the lines must be split row by row.

    Lines must be split row by row if they have an error, which is then reported, if they end inside quotes or without a line end,
    if they exceed `MAX_ROW_BYTES`, or if they are the file's first lines and begin with a byte order mark.

    Args:
        piece: whole lines, or a part of a long line.
        form: rules for reading the rows.
        start: offset of `piece` in the file.
    """
    if not piece.endswith(b"\n") or len(piece) > MAX_ROW_BYTES or (start == 0 and piece.startswith(BOM)):
        return None
    # The csv module accepts some CRs outside of quotes, which are errors by our rules.
    if piece.count(b"\r") != piece.count(b"\r\n"):
        return None
    try:
        text = io.StringIO(piece.decode(), newline="\n")
        if form.is_raw:
            return list(csv.reader(text, delimiter=form.delimiter, quoting=csv.QUOTE_NONE, strict=True))
        return list(csv.reader(text, delimiter=form.delimiter, strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None


def _locate_bulk_rows(rows: list[list[str]], piece: bytes, start: int, lines_before: int) -> Iterator[_LocatedCells]:
    """Yield the cells of each row that is not blank, the number of its last line, and the offset in the file after it.

    Args:
        rows: cells of all rows of `piece`.
        piece: whole lines.
        start: offset of `piece` in the file.
        lines_before: number of lines before `piece`.
    """
    lines = list(io.BytesIO(piece))
    # Offsets in the file; ends[n] is the one after line n of `piece`, counted from 1.
    ends = list(itertools.accumulate(map(len, lines), initial=start))
    # Numbers in `piece`, from 1, of the last line of each row.
    last_lines: Iterable[int] = range(1, len(lines) + 1)
    if len(rows) < len(lines):
        # Some cells have line ends.
        last_lines = itertools.accumulate(1 + "".join(cells).count("\n") for cells in rows)
    for cells, last_line in zip(rows, last_lines, strict=True):
        # A line of tabs is blank by `isspace`, but has cells if tabs delimit them.
        if len(cells) > 1 or not lines[last_line - 1].isspace():
            yield cells, lines_before + last_line, ends[last_line]


def _split_one_by_one(
    pieces: Iterable[bytes], form: CsvForm, offset: int, lines_before: int
) -> Iterator[_LocatedCells]:
    """Split pieces row by row; SourceError for an invalid row, with its line.

    Args:
        pieces: bytes that begin after the end of a row, in pieces of any size.
        form: rules for reading the rows.
        offset: offset of the first piece in the file.
        lines_before: number of lines before the first piece.
    """
    spans = line_spans(pieces, offset, MAX_ROW_BYTES)
    rows = locate_rows(
        spans,
        form.delimiter,
        MAX_ROW_BYTES,
        form.path,
        is_raw=form.is_raw,
        fix="Check its line ends.",
    )
    for span, last_line, end in rows:
        row_line = lines_before + last_line
        origin = f"{form.path} line {row_line}"
        if not span.data:
            raise SourceError(
                f"{origin}: a row of {span.size:,} bytes (expected at most {MAX_ROW_BYTES:,}). Shorten it, or close its quotes."
            )
        if row_line == 1 and span.data.startswith(UTF16_BOMS):
            raise SourceError(f"{origin}: it is UTF-16; save it as UTF-8.")
        try:
            text = span.data.decode()
            cells = split_csv_cells(text, form.delimiter, is_raw=form.is_raw)
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{origin}: byte {error.start} of the row is not UTF-8; save the list as UTF-8."
            ) from None
        except ValueError as error:
            hint = ", or pass --raw-tsv if they are ordinary characters" if form.delimiter == "\t" else ""
            raise SourceError(f"{origin}: not CSV: {error}. Check the quotes{hint}.") from None
        yield cells, row_line, end


class _LineAlignedPieces:
    """Pieces of a file, divided anew so that each ends with a line end, except for the last piece and parts of overlong lines.

    Args:
        pieces: bytes in pieces of any size.
        offset: offset of the first piece in the file.

    Attributes:
        end: offset in the file after the last piece yielded.
    """

    def __init__(self, pieces: Iterable[bytes], offset: int) -> None:
        self.end = offset
        self._pieces = iter(pieces)
        # Pieces of a line whose end is not read yet, and their size.
        self._held: list[bytes] = []
        self._held_bytes = 0

    def __iter__(self) -> _LineAlignedPieces:
        return self

    def __next__(self) -> bytes:
        """Return the next piece."""
        for piece in self._pieces:
            lines_end = piece.rfind(b"\n") + 1
            if lines_end:
                return self._join_held(piece[:lines_end], piece[lines_end:])
            self._held.append(piece)
            self._held_bytes += len(piece)
            if self._held_bytes > MAX_ROW_BYTES:
                return self._join_held()
        if not self._held_bytes:
            raise StopIteration
        return self._join_held()

    def _join_held(self, lines: bytes = b"", next_line: bytes = b"") -> bytes:
        """Return the held bytes joined with `lines`, and hold `next_line`, the beginning of the next line."""
        piece = b"".join((*self._held, lines))
        self._held, self._held_bytes = [next_line], len(next_line)
        self.end += len(piece)
        return piece
