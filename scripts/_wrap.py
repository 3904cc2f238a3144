"""Wraps the prose of Markdown files at the width that scripts/lint checks, without a change of their content or rendering.

    .venv/bin/python scripts/_wrap.py docs/feed/*.md

Code, tables, headings, images, HTML and directives are kept unchanged.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

WIDTH = 100
# Beginnings of lines that are not wrapped: code, headings, tables, HTML, images and directives.
_UNWRAPPED = re.compile(r"(    |#|\s*\||<|!\[|:::)")
_BULLET = re.compile(r"(\s*)([-*] |\d+\. )?")
_CODE = re.compile(r"`[^`]*`")
# Space before text that would begin a list or a heading at the start of a line, such as a minus.
_MARKER = re.compile(r" (?=([-+*]|#+|\d+[.)])( |$))")
# Replacement for spaces at which no line may end, which hides them from textwrap.
_HIDDEN_SPACE = "\0"
# Characters from which on code is wrapped.
_LONG_CODE = 70


def main(paths: Sequence[str]) -> int:
    """Wrap the files; return 0."""
    for path in map(Path, paths):
        text = path.read_text(encoding="utf-8")
        path.write_text(wrap(text), encoding="utf-8")
    return 0


def wrap(text: str) -> str:
    """Return a page with its prose wrapped."""
    return "\n".join(_wrap_lines(text.split("\n")))


def _wrap_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a page, and each of its paragraphs and entries of lists as one wrapped string."""
    index, is_code = 0, False
    while index < len(lines):
        line = lines[index]
        index += 1
        if line.startswith("```"):
            is_code = not is_code
        if is_code or not line.strip() or line.startswith("```") or _UNWRAPPED.match(line):
            yield line
            continue
        # Matches every line: the indent and the bullet may be empty.
        match = _BULLET.match(line)
        assert match is not None
        indent, bullet = match[1], match[2] or ""
        hanging_indent = indent + " " * len(bullet)
        words = line[match.end() :].split(" ")
        while index < len(lines) and _continues_paragraph(lines[index], hanging_indent if bullet else ""):
            words += lines[index].strip().split(" ")
            index += 1
        yield _fill(" ".join(filter(None, words)), indent + bullet, hanging_indent)


def _continues_paragraph(line: str, indent: str) -> bool:
    """Return whether a line continues the paragraph before it, whose further lines begin with an indent."""
    begins_block = not line.strip() or line.startswith("```") or re.match(r"\s*([-*] |\d+\. |\||#)", line)
    return not begins_block and line.startswith(indent)


def _fill(text: str, first_indent: str, hanging_indent: str) -> str:
    """Return a paragraph in lines that end neither inside of short code nor before a word that would begin a list."""

    def hide_spaces(code: re.Match[str]) -> str:
        return code[0].replace(" ", _HIDDEN_SPACE) if len(code[0]) < _LONG_CODE else code[0]

    text = _MARKER.sub(_HIDDEN_SPACE, _CODE.sub(hide_spaces, text))
    filled = textwrap.fill(
        text,
        WIDTH,
        initial_indent=first_indent,
        subsequent_indent=hanging_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace(_HIDDEN_SPACE, " ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
