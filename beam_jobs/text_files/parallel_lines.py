"""Lines of two parallel files: line n of one and line n of the other are a pair, which becomes a JSON object."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import TypeAlias

from beam_jobs.compression.files import decompress_file, read_compression, strip_compression
from beam_jobs.compression.streams import read_plain_chunks
from beam_jobs.text_files.options import INPUTS, TARGETS, TextOptions
from beam_jobs.text_files.spans.lines import BOM, Span, line_spans
from beam_jobs.text_files.values import DocumentError
from tpudata.errors import SourceError
from tpudata.storage import storage_for

_ANY = "*"
_JSON = json.JSONEncoder(ensure_ascii=False)
# Takes the offset of a pair that cannot be read, and the reason.
RejectPair: TypeAlias = Callable[[int, str], None]


def make_targets_path(path: str, pattern: str) -> str:
    """Return the path of the file whose lines are the targets of a file.

    Args:
        path: path of the file of inputs.
        pattern: path of the file of targets, in which `*` is the name of the file of inputs without its last ending.
    """
    name = strip_compression(path.rpartition("/")[2])
    return pattern.replace(_ANY, name.rpartition(".")[0] or name)


def names_each_file(pattern: str) -> bool:
    """Return whether a pattern of `make_targets_path` gives a different path for each name of a file."""
    return _ANY in pattern


def find_target_path(path: str, options: TextOptions) -> str:
    """Return the path of the file with the targets of a file of inputs; SourceError if it is missing."""
    assert options.targets_file is not None
    target_path = make_targets_path(path, options.targets_file)
    entry = storage_for(target_path).stat(target_path)
    if entry is None or entry.is_folder:
        raise SourceError(f"--targets-file {target_path}: no such file. Check the path.")
    return target_path


def pair_lines(input_path: str, target_path: str, options: TextOptions, reject: RejectPair) -> Iterator[Span]:
    """Yield the pairs of lines of a file of inputs and a file of targets as JSON, each at the offset of its line of inputs.

    A pair of two blank lines is skipped; a pair with one blank line is yielded, and rejected later. A pair that is too large is
    yielded without data.

    Args:
        input_path: path of the file of inputs.
        target_path: path of the file of targets.
        options: options with the size limit of a document, `document_bytes`, and the treatment of bytes that are not UTF-8.
        reject: called with the offset of a pair that is not UTF-8, and the reason. If it returns, the pair is omitted.

    Raises:
        SourceError: the files have different numbers of lines.
        CorruptionError: a file is compressed and damaged.
    """
    max_bytes = options.document_bytes
    input_line_count = target_line_count = 0
    for input_line, target_line in itertools.zip_longest(
        _read_lines(input_path, max_bytes), _read_lines(target_path, max_bytes)
    ):
        input_line_count += input_line is not None
        target_line_count += target_line is not None
        # If one file ends first, only count the lines of the other.
        if input_line is None or target_line is None or (input_line.is_blank and target_line.is_blank):
            continue
        if input_line.size + target_line.size > max_bytes:
            yield Span(input_line.offset, input_line.size + target_line.size, b"")
            continue
        try:
            row = {
                INPUTS: _decode_line(input_line, input_path, options.replace_invalid),
                TARGETS: _decode_line(target_line, target_path, options.replace_invalid),
            }
        except DocumentError as error:
            reject(input_line.offset, str(error))
            continue
        data = _JSON.encode(row).encode()
        yield Span(input_line.offset, len(data), data)
    if input_line_count != target_line_count:
        raise SourceError(
            f"{input_path} and {target_path} are not parallel files: their numbers of lines differ (got {input_line_count:,} and"
            f" {target_line_count:,}). Pass two files whose lines belong together."
        )


def _decode_line(line: Span, path: str, replace_invalid: bool) -> str:
    """Return the text of a line without CR and byte order mark; DocumentError if it is not UTF-8, with the position in the file."""
    mark_bytes = len(BOM) if not line.offset and line.data.startswith(BOM) else 0
    data = line.data[mark_bytes:].removesuffix(b"\r")
    try:
        return data.decode("utf-8", "replace" if replace_invalid else "strict")
    except UnicodeDecodeError as error:
        offset = line.offset + mark_bytes + error.start
        raise DocumentError(f"not UTF-8: byte {data[error.start]:#04x} at byte {offset} of {path}") from None


def _read_lines(path: str, max_bytes: int) -> Iterator[Span]:
    """Yield every line of a file, which may be compressed; lines longer than `max_bytes` have no data."""
    compression = read_compression(path)
    entry = storage_for(path).stat(path)
    if compression:
        chunks = decompress_file(path, compression)
    else:
        # The range ends with the size of the file, so that a file that is truncated in the meantime is an error.
        chunks = read_plain_chunks(path, start=0, stop=entry.size if entry else 0)
    return line_spans(chunks, offset=0, max_bytes=max_bytes)
