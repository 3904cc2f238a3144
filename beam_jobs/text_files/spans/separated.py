"""Documents between separators, such as `<|endoftext|>`: in a file, or in a range of it.

A document begins after a separator, or with the file, and belongs to the range in which it begins. Line ends next to a separator
belong to no document. Separators may overlap, with nothing between them, so what is a separator does not depend on where reading
begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from beam_jobs.compression.streams import plain_chunks
from beam_jobs.text_files.spans.lines import BOM, Span

_LINE_ENDS = b"\r\n"


def split_documents(
    chunks: Iterable[bytes], separator: str, limit: int, *, offset: int = 0, start: int = 0, stop: int | None = None
) -> Iterator[Span]:
    """Yield the documents that are not blank, without separators and byte order mark.

    Args:
        chunks: bytes of a file.
        separator: text between documents.
        limit: bytes of the longest document; longer ones have no data.
        offset: offset of the first chunk in the file; no document begins there unless it is 0.
        start: offset from which on documents are yielded.
        stop: offset from which on no document begins; None takes all.
    """
    mark = separator.encode()
    # Bytes of the file from `at` on: those of the current document unless it is too long, and those that are to be searched.
    held, at, search = b"", offset, 0
    begin = None if start > 0 else 0
    for chunk in chunks:
        held += chunk
        while (mark_at := held.find(mark, search)) >= 0:
            if begin is not None:
                yield from _cut_document(held, at, begin, at + mark_at, limit)
            search = mark_at + 1
            begin = at + mark_at + len(mark)
            if begin < start:
                begin = None
            elif stop is not None and begin >= stop:
                return
        search = max(search, len(held) - len(mark) + 1)
        is_kept = begin is not None and begin >= at and at + len(held) - begin <= limit + len(mark)
        dropped = min(search, begin - at) if is_kept and begin is not None else min(search, len(held))
        held, at, search = held[dropped:], at + dropped, search - dropped
    if begin is not None:
        yield from _cut_document(held, at, begin, at + len(held), limit)


def split_documents_in_range(path: str, start: int, stop: int, separator: str, limit: int) -> Iterator[Span]:
    """Yield the documents of a file that begin in the range from byte `start` to before `stop`."""
    first = max(0, start - len(separator.encode()))
    return split_documents(plain_chunks(path, first, stop), separator, limit, offset=first, start=start, stop=stop)


def _cut_document(held: bytes, at: int, begin: int, end: int, limit: int) -> Iterator[Span]:
    """Yield the document from `begin` to `end` of the file, given its bytes from `at` on; nothing if it is blank."""
    if end - begin > limit or begin < at:
        if end > begin:
            yield Span(begin, end - begin, b"")
        return
    data = held[begin - at : end - at]
    if not begin and data.startswith(BOM):
        data, begin = data[len(BOM) :], len(BOM)
    text = data.lstrip(_LINE_ENDS)
    begin += len(data) - len(text)
    text = text.rstrip(_LINE_ENDS)
    if text and not text.isspace():
        yield Span(begin, len(text), text)
