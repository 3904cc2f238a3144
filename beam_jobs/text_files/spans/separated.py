"""Documents between separators, such as `<|endoftext|>`: in a file, or in a range of it.

A document begins after a separator, or with the file, and belongs to the range in which it begins. Line ends next to a separator
belong to no document. Separators may overlap, with nothing between them, so that they are the same wherever reading begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from beam_jobs.compression.streams import read_plain_chunks
from beam_jobs.text_files.spans.lines import BOM, Span

_LINE_ENDS = b"\r\n"


def split_documents(
    chunks: Iterable[bytes], separator: str, max_bytes: int, *, offset: int = 0, start: int = 0, stop: int | None = None
) -> Iterator[Span]:
    """Yield the documents that are not blank, without separators and byte order mark.

    Args:
        chunks: bytes of a file.
        separator: string between documents.
        max_bytes: maximum number of bytes in a document; a longer one has no data.
        offset: offset of the first chunk in the file; no document begins there unless it is 0.
        start: offset from which on documents are yielded.
        stop: offset from which on no document begins; None takes all.
    """
    separator_bytes = separator.encode()
    # Bytes of the file from `buffer_start` on: the current document, unless it is too long, and the bytes to be searched, from
    # `search_start` on.
    buffer, buffer_start, search_start = b"", offset, 0
    # Offset of the current document in the file; None before the first one to be yielded.
    document_start = None if start > 0 else 0
    for chunk in chunks:
        buffer += chunk
        while (separator_start := buffer.find(separator_bytes, search_start)) >= 0:
            if document_start is not None:
                yield from _cut_document(
                    buffer, buffer_start, document_start, buffer_start + separator_start, max_bytes
                )
            # The search continues inside the separator, since separators may overlap.
            search_start = separator_start + 1
            document_start = buffer_start + separator_start + len(separator_bytes)
            if document_start < start:
                document_start = None
            elif stop is not None and document_start >= stop:
                return
        # The last bytes may be the start of a separator, so they are searched again with the next chunk.
        search_start = max(search_start, len(buffer) - len(separator_bytes) + 1)
        # Searched bytes are dropped, except for the current document as long as it may be within the limit.
        dropped_bytes = search_start
        if document_start is not None and document_start >= buffer_start:
            # The last bytes may be part of a separator, so the document may still be short enough.
            may_fit = buffer_start + len(buffer) - document_start <= max_bytes + len(separator_bytes)
            dropped_bytes = min(search_start, document_start - buffer_start) if may_fit else search_start
        buffer, buffer_start = buffer[dropped_bytes:], buffer_start + dropped_bytes
        search_start -= dropped_bytes
    if document_start is not None:
        yield from _cut_document(buffer, buffer_start, document_start, buffer_start + len(buffer), max_bytes)


def split_documents_in_range(path: str, start: int, stop: int, separator: str, max_bytes: int) -> Iterator[Span]:
    """Yield the documents of a file that begin in the range from byte `start` to before `stop`; see `split_documents`."""
    first_offset = max(0, start - len(separator.encode()))
    return split_documents(
        read_plain_chunks(path, first_offset, stop), separator, max_bytes, offset=first_offset, start=start, stop=stop
    )


def _cut_document(buffer: bytes, buffer_start: int, document_start: int, end: int, max_bytes: int) -> Iterator[Span]:
    """Yield the document from byte `document_start` to before `end` of the file; nothing if it is blank.

    Args:
        buffer: bytes of the file.
        buffer_start: offset of the buffer in the file.
        document_start: offset of the document in the file.
        end: offset of the separator after the document, or of the end of the file.
        max_bytes: maximum number of bytes in a document; a longer one has no data.
    """
    # The start of a document is dropped from the buffer only if the document is too long.
    if end - document_start > max_bytes or document_start < buffer_start:
        yield Span(document_start, end - document_start, b"")
        return
    # `data` is empty between separators that overlap, where `end` is before `document_start`.
    data = buffer[document_start - buffer_start : end - buffer_start]
    if not document_start and data.startswith(BOM):
        data, document_start = data[len(BOM) :], len(BOM)
    content = data.lstrip(_LINE_ENDS)
    content_start = document_start + len(data) - len(content)
    content = content.rstrip(_LINE_ENDS)
    if content and not content.isspace():
        yield Span(content_start, len(content), content)
