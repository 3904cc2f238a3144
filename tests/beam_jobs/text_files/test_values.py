"""The values of a document's fields."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.text_files.document_form import RowForm
from beam_jobs.text_files.fields import TextField
from beam_jobs.text_files.options import TextOptions
from beam_jobs.text_files.values import DocumentError, document_values

JSON = RowForm("json")
FIELDS = TextOptions(
    fields=(TextField("text"), TextField("n", "int"), TextField("x", "float"), TextField("name", "str"))
)
ONE = TextOptions()
ID = 1234567890123


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, width=32),
)
def test_reads_fields_of_json_rows(text: str, number: int, x: float) -> None:
    for ascii_only in (True, False):
        data = json.dumps({"name": text, "more": [1], "x": x, "n": number, "text": text}, ensure_ascii=ascii_only)
        assert document_values(data.encode(), JSON, FIELDS) == [text, number, x, text]


def test_reads_cells_by_the_names_of_columns() -> None:
    columns = ("x", "text", "name", "n")
    data = b'1.5,"a ""b""\nc",,-7'
    assert document_values(data, RowForm("csv", ",", columns), FIELDS) == ['a "b"\nc', -7, 1.5, ""]
    # A row of raw TSV has no quotes.
    assert document_values(b'1e3\t"a\tn\t4', RowForm("raw", "\t", columns), FIELDS) == ['"a', 4, 1000.0, "n"]


def test_missing_values_are_what_is_declared() -> None:
    declared = ("text:text=", "n:int=-1", "x:float=nan", "name:str=a=b")
    options = TextOptions(fields=tuple(map(TextField.parse, declared)))
    wanted = ["", -1, pytest.approx(float("nan"), nan_ok=True), "a=b"]
    assert document_values(b"{}", JSON, options) == wanted
    assert document_values(b'{"text": null, "n": null, "x": null, "name": null}', JSON, options) == wanted
    # An empty cell is text, and no number.
    columns = ("text", "n", "x", "name")
    assert document_values(b",,,", RowForm("csv", ",", columns), options) == [*wanted[:3], ""]
    assert document_values(b"a\t7\t1\tb", RowForm("tsv", "\t", columns), options) == ["a", 7, 1.0, "b"]


def test_float32_rounds_if_asked_for() -> None:
    options = TextOptions(fields=(TextField("text"), TextField.parse("x:float32")))
    for x in (ID, float(ID), str(ID)):
        assert document_values(json.dumps({"text": "", "x": x}).encode(), JSON, options) == ["", ID]
    with pytest.raises(DocumentError, match="too large"):
        document_values(b'{"text": "", "x": 1e39}', JSON, options)


def test_keeps_text_as_it_stands() -> None:
    data = b"\xef\xbb\xbfa\r\n"
    assert document_values(data, RowForm("file"), ONE) == ["a\r\n"]
    # In the middle of a file it is a character.
    assert document_values(data, RowForm("plain"), ONE) == ["\ufeffa\r\n"]


@pytest.mark.parametrize(
    ("kind", "data", "at"),
    [("plain", b"ab\xff", 2), ("file", b"\xef\xbb\xbfab\xc3", 5), ("json", b'{"text": "\x80"}', 10)],
)
def test_rejects_or_replaces_bytes_that_are_not_utf8(kind: str, data: bytes, at: int) -> None:
    with pytest.raises(DocumentError, match=rf"not UTF-8: byte {data[at]:#04x}\. .*--invalid-utf8=replace") as caught:
        document_values(data, RowForm(kind), ONE)
    assert caught.value.at == at
    (text,) = document_values(data, RowForm(kind), TextOptions(replace_invalid=True))
    assert str(text).count("\ufffd") == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1], r"not a JSON object \(got list"),
        ({"n": 1}, "no field 'text': the row has 'n'"),
        ({"text": None}, "field 'text' has no value: null; .*--field text:text="),
        ({"text": 1}, "'text' is not a string: 1"),
        ({"text": "\ud800"}, "half of a surrogate pair"),
        ({"text": "", "n": 1.5}, "'n' is not a whole number that fits int64: 1.5"),
        ({"text": "", "n": 2**63}, "not a whole number that fits int64: 9223372036854775808"),
        ({"text": "", "n": "1_000"}, 'not a whole number .*: "1_000"'),
        ({"text": "", "n": None}, "field 'n' has no value: null; .*--field n:int=0"),
        ({"text": "", "n": ""}, "field 'n' has no value: \"\""),
        ({"text": "", "n": 1.0}, "'n' is not a whole number"),
        ({"text": "", "n": 1, "x": "", "name": ""}, "field 'x' has no value: \"\"; .*--field x:float=nan"),
        ({"text": "", "n": 1, "x": "x", "name": ""}, "'x' is not a number that fits float32: \"x\""),
        (
            {"text": "", "n": 1, "x": ID, "name": ""},
            "float32: 1234567890123 would become 1234567954432 .*x:str.*x:float32",
        ),
        ({"text": "", "n": 1, "x": str(ID), "name": ""}, "would become 1234567954432"),
        ({"text": "", "n": 1, "x": float(ID), "name": ""}, r"would become 1234567954432\.0"),
        ({"text": "", "n": 1, "x": "1e400", "name": ""}, "'x' is not a number that fits float32"),
        ({"text": "", "n": 1, "x": 10**400, "name": ""}, "'x' is not a number that fits float32"),
        ({"text": "", "n": 1, "x": [], "name": ""}, "'x' is not a number that fits float32: \\[\\]"),
        ({"text": "", "n": 1, "x": 1e39, "name": ""}, "'x' is not a number that fits float32: 1e\\+39"),
        ({"text": "", "n": 1, "x": "-3.5e38", "name": ""}, "'x' is not a number that fits float32"),
    ],
)
def test_rejects_json_values_of_another_type(values: Any, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        document_values(json.dumps(values).encode(), JSON, FIELDS)


@pytest.mark.parametrize(
    ("form", "data", "message"),
    [
        (JSON, b"{", "not JSON"),
        (JSON, json.dumps(dict.fromkeys(map(str, range(99)))).encode(), "'9' and 89 more"),
        (RowForm("csv", ",", tuple(map(str, range(99)))), b"a", "99 columns as in the first row: '0', '1', "),
        (JSON, b"[" * 100_000, "nested too deep"),
        (
            RowForm("csv", ",", ("text", "n")),
            b"a,b,c",
            "got 3 cells, expected 2 columns as in the first row: 'text', 'n')",
        ),
        (RowForm("csv", ",", ("text",)), b'"a', "not CSV: a quote is not closed"),
        (
            RowForm("csv", ",", ("text",)),
            b'"a\nb\nc',
            "a quote is not closed (a row of 3 lines, all of which are rejected)",
        ),
    ],
)
def test_rejects_rows_that_are_none(form: RowForm, data: bytes, message: str) -> None:
    with pytest.raises(DocumentError, match=re.escape(message)):
        document_values(data, form, ONE)


@given(st.sampled_from(["plain", "json", "csv"]), st.lists(st.text(max_size=4), max_size=3))
def test_entries_have_forms_as_text(kind: str, columns: list[str]) -> None:
    form = RowForm(kind, "\t" if columns else "", tuple(columns))
    assert form.entry_texts(None, {})[0] == (json.dumps([kind, "\t", *columns]) if columns else kind)
