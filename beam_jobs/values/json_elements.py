"""Elements of the arrays in a JSON object, such as `{"images": [...], "annotations": [...]}`, in a file of any size.

Memory holds one element, not the file. Python's parser parses each element where it begins in the text; if the text ends too early,
more is read, and the element is parsed again. ijson with its C backend takes 1.5 times as long for one array, and reads the file
once for each.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, NamedTuple

from beam_jobs.file_kinds import UTF16_BOMS
from tpudata.errors import SourceError
from tpudata.json_values import explain_json_error

PIECE_BYTES = 1 << 18
# Characters after which an element that cannot be parsed is not extended any more.
_MAX_ELEMENT_CHARACTERS = 1 << 26
_SPACE = " \t\r\n"
_FIX = "Fix it, or download the file again."


class Element(NamedTuple):
    """One element of an array.

    Attributes:
        key: key of the array in the object.
        value: the parsed element.
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
        file: the open file, which is read from its start to its end.
        path: path of the file, for messages.
        keys: keys of the arrays.
        piece_bytes: minimum number of bytes that a read requests.

    Raises:
        SourceError: the file is not a JSON object in UTF-8, is truncated, has more after its end, or the value of one of `keys` is
            not an array; the message names the byte, except for UTF-16.
    """
    text = _Text(file, path, piece_bytes)
    text.expect("{", expected="a JSON object")
    if text.take_if_next("}"):
        text.expect_end()
        return
    while True:
        key = text.parse_value()
        if not isinstance(key, str):
            raise text.make_syntax_error(f"not JSON: a {type(key).__name__} in place of a key")
        text.expect(":", expected="a colon")
        if key not in keys:
            text.parse_value()
        elif text.peek(expected="an array") != "[":
            raise text.make_syntax_error(f"{key!r} is not an array")
        else:
            yield from _iterate_elements(text, key)
        if not text.take_if_next(","):
            break
    text.expect("}", expected="a comma or a closing brace")
    text.expect_end()


def _iterate_elements(text: _Text, key: str) -> Iterator[Element]:
    """Yield the elements of the array at the current position."""
    text.expect("[", expected="an array")
    if text.take_if_next("]"):
        return
    while True:
        text.peek(expected="an element")
        offset = text.offset
        yield Element(key, text.parse_value(), offset)
        if not text.take_if_next(","):
            break
    text.expect("]", expected="a comma or a closing bracket")


class _Text:
    """The text of a file from a position on, with a window of it in memory."""

    def __init__(self, file: BinaryIO, path: str, piece_bytes: int) -> None:
        self._file = file
        self._piece_bytes = piece_bytes
        self._path = path
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._parse = json.JSONDecoder().raw_decode
        self._text = ""
        self._position = 0
        self._is_at_end = False
        # A character whose byte offset in the file is known: its index in the window, and this offset.
        self._mark = self._mark_offset = 0
        self._read_byte_count = 0

    @property
    def offset(self) -> int:
        """Byte offset of the position in the file."""
        # Counted from the mark on, so that each character is counted once.
        self._mark_offset += _count_bytes(self._text[self._mark : self._position])
        self._mark = self._position
        return self._mark_offset

    def make_syntax_error(self, reason: str, characters_ahead: int = 0) -> SourceError:
        """Return an error at the byte offset of the character `characters_ahead` characters after the position."""
        error_offset = self.offset + _count_bytes(self._text[self._position : self._position + characters_ahead])
        return SourceError(f"{self._path} at byte {error_offset}: {reason}. {_FIX}")

    def peek(self, expected: str) -> str:
        """Return the next character that is not whitespace, without taking it.

        Raises:
            SourceError: the file ends; the message contains `expected`, the thing that should follow.
        """
        while True:
            text = self._text
            while self._position < len(text):
                if text[self._position] not in _SPACE:
                    return text[self._position]
                self._position += 1
            if not self._read_more():
                raise self.make_syntax_error(f"the JSON is cut: the file ends before {expected}")

    def take_if_next(self, character: str) -> bool:
        """Take the next character that is not whitespace if it is `character`, and return whether it was.

        Raises:
            SourceError: the file ends.
        """
        is_next = self.peek(expected=repr(character)) == character
        if is_next:
            self._position += 1
        return is_next

    def expect(self, character: str, expected: str) -> None:
        """Take the next character that is not whitespace; SourceError, which names `expected`, if it is not `character`."""
        if not self.take_if_next(character):
            raise self.make_syntax_error(f"not JSON as expected: {self._text[self._position]!r} in place of {expected}")

    def expect_end(self) -> None:
        """Raise SourceError if anything but whitespace follows in the file."""
        while True:
            following = self._text[self._position :].lstrip(_SPACE)
            self._position = len(self._text) - len(following)
            if following:
                raise self.make_syntax_error("there is more after the end of the JSON object")
            if not self._read_more():
                return

    def parse_value(self) -> Any:
        """Take the next JSON value, and return it; SourceError if it is not JSON, or truncated."""
        self.peek(expected="a value")
        while True:
            try:
                value, end = self._parse(self._text, self._position)
            except RecursionError:
                raise self.make_syntax_error("JSON that is nested too deep") from None
            except ValueError as error:
                # For integers with thousands of digits, this is a ValueError without `pos`, not a JSONDecodeError.
                characters_ahead = getattr(error, "pos", self._position) - self._position
                if len(self._text) - self._position > _MAX_ELEMENT_CHARACTERS or not self._read_more():
                    raise self.make_syntax_error(
                        f"not JSON, or cut: {explain_json_error(error)}", characters_ahead
                    ) from None
                continue
            # A number may continue after the window: `1` may be the beginning of `12` or `1.5`.
            is_whole_value = end < len(self._text) and not (isinstance(value, int | float) and self._text[end] in ".eE")
            if is_whole_value or len(self._text) - self._position > _MAX_ELEMENT_CHARACTERS or not self._read_more():
                self._position = end
                return value

    def _read_more(self) -> bool:
        """Read more text into the window, and drop the part before the position; return False at the end of the file."""
        if self._is_at_end:
            return False
        # The window at least doubles, so that parsing an element again and again takes linear time.
        piece = self._file.read(max(self._piece_bytes, len(self._text) - self._position))
        is_first_piece = not self._read_byte_count
        if is_first_piece and piece.startswith(UTF16_BOMS):
            raise SourceError(f"{self._path}: it is UTF-16. Save it as UTF-8.")
        self._read_byte_count += len(piece)
        self._is_at_end = not piece
        try:
            more = self._decode(piece, self._is_at_end)
        except UnicodeDecodeError as error:
            # `error.object` has the last bytes that were read: those that the decoder kept from earlier pieces, and this piece.
            error_offset = self._read_byte_count - len(error.object) + error.start
            raise SourceError(f"{self._path} at byte {error_offset}: it is not UTF-8. {_FIX}") from None
        # The decoder drops a byte order mark, which is part of the file.
        bom_size = len(codecs.BOM_UTF8) if is_first_piece and piece.startswith(codecs.BOM_UTF8) else 0
        self._mark_offset = self.offset + bom_size
        self._text, self._position, self._mark = self._text[self._position :] + more, 0, 0
        return not self._is_at_end


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
