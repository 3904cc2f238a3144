"""Sentences of CoNLL between blank lines, with a word and its tags on each line.

`conll`, as in CoNLL-2003: the columns of a word are separated by tabs, or by blanks in a line without tabs; `-DOCSTART-` is
skipped. `conllu`, as in Universal Dependencies (https://universaldependencies.org/format.html): the columns are separated by tabs;
lines that begin with `#` are comments, and lines of several words (`3-4`) and of empty nodes (`5.1`) are omitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from beam_jobs.text_files.spans.lines import Span
from tpudata.console.tables import count_text

_DOCUMENT_START = b"-DOCSTART-"
# The id of a line of CoNLL-U that is not one word: a range of words, or an empty node.
_RANGE_OR_EMPTY_NODE = re.compile(r"\d+[-.]\d+")


def keep_sentences(paragraphs: Iterable[Span]) -> Iterator[Span]:
    """Yield the paragraphs of conll, except for lines `-DOCSTART-` that stand alone."""
    for span in paragraphs:
        if not span.data.startswith(_DOCUMENT_START) or b"\n" in span.data:
            yield span


def drop_comments(paragraphs: Iterable[Span]) -> Iterator[Span]:
    """Yield the paragraphs of conllu, except for paragraphs of only comments; `split_sentence` skips comments in the others."""
    for span in paragraphs:
        # A paragraph without data is too large; it is yielded, so that it is rejected later.
        if not span.data or not all(line.startswith(b"#") for line in span.data.split(b"\n")):
            yield span


def split_sentence(text: str, *, is_conllu: bool) -> dict[str, list[str]]:
    """Return the columns of a sentence by their numbers as strings, from "0" on: the entries of all words.

    Raises:
        ValueError: a word differs from the first one in its number of columns, or there is no word.
    """
    lines = [line.rstrip("\r") for line in text.split("\n")]
    if is_conllu:
        rows = [line.split("\t") for line in lines if not line.startswith("#")]
        # Skip lines of several words (1-2), and of words that the text omits (1.1).
        rows = [row for row in rows if not _RANGE_OR_EMPTY_NODE.fullmatch(row[0])]
    else:
        rows = [line.split("\t") if "\t" in line else line.split() for line in lines]
    if not rows:
        raise ValueError("a sentence without words")
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"word {number} of the sentence has {count_text(len(row), 'column')} (expected {len(rows[0])}, as the first):"
                f" {' '.join(row)[:80]!r}"
            )
    return {str(number): list(column) for number, column in enumerate(zip(*rows, strict=True))}
