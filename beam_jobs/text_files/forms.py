"""Form of a text file: its format, compression and columns.

Content shows compression and Parquet. Rows of JSONL, CSV and TSV, and sentences of CoNLL, are detected by the file's name
(`.jsonl`, `.ndjson`, `.json`, `.csv`, `.tsv`, `.conll`, `.conllu`, with or without `.gz`, `.bz2`, `.zst` or `.xz` after it),
because a text may begin like any of them; `--form` overrides the name. JSON whose first character is a bracket is one array of
rows; the rows of JSON that begins like SQuAD are its questions.
"""

from __future__ import annotations

from typing import NamedTuple

from beam_jobs import file_kinds
from beam_jobs.compression.files import decompress_file, strip_compression
from beam_jobs.text_files.formats import TEXT_FORMATS
from beam_jobs.text_files.options import (
    AUTO,
    CSV,
    JSON_ARRAY,
    JSONL,
    LINES,
    PARALLEL,
    PARQUET,
    RAW_TSV,
    SQUAD,
    TSV,
    TextOptions,
)
from beam_jobs.text_files.spans.csv_rows import find_columns, has_text, join_rows, split_cells
from beam_jobs.text_files.spans.json_arrays import is_json_array
from beam_jobs.text_files.spans.lines import drop_blank_lines, line_spans
from beam_jobs.text_files.squad import is_squad
from tpudata.console.nearest import did_you_mean
from tpudata.errors import SourceError, UsageError
from tpudata.storage import storage_for

_HEAD_BYTES = 1 << 16
_REMOVE = "Remove it from the input."


class TextForm(NamedTuple):
    """Form of a file.

    Attributes:
        kind: its format, a key of `TEXT_FORMATS`.
        compression: `"gzip"`, `"bzip2"`, `"zstd"`, `"xz"` or an empty string.
        columns: names of the cells of a row of CSV or TSV; empty for other formats.
        delimiter: delimiter of cells, or of documents of `"separated"`; empty for other formats.
        headerless: whether the first row is a document, and the names of columns are their numbers.
    """

    kind: str
    compression: str = ""
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    headerless: bool = False

    @property
    def has_ranges(self) -> bool:
        """Whether a range of the file can be read without the bytes before it."""
        return not self.compression and TEXT_FORMATS[self.kind].has_ranges


def detect_form(path: str, options: TextOptions) -> TextForm:
    """Return the form of a file, from the options, its name and its first 64 KiB.

    Raises:
        SourceError: the form is not supported (an archive, UTF-16, not text), or a column of a field is missing.
        CorruptionError: the file is compressed and damaged.
        UsageError: the options do not fit the file.
    """
    head, compression = _read_head(path)
    kind = _find_kind(path, head, compression, options)
    if kind == PARQUET:
        return TextForm(kind)
    _check_text(path, head)
    if kind == JSONL and is_json_array(head):
        kind = JSON_ARRAY
    if kind == JSONL and is_squad(head):
        kind = SQUAD
    if not TEXT_FORMATS[kind].has_fields and options.needs_rows:
        flag, predicate = _describe_needed_fields(options)
        raise UsageError(
            f"{path} is read by {kind}, which have no fields, but {flag} {predicate}. Pass --form if it has rows, or omit {flag}."
        )
    if kind in (CSV, TSV, RAW_TSV):
        return _make_column_form(path, kind, compression, head, options)
    return TextForm(kind, compression, delimiter=options.separator or "")


def detect_text_compression(path: str) -> str:
    """Return the compression of a file of text: `"gzip"`, `"bzip2"`, `"zstd"`, `"xz"` or an empty string.

    Raises:
        SourceError: the file is an archive or of an unsupported compression, or is not text.
        CorruptionError: the file is compressed and damaged.
    """
    head, compression = _read_head(path)
    _check_text(path, head)
    return compression


def _read_head(path: str) -> tuple[bytes, str]:
    """Return the first bytes of a file, unpacked, and its compression; SourceError if it is an archive or not supported."""
    head = storage_for(path).read_range(path, 0, _HEAD_BYTES)
    file_kind = file_kinds.detect_file_kind(head)
    if file_kind in (file_kinds.ZIP, file_kinds.NPZ):
        raise SourceError(f"{path} is a zip archive. Unpack it, and pass the folder.")
    file_kinds.reject_unread(path, file_kind)
    compression = file_kinds.find_compression(head)
    if compression:
        head = next(decompress_file(path, compression), b"")[:_HEAD_BYTES]
    return head, compression


def _check_text(path: str, head: bytes) -> None:
    """Raise SourceError if the first bytes of a file are UTF-16 or UTF-32, or one of them is zero, as in binary files."""
    file_kind = file_kinds.detect_file_kind(head)
    if file_kind in (file_kinds.UTF_16, file_kinds.UTF_32):
        raise SourceError(f"{path} is {file_kind}. Save it as UTF-8: iconv -f {file_kind} -t UTF-8 {path} > NEW")
    if b"\0" in head:
        raise SourceError(
            f"{path} is not text: byte {head.index(0)} is zero, and it begins with {head[:8].hex(' ')}. {_REMOVE}"
        )


