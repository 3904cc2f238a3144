"""The values of a document's fields: stored as they are written, or rejected by name."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.beam_jobs.outcomes import convert_texts

FIELDS = ["text", "n:int", "x:float", "name:str"]
ID = 1234567890123


def make_json_rows(*rows: Any) -> tuple[bytes, list[int]]:
    """Return rows as lines, and the offset of each."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    offsets = np.cumsum([0, *(len(line) + 1 for line in lines[:-1])]).tolist()
    return b"\n".join(lines) + b"\n", offsets


def test_stores_fields_of_json_rows(tmp_path: Path) -> None:
    mixer = random.Random(0)
    rows: list[dict[str, Any]] = []
    for number in range(400):
        text = "".join(mixer.choices('aé日😀\u2028\n\t"\\/\x00\x7f', k=mixer.randrange(8)))
        n = mixer.choice([0, -1, 2**63 - 1, -(2**63), mixer.getrandbits(62)])
        x = float(np.float32(mixer.choice([0.0, -1.5, 3e38, math.inf, 1e-40, mixer.random()])))
        rows.append({"name": text, "more": [1], "x": x, "n": n, "text": f"{number} {text}"})
    plain = make_json_rows(*(json.dumps(row, ensure_ascii=False).encode() for row in rows))[0]
    texts = convert_texts(tmp_path, {"a.jsonl": make_json_rows(*rows)[0], "b.jsonl": plain}, fields=FIELDS)
    assert not texts.rejects
    for name in ("a.jsonl", "b.jsonl"):
        for field in ("text", "n", "x", "name"):
            assert texts.of(name, field) == [row[field] for row in rows], field


def test_stores_cells_by_the_names_of_columns(tmp_path: Path) -> None:
    files = {
        "a.csv": b'x,text,name,n\n1.5,"a ""b""\nc",,-7\n',
        # A row of raw TSV has no quotes.
        "raw/a.tsv": b'x\ttext\tname\tn\n1e3\t"a\tn\t4\n',
    }
    texts = convert_texts(tmp_path / "csv", {"a.csv": files["a.csv"]}, fields=FIELDS)
    assert [texts.of("a.csv", name) for name in ("text", "n", "x", "name")] == [['a "b"\nc'], [-7], [1.5], [""]]
    texts = convert_texts(tmp_path / "tsv", {"a.tsv": files["raw/a.tsv"]}, fields=FIELDS, form="raw-tsv")
    assert [texts.of("a.tsv", name) for name in ("text", "n", "x", "name")] == [['"a'], [4], [1000.0], ["n"]]


def test_missing_values_take_the_declared_defaults(tmp_path: Path) -> None:
    rows: list[dict[str, None]] = [{}, {"text": None, "n": None, "x": None, "name": None}]
    files = {
        "a.jsonl": make_json_rows(*rows)[0],
        "b.csv": b"text,n,x,name\n,,,\n",
        "c.tsv": b"text\tn\tx\tname\na\t7\t1\tb\n",
    }
    texts = convert_texts(tmp_path, files, fields=["text:text=", "n:int=-1", "x:float=nan", "name:str=a=b"])
    assert not texts.rejects
    assert [texts.of("a.jsonl", name) for name in ("text", "n", "name")] == [["", ""], [-1, -1], ["a=b", "a=b"]]
    # An empty cell is text, and no number.
    assert [texts.of("b.csv", name) for name in ("text", "n", "name")] == [[""], [-1], [""]]
    assert np.isnan([*texts.of("a.jsonl", "x"), *texts.of("b.csv", "x")]).all()
    assert [texts.of("c.tsv", name) for name in ("text", "n", "x", "name")] == [["a"], [7], [1.0], ["b"]]


def test_an_explicit_float32_rounds(tmp_path: Path) -> None:
    data, offsets = make_json_rows(*({"text": "", "x": x} for x in (ID, float(ID), str(ID), 1e39)))
    texts = convert_texts(tmp_path, {"a.jsonl": data}, fields=["text", "x:float32"])
    assert texts.of("a.jsonl", "x") == [float(np.float32(ID))] * 3
    assert "too large" in texts.rejects["a.jsonl", offsets[3]]


