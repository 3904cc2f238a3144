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
from beam_jobs.text_files.forms import TextForm, detect_form, detect_text_compression
from beam_jobs.text_files.options import AUTO, FILES, PARALLEL, PARQUET, SQUAD, TextOptions
from beam_jobs.text_files.parallel_lines import find_target_path, pair_lines
from beam_jobs.text_files.parquet_rows import check_group, read_group_rows, read_row_groups
from beam_jobs.text_files.spans.blocks import SpanBlock, find_line_blocks, find_line_blocks_in_range, gather_spans
from beam_jobs.text_files.spans.csv_rows import has_text
from beam_jobs.text_files.spans.lines import BOM, Span, has_bom
from beam_jobs.text_files.squad import read_questions
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, CorruptionError, SourceError
from tpudata.json_values import parse_input_json

# A file of 10 GB has 150 parts, for as many workers.
RANGE_BYTES = 1 << 26


def text_parts(files: Iterable[TextFile], options: TextOptions, range_bytes: int = RANGE_BYTES) -> Iterator[TextPart]:
    """Yield the parts of files; only files larger than `range_bytes` are examined.

    Args:
        files: files of the input.
        options: options of the form.
        range_bytes: target size of a part.
    """
    for file in files:
        if file.size <= range_bytes:
            yield TextPart(file, form=None, start=0, stop=file.size)
            continue
        try:
            form = detect_form(file.path, options)
            groups = read_row_groups(file.path, file.size, options) if form.kind == PARQUET else None
        except (SourceError, CorruptionError):
            # The worker that lists its documents meets the error, and may reject the file.
            yield TextPart(file, form=None, start=0, stop=file.size)
            continue
        if groups is not None:
            yield from (
                TextPart(file, form, start, stop) for start, stop in _find_group_runs(groups.sizes, range_bytes)
            )
        elif form.has_ranges:
            # As few ranges as the target size allows, of equal size.
            count = -(-file.size // range_bytes)
            bounds = [file.size * index // count for index in range(count + 1)]
            yield from (TextPart(file, form, start, stop) for start, stop in itertools.pairwise(bounds))
        else:
            yield TextPart(file, form, start=0, stop=file.size)


def document_blocks(
    part: TextPart, options: TextOptions, reject: Reject, note: Note = ignore_note, *, rejects_damage: bool = False
) -> Iterator[DocumentBlock]:
    """Yield the documents of a part in blocks, in the order of the file.

    Args:
        part: a part of `text_parts`.
        options: options of the form.
        reject: called with the error of a document that is too large or not valid, or of a file of an unsupported format or without
            a required column. If it returns, the listing continues.
        note: called with the kind of a note and an example: COLUMNS and a column that no field refers to or, if the form is `auto`,
            FOUND_ROWS or FOUND_LINES and the file.
        rejects_damage: whether a damaged compressed file, Parquet file or row group is rejected instead of raising. Each is then
            read to its end before its documents are yielded, since documents before the damage may also be wrong.

    Raises:
        SourceError: the documents cannot be separated, as in a JSON array without an end or a row of CSV that is too long; the
            targets are missing or differ from the inputs in their number of lines; or, unless `rejects_damage`, a column of Parquet
            has an unsupported type.
        CorruptionError: a compressed file or a Parquet file is damaged, unless `rejects_damage`.
        UsageError: the options do not fit the file.
    """
    file = part.file
    target_path = find_target_path(file.path, options) if options.targets_file is not None else ""
    try:
        form = part.form or detect_form(file.path, options)
        target_compression = detect_text_compression(target_path) if target_path else ""
        for path, compression in ((file.path, form.compression), (target_path, target_compression)):
            if rejects_damage and compression:
                # Unpack to the end, without keeping the content.
                collections.deque(decompress_file(path, compression), maxlen=0)
    except SourceError as error:
        reject(make_file_rejection(file.path, error))
        return
    except CorruptionError as error:
        if not rejects_damage:
            raise
        reject(BadRecordError(error.path, f"{error.reason}; none of its documents is stored", error.offset))
        return
    text_format = TEXT_FORMATS[form.kind]
    row_form = _make_row_form(form)
    is_addressed = text_format.has_bytes and not form.compression
    if options.form == AUTO:
        note(FOUND_ROWS if text_format.has_fields else FOUND_LINES, file.name)
    if not form.headerless:
        _note_columns(form.columns, options, note)
    for index, span_block in enumerate(_read_blocks(part, form, target_path, options, reject, note, rejects_damage)):
        if index == 0 and text_format.row == JSON_ROW and form.kind != PARQUET:
            # Only the first row's columns are noted: reading the keys of each row would take as long as converting it. The columns
            # of Parquet are in its footer, see `_read_rows`.
            _note_columns(_read_first_keys(span_block), options, note)
        block = _reject_large(DocumentBlock(file, row_form, span_block, is_addressed), form, options, reject)
        if len(block.spans.sizes):
            yield block


def _read_blocks(
    part: TextPart,
    form: TextForm,
    target_path: str,
    options: TextOptions,
    reject: Reject,
    note: Note,
    rejects_damage: bool,
) -> Iterator[SpanBlock]:
    """Yield blocks of the spans of a part's documents, including documents that are too large.

    Args:
        part: part of a file.
        form: form of the file.
        target_path: path of the file of targets; empty if there is none.
        options: options of the form.
        reject: called with the error of a document that is not valid.
        note: called with the kind of a note and an example: a column of Parquet that no field refers to.
        rejects_damage: whether a damaged Parquet file and damaged row groups are rejected instead of raising.
    """
    file = part.file
    reject_row = functools.partial(_reject_row, file, reject)
    if form.kind == PARQUET:
        spans = _read_rows(part, options, reject, note, rejects_damage)
    elif form.kind == PARALLEL:
        spans = pair_lines(
            file.path, target_path, options, lambda offset, reason: reject(BadRecordError(file.path, reason, offset))
        )
    elif form.kind == SQUAD:
        spans = read_questions(file.path, form.compression, options.document_bytes, reject_row)
    elif form.kind == FILES:
        spans = _read_whole(file, form, options.document_bytes)
    else:
        return _read_span_blocks(part, form, options.document_bytes)
    return gather_spans(spans)


def _make_row_form(form: TextForm) -> RowForm:
    """Return the rules for reading the documents of a file."""
    # Without columns, the delimiter of a form is between documents, and not a rule for reading one.
    return RowForm(TEXT_FORMATS[form.kind].row, form.delimiter if form.columns else "", form.columns)


def _note_columns(names: Iterable[str], options: TextOptions, note: Note) -> None:
    """Note the columns that no field refers to, unless records are sequences, which have no other fields."""
    if options.row_lengths:
        return
    # A name with dots refers to an object by its first part.
    read_names = {name for field in options.columns for name in (field.name, field.name.partition(".")[0])}
    for name in names:
        if name not in read_names:
            note(COLUMNS, name)


def _read_first_keys(block: SpanBlock) -> Iterable[str]:
    """Return the keys of the first row; empty if it is not a JSON object, and so will be rejected when it is read."""
    start, size = int(block.starts[0]), int(block.sizes[0])
    try:
        row = parse_input_json(block.data[start : start + size].decode())
    except ValueError:
        return ()
    return row if isinstance(row, dict) else ()


def _reject_large(block: DocumentBlock, form: TextForm, options: TextOptions, reject: Reject) -> DocumentBlock:
    """Reject the documents that are too large, and return the others.

    Args:
        block: documents of one file.
        form: form of the file.
        options: options with the size limit of a document, `document_bytes`.
        reject: called with the error of a document that is too large.
    """
    path = block.file.path
    is_allowed = block.spans.sizes <= options.document_bytes
    if is_allowed.all():
        return block
    # The offset of a row in Parquet or SQuAD is its number.
    is_row = form.kind in (PARQUET, SQUAD)
    for row in np.flatnonzero(~is_allowed).tolist():
        offset = int(block.spans.offsets[row])
        reject(
            BadRecordError(
                f"{strip_compression(block.file.name)}:{offset} in {path}" if is_row else path,
                f"larger than --document-bytes (got {int(block.spans.sizes[row]):,} bytes, expected at most"
                f" {options.document_bytes:,}). Pass the --form of the file, or a larger --document-bytes",
                None if is_row or offset == WHOLE_FILE else offset,
            )
        )
    return block._replace(spans=block.spans.take(is_allowed))


def _read_span_blocks(part: TextPart, form: TextForm, max_document_bytes: int) -> Iterator[SpanBlock]:
    """Yield blocks of the spans of a part's documents, without the row that names the columns."""
    blocks = _find_span_blocks(part, form, max_document_bytes)
    has_header = form.columns and not form.headerless and part.start == 0
    return _drop_header(blocks, form.delimiter) if has_header else blocks


def _drop_header(blocks: Iterator[SpanBlock], delimiter: str) -> Iterator[SpanBlock]:
    """Yield the rows after the header, which is the first row with text."""
    for block in blocks:
        rows = zip(block.starts.tolist(), block.sizes.tolist(), strict=True)
        contents = (block.data[start : start + size] for start, size in rows)
        # A row without data is too large; it counts as text.
        header_index = next((index for index, row in enumerate(contents) if not row or has_text(row, delimiter)), None)
        if header_index is not None:
            if header_index + 1 < len(block.sizes):
                yield block.take(slice(header_index + 1, None))
            break
    yield from blocks


def _find_span_blocks(part: TextPart, form: TextForm, max_document_bytes: int) -> Iterator[SpanBlock]:
    """Yield blocks of the spans of a part: of a range of the file if the format can be read in ranges, otherwise of the file."""
    path = part.file.path
    text_format = TEXT_FORMATS[form.kind]
    if text_format.is_lines:
        delimiter = form.delimiter.encode()
        if not form.compression:
            return find_line_blocks_in_range(path, part.start, part.stop, max_document_bytes, delimiter=delimiter)
        return find_line_blocks(
            decompress_file(path, form.compression), offset=0, max_bytes=max_document_bytes, delimiter=delimiter
        )
    if form.has_ranges and text_format.in_range is not None:
        return gather_spans(text_format.in_range(path, part.start, part.stop, form.delimiter, max_document_bytes))
    assert text_format.in_stream is not None, f"{form.kind} has a separate reader"
    chunks = decompress_file(path, form.compression) if form.compression else read_plain_chunks(path, 0, part.stop)
    return gather_spans(text_format.in_stream(chunks, form.delimiter, max_document_bytes, path))


def _read_whole(file: TextFile, form: TextForm, max_document_bytes: int) -> Iterator[Span]:
    """Yield the span of a file that is one document; nothing if the file is empty or only a byte order mark.

    The span contains a compressed file's content, unless it is larger than `max_document_bytes`.
    """
    if not form.compression:
        # A byte order mark alone is not a document.
        if file.size and not (file.size == len(BOM) and has_bom(file.path)):
            yield Span(WHOLE_FILE, file.size, b"")
        return
    pieces: list[bytes] = []
    size = 0
    for chunk in decompress_file(file.path, form.compression):
        size += len(chunk)
        if size <= max_document_bytes:
            pieces.append(chunk)
        else:
            pieces.clear()
    if size and pieces != [BOM]:
        yield Span(WHOLE_FILE, size, b"".join(pieces))


def _read_rows(
    part: TextPart, options: TextOptions, reject: Reject, note: Note, rejects_damage: bool
) -> Iterator[Span]:
    """Yield the rows of a part of a Parquet file.

    Args:
        part: part of the file.
        options: options of the form.
        reject: called with the error of a row that cannot be read and, if `rejects_damage`, of the file or a row group.
        note: called with the kind of a note and an example: a column that no field refers to.
        rejects_damage: whether a damaged file and damaged row groups are rejected instead of raising.

    Raises:
        SourceError, CorruptionError: a row group, or the whole file, cannot be read, and `rejects_damage` is false.
    """
    file = part.file
    reject_row = functools.partial(_reject_row, file, reject)
    try:
        groups = read_row_groups(file.path, file.size, options)
    except (SourceError, CorruptionError) as error:
        if not rejects_damage:
            raise
        reject(make_file_rejection(file.path, error))
        return
    _note_columns(groups.names, options, note)
    # A file whose form was unknown is one part, with all its row groups.
    stop = part.stop if part.form else len(groups.row_counts)
    for group_index in range(part.start, stop):
        if rejects_damage:
            try:
                check_group(file.path, file.size, group_index, options)
            except (SourceError, CorruptionError) as error:
                rows_text = count_text(groups.row_counts[group_index], "row")
                reject(make_file_rejection(file.path, error, f"; row group {group_index} of {rows_text} is not stored"))
                continue
        first_row = sum(groups.row_counts[:group_index])
        yield from read_group_rows(file.path, file.size, group_index, first_row, options, reject_row)


def _reject_row(file: TextFile, reject: Reject, row: int, reason: str) -> None:
    """Reject a row of a file; `row` is its number."""
    reject(BadRecordError(f"{strip_compression(file.name)}:{row} in {file.path}", reason))


def _find_group_runs(sizes: tuple[int, ...], target_size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the shortest runs of row groups that have `target_size` bytes or more; the last may have less."""
    start = run_size = 0
    for stop, size in enumerate(sizes, 1):
        run_size += size
        if run_size >= target_size or stop == len(sizes):
            yield start, stop
            start, run_size = stop, 0
