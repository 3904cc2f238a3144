"""Wraps the prose of Markdown files at the width that scripts/lint checks, without a change of their content or rendering.

    .venv/bin/python scripts/_wrap.py docs/feed/*.md

Code, tables, headings, images, HTML and directives are kept as they are.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

WIDTH = 100
# Lines that are not wrapped: code, headings, tables, HTML, images and directives.
_KEPT = re.compile(r"(    |#|\s*\||<|!\[|:::)")
_BULLET = re.compile(r"(\s*)([-*] |\d+\. )?")
_CODE = re.compile(r"`[^`]*`")
# Space before text that would begin a list or a heading at the start of a line, such as a minus.
_MARKER = re.compile(r" (?=([-+*]|#+|\d+[.)])( |$))")
# Replacement for spaces at which no line may end, which hides them from textwrap.
_HIDDEN, _SHORT = "\0", 70


def main(paths: Sequence[str]) -> int:
    """Wrap the files; return 0."""
    for path in map(Path, paths):
        text = path.read_text(encoding="utf-8")
        path.write_text(wrapped(text), encoding="utf-8")
    return 0


def wrapped(text: str) -> str:
    """Return a page with its prose wrapped."""
    return "\n".join(_wrapped(text.split("\n")))


def _wrapped(lines: list[str]) -> Iterator[str]:
    number, fenced = 0, False
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.startswith("```"):
            fenced = not fenced
        if fenced or not line.strip() or line.startswith("```") or _KEPT.match(line):
            yield line
            continue
        start = _BULLET.match(line)
        assert start is not None
        indent, bullet = start[1], start[2] or ""
        rest = indent + " " * len(bullet)
        words = line[start.end() :].split(" ")
        while number < len(lines) and _continues(lines[number], rest if bullet else ""):
            words += lines[number].strip().split(" ")
            number += 1
        yield _fill(" ".join(filter(None, words)), indent + bullet, rest)


def _continues(line: str, indent: str) -> bool:
    """Return whether a line continues the paragraph before it."""
    ends = not line.strip() or line.startswith("```") or re.match(r"\s*([-*] |\d+\. |\||#)", line)
    return not ends and line.startswith(indent)


def _fill(text: str, first: str, rest: str) -> str:
    text = _CODE.sub(lambda code: code[0].replace(" ", _HIDDEN) if len(code[0]) < _SHORT else code[0], text)
    text = _MARKER.sub(_HIDDEN, text)
    filled = textwrap.fill(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace(_HIDDEN, " ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
