"""JSON that is checked by a schema: messages name the field, and no input overflows the stack."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tpudata.checked_json import (
    CRC32C,
    FLAG,
    TEXT,
    WHOLE,
    Anything,
    Entries,
    FixedList,
    Items,
    Keys,
    Plain,
    Schema,
    parse_json,
)

SCHEMA = Keys(
    {"name": TEXT, "sizes": Items(WHOLE)},
    {
        "crc": CRC32C,
        "more": Keys({"on": FLAG}, allows_unknown_keys=True),
        "by": Entries(FixedList((WHOLE, TEXT))),
        "last": Keys({}, is_nullable=True),
    },
)
GOOD = {
    "name": "x",
    "sizes": [0, 2**63 - 1],
    "crc": "0123abcd",
    "more": {"on": True, "off": 1},
    "by": {"a": [1, "b"]},
    "last": None,
}


def test_accepts_values_that_match_the_schema() -> None:
    SCHEMA.check("", GOOD)
    Anything().check("", GOOD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 1}, "name is 1, not a string"),
        ({"sizes": 1}, "sizes is 1, not a list"),
        ({"sizes": [True]}, "sizes[0] is True, not a whole number"),
        ({"sizes": [-1]}, "sizes[0] is -1, not a number from 0 to 2**63 - 1"),
        ({"sizes": [2**63]}, f"sizes[0] is {2**63}, not a number from 0 to 2**63 - 1"),
        ({"sizes": [1.0]}, "sizes[0] is 1.0, not a whole number"),
        ({"crc": "0123ABCD"}, "crc is '0123ABCD', not eight lower-case hexadecimal digits"),
        ({"more": {}}, "more.on is missing"),
        ({"by": {"a": [1]}}, "by['a'] is [1], not a list of 2 values"),
        ({"by": {"a": [1, 2]}}, "by['a'][1] is 2, not a string"),
        ({"last": 1}, "last is 1, not an object or null"),
        ({"other": 1}, "the file has the unknown key 'other'"),
    ],
)
def test_names_the_field_that_breaks_the_schema(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        SCHEMA.check("", {**GOOD, **change})


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_rejects_a_file_without_an_object(value: Any) -> None:
    with pytest.raises(ValueError, match="the file is"):
        SCHEMA.check("", value)


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        (Plain((float,)), float("inf"), "not a finite number"),
        (Anything(), {"a": [float("inf")]}, "not a finite one"),
        (Anything(), parse_json("[" * 40 + "]" * 40), "nested too deeply"),
        (WHOLE, 10**5000, "not a number from"),
    ],
    ids=["infinite", "infinite inside", "deep", "long"],
)
def test_rejects_values_that_json_cannot_print(schema: Schema, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schema.check("x", value)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", b"NaN", b"[-Infinity]", b"[" * 100_000, b"1" * 5000, "[" * 10**6],
    ids=["empty", "cut", "binary", "NaN", "infinite", "deep", "long", "deep text"],
)
def test_bad_json_raises_only_value_error(data: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(data)
