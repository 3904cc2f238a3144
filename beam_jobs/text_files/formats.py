"""The formats of text: the unit of a document in each, and functions that find the bytes of documents.

A format of lines or rows is one entry of the table; docs/convert/extending.md has a recipe. Whole files,
Parquet, parallel files and SQuAD have separate readers, called in beam_jobs.text_files.documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from beam_jobs.text_files.document_form import (
    CONLL_ROW,
    CONLLU_ROW,
    CSV_ROW,
    FILE,
    JSON_ROW,
    PLAIN,
    RAW_ROW,
    TSV_ROW,
)
from beam_jobs.text_files.options import (
    CONLL,
    CONLLU,
    CSV,
    FILES,
    JSON_ARRAY,
    JSONL,
    LINES,
    PARAGRAPHS,
    PARALLEL,
    PARQUET,
    RAW_TSV,
    SEPARATED,
    SQUAD,
    TSV,
)
from beam_jobs.text_files.sentences import drop_comments, keep_sentences
from beam_jobs.text_files.spans.csv_rows import join_rows
from beam_jobs.text_files.spans.json_arrays import array_spans
from beam_jobs.text_files.spans.lines import Span, join_paragraphs, join_paragraphs_in_range, line_spans
from beam_jobs.text_files.spans.separated import split_documents, split_documents_in_range

# (path, first byte of a range, byte after it, delimiter, --document-bytes) -> the documents that begin in the range.
FindInRange: TypeAlias = Callable[[str, int, int, str, int], Iterator[Span]]
# (unpacked bytes of a file, delimiter of its rows or documents, --document-bytes, path) -> its documents.
FindInStream: TypeAlias = Callable[[Iterable[bytes], str, int, str], Iterator[Span]]


class TextFormat(NamedTuple):
    """One format of text files.

    Attributes:
        row: kind of a document, see `RowForm.kind`.
        has_fields: whether documents have named fields.
        suffixes: suffixes of the names of files in this format.
        in_range: finds the documents of a range of bytes; None if a file can only be read from its start.
        in_stream: finds the documents of a whole file; None for lines, and for formats that have a separate reader.
        is_lines: whether documents are lines, which are found in blocks, not by these two functions.
        has_bytes: whether a document is a run of bytes of its file; otherwise the reader makes its bytes.
    """

    row: str
    has_fields: bool = False
    suffixes: tuple[str, ...] = ()
    in_range: FindInRange | None = None
    in_stream: FindInStream | None = None
    is_lines: bool = False
    has_bytes: bool = True

    @property
    def has_ranges(self) -> bool:
        """Whether a range of a file can be read without the bytes before it."""
        return self.is_lines or self.in_range is not None


# These functions only have the arguments of FindInStream or FindInRange; an underscore begins the names of unused arguments.


def _split_paragraphs(chunks: Iterable[bytes], _delimiter: str, max_bytes: int, _path: str) -> Iterator[Span]:
    return join_paragraphs(line_spans(chunks, offset=0, max_bytes=max_bytes), max_bytes)


def _split_paragraphs_in_range(path: str, start: int, stop: int, _delimiter: str, max_bytes: int) -> Iterator[Span]:
    return join_paragraphs_in_range(path, start, stop, max_bytes)


def _split_conll(chunks: Iterable[bytes], _delimiter: str, max_bytes: int, _path: str) -> Iterator[Span]:
    return keep_sentences(join_paragraphs(line_spans(chunks, offset=0, max_bytes=max_bytes), max_bytes))


def _split_conll_in_range(path: str, start: int, stop: int, _delimiter: str, max_bytes: int) -> Iterator[Span]:
    return keep_sentences(join_paragraphs_in_range(path, start, stop, max_bytes))


def _split_conllu(chunks: Iterable[bytes], _delimiter: str, max_bytes: int, _path: str) -> Iterator[Span]:
    return drop_comments(join_paragraphs(line_spans(chunks, offset=0, max_bytes=max_bytes), max_bytes))


def _split_conllu_in_range(path: str, start: int, stop: int, _delimiter: str, max_bytes: int) -> Iterator[Span]:
    return drop_comments(join_paragraphs_in_range(path, start, stop, max_bytes))


def _split_documents(chunks: Iterable[bytes], delimiter: str, max_bytes: int, _path: str) -> Iterator[Span]:
    return split_documents(chunks, delimiter, max_bytes)


def _split_csv_rows(chunks: Iterable[bytes], delimiter: str, max_bytes: int, path: str) -> Iterator[Span]:
    return join_rows(line_spans(chunks, offset=0, max_bytes=max_bytes), delimiter, max_bytes, path)


def _split_array_items(chunks: Iterable[bytes], _delimiter: str, max_bytes: int, path: str) -> Iterator[Span]:
    return array_spans(chunks, max_bytes, path)


TEXT_FORMATS: Mapping[str, TextFormat] = MappingProxyType(
    {
        LINES: TextFormat(PLAIN, is_lines=True),
        PARAGRAPHS: TextFormat(PLAIN, in_range=_split_paragraphs_in_range, in_stream=_split_paragraphs),
        SEPARATED: TextFormat(PLAIN, in_range=split_documents_in_range, in_stream=_split_documents),
        FILES: TextFormat(FILE),
        JSONL: TextFormat(JSON_ROW, has_fields=True, suffixes=(".jsonl", ".ndjson", ".json"), is_lines=True),
        JSON_ARRAY: TextFormat(JSON_ROW, has_fields=True, in_stream=_split_array_items),
        CSV: TextFormat(CSV_ROW, has_fields=True, suffixes=(".csv",), in_stream=_split_csv_rows),
        TSV: TextFormat(TSV_ROW, has_fields=True, suffixes=(".tsv",), in_stream=_split_csv_rows),
        RAW_TSV: TextFormat(RAW_ROW, has_fields=True, is_lines=True),
        CONLL: TextFormat(
            CONLL_ROW,
            has_fields=True,
            suffixes=(".conll",),
            in_range=_split_conll_in_range,
            in_stream=_split_conll,
        ),
        CONLLU: TextFormat(
            CONLLU_ROW,
            has_fields=True,
            suffixes=(".conllu",),
            in_range=_split_conllu_in_range,
            in_stream=_split_conllu,
        ),
        PARQUET: TextFormat(JSON_ROW, has_fields=True, suffixes=(".parquet",), has_bytes=False),
        PARALLEL: TextFormat(JSON_ROW, has_fields=True, has_bytes=False),
        SQUAD: TextFormat(JSON_ROW, has_fields=True, has_bytes=False),
    }
)