BAD_ROWS: list[tuple[Any, str]] = [
    ([1], "not a JSON object (got list"),
    (b"{", "not JSON"),
    (b"[" * 100_000, "nested too deep"),
    ({"n": 1}, "no field 'text': the row has 'n'"),
    (dict.fromkeys(map(str, range(99))), "'9' and 89 more"),
    ({"text": None}, "field 'text' has no value: null"),
    ({"text": 1}, "'text' is not a string: 1"),
    ({"text": "\ud800"}, "half of a surrogate pair"),
    ({"text": "", "n": 1.5}, "'n' is not a whole number that fits int64: 1.5"),
    ({"text": "", "n": 2**63}, "not a whole number that fits int64: 9223372036854775808"),
    ({"text": "", "n": "1_000"}, "'n' is not a whole number"),
    ({"text": "", "n": None}, "field 'n' has no value: null"),
    ({"text": "", "n": ""}, "field 'n' has no value: \"\""),
    ({"text": "", "n": 1.0}, "'n' is not a whole number"),
    ({"text": "", "n": 1, "x": "", "name": ""}, "field 'x' has no value: \"\""),
    ({"text": "", "n": 1, "x": "x", "name": ""}, "'x' is not a number that fits float32: \"x\""),
    ({"text": "", "n": 1, "x": ID, "name": ""}, "float32: 1234567890123 would become 1234567954432"),
    ({"text": "", "n": 1, "x": str(ID), "name": ""}, "would become 1234567954432"),
    ({"text": "", "n": 1, "x": float(ID), "name": ""}, "would become 1234567954432.0"),
    ({"text": "", "n": 1, "x": "1e400", "name": ""}, "'x' is not a number that fits float32"),
    ({"text": "", "n": 1, "x": 10**400, "name": ""}, "'x' is not a number that fits float32"),
    ({"text": "", "n": 1, "x": [], "name": ""}, "'x' is not a number that fits float32: []"),
    ({"text": "", "n": 1, "x": 1e39, "name": ""}, "'x' is not a number that fits float32: 1e+39"),
    ({"text": "", "n": 1, "x": "-3.5e38", "name": ""}, "'x' is not a number that fits float32"),
]
GOOD_ROW = {"text": "", "n": 1, "x": 1, "name": ""}
CSV_HEAD = b"text,n,x,name\n"
BAD_CELLS = [
    (b"a,b,c,d,e\n", "got 5 cells, expected 4 columns as in the first row: 'text', 'n', 'x', 'name')"),
    (b'"a\nb\nc', "a quote is not closed (a row of 3 lines, all of which are rejected)"),
    (b'"a"b,1,1,c\n', "'b' after the closing quote of cell 1"),
]


def test_rejects_values_of_another_type_by_name(tmp_path: Path) -> None:
    data, offsets = make_json_rows(GOOD_ROW, *(row for row, _ in BAD_ROWS))
    wide = b"text,n,x,name," + b",".join(b"%d" % n for n in range(96)) + b"\na\n"
    files = {f"{n}.csv": CSV_HEAD + row for n, (row, _) in enumerate(BAD_CELLS)}
    texts = convert_texts(tmp_path, {"a.jsonl": data, "wide.csv": wide, **files}, fields=FIELDS)
    assert [*texts.records] == ["a.jsonl:0"]
    for (_, reason), offset in zip(BAD_ROWS, offsets[1:], strict=True):
        assert reason in texts.rejects["a.jsonl", offset]
    for number, (_, reason) in enumerate(BAD_CELLS):
        assert reason in texts.rejects[f"{number}.csv", len(CSV_HEAD)]
    assert "100 columns as in the first row: 'text', 'n', " in texts.rejects["wide.csv", len(wide) - 2]


def test_rejects_or_replaces_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    files = {"a.txt": b"one\nab\xff\n", "b.jsonl": b'{"text": "\x80"}\n', "c.csv": b"text\n\xc3\n"}
    texts = convert_texts(tmp_path / "rejected", files)
    assert texts.of("a.txt") == ["one"]
    for (name, offset), byte in {("a.txt", 6): 0xFF, ("b.jsonl", 10): 0x80, ("c.csv", 5): 0xC3}.items():
        assert texts.rejects[name, offset].startswith(f"not UTF-8: byte {byte:#04x}.")
    # Small documents are read once, and written aside in their order: the place in the file is the key's.
    shuffled = convert_texts(tmp_path / "shuffled", files, shuffle=True)
    assert shuffled.rejects["a.txt", None].endswith("(byte 2 of the document)")
    texts = convert_texts(tmp_path / "replaced", files, replace_invalid=True)
    assert sorted(values["text"].decode() for values in texts.records.values()) == sorted(
        ["one", "ab\ufffd", "\ufffd", "\ufffd"]
    )
    whole = {"a.txt": b"\xef\xbb\xbfab\xc3", "b.txt": b"\xef\xbb\xbfa\r\n"}
    texts = convert_texts(tmp_path / "whole", whole, form="files")
    # A file's byte order mark is no part of its text.
    assert texts.of("b.txt") == ["a\r\n"]
    assert texts.rejects["a.txt", 5].startswith("not UTF-8: byte 0xc3.")


def test_keeps_a_byte_order_mark_in_the_middle_of_a_file(tmp_path: Path) -> None:
    texts = convert_texts(tmp_path, {"a.txt": "\ufeffone\n\ufefftwo\n".encode()})
    assert texts.of("a.txt") == ["one", "\ufefftwo"]
