"""Lines of two parallel files: line n of one and line n of the other are a pair, and travel as a JSON object."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import TypeAlias

from beam_jobs.compression.files import decompress_file, read_compression, strip_compression
from beam_jobs.compression.streams import read_plain_chunks
from beam_jobs.text_files.options import INPUTS, TARGETS, TextOptions
from beam_jobs.text_files.spans.lines import BOM, Span, line_spans
from tpudata.errors import SourceError
from tpudata.storage import storage_for

_ANY = "*"
_JSON = json.JSONEncoder(ensure_ascii=False)
# Takes the offset of a pair that cannot be read, and the reason.
RejectPair: TypeAlias = Callable[[int, str], None]


def targets_path(path: str, pattern: str) -> str:
    """Return the path of the file whose lines are the targets of a file.

    Args:
        path: path of the file of inputs.
        pattern: path of the other one, in which `*` is the name of the first without its last ending.
    """
    name = strip_compression(path.rpartition("/")[2])
    return pattern.replace(_ANY, name.rpartition(".")[0] or name)


def names_each_file(pattern: str) -> bool:
    """Return whether a pattern of `targets_path` is another path for each file."""
    return _ANY in pattern


def find_targets(path: str, options: TextOptions) -> str:
    """Return the path of a file's targets; SourceError if they are missing."""
    assert options.targets_file is not None
    targets = targets_path(path, options.targets_file)
    entry = storage_for(targets).stat(targets)
    if entry is None or entry.is_folder:
        raise SourceError(f"--targets-file {targets}: no such file. Check the path.")
    return targets


def pair_spans(path: str, targets: str, options: TextOptions, reject: RejectPair) -> Iterator[Span]:
    """Yield the pairs of lines of a file and of its targets, each at the offset of the first line.

    A pair of two blank lines is skipped; a pair with one blank line is yielded, and rejected later.

    Args:
        path: path of the file of inputs.
        targets: path of the file of targets.
        options: limit of a document, and the treatment of bytes that are not UTF-8.
        reject: called with a pair that is not UTF-8. If it returns, the pair is omitted. A pair that is too large has no data.

    Raises:
        SourceError: the two have different numbers of lines.
        CorruptionError: a file is compressed and damaged.
    """
    count = [0, 0]
    for pair in itertools.zip_longest(*(_read_lines(file, options.document_bytes) for file in (path, targets))):
        count = [number + (line is not None) for number, line in zip(count, pair, strict=True)]
        source, target = pair
        if source is None or target is None or (source.is_blank and target.is_blank):
            continue
        if source.size + target.size > options.document_bytes:
            yield Span(source.offset, source.size + target.size, b"")
            continue
        texts: list[str] = []
        for file, line in ((path, source), (targets, target)):
            data = (line.data if line.offset else line.data.removeprefix(BOM)).removesuffix(b"\r")
            try:
                texts.append(data.decode("utf-8", "replace" if options.replace_invalid else "strict"))
            except UnicodeDecodeError as error:
                error_offset = line.offset + error.start
                reject(source.offset, f"not UTF-8: byte {data[error.start]:#04x} at byte {error_offset} of {file}")
                break
        else:
            row = _JSON.encode({INPUTS: texts[0], TARGETS: texts[1]}).encode()
            yield Span(source.offset, len(row), row)
    if count[0] != count[1]:
        raise SourceError(
            f"{path} and {targets} are not parallel files: their numbers of lines differ (got {count[0]:,} and {count[1]:,}). Pass"
            " two files whose lines belong together."
        )


def _read_lines(path: str, limit: int) -> Iterator[Span]:
    compression, entry = read_compression(path), storage_for(path).stat(path)
    chunks = (
        decompress_file(path, compression) if compression else read_plain_chunks(path, 0, entry.size if entry else 0)
    )
    return line_spans(chunks, 0, limit)
