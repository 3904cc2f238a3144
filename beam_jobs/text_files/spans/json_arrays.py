"""Elements of a JSON file that is one array, such as `[{"text": ...}, {"text": ...}]`.

Memory holds one element, not the array. Only brackets, quotes and commas are examined; an element is parsed when its document is
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from beam_jobs.text_files.spans.lines import Span
from tpudata.errors import SourceError

_SPACE = b" \t\r\n"
_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*\[")
_TOKEN = re.compile(rb'["{}\[\],]')
_STRING_TOKEN = re.compile(rb'["\\]')
_FIX = "Fix the array, or download the file again."


def is_json_array(head: bytes) -> bool:
    """Return whether the first bytes of a file begin a JSON array."""
    return _ARRAY.match(head) is not None


def array_spans(chunks: Iterable[bytes], max_bytes: int, path: str) -> Iterator[Span]:
    """Yield the elements of a JSON array, without the whitespace around them.

    Args:
        chunks: bytes of the file, from its start.
        max_bytes: maximum number of bytes in an element; a longer one has no data.
        path: path of the file, for messages.

    Raises:
        SourceError: the array has no end, something after its end, a bracket that closes no other, or no element next to a comma;
            the message names the byte.
    """
    element = _Element(max_bytes, path)
    offset = depth = 0
    is_in_string = is_after_backslash = False
    for chunk in chunks:
        # From `element_start` on, the bytes belong to an unfinished element.
        element_start = position = 0
        while position < len(chunk):
            if is_after_backslash:
                is_after_backslash, position = False, position + 1
                continue
            match = (_STRING_TOKEN if is_in_string else _TOKEN).search(chunk, position)
            if match is None:
                break
            token, token_start, position = match[0], match.start(), match.end()
            if token == b'"':
                is_in_string = not is_in_string
            elif token == b"\\":
                is_after_backslash = True
            elif token in b"{[":
                depth += 1
                if depth == 1:
                    if not element.is_first:
                        raise _make_trailing_data_error(path, offset + token_start)
                    element_start = position
            elif token in b"}]":
                depth -= 1
                if depth < 0 or (depth == 0 and token == b"}"):
                    raise SourceError(
                        f"{path} at byte {offset + token_start}: not a JSON array: this bracket closes no other. {_FIX}"
                    )
                if depth == 0:
                    element.add(chunk[element_start:token_start], offset + element_start)
                    yield from element.end_element(offset + token_start, is_last=True)
                    element_start = position
            elif depth == 1:
                # The token is a comma between two elements; commas of deeper levels belong to an element.
                element.add(chunk[element_start:token_start], offset + element_start)
                yield from element.end_element(offset + token_start)
                element_start = position
        if depth:
            element.add(chunk[element_start:], offset + element_start)
        elif element.is_closed and chunk[element_start:].strip(_SPACE):
            raise _make_trailing_data_error(path, offset + element_start)
        offset += len(chunk)
    if depth:
        raise SourceError(f"{path} at byte {offset}: the JSON array is cut: it has no end. {_FIX}")


def _make_trailing_data_error(path: str, offset: int) -> SourceError:
    return SourceError(
        f"{path} at byte {offset}: there is more after the end of the JSON array. Keep one array, or write one object a line."
    )


class _Element:
    """The bytes of the current element, dropped once they exceed a limit.

    Args:
        max_bytes: maximum number of bytes in an element.
        path: path of the file, for messages.

    Attributes:
        is_first: whether no element has ended yet.
        is_closed: whether the array has ended.
    """

    def __init__(self, max_bytes: int, path: str) -> None:
        self._max_bytes = max_bytes
        self._path = path
        self._pieces: list[bytes] = []
        self._start = self._size = 0
        self.is_first = True
        self.is_closed = False

    def add(self, data: bytes, offset: int) -> None:
        """Add bytes of the file that begin at `offset`."""
        # Space before an element does not belong to it.
        if not self._size:
            self._start = offset + len(data) - len(data.lstrip(_SPACE))
            data = data.lstrip(_SPACE)
        self._size += len(data)
        if self._size <= self._max_bytes:
            self._pieces.append(data)
        else:
            self._pieces.clear()

    def end_element(self, offset: int, *, is_last: bool = False) -> Iterator[Span]:
        """Yield the element, which ends before byte `offset`, and begin the next one; nothing in an empty array.

        Raises:
            SourceError: the element is missing, and the array is not empty.
        """
        if self._size:
            # The data is empty if the element is too long; the size then includes the space after it.
            data = b"".join(self._pieces).rstrip(_SPACE)
            yield Span(self._start, len(data) if data else self._size, data)
        elif not (is_last and self.is_first):
            raise SourceError(
                f"{self._path} at byte {offset}: not a JSON array: no value before this comma or bracket. {_FIX}"
            )
        self._pieces, self._size = [], 0
        self.is_first, self.is_closed = False, is_last
