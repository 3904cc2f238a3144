"""The tokenizer's file: only names of such files are accepted from a manifest.

The rule for names is private: a conversion writes no others.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.format.manifest.test_manifest import make
from tpudata.format.tokenizer_file import TokenizerFile, is_tokenizer_name, tokenizer_files
from tpudata.tokenizers import chars, hugging_face, sentencepiece


def test_recognizes_only_names_of_tokenizer_files() -> None:
    assert all(map(is_tokenizer_name, (chars.FILE, hugging_face.FILE, sentencepiece.FILE, "tokenizer.txt")))
    names = (
        "",
        "labels.txt",
        "tokenizer",
        "tokenizer.",
        "tokenizer.a/b",
        "../tokenizer.txt",
        "tokenizer.txt.gz",
        "mytokenizer.txt",
        3,
    )
    assert not any(map(is_tokenizer_name, names))


@pytest.mark.parametrize("said", [None, "chars", {}, {"file": ""}, {"file": "../x"}, {"file": "labels.txt"}])
def test_ignores_options_that_name_no_tokenizer_file(said: Any) -> None:
    assert tokenizer_files(make(options={"tokenizer": said, "chat_template": said})) == ()
    assert tokenizer_files(make(options={})) == ()


def test_reads_name_and_hash_from_the_options() -> None:
    manifest = make(options={"tokenizer": {"file": "vocab.json", "sha256": "ab"}})
    assert tokenizer_files(manifest) == (TokenizerFile("vocab.json", "ab"),)
