"""From files to documents: the parts that are listed on their own, and the documents in a part.

A document is known by its file's path below the input and where it begins: `books/a.txt:1234`, or the number of its row in a
Parquet file, or by the path alone where the file is the document. Where a file is compressed, its key is that of the file inside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from beam_jobs.references.reference import WHOLE_FILE
from beam_jobs.text_files.formats import TEXT_FORMATS
from beam_jobs.text_files.forms import TextForm, document_key, look_at
from beam_jobs.text_files.lines import BOM, Span, has_mark
from beam_jobs.text_files.options import FILES, PARQUET, TextOptions
from beam_jobs.text_files.parquet_rows import group_rows, row_groups
from beam_jobs.text_files.streams import plain_chunks, unpacked_chunks
from beam_jobs.text_files.values import FILE, JSON_ROW, RowForm
from tpudata.errors import BadRecordError, SourceError

# One huge file of 10 GB is 150 parts, which keeps as many workers busy.
RANGE_BYTES = 1 << 26


class TextFile(NamedTuple):
    """A file of the input.

    Attributes:
        path: where it is.
        name: its path below the input, with `/`.
        size: bytes.
    """

    path: str
    name: str
    size: int


class TextPart(NamedTuple):
    """What is listed on its own: a file, or some of it.

    Attributes:
        file: the file.
        form: what it is; None where nobody has looked yet, which the worker does then.
        start, stop: documents that begin in this range of bytes; in a Parquet file, these row groups.
    """

    file: TextFile
    form: TextForm | None
    start: int
    stop: int


class Document(NamedTuple):
    """One document.

    Attributes:
        key: its name, unique in the input.
        offset: where it begins in the file, or WHOLE_FILE; of a compressed file, in what it unpacks to; in Parquet, its row.
        size: bytes.
        form: how its bytes are read.
        data: its bytes; empty for a whole file that is not compressed, which is not read for this.
        is_addressed: whether `size` bytes from `offset` of the file are the document, so that a reference can do without data.
    """

    key: str
    offset: int
    size: int
    form: RowForm
    data: bytes
    is_addressed: bool


Refuse = Callable[[BadRecordError], None]


def text_parts(files: Iterable[TextFile], options: TextOptions, range_bytes: int = RANGE_BYTES) -> Iterator[TextPart]:
    """Cuts files into parts. Files larger than a part are looked at, no others.

    Args:
        files: of the input.
        options: what a document is.
        range_bytes: size that parts aim at.
    """
    for file in files:
        if file.size <= range_bytes:
            yield TextPart(file, None, 0, file.size)
            continue
        form = look_at(file.path, options)
        if form.kind == PARQUET:
            groups = row_groups(file.path, file.size, options)
            yield from (TextPart(file, form, start, stop) for start, stop in _runs(groups.bytes, range_bytes))
        elif form.has_ranges:
            count = -(-file.size // range_bytes)
            cuts = [file.size * number // count for number in range(count + 1)]
            yield from (TextPart(file, form, start, stop) for start, stop in itertools.pairwise(cuts))
        else:
            yield TextPart(file, form, 0, file.size)


def documents(part: TextPart, options: TextOptions, refuse: Refuse) -> Iterator[Document]:
    """Yields the documents of a part, in the order in which they stand.

    Args:
        part: one of `text_parts`.
        options: what a document is.
        refuse: called with the error of a document that is too large, or of a file that is nothing that is read. It may raise;
            where it returns, the listing goes on.

    Raises:
        SourceError: a row of CSV is too long, or a column of Parquet of another type.
        CorruptionError: it is compressed or Parquet, and damaged.
        UsageError: the options do not fit what it is.
    """
    file = part.file
    try:
        form = part.form or look_at(file.path, options)
    except SourceError as error:
        refuse(
            BadRecordError(file.path, str(error).removeprefix(file.path).removeprefix(":").removeprefix(" is").strip())
        )
        return
    if form.kind == PARQUET:
        # A file that nobody has looked at is one part, with all its row groups.
        found = _rows(part._replace(stop=part.stop if part.form else -1), options)
    elif form.kind == FILES:
        found = _whole(file, form, options.document_bytes)
    else:
        found = _spans(part, form, options.document_bytes)
    for document in found:
        if document.size <= options.document_bytes:
            yield document
            continue
        # The offset of a row of Parquet is its number.
        is_row = form.kind == PARQUET
        refuse(
            BadRecordError(
                f"{document.key} in {file.path}" if is_row else file.path,
                f"larger than --document-bytes: {document.size:,} bytes, where {options.document_bytes:,} are allowed. Say what"
                " ends a document with --form, or allow more",
                None if is_row or document.offset == WHOLE_FILE else document.offset,
            )
        )


def _spans(part: TextPart, form: TextForm, limit: int) -> Iterator[Document]:
    file = part.file
    key = document_key(file.name)
    row = RowForm(TEXT_FORMATS[form.kind].row, form.delimiter, form.columns)
    spans = _found(part, form, limit)
    if form.columns and part.start == 0:
        # The first row names the columns.
        next(spans, None)
    for span in spans:
        yield Document(f"{key}:{span.offset}", span.offset, span.size, row, span.data, not form.packed)


def _found(part: TextPart, form: TextForm, limit: int) -> Iterator[Span]:
    path, known = part.file.path, TEXT_FORMATS[form.kind]
    if form.has_ranges and known.in_range is not None:
        return known.in_range(path, part.start, part.stop, limit)
    assert known.in_stream is not None, f"{form.kind} has a separate reader"
    chunks = unpacked_chunks(path, form.packed) if form.packed else plain_chunks(path, 0, part.stop)
    return known.in_stream(chunks, form.delimiter, limit, path)


def _whole(file: TextFile, form: TextForm, limit: int) -> Iterator[Document]:
    key = document_key(file.name)
    if not form.packed:
        # A byte order mark alone is nothing.
        if file.size and not (file.size == len(BOM) and has_mark(file.path)):
            yield Document(key, WHOLE_FILE, file.size, RowForm(FILE), b"", True)
        return
    held: list[bytes] = []
    size = 0
    for chunk in unpacked_chunks(file.path, form.packed):
        size += len(chunk)
        if size <= limit:
            held.append(chunk)
        else:
            held.clear()
    if size and held != [BOM]:
        yield Document(key, WHOLE_FILE, size, RowForm(FILE), b"".join(held), False)


def _rows(part: TextPart, options: TextOptions) -> Iterator[Document]:
    file = part.file
    groups = row_groups(file.path, file.size, options)
    stop = len(groups.rows) if part.stop < 0 else part.stop
    key = document_key(file.name)
    form = RowForm(JSON_ROW)
    for group in range(part.start, stop):
        first = sum(groups.rows[:group])
        for number, data in enumerate(group_rows(file.path, file.size, group, first, options), first):
            yield Document(f"{key}:{number}", number, len(data), form, data, False)


def _runs(sizes: tuple[int, ...], target: int) -> Iterator[tuple[int, int]]:
    """Runs (start, stop) of neighbours of about `target` bytes."""
    start = total = 0
    for number, size in enumerate(sizes, 1):
        total += size
        if total >= target or number == len(sizes):
            yield start, number
            start, total = number, 0
