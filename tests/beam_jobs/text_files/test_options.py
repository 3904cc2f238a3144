"""What options are rejected, and what the manifest gets of them."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from beam_jobs.text_files.fields import TextField
from beam_jobs.text_files.options import TextOptions
from tpudata.errors import UsageError
from tpudata.tokenizers import TokenizerSpec

BYTES = TokenizerSpec("bytes")
TWO = (TextField("text"), TextField("label", "int"))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"form": "line"}, "did you mean lines"),
        ({"fields": (TextField("a"), TextField("a", "int"))}, "one of a, a appears twice"),
        ({"fields": (TextField("a", "int"),)}, "none of a is text"),
        ({"form": "lines", "fields": TWO}, "documents of --form lines have no fields"),
        ({"document_bytes": 0}, "--document-bytes: out of range"),
        ({"long_documents": "drop"}, "expected split, cut, reject"),
        ({"pack": True, "tokenizer": BYTES}, "--pack requires --sequence-length"),
        ({"sequence_length": 8}, "requires --tokenizer"),
        (
            {"sequence_length": 2**20 + 1, "tokenizer": BYTES},
            r"out of range \(got 1,048,577, expected 1 to 1,048,576\)",
        ),
        (
            {"fields": (TextField("text"), TextField("input_ids", "int")), "tokenizer": BYTES},
            "input_ids is the name of the ids of text",
        ),
        (
            {"fields": (TextField("a"), TextField("b"), TextField("b_ids", "str")), "tokenizer": BYTES},
            "b_ids is the name of the ids of b",
        ),
        ({"sequence_length": 0, "tokenizer": BYTES}, "expected 1 to"),
        ({"sequence_length": 8, "tokenizer": BYTES, "fields": TWO}, "exactly one text field"),
    ],
)
def test_rejects_options_that_do_not_fit(said: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TextOptions(**said)


def test_parses_fields_with_types_and_defaults() -> None:
    assert TextField.parse("label:int") == TextField("label", "int")
    assert TextField.parse("a:b") == TextField("a:b")
    assert TextField.parse("a:b:str") == TextField("a:b", "str")
    assert TextField.parse("id:int=0") == TextField("id", "int", 0)
    assert TextField.parse("a=b:str=c:d") == TextField("a=b", "str", "c:d")
    assert TextField.parse("a:b=c") == TextField("a:b=c")
    with pytest.raises(UsageError, match=r"--field id:int=x: 'x' is not a whole number that fits int64"):
        TextField.parse("id:int=x")
    with pytest.raises(UsageError, match="no name"):
        TextField.parse("")
    with pytest.raises(UsageError, match="must be UTF-8"):
        # What Python makes of an argument in another encoding.
        TextField.parse(os.fsdecode(b"caf\xe9"))
    # Without a tokenizer the name is free.
    assert TextOptions(fields=(TextField("text"), TextField("input_ids", "int"))).text_fields == ("text",)
    with pytest.raises(UsageError, match="expected text, str, int, float"):
        TextField("a", "bool")


def test_what_decides_is_json_and_has_no_path() -> None:
    options = TextOptions(tokenizer=TokenizerSpec("hf", "/somewhere/tokenizer.json"), sequence_length=8, pack=True)
    text = json.dumps(options.deciding())
    assert "somewhere" not in text
    assert json.loads(text)["fields"] == {"text": "text"}
    assert json.loads(text)["tokenizer"] == "hf"
