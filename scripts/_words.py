"""Words that docs, docstrings, comments and messages do not use, and the width of docs: a part of scripts/lint.

The words are those of the glossary's column "Not" and of the table below, each with its replacement. Checked are the prose of
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
# These name the words, or are made from the code.
EXEMPT = ("docs/concepts/glossary.md", "docs/reference/errors.md", "scripts/_words.py", "tests/test_words.py")
# Pattern, at word boundaries and in any case: what to write instead.
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
    words = {re.compile(rf"\b(?:{word})\b", re.IGNORECASE): use for word, use in (WORDS | glossary_words()).items()}
    found = [line for path in _files(names or CHECKED) for line in _findings(path, words)]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


def glossary_words() -> dict[str, str]:
    """Return the words that the glossary rules out, as patterns, and what it has in their place."""
    words = {}
    for line in (ROOT / "docs" / "concepts" / "glossary.md").read_text(encoding="utf-8").splitlines():
        use, *rest = (cell.strip() for cell in line.strip("| ").split("|"))
        if len(rest) == 2 and rest[0] not in ("", "Not") and not rest[0].startswith("---"):
            words.update({re.escape(word.strip()): use for word in rest[0].split(",")})
    return words


def _files(names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        path = ROOT / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            below = file.relative_to(ROOT).as_posix()
            if file.suffix in (".md", ".py") and not below.startswith(EXEMPT):
                yield file


def _findings(path: Path, words: dict[re.Pattern[str], str]) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT).as_posix()
    is_page = path.suffix == ".md"
    for number, line in _prose(text) if is_page else _strings(text):
        for pattern, use in words.items():
            for match in pattern.finditer(re.sub(r"`[^`]*`|^ +\w+: ", "``", line)):
                yield f"{name}:{number}: {match[0]!r}: write {use}"
        # A line of a table, an image and a line of one word cannot be wrapped; neither can an entry of the changelog.
        if (
            is_page
            and len(line) > WIDTH
            and " " in line
            and not line.lstrip().startswith(("|", "!["))
            and name != "CHANGELOG.md"
        ):
            yield f"{name}:{number}: {len(line)} characters: wrap at {WIDTH}"


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page that are neither code nor a directive, with their numbers."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("    ", ":::")):
            yield number, line


def _strings(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of comments and string literals, with their numbers."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
