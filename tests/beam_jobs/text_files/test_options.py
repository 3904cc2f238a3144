"""Options of text: which are rejected, and what the manifest stores of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import tpudata
from tests.beam_jobs.outcomes import convert_texts
from tpudata.errors import UsageError
from tpudata.tokenizers import CharTokenizer

TWO = ["text", "label:int"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "line"}, "did you mean lines"),
        ({"fields": ["a", "a:int"]}, "one of a, a appears twice"),
        ({"fields": ["a:int"]}, "none of a is text"),
        ({"form": "lines", "fields": TWO}, "documents of form=lines have no fields"),
        ({"document_bytes": 0}, "expected 1 byte or more"),
        ({"long_documents": "drop"}, "expected split, cut"),
        ({"pack": True, "tokenizer": "bytes"}, "pack=True requires sequence_length"),
        ({"sequence_length": 8}, "requires tokenizer"),
        (
            {"sequence_length": 2**20 + 1, "tokenizer": "bytes"},
            "out of range (got 1,048,577, expected 1 to 1,048,576)",
        ),
        ({"fields": ["text", "input_ids:int"], "tokenizer": "bytes"}, "input_ids is the name of the ids of text"),
        ({"fields": ["a", "b", "b_ids:str"], "tokenizer": "bytes"}, "b_ids is the name of the ids of b"),
        ({"sequence_length": 0, "tokenizer": "bytes"}, "1 or more"),
        ({"sequence_length": 8, "tokenizer": "bytes", "fields": TWO}, "exactly one text field"),
        ({"fields": ["id:int=x"]}, "fields id:int=x: 'x' is not a whole number that fits int64"),
        ({"fields": [""]}, "no name"),
        # What Python makes of an argument in another encoding.
        ({"fields": [os.fsdecode(b"caf\xe9")]}, "must be UTF-8"),
    ],
)
def test_rejects_invalid_and_conflicting_options(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=re.escape(message)):
        tpudata.convert_text(tmp_path / "in.jsonl", tmp_path / "out", **options)


def test_fields_accept_any_names_types_and_defaults(tmp_path: Path) -> None:
    fields = ["text", "a:b", "a:b:str=c:d", "a=b:str=c:d", "id:int=0", "label:int"]
    data = b'{"text": "t", "a:b": "x", "label": 3}\n{"text": "u", "a:b": "y", "a=b": "z", "id": 7, "label": 4}\n'
    texts = convert_texts(tmp_path, {"a.jsonl": data}, fields=[*fields[:2], *fields[3:]])
    assert [texts.of("a.jsonl", name) for name in ("a:b", "a=b", "id", "label")] == [
        ["x", "y"],
        ["c:d", "z"],
        [0, 7],
        [3, 4],
    ]
    # Without a tokenizer the name is free.
    ids = convert_texts(
        tmp_path / "ids", {"a.jsonl": b'{"text": "", "input_ids": 5}'}, fields=["text", "input_ids:int"]
    )
    assert ids.of("a.jsonl", "input_ids") == [5]


def test_manifest_stores_no_path_of_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "somewhere").mkdir()
    (tmp_path / "somewhere" / "vocab.json").write_bytes(CharTokenizer("ab").file_bytes)
    (tmp_path / "in.txt").write_text("ab\n")
    tokenizer = f"chars:{tmp_path}/somewhere/vocab.json"
    manifest = tpudata.convert_text(
        tmp_path / "in.txt", tmp_path / "out", tokenizer=tokenizer, sequence_length=8, pack=True
    )
    assert "somewhere" not in repr(manifest.options)
    assert (manifest.options["fields"], manifest.options["tokenizer"]["name"]) == ({"text": "text"}, "chars")
