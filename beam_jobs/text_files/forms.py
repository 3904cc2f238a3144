"""Form of a text file: its compression, and the unit of a document.

Compression and Parquet are found by content. Rows of JSONL, CSV and TSV, and sentences of CoNLL, are found by the file's name
(`.jsonl`, `.ndjson`, `.json`, `.csv`, `.tsv`, `.conll`, `.conllu`, with or without `.gz`, `.bz2`, `.zst` or `.xz` after it),
because a text may begin like any of them; `--form` overrides this. JSON whose first character is a bracket is one array of rows;
JSON that begins as SQuAD's does has its questions as rows.
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
from beam_jobs.text_files.spans.csv_rows import cells, find_columns, row_spans
from beam_jobs.text_files.spans.json_arrays import is_json_array
from beam_jobs.text_files.spans.lines import line_spans, lines
from beam_jobs.text_files.squad import is_squad
from tpudata.console.nearest import did_you_mean
from tpudata.errors import SourceError, UsageError
from tpudata.storage import storage_for

_HEAD_BYTES = 1 << 16
_REMOVE = "Remove it from the input."


class TextForm(NamedTuple):
    """Form of a file.

    Attributes:
        kind: `"lines"`, `"paragraphs"`, `"separated"`, `"files"`, `"jsonl"`, `"json array"`, `"csv"`, `"tsv"`,
            `"raw-tsv"`, `"conll"`, `"conllu"` or `"parquet"`.
        compression: `"gzip"`, `"bzip2"`, `"zstd"`, `"xz"` or an empty string.
        columns: names of the cells of a row of CSV or TSV.
        delimiter: delimiter of cells, or of documents.
        headerless: whether the first row is a document, and columns have numbers.
    """

    kind: str
    compression: str = ""
    columns: tuple[str, ...] = ()
    delimiter: str = ""
    headerless: bool = False

    @property
    def has_ranges(self) -> bool:
        """Whether a range of bytes can be read by itself."""
        return not self.compression and TEXT_FORMATS[self.kind].has_ranges


def look_at(path: str, options: TextOptions) -> TextForm:
    """Return the form of a file, from its name and its first 64 kB.

    Raises:
        SourceError: the form is not supported: another archive, UTF-16, not text; or a requested field is missing.
        CorruptionError: the file is compressed, and damaged.
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
        flag, needs = _describe_needs(options)
        raise UsageError(
            f"{path} is read by {kind}, which have no fields, but {flag} {needs}. Pass --form if it has rows, or omit {flag}."
        )
    if kind in (CSV, TSV, RAW_TSV):
        return _make_column_form(path, kind, compression, head, options)
    return TextForm(kind, compression, delimiter=options.separator or "")


def text_compression(path: str) -> str:
    """Return the compression of a file of text, as `TextForm.compression`; raise as `look_at` if it is not text."""
    head, compression = _read_head(path)
    _check_text(path, head)
    return compression


def _read_head(path: str) -> tuple[bytes, str]:
    """Return the first bytes of a file, unpacked, and its compression; SourceError if it is another archive."""
    head = storage_for(path).read_range(path, 0, _HEAD_BYTES)
    content = file_kinds.detect_file_kind(head)
    if content in (file_kinds.ZIP, file_kinds.NPZ):
        raise SourceError(f"{path} is a zip archive. Unpack it, and pass the folder.")
    file_kinds.reject_unread(path, content)
    compression = file_kinds.find_compression(head)
    if compression:
        head = next(decompress_file(path, compression), b"")[:_HEAD_BYTES]
    return head, compression


def _check_text(path: str, head: bytes) -> None:
    """Raise SourceError if the first bytes of a file are not UTF-8 text."""
    content = file_kinds.detect_file_kind(head)
    if content in (file_kinds.UTF_16, file_kinds.UTF_32):
        raise SourceError(f"{path} is {content}. Save it as UTF-8: iconv -f {content} -t UTF-8 {path} > NEW")
    if b"\0" in head:
        raise SourceError(
            f"{path} is not text: byte {head.index(0)} is zero, and it begins with {head[:8].hex(' ')}. {_REMOVE}"
        )


