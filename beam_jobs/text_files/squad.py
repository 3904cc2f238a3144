"""Questions of SQuAD files as rows. A file is one JSON object of articles, which have paragraphs, which have questions.

The format is that of https://rajpurkar.github.io/SQuAD-explorer, versions 1.1 and 2.0. Memory holds one article.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from beam_jobs.compression.files import open_decompressed
from beam_jobs.text_files.spans.lines import Span
from beam_jobs.values.json_elements import array_elements
from tpudata.storage import storage_for

# The first bytes of a file: an object whose first key, or the one after the version, is the list of articles.
_BEGIN = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*(?:"version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*\[')
_ARTICLES = "data"
_JSON = json.JSONEncoder(ensure_ascii=False)


def is_squad(head: bytes) -> bool:
    """Return whether the first bytes of a file begin SQuAD's JSON."""
    return _BEGIN.match(head) is not None and b'"paragraphs"' in head


def read_questions(path: str, compression: str, max_bytes: int, reject: Callable[[int, str], None]) -> Iterator[Span]:
    """Yield the questions of a file, each as the JSON of a row, with its number as its offset.

    A row has `id`, `title` of the article, `context`, `question`, `answers` and `answer_starts` (characters of the context),
    `answer` (the first, or an empty string), and `is_impossible` (0 or 1).

    Args:
        path: path of the file.
        compression: compression of the file: `"gzip"`, `"bzip2"`, `"zstd"`, `"xz"` or an empty string.
        max_bytes: maximum number of bytes in a row; a longer one has no data.
        reject: called with the number and the fault of a question that is not valid. If it returns, the question is omitted.

    Raises:
        SourceError: the file is not SQuAD's JSON, or is truncated; the message names the byte.
        CorruptionError: the file is compressed and damaged.
    """
    number = 0
    with _open(path, compression) as file:
        for article in array_elements(file, path, (_ARTICLES,)):
            for row in _read_rows(article.value):
                if isinstance(row, str):
                    reject(number, f"{row} (article at byte {article.offset})")
                else:
                    data = _JSON.encode(row).encode("utf-8", "surrogatepass")
                    yield Span(number, len(data), data if len(data) <= max_bytes else b"")
                number += 1


@contextlib.contextmanager
def _open(path: str, compression: str) -> Iterator[BinaryIO]:
    with open_decompressed(path, compression) if compression else storage_for(path).open(path) as file:
        yield file


def _read_rows(article: Any) -> Iterator[dict[str, Any] | str]:
    """Yield the row of each question of an article, or the fault of a question, a paragraph or the article."""
    paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
    if not isinstance(paragraphs, list):
        yield "an article without 'paragraphs'"
        return
    for paragraph in paragraphs:
        questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
        if not isinstance(questions, list):
            yield "a paragraph without 'qas'"
            continue
        for question in questions:
            try:
                yield _make_row(article.get("title", ""), paragraph["context"], question)
            except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
                yield f"no question of SQuAD: {type(error).__name__} {error}"


def _make_row(title: str, context: str, question: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a question; if its structure is different, raise one of the errors that `_read_rows` catches."""
    answers = question.get("answers", [])
    is_impossible = question.get("is_impossible", False)
    if not isinstance(answers, list):
        raise TypeError(f"'answers' is not a list, but {answers!r:.100}")
    if is_impossible not in (True, False):
        raise ValueError(f"'is_impossible' is {is_impossible!r:.100}, not true or false")
    texts = [answer["text"] for answer in answers]
    return {
        "id": question["id"],
        "title": title,
        "context": context,
        "question": question["question"],
        "answers": texts,
        "answer_starts": [answer["answer_start"] for answer in answers],
        "answer": texts[0] if texts else "",
        "is_impossible": int(is_impossible),
    }
