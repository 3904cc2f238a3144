"""Listing of documents: the parts of files that are listed separately, and the documents in a part."""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from beam_jobs.compression.files import decompress_file, strip_compression
from beam_jobs.compression.streams import read_plain_chunks
from beam_jobs.references.notes import COLUMNS, FOUND_LINES, FOUND_ROWS, Note, ignore_note
from beam_jobs.references.reference import WHOLE_FILE
from beam_jobs.references.rejection import Reject, make_file_rejection
from beam_jobs.text_files.document import DocumentBlock, TextFile, TextPart
from beam_jobs.text_files.document_form import JSON_ROW, RowForm
from beam_jobs.text_files.formats import TEXT_FORMATS
from beam_jobs.text_files.forms import TextForm, look_at, text_compression
from beam_jobs.text_files.options import AUTO, FILES, PARALLEL, PARQUET, SQUAD, TextOptions
from beam_jobs.text_files.parallel_lines import find_targets, pair_spans
from beam_jobs.text_files.parquet_rows import check_group, group_rows, row_groups
from beam_jobs.text_files.spans.blocks import SpanBlock, gather_spans, line_blocks, line_blocks_in_range
from beam_jobs.text_files.spans.lines import BOM, Span, has_mark
from beam_jobs.text_files.squad import question_spans
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, CorruptionError, SourceError
from tpudata.json_values import parse_input_json

# A file of 10 GB has 150 parts, for as many workers.
RANGE_BYTES = 1 << 26