def _describe_needs(options: TextOptions) -> tuple[str, str]:
    """Return the flag that requires documents with fields, and its text for messages."""
    if len(options.fields) > 1 or options.chat:
        return options.fields_flag, f"names {len(options.fields)}"
    if not options.text_fields:
        return "--field", f"{options.fields[0].name} is a list"
    labels = options.labels
    return (
        ("--label-field", f"names {labels.label_field!r}")
        if labels.label_field
        else ("--key-field", f"names {options.key_field!r}")
    )


def _find_kind(path: str, head: bytes, compression: str, options: TextOptions) -> str:
    """Return the format of a file, by flags, by its content, or by its name; SourceError or UsageError if these disagree."""
    found_parquet = file_kinds.detect_file_kind(head) == file_kinds.PARQUET
    name = strip_compression(path.lower())
    kind_by_name = next(
        (
            kind
            for kind, text_format in TEXT_FORMATS.items()
            if text_format.suffixes and name.endswith(text_format.suffixes)
        ),
        LINES,
    )
    kind = options.form if options.form != AUTO else PARQUET if found_parquet else kind_by_name
    if options.targets_file is not None:
        if found_parquet:
            raise UsageError(
                f"--targets-file is for lines, and {path} is a Parquet file. Pass --inputs and --targets, its columns"
            )
        return PARALLEL
    if (kind == PARQUET) != found_parquet:
        if found_parquet:
            raise UsageError(f"--form is {kind}, but {path} is a Parquet file. Omit --form, or pass other files.")
        raise SourceError(f"{path} is not a Parquet file: it begins with {head[:8].hex(' ') or 'nothing'}. {_REMOVE}")
    if found_parquet and compression:
        raise SourceError(
            f"{path} is a Parquet file compressed with {compression}. Unpack it; Parquet compresses itself."
        )
    return kind


def _make_column_form(path: str, kind: str, compression: str, head: bytes, options: TextOptions) -> TextForm:
    """Return a CSV or TSV form with the columns from the first row, or their numbers."""
    names = [field.name for field in options.columns]
    delimiter, columns = find_columns(
        ("\t",) if kind in (TSV, RAW_TSV) else (",", ";", "\t"),
        lambda delimiter: _find_columns(_read_first_row(path, kind, head, delimiter), options),
        lambda columns: all(name in columns for name in names),
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


def _find_columns(row: tuple[str, ...], options: TextOptions) -> tuple[str, ...]:
    """Return the columns of a file by its first row: its cells, or their numbers without a header."""
    return tuple(map(str, range(len(row)))) if options.headerless else row


def _read_first_row(path: str, kind: str, head: bytes, delimiter: str) -> tuple[str, ...]:
    """Return the stripped cells of the first row of CSV or TSV; none for an empty file, SourceError if it cannot be read."""
    spans = line_spans([head], 0, _HEAD_BYTES)
    row = next(row_spans(spans, delimiter, _HEAD_BYTES, path) if kind != RAW_TSV else lines(spans), None)
    if row is None:
        return ()
    if b"\r" in row.data and b"\n" not in head:
        raise SourceError(f"{path}: its lines end with CR alone. Save it with LF or CRLF line ends.")
    if row.offset + row.size >= _HEAD_BYTES:
        raise SourceError(
            f"{path}: the first row, with the names of columns, is longer than {_HEAD_BYTES} bytes. Shorten it."
        )
    try:
        text = row.data.decode()
        first_cells = cells(text, delimiter, is_raw=kind == RAW_TSV)
    except ValueError as error:
        raise SourceError(
            f"{path}: the first row, with the names of columns, cannot be read: {error}. Fix the row."
        ) from None
    return tuple(cell.strip() for cell in first_cells)
