"""Checks for words that docs, docstrings, comments and messages do not use, and for the width of docs: a part of scripts/lint.

The words are those of the glossary's column "Not" and of the table below, each with its replacement. The check reads the prose of
Markdown, without code, and the comments and string literals of Python.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 100
CHECKED = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs",
    "beam_jobs",
    "tpudata",
    "scripts",
    "tests",
    "setup.py",
)
# Files that name the words, or that are made from the code.
EXEMPT = ("docs/concepts/glossary.md", "docs/reference/errors.md", "scripts/_words.py", "tests/test_words.py")
# What to write instead of words, by their patterns, which match at word boundaries and in any case.
WORDS = {
    r"beside": "next to",
    r"mend(s|ed|ing)?": "fix, hint",
    # Except in the words of operating systems.
    r"(?<!Connection )refus(e|es|ed|ing|al|als)": "reject",
    r"passed over": "skipped, ignored",
    r"of (its|their|one's|his) own": "separate",
    r"(leave|leaves|left|leaving)( \w+)? out": "omit, skip",
    r"(is|are|was|were|be|being) told": "report",
    r"say --[a-z][a-z-]*": "use --x, pass --x",
    r"where there (is|are) (no|none|any|one)": "if there is",
    r"for lack of": "without",
}


def main(names: Sequence[str]) -> int:
    """Print a line for each finding in files and folders, by default all rooms; return 1 if there are any."""
    replacements = {
        re.compile(rf"\b(?:{word})\b", re.IGNORECASE): use for word, use in (WORDS | read_glossary_words()).items()
    }
    findings = [finding for path in _list_files(names or CHECKED) for finding in _check_file(path, replacements)]
    print(*findings, sep="\n", end="\n" if findings else "")
    return 1 if findings else 0


def read_glossary_words() -> dict[str, str]:
    """Return the patterns of the words that the glossary rules out, and the terms to use instead."""
    words = {}
    for line in (ROOT / "docs" / "concepts" / "glossary.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        # Only rows of the table have 3 cells: the term, words to avoid, and the meaning.
        if len(cells) == 3 and cells[1] not in ("", "Not") and not cells[1].startswith("---"):
            words.update({re.escape(word.strip()): cells[0] for word in cells[1].split(",")})
    return words


def _list_files(names: Sequence[str]) -> Iterator[Path]:
    """Yield the pages and modules with these names, and all pages and modules in folders with these names, without exempt ones."""
    for name in names:
        path = ROOT / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            relative_path = file.relative_to(ROOT).as_posix()
            if file.suffix in (".md", ".py") and not relative_path.startswith(EXEMPT):
                yield file


def _check_file(path: Path, replacements: dict[re.Pattern[str], str]) -> Iterator[str]:
    """Yield a line for each word to replace, and for each line of a page that is too long.

    Args:
        path: a page, or a module of Python.
        replacements: what to write instead of words, by their patterns.
    """
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    is_page = path.suffix == ".md"
    for number, line in _list_prose(text) if is_page else _list_comments_and_strings(text):
        # Without code, and the names of arguments in docstrings.
        prose = re.sub(r"`[^`]*`|^ +\w+: ", "``", line)
        for pattern, use in replacements.items():
            for match in pattern.finditer(prose):
                yield f"{name}:{number}: {match[0]!r}: write {use}"
        # An entry of the changelog is one line, however long.
        if is_page and name != "CHANGELOG.md" and len(line) > WIDTH and _can_wrap(line):
            yield f"{name}:{number}: {len(line)} characters: wrap at {WIDTH}"


def _can_wrap(line: str) -> bool:
    """Return whether a line of a page can be wrapped: it has a space, and is not a row of a table or an image."""
    return " " in line and not line.lstrip().startswith(("|", "!["))


def _list_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page that are neither code nor a directive, with their numbers."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("    ", ":::")):
            yield number, line


def _list_comments_and_strings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of comments and string literals of a module, with their numbers."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
