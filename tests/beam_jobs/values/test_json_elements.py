"""Elements of arrays in a JSON object, for any pieces in which the file is read.

Tests make pieces small, because a conversion divides only annotation files of many MB.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.values.json_elements import array_elements
from tpudata.errors import SourceError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def elements(data: bytes, *keys: str) -> list[tuple[str, Any]]:
    return [(found.key, found.value) for found in array_elements(io.BytesIO(data), "a.json", keys)]


@given(
    content=st.dictionaries(st.sampled_from(["a", "b", "ä", ""]), st.lists(JSON, max_size=5)),
    other=JSON,
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 0, 3]),
    piece=st.integers(1, 30),
)
def test_finds_the_elements_that_the_json_module_finds(
    content: dict[str, Any], other: Any, ascii_only: bool, indent: int | None, piece: int
) -> None:
    try:
        text = json.dumps({"other": other, **content}, ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:
        return
    expected = [(key, value) for key, values in content.items() for value in values]
    found = list(array_elements(io.BytesIO(text), "a.json", content, piece))
    assert [(item.key, item.value) for item in found] == expected
    for item in found:
        value, _ = json.JSONDecoder().raw_decode(text[item.offset :].decode())
        assert value == item.value


@pytest.mark.parametrize(
    ("text", "byte", "reason"),
    [
        ("[1, 2]", 0, "'[' in place of a JSON object"),
        ('{"a": [1 2]}', 9, "'2' in place of a comma or a closing bracket"),
        ('{"a": [1,]}', 9, "Expecting value"),
        ('{"a": {"b": 1}}', 6, "'a' is not an array"),
        ('{"a" [1]}', 5, "'[' in place of a colon"),
        ('{"a": [1] "b": 2}', 10, "a comma or a closing brace"),
        ("{1: [1]}", 2, "a int in place of a key"),
        ('{"a": [nope]}', 7, "Expecting value"),
        ('{"a": ["ä", nope]}', 13, "Expecting value"),
        ('{"a": [1]} x', 11, "more after the end"),
        ('{"a": [' + "[" * 100_000 + "]" * 100_000 + "]}", 7, "nested too deep"),
        ('{"a": [' + "9" * 5_000 + "]}", 7, "digits"),
        ('{"a": [1', 8, "cut"),
        ("", 0, "cut"),
    ],
)
def test_errors_name_the_byte(text: str, byte: int, reason: str) -> None:
    with pytest.raises(SourceError) as caught:
        elements(text.encode(), "a")
    assert f"a.json at byte {byte}: " in str(caught.value)
    assert reason in str(caught.value)


def test_rejects_other_encodings() -> None:
    with pytest.raises(SourceError, match="UTF-16"):
        elements('{"a": []}'.encode("utf-16"), "a")
    with pytest.raises(SourceError, match=r"at byte 8: it is not UTF-8"):
        elements(b'{"a": ["\xc3\xff"]}'[:9] + b"\xff", "a")


def test_finds_no_elements_in_an_object_without_the_arrays() -> None:
    assert elements(b"{}", "a") == []
    assert elements(b'\xef\xbb\xbf {"b": [1], "a": []} ', "a") == []