def _describe_needed_fields(options: TextOptions) -> tuple[str, str]:
    """Return the flag that requires documents with fields, and the words that follow it in a message."""
    if len(options.fields) > 1 or options.chat:
        return options.fields_flag, f"names {len(options.fields)}"
    if not options.text_fields:
        return "--field", f"{options.fields[0].name} is a list"
    if options.labels.label_field:
        return "--label-field", f"names {options.labels.label_field!r}"
    return "--key-field", f"names {options.key_field!r}"


def _find_kind(path: str, head: bytes, compression: str, options: TextOptions) -> str:
    """Return the format of a file from the flags, its content or its name; SourceError or UsageError if these disagree.

    Args:
        path: path of the file.
        head: first bytes of the file, unpacked.
        compression: compression of the file: `"gzip"`, `"bzip2"`, `"zstd"`, `"xz"` or an empty string.
        options: options of the form.
    """
    is_parquet = file_kinds.detect_file_kind(head) == file_kinds.PARQUET
    if options.targets_file is not None:
        if is_parquet:
            raise UsageError(
                f"--targets-file is for lines, and {path} is a Parquet file. Pass --inputs and --targets, its columns"
            )
        return PARALLEL
    kind = options.form
    if kind == AUTO:
        kind = PARQUET if is_parquet else _find_kind_by_name(path)
    if (kind == PARQUET) != is_parquet:
        if is_parquet:
            raise UsageError(f"--form is {kind}, but {path} is a Parquet file. Omit --form, or pass other files.")
        raise SourceError(f"{path} is not a Parquet file: it begins with {head[:8].hex(' ') or 'nothing'}. {_REMOVE}")
    if is_parquet and compression:
        raise SourceError(
            f"{path} is a Parquet file compressed with {compression}. Unpack it; Parquet compresses itself."
        )
    return kind


def _find_kind_by_name(path: str) -> str:
    """Return the format of the suffix that a file's name has before a suffix of compression; LINES if it has none."""
    name = strip_compression(path.lower())
    return next((kind for kind, text_format in TEXT_FORMATS.items() if name.endswith(text_format.suffixes)), LINES)


def _make_column_form(path: str, kind: str, compression: str, head: bytes, options: TextOptions) -> TextForm:
    """Return the form of a file of CSV or TSV with its delimiter and columns.

    Args:
        path: path of the file.
        kind: CSV, TSV or RAW_TSV.
        compression: compression of the file: `"gzip"`, `"bzip2"`, `"zstd"`, `"xz"` or an empty string.
        head: first bytes of the file, unpacked.
        options: options with the fields.

    Raises:
        SourceError: the first row cannot be read, lacks a column of a field, or has a column twice.
    """
    names = [field.name for field in options.columns]
    delimiter, columns = find_columns(
        ("\t",) if kind in (TSV, RAW_TSV) else (",", ";", "\t"),
        read_columns=lambda delimiter: _name_columns(_read_first_row(path, kind, head, delimiter), options),
        accepts_columns=lambda columns: all(name in columns for name in names),
    )
    if not delimiter:
        missing = next(name for name in names if name not in columns)
        raise SourceError(
            f"{path} has no column {missing!r}; its first row has {', '.join(map(repr, columns)) or 'nothing'}."
            f"{did_you_mean(missing, columns)} Pass its columns with --field."
        )
    repeated_names = sorted({name for name in columns if columns.count(name) > 1})
    if repeated_names:
        raise SourceError(f"{path}: column {repeated_names[0]!r} appears twice in the first row. Rename one.")
    return TextForm(kind, compression, columns, delimiter, options.headerless)


def _name_columns(first_row: tuple[str, ...], options: TextOptions) -> tuple[str, ...]:
    """Return the names of columns: the cells of the first row, or their numbers without a header."""
    return tuple(map(str, range(len(first_row)))) if options.headerless else first_row


def _read_first_row(path: str, kind: str, head: bytes, delimiter: str) -> tuple[str, ...]:
    """Return the cells of the first row of CSV or TSV with text, stripped; empty if no row has text.

    Args:
        path: path of the file, for messages.
        kind: CSV, TSV or RAW_TSV.
        head: first bytes of the file, unpacked.
        delimiter: character between two cells.

    Raises:
        SourceError: the row cannot be read.
    """
    spans = line_spans([head], offset=0, max_bytes=_HEAD_BYTES)
    rows = drop_blank_lines(spans) if kind == RAW_TSV else join_rows(spans, delimiter, _HEAD_BYTES, path)
    row = next((row for row in rows if has_text(row.data, delimiter)), None)
    if row is None:
        return ()
    if b"\r" in row.data and b"\n" not in head:
        raise SourceError(f"{path}: its lines end with CR alone. Save it with LF or CRLF line ends.")
    # The row may continue after the head.
    if row.offset + row.size >= _HEAD_BYTES:
        raise SourceError(
            f"{path}: the first row, with the names of columns, is longer than {_HEAD_BYTES} bytes. Shorten it."
        )
    try:
        text = row.data.decode()
        first_cells = split_cells(text, delimiter, is_raw=kind == RAW_TSV)
    except ValueError as error:
        raise SourceError(
            f"{path}: the first row, with the names of columns, cannot be read: {error}. Fix the row."
        ) from None
    return tuple(cell.strip() for cell in first_cells)
