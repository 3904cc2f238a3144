"""Files that are one JSON array: the elements that Python's parser finds, for any chunks, with bounded memory.

Tests make chunks small, because a conversion divides only files of many MB.
"""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.text import run
from beam_jobs.text_files.spans.json_arrays import array_spans, is_json_array
from tpudata.errors import BadRecordError, SourceError
from tpudata.format import open_dataset

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(st.sampled_from('a"\\\\[]{}, é\\n'), max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


@given(
    values=st.lists(VALUES, max_size=6),
    size=st.integers(1, 40),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    mark=st.sampled_from([b"", b"\xef\xbb\xbf", b" \n"]),
)
def test_finds_the_elements_that_pythons_parser_finds(
    values: list[Any], size: int, indent: int | None, ascii_only: bool, mark: bytes
) -> None:
    data = mark + json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode() + b"\n"
    assert is_json_array(data)
    spans = list(array_spans([data[at : at + size] for at in range(0, len(data), size)], 1 << 20, "a.json"))
    assert [json.loads(span.data) for span in spans] == values
    assert all(data[span.offset : span.offset + span.size] == span.data for span in spans)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'[{"a": 1}', "at byte 9: the JSON array is cut: it has no end"),
        (b'[{"a": "1]', "is cut"),
        (b"[1] [2]", "at byte 4: there is more after the end of the JSON array"),
        (b"[1] x", "there is more after the end"),
        (b"[1,]", "at byte 3: not a JSON array: no value before this"),
        (b"[,1]", "at byte 1: not a JSON array"),
        (b"[1}", "at byte 2: not a JSON array: this bracket closes no other"),
        (b"[1]]", "at byte 3: "),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_rejects_invalid_arrays_at_their_byte(data: bytes, message: str, size: int) -> None:
    with pytest.raises(SourceError, match=f"a.json {message}" if message.startswith("at") else message):
        list(array_spans([data[at : at + size] for at in range(0, len(data), size)], 100, "a.json"))


def test_skips_an_element_over_the_limit() -> None:
    spans = list(array_spans([b'["a", "', b"x" * 50, b'", {}]'], 20, "a.json"))
    assert [(span.offset, span.size, span.data) for span in spans] == [(1, 3, b'"a"'), (6, 52, b""), (60, 2, b"{}")]


@pytest.mark.parametrize("shuffle", ["--shuffle", "--no-shuffle"])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_stores_each_element_of_an_array_as_a_record(tmp_path: Path, suffix: str, shuffle: str) -> None:
    rows = [{"text": f'row {number}, "[\\', "n": number, "more": [{"x": "]"}]} for number in range(40)]
    data = json.dumps(rows, indent=1).encode()
    (path := tmp_path / f"a{suffix}").write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    flags = [f"--input={path}", f"--output={tmp_path}/out", shuffle, "--field=text", "--field=n:int"]
    assert run(flags) == 0
    records = list(open_dataset(f"{tmp_path}/out").examples("train"))
    found = [(record["text"], record["n"]) for record in records]
    wanted = [([str(row["text"]).encode()], [row["n"]]) for row in rows]
    assert sorted(found, key=lambda item: item[1]) == wanted
    assert (shuffle == "--shuffle") != (found == wanted)


def test_rejects_elements_that_are_not_rows_at_their_byte(tmp_path: Path) -> None:
    (path := tmp_path / "a.json").write_text('[{"text": "a"},\n 7,\n {"text": 8}]')
    flags = [f"--input={path}", f"--output={tmp_path}/out", "--no-shuffle"]
    with pytest.raises(BadRecordError, match=r"a\.json at byte 17: rejected: not a JSON object \(got int"):
        run(flags)
    assert run([*flags, "--on-bad-record=skip", "--max-bad-records=2", "--resume"]) == 0
    assert open_dataset(f"{tmp_path}/out").manifest.rejected == {
        "field 'text' is not a string": 1,
        "not a JSON object": 1,
    }


def test_reads_20_megabytes_of_elements_in_2_megabytes_of_memory() -> None:
    element = json.dumps({"text": "x" * 1000}).encode() + b", "
    tracemalloc.start()
    try:
        count = sum(1 for _ in array_spans((b"[", *[element] * 20_000, b"1]"), 1 << 20, "a.json"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 20_001
    # 20 MB of elements; the tuple of chunks is one object, repeated.
    assert peak < 2_000_000
