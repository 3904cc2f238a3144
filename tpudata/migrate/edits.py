"""Edits of a file's text, at positions of its syntax tree."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
from collections.abc import Iterator

# The line ends of Python; a file may have several kinds.
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclasses.dataclass(frozen=True)
class _Edit:
    """Replacement of the bytes from `start` to `end`."""

    start: int
    end: int
    text: str


class EditedText:
    """A file's text, and the edits of it.

    Offsets count bytes, as the columns of a syntax tree do.

    Args:
        text: the text of the file.
    """

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        first_line_end = _LINE_END.search(self._text)
        self._newline = first_line_end[0].decode() if first_line_end else "\n"
        self._edits: list[_Edit] = []
        self._line_offsets = [0]
        for line in self._text.splitlines(keepends=True):
            self._line_offsets.append(self._line_offsets[-1] + len(line))

    @property
    def edit_count(self) -> int:
        """Number of edits, among them edits inside a range that another edit replaces."""
        return len(self._edits)

    def find_start(self, node: ast.AST) -> int:
        """Return the offset at which a node begins."""
        return self._line_offsets[getattr(node, "lineno", 1) - 1] + int(getattr(node, "col_offset", 0))

    def find_end(self, node: ast.AST) -> int:
        """Return the offset after a node."""
        return self._line_offsets[getattr(node, "end_lineno", 1) - 1] + int(getattr(node, "end_col_offset", 0))

    def replace(self, node: ast.AST, text: str) -> None:
        """Replace a node's text."""
        self.replace_range(self.find_start(node), self.find_end(node), text)

    def replace_range(self, start: int, end: int, text: str) -> None:
        """Replace the bytes from `start` to `end` with source code; its line ends become the line ends of the file."""
        self._edits.append(_Edit(start, end, text.replace("\r\n", "\n").replace("\n", self._newline)))

    def begins_line(self, node: ast.AST) -> bool:
        """Return whether only blanks are before a node in its line."""
        start = self.find_start(node)
        return not self._text[start - int(getattr(node, "col_offset", 0)) : start].strip()

    def ends_line(self, node: ast.AST) -> bool:
        """Return whether a line end follows a node directly."""
        return _LINE_END.match(self._text, self.find_end(node)) is not None

    def remove_line(self, node: ast.AST) -> None:
        """Remove a node that is alone in its lines, with the line end after it, if there is one."""
        line_end = _LINE_END.match(self._text, self.find_end(node))
        self.replace_range(self.find_start(node), line_end.end() if line_end else self.find_end(node), "")

    def find_edited_line(self, line: int) -> int:
        """Return the number, from 1, that line `line` of the original text has after the edits."""
        edits_above = [edit for edit in self._edits if edit.end <= self._line_offsets[line - 1]]
        removed_count = sum(_count_line_ends(self._text[edit.start : edit.end]) for edit in edits_above)
        added_count = sum(_count_line_ends(edit.text.encode()) for edit in edits_above)
        return line - removed_count + added_count

    @contextlib.contextmanager
    def isolate(self) -> Iterator[None]:
        """Set all edits aside for the context's body, and drop the edits that the body makes.

        Inside, `render` applies only the body's edits: the text that it returns can be part of a larger edit.
        """
        outer_edits, self._edits = self._edits, []
        try:
            yield
        finally:
            self._edits = outer_edits

    def render(self, start: int = 0, end: int | None = None) -> str:
        """Return the text between two offsets, by default all of it, with the edits applied. No edit may lie outside the range."""
        parts: list[bytes] = []
        position = start
        # Of edits with the same start, the longest comes first.
        for edit in sorted(self._edits, key=lambda edit: (edit.start, -edit.end)):
            if edit.start < position:
                continue  # The edit is inside a range that another edit replaces as a whole.
            parts += [self._text[position : edit.start], edit.text.encode()]
            position = edit.end
        return b"".join([*parts, self._text[position:end]]).decode()


def _count_line_ends(text: bytes) -> int:
    return len(_LINE_END.findall(text))