def text_parts(files: Iterable[TextFile], options: TextOptions, range_bytes: int = RANGE_BYTES) -> Iterator[TextPart]:
    """Cut files into parts; read only files larger than a part.

    Args:
        files: files of the input.
        options: options of the form.
        range_bytes: target size of a part.
    """
    for file in files:
        if file.size <= range_bytes:
            yield TextPart(file, None, 0, file.size)
            continue
        try:
            form = look_at(file.path, options)
            groups = row_groups(file.path, file.size, options) if form.kind == PARQUET else None
        except (SourceError, CorruptionError):
            # The worker that lists its documents meets the error, and may reject the file.
            yield TextPart(file, None, 0, file.size)
            continue
        if groups is not None:
            yield from (TextPart(file, form, start, stop) for start, stop in _cut_runs(groups.bytes, range_bytes))
        elif form.has_ranges:
            count = -(-file.size // range_bytes)
            cuts = [file.size * index // count for index in range(count + 1)]
            yield from (TextPart(file, form, start, stop) for start, stop in itertools.pairwise(cuts))
        else:
            yield TextPart(file, form, 0, file.size)


def document_blocks(
    part: TextPart, options: TextOptions, reject: Reject, note: Note = ignore_note, *, skips: bool = False
) -> Iterator[DocumentBlock]:
    """Yield the documents of a part in blocks, in the order of the file.

    Args:
        part: a part of `text_parts`.
        options: options of the form.
        reject: called with the error of a document that is too large, or of a file of an unknown format. If it returns, the
            listing continues.
        note: gets the columns that no field names.
        skips: whether a damaged file, or row group of Parquet, is rejected. It is then read once more, before its documents, of
            which none is yielded: those before the damage may be wrong, too.

    Raises:
        SourceError: a row of CSV is too long; or, unless `skips`, a column of Parquet is of another type.
        CorruptionError: the file is compressed or Parquet, and damaged, unless `skips`.
        UsageError: the options do not fit the file.
    """
    file = part.file
    targets = find_targets(file.path, options) if options.targets_file is not None else ""
    try:
        form = part.form or look_at(file.path, options)
        compressions = {file.path: form.compression, **({targets: text_compression(targets)} if targets else {})}
        for path, compression in compressions.items():
            if skips and compression:
                collections.deque(decompress_file(path, compression), maxlen=0)
    except SourceError as error:
        reject(make_file_rejection(file.path, error))
        return
    except CorruptionError as error:
        if not skips:
            raise
        reject(BadRecordError(error.path, f"{error.reason}; none of its documents is stored", error.offset))
        return
    if form.kind == PARQUET:
        # A file of unknown form is one part, with all its row groups.
        span_blocks = gather_spans(
            _read_rows(part._replace(stop=part.stop if part.form else -1), options, reject, note, skips)
        )
    elif form.kind == PARALLEL:
        span_blocks = gather_spans(
            pair_spans(
                file.path, targets, options, lambda offset, reason: reject(BadRecordError(file.path, reason, offset))
            )
        )
    elif form.kind == SQUAD:
        reject_row = functools.partial(_reject_row, file, reject)
        span_blocks = gather_spans(question_spans(file.path, form.compression, options.document_bytes, reject_row))
    elif form.kind == FILES:
        span_blocks = gather_spans(_read_whole(file, form, options.document_bytes))
    else:
        span_blocks = _read_spans(part, form, options.document_bytes)
    text_format, row = TEXT_FORMATS[form.kind], _find_row_form(form)
    is_read_in_place = text_format.has_bytes and not form.compression
    if options.form == AUTO:
        note(FOUND_ROWS if text_format.has_fields else FOUND_LINES, file.name)
    if not form.headerless:
        _note_columns(form.columns, options, note)
    for index, spans in enumerate(span_blocks):
        if not index and text_format.row == JSON_ROW and form.kind != PARQUET:
            # Reading the keys of each row would take as long as converting it.
            _note_columns(_read_first_keys(spans), options, note)
        block = _drop_large(DocumentBlock(file, row, spans, is_read_in_place), form, options, reject)
        if len(block.spans.sizes):
            yield block


def _find_row_form(form: TextForm) -> RowForm:
    """Return the rules for reading the documents of a file; these do not include the separator of documents."""
    return RowForm(TEXT_FORMATS[form.kind].row, form.delimiter if form.columns else "", form.columns)


def _note_columns(names: Iterable[str], options: TextOptions, note: Note) -> None:
    """Note the columns that no field names; sequences of tokens have no place for any."""
    if options.row_lengths:
        return
    # A name with dots refers to an object by its first part.
    stored = {name for field in options.columns for name in (field.name, field.name.partition(".")[0])}
    for name in names:
        if name not in stored:
            note(COLUMNS, name)


def _read_first_keys(spans: SpanBlock) -> Iterable[str]:
    """Return the keys of the first row; none if it is not an object, which is rejected when it is read."""
    start, size = int(spans.starts[0]), int(spans.sizes[0])
    try:
        row = parse_input_json(spans.data[start : start + size].decode())
    except ValueError:
        return ()
    return row if isinstance(row, dict) else ()


def _drop_large(block: DocumentBlock, form: TextForm, options: TextOptions, reject: Reject) -> DocumentBlock:
    """Reject the documents that are too large, and return the others."""
    path, allowed = block.file.path, block.spans.sizes <= options.document_bytes
    if allowed.all():
        return block
    for row in np.flatnonzero(~allowed).tolist():
        offset = int(block.spans.offsets[row])
        # The offset of a row in Parquet or SQuAD is its number.
        is_row = form.kind in (PARQUET, SQUAD)
        reject(
            BadRecordError(
                f"{strip_compression(block.file.name)}:{offset} in {path}" if is_row else path,
                f"larger than --document-bytes (got {int(block.spans.sizes[row]):,} bytes, expected at most"
                f" {options.document_bytes:,}). Pass the --form of the file, or a larger --document-bytes",
                None if is_row or offset == WHOLE_FILE else offset,
            )
        )
    return block._replace(spans=block.spans.take(allowed))


def _read_spans(part: TextPart, form: TextForm, limit: int) -> Iterator[SpanBlock]:
    """Yield the spans of a part's documents, without the row that names the columns."""
    blocks = _find_spans(part, form, limit)
    if form.columns and not form.headerless and part.start == 0:
        # The first row names the columns.
        first = next(blocks, None)
        if first is not None and len(first.sizes) > 1:
            yield first.take(slice(1, None))
    yield from blocks


def _find_spans(part: TextPart, form: TextForm, limit: int) -> Iterator[SpanBlock]:
    """Yield the spans of a part, of a range of the file if the format can be read in ranges."""
    path, text_format = part.file.path, TEXT_FORMATS[form.kind]
    if text_format.is_lines:
        if not form.compression:
            return line_blocks_in_range(path, part.start, part.stop, limit)
        return line_blocks(decompress_file(path, form.compression), 0, limit)
    if form.has_ranges and text_format.in_range is not None:
        return gather_spans(text_format.in_range(path, part.start, part.stop, form.delimiter, limit))
    assert text_format.in_stream is not None, f"{form.kind} has a separate reader"
    chunks = decompress_file(path, form.compression) if form.compression else read_plain_chunks(path, 0, part.stop)
    return gather_spans(text_format.in_stream(chunks, form.delimiter, limit, path))


def _read_whole(file: TextFile, form: TextForm, limit: int) -> Iterator[Span]:
    """Yield the span of a file that is one document, with its content if it is compressed."""
    if not form.compression:
        # A byte order mark alone is not a document.
        if file.size and not (file.size == len(BOM) and has_mark(file.path)):
            yield Span(WHOLE_FILE, file.size, b"")
        return
    pieces: list[bytes] = []
    size = 0
    for chunk in decompress_file(file.path, form.compression):
        size += len(chunk)
        if size <= limit:
            pieces.append(chunk)
        else:
            pieces.clear()
    if size and pieces != [BOM]:
        yield Span(WHOLE_FILE, size, b"".join(pieces))


def _read_rows(part: TextPart, options: TextOptions, reject: Reject, note: Note, skips: bool) -> Iterator[Span]:
    """Yield the rows of a part of a Parquet file; reject damaged row groups if `skips`."""
    file = part.file
    reject_row = functools.partial(_reject_row, file, reject)
    try:
        groups = row_groups(file.path, file.size, options)
    except (SourceError, CorruptionError) as error:
        if not skips:
            raise
        reject(make_file_rejection(file.path, error))
        return
    _note_columns(groups.names, options, note)
    stop = len(groups.rows) if part.stop < 0 else part.stop
    for group in range(part.start, stop):
        if skips:
            try:
                check_group(file.path, file.size, group, options)
            except (SourceError, CorruptionError) as error:
                lost = count_text(groups.rows[group], "row")
                reject(make_file_rejection(file.path, error, f"; row group {group} of {lost} is not stored"))
                continue
        yield from group_rows(file.path, file.size, group, sum(groups.rows[:group]), options, reject_row)


def _reject_row(file: TextFile, reject: Reject, number: int, reason: str) -> None:
    reject(BadRecordError(f"{strip_compression(file.name)}:{number} in {file.path}", reason))


def _cut_runs(sizes: tuple[int, ...], target: int) -> Iterator[tuple[int, int]]:
    """Yield runs (start, stop) of neighbours of about `target` bytes."""
    start = total = 0
    for number, size in enumerate(sizes, 1):
        total += size
        if total >= target or number == len(sizes):
            yield start, number
            start, total = number, 0
