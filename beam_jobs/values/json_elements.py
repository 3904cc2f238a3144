"""Elements of the arrays in a JSON object, such as `{"images": [...], "annotations": [...]}`, in a file of any size.

Memory holds one element, not the file. Python's parser reads each element where it begins in the text; if the text ends too early,
more is read and the element is parsed again. ijson with its C backend took 1.5 times as long for one of the arrays, and reads the
file once for each.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, NamedTuple

from beam_jobs.file_kinds import UTF16_BOMS
from tpudata.errors import SourceError

PIECE_BYTES = 1 << 18
_MOST_ELEMENT = 1 << 26
_SPACE = " \t\r\n"
_FIX = "Fix it, or download the file again."


class Element(NamedTuple):
    """One element of an array.

    Attributes:
        key: key of the array in the object.
        value: the element.
        offset: byte offset of the element in the file.
    """

    key: str
    value: Any
    offset: int


def array_elements(
    file: BinaryIO, path: str, keys: Collection[str], piece_bytes: int = PIECE_BYTES
) -> Iterator[Element]:
    """Yield the elements of the arrays of a JSON object, in the order of the file; other values are parsed and ignored.

    Args:
        file: the file, read from its start to its end.
        path: its path, for messages.
        keys: keys of the arrays.
        piece_bytes: bytes of a read.

    Raises:
        SourceError: the file is not a JSON object, is cut, has something after its end, or a value of `keys` is not an array;
            names the byte.
    """
    text = _Text(file, path, piece_bytes)
    text.take("{", "a JSON object")
    if text.skips("}"):
        text.end()
        return
    while True:
        key = text.value()
        if not isinstance(key, str):
            raise text.error(f"not JSON: a {type(key).__name__} in place of a key")
        text.take(":", "a colon")
        if key not in keys:
            text.value()
        elif text.peek("an array") != "[":
            raise text.error(f"{key!r} is not an array")
        else:
            yield from _iterate_elements(text, key)
        if not text.skips(","):
            break
    text.take("}", "a comma or a closing brace")
    text.end()


def _iterate_elements(text: _Text, key: str) -> Iterator[Element]:
    """Yield the elements of an array at the current place."""
    text.take("[", "an array")
    if text.skips("]"):
        return
    while True:
        text.peek("an element")
        offset = text.offset
        yield Element(key, text.value(), offset)
        if not text.skips(","):
            break
    text.take("]", "a comma or a closing bracket")


class _Text:
    """The text of a file, with a window of it in memory."""

    def __init__(self, file: BinaryIO, path: str, piece_bytes: int) -> None:
        self._file = file
        self._piece_bytes = piece_bytes
        self._path = path
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._parse = json.JSONDecoder().raw_decode
        self._text = ""
        self._place = 0
        self._is_at_end = False
        # A character of the window, and its byte offset in the file.
        self._mark = self._mark_offset = 0
        self._read_bytes = 0

    @property
    def offset(self) -> int:
        """Byte offset of the place in the file."""
        self._mark_offset += _count_bytes(self._text[self._mark : self._place])
        self._mark = self._place
        return self._mark_offset

    def error(self, reason: str, after: int = 0) -> SourceError:
        """Return the error of the text that is some characters after the place."""
        error_offset = self.offset + _count_bytes(self._text[self._place : self._place + after])
        return SourceError(f"{self._path} at byte {error_offset}: {reason}. {_FIX}")

    def peek(self, expected: str) -> str:
        """Return the next character that is not a space, without taking it; SourceError at the end of the file."""
        while True:
            text = self._text
            while self._place < len(text):
                if text[self._place] not in _SPACE:
                    return text[self._place]
                self._place += 1
            if not self._read_more():
                raise self.error(f"the JSON is cut: the file ends before {expected}")

    def skips(self, character: str) -> bool:
        """Take the next character that is not a space if it is the given one, and return whether it is."""
        is_next = self.peek(repr(character)) == character
        self._place += is_next
        return is_next

    def take(self, character: str, expected: str) -> None:
        """Take the next character that is not a space; SourceError if it is not the expected one."""
        if not self.skips(character):
            raise self.error(f"not JSON as expected: {self._text[self._place]!r} in place of {expected}")

    def end(self) -> None:
        """Check that the file has nothing more than space."""
        while True:
            self._place += len(self._text[self._place :]) - len(self._text[self._place :].lstrip(_SPACE))
            if self._place < len(self._text):
                raise self.error("there is more after the end of the JSON object")
            if not self._read_more():
                return

    def value(self) -> Any:
        """Take the next JSON value."""
        self.peek("a value")
        while True:
            try:
                value, end = self._parse(self._text, self._place)
            except RecursionError:
                raise self.error("JSON that is nested too deep") from None
            except ValueError as error:
                # Numbers with thousands of digits raise another ValueError than JSONDecodeError.
                after = getattr(error, "pos", self._place) - self._place
                if len(self._text) - self._place > _MOST_ELEMENT or not self._read_more():
                    raise self.error(f"not JSON, or cut: {error}", after) from None
                continue
            # A number may go on after the window, or at its end: `1` of `1.5`.
            is_whole = end < len(self._text) and not (isinstance(value, int | float) and self._text[end] in ".eE")
            if is_whole or len(self._text) - self._place > _MOST_ELEMENT or not self._read_more():
                self._place = end
                return value

    def _read_more(self) -> bool:
        """Read more text into the window, and drop the consumed part; return whether there was more."""
        if self._is_at_end:
            return False
        # At least doubled, so that an element that is parsed again and again takes linear time.
        piece = self._file.read(max(self._piece_bytes, len(self._text) - self._place))
        if not self._read_bytes and piece.startswith(UTF16_BOMS):
            raise SourceError(f"{self._path}: it is UTF-16. Save it as UTF-8.")
        is_first = not self._read_bytes
        self._read_bytes += len(piece)
        self._is_at_end = not piece
        try:
            more = self._decode(piece, self._is_at_end)
        except UnicodeDecodeError as error:
            error_offset = self._read_bytes - len(error.object) + error.start
            raise SourceError(f"{self._path} at byte {error_offset}: it is not UTF-8. {_FIX}") from None
        self._mark_offset = self.offset + (
            len(codecs.BOM_UTF8) if is_first and piece.startswith(codecs.BOM_UTF8) else 0
        )
        self._text, self._place, self._mark = self._text[self._place :] + more, 0, 0
        return not self._is_at_end or bool(more)


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
