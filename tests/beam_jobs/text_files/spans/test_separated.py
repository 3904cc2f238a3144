"""Documents between separators.

Tests make ranges and chunks small, because a conversion divides only files of many MB.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from beam_jobs.text_files.spans.lines import Span
from beam_jobs.text_files.spans.separated import split_documents, split_documents_in_range

END = "<|endoftext|>"
LARGE = 1 << 20


def split_plainly(data: bytes, separator: str) -> list[bytes]:
    documents = (part.strip(b"\r\n") for part in data.split(separator.encode()))
    return [document for document in documents if document.strip()]


def in_chunks(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 3, 13, 1000])
def test_finds_the_documents_of_a_plain_split_in_any_chunks(size: int) -> None:
    data = f"{END}\none\n{END}two < |{END}{END}\n \n{END}\r\nthree\n\nmore\r\n".encode()
    found = list(split_documents(in_chunks(data, size), END, LARGE))
    assert [span.data for span in found] == split_plainly(data, END) == [b"one", b"two < |", b"three\n\nmore"]
    assert all(data[span.offset : span.offset + span.size] == span.data for span in found)


@pytest.mark.parametrize("separator", [END, "\n---\n", "--", "a"])
def test_finds_each_document_once_in_any_ranges(tmp_path: Path, separator: str) -> None:
    choose = random.Random(5)
    parts = [separator, "-", "\n", "a", "b c", "<|", separator[:-1]]
    for _ in range(30):
        data = "".join(choose.choices(parts, k=choose.randint(0, 12))).encode()
        (tmp_path / "a.txt").write_bytes(data)
        whole = list(split_documents([data], separator, LARGE))
        cuts = sorted({0, len(data), *choose.choices(range(len(data) + 1), k=3)})
        found: list[Span] = []
        for start, stop in itertools.pairwise(cuts):
            found += split_documents_in_range(str(tmp_path / "a.txt"), start, stop, separator, LARGE)
        assert found == whole


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_document_that_is_too_long_has_no_data(size: int) -> None:
    data = f"short{END}{'x' * 50}{END}end".encode()
    found = list(split_documents(in_chunks(data, size), END, 10))
    assert found == [Span(0, 5, b"short"), Span(18, 50, b""), Span(81, 3, b"end")]


def test_skips_a_byte_order_mark() -> None:
    assert list(split_documents([b"\xef\xbb\xbfone--two"], "--", LARGE)) == [Span(3, 3, b"one"), Span(8, 3, b"two")]
