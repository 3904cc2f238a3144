"""Fields, broken UTF-8 and the share of real tokens, through the whole job."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from beam_jobs.text import run
from tpudata.cli import main
from tpudata.errors import BadRecordError
from tpudata.format import open_dataset, verify


def test_stores_source_and_target_as_ids(tmp_path: Path) -> None:
    pairs = [(f"one {number}", f"eins {number}é" * (number % 3)) for number in range(40)]
    lines = "".join(json.dumps({"source": one, "target": two, "id": f"x{one}"}) + "\n" for one, two in pairs)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    flags = [f"--input={tmp_path}/a.jsonl.gz", f"--output={tmp_path}/out", "--num-shards=3", "--tokenizer=bytes"]
    assert run([*flags, "--field", "source", "--field", "target", "--field", "id:str"]) == 0
    assert not list(verify(f"{tmp_path}/out"))
    records = list(open_dataset(f"{tmp_path}/out").examples("train"))
    assert {name for record in records for name in record} == {"source_ids", "target_ids", "id"}
    found = {
        (bytes(map(int, one["source_ids"])).decode(), bytes(map(int, one["target_ids"])).decode()) for one in records
    }
    assert found == set(pairs)
    assert all(record["id"] == [b"x" + bytes(map(int, record["source_ids"]))] for record in records)


def test_rejects_or_replaces_invalid_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\nbr\xffken\ncut \xe6\x97\n")
    flags = [f"--input={tmp_path}/a.txt", f"--output={tmp_path}/out", "--no-shuffle"]
    with pytest.raises(BadRecordError, match=r"a\.txt at byte 7: rejected: not UTF-8: byte 0xff"):
        run(flags)
    assert run([*flags, "--resume", "--invalid-utf8=replace"]) == 0
    texts = [record["text"] for record in open_dataset(f"{tmp_path}/out").examples("train")]
    assert texts == [[b"good"], ["br\ufffdken".encode()], ["cut \ufffd".encode()]]


def test_counts_rejections_by_kind(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    rows = [b'{"text": "\xff", "n": 1, "x": 1}', b'{"text": "", "n": 1e30, "x": 1}', b'{"text": "", "n": 1, "x": 1e39}']
    source.write_bytes(b"\n".join([*rows, b'{"text": "", "n": 1, "x": 1}']))
    flags = [f"--input={source}", f"--output={tmp_path}/out", "--field=text", "--field=n:int", "--field=x:float"]
    assert run([*flags, "--on-bad-record=skip", "--max-bad-records=3"]) == 0
    assert open_dataset(str(tmp_path / "out")).manifest.rejected == {
        "not UTF-8": 1,
        "field 'n' is not a whole number that fits int64": 1,
        "field 'x' is not a number that fits float32": 1,
    }


ID = 1234567890123


def write_rows(folder: Path, form: str) -> Path:
    """Three rows, the second without id; in Parquet, `big` is uint64."""
    path = folder / f"a.{form}"
    ids = [ID, None, 7]
    if form == "parquet":
        big = pa.array([1, 2**64 - 1, 3], pa.uint64())
        pq.write_table(pa.table({"text": ["a", "b", "c"], "id": ids, "x": [0.5, float(ID), 1], "big": big}), path)
    elif form == "jsonl":
        path.write_text("".join(json.dumps({"text": t, "id": n}) + "\n" for t, n in zip("abc", ids, strict=True)))
    else:
        cut = "\t" if form == "tsv" else ","
        path.write_text(f"text{cut}id\n" + "".join(f"{t}{cut}{n or ''}\n" for t, n in zip("abc", ids, strict=True)))
    return path


@pytest.mark.parametrize("form", ["jsonl", "csv", pytest.param("tsv", marks=pytest.mark.matrix), "parquet"])
def test_rejects_a_missing_id_without_a_declared_default(tmp_path: Path, form: str) -> None:
    path = write_rows(tmp_path, form)
    flags = [f"--input={path}", f"--output={tmp_path}/out", "--no-shuffle"]
    row = {"jsonl": " at byte 35", "csv": " at byte 24", "tsv": " at byte 24", "parquet": ":1 in .*"}[form]
    with pytest.raises(BadRecordError, match=rf"a\.{form}{row}: rejected: field 'id' has no value.*--field id:int=0"):
        run([*flags, "--field=text", "--field=id:int"])
    if form == "csv":
        with pytest.raises(BadRecordError, match=r'1234567890123"? would become 1234567954432 in float32'):
            run([*flags, "--field=text", "--field=id:float=0", "--resume"])
    assert run([*flags, "--field=text", "--field=id:int=-1", "--resume"]) == 0
    dataset = open_dataset(f"{tmp_path}/out")
    assert [example["id"] for example in dataset.examples("train")] == [[ID], [-1], [7]]
    assert dataset.manifest.options["fields"] == {"text": "text", "id": "int=-1"}


NUMBERS = (
    ("x:float", "field 'x' is not a number that fits float32: 1234567890123.0 would become 1234567954432.0"),
    ("big:int", "field 'big' is not a whole number that fits int64: 18446744073709551615"),
)


@pytest.mark.parametrize(
    ("field", "reason", "shuffle"),
    [
        *((*NUMBERS[0], "--shuffle"), (*NUMBERS[1], "--no-shuffle")),
        *(
            pytest.param(*case, marks=pytest.mark.matrix)
            for case in ((*NUMBERS[0], "--no-shuffle"), (*NUMBERS[1], "--shuffle"))
        ),
    ],
)
def test_errors_of_parquet_numbers_name_field_and_row(tmp_path: Path, field: str, reason: str, shuffle: str) -> None:
    flags = [f"--input={write_rows(tmp_path, 'parquet')}", f"--output={tmp_path}/out", shuffle, "--field=text"]
    with pytest.raises(BadRecordError, match=rf"a\.parquet:1 in .*: rejected: {re.escape(reason)}"):
        run([*flags, f"--field={field}"])


@pytest.mark.parametrize(
    "flags", [[], ["--sequence-length=4"], ["--sequence-length=4", "--pack", "--long-documents=cut"]]
)
def test_counts_and_prints_unknown_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"kind": "chars", "characters": ["a", "b"]}))
    (tmp_path / "a.txt").write_text("ab\nabxya\nzz\n")
    flags = [f"--input={tmp_path}/a.txt", f"--output={tmp_path}/out", "--replace-unknown", *flags]
    assert run([*flags, f"--tokenizer=chars:{tmp_path}/vocab.json"]) == 0
    assert open_dataset(f"{tmp_path}/out").manifest.counts["unknown"] == 4
    assert "unknown     4 tokens for text that the tokenizer does not know, " in capsys.readouterr().out
    assert main(["inspect", f"{tmp_path}/out"]) == 0
    assert "unknown" in capsys.readouterr().out
    if "--pack" not in flags:
        return
    with (tmp_path / "a.txt").open("a") as file:
        file.write("x\n")
    assert run([*flags, f"--tokenizer=chars:{tmp_path}/vocab.json", "--append"]) == 0
    assert "unknown     1 token for text" in capsys.readouterr().out
    assert open_dataset(f"{tmp_path}/out").manifest.counts["unknown"] == 5


def test_stores_and_prints_the_share_of_real_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 3 + 1 tokens and 11 + 1, the last of which begins a second row of 8: 16 places.
    (tmp_path / "a.txt").write_text("abc\nabcdefghijk\n")
    flags = [f"--input={tmp_path}/a.txt", f"--output={tmp_path}/out", "--tokenizer=bytes", "--sequence-length=8"]
    assert run([*flags, "--pack"]) == 0
    assert json.loads((tmp_path / "out/manifest.json").read_text())["real_token_share"] == 1
    assert run([*flags, "--pack", "--no-eos", "--overwrite"]) == 0
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert (manifest["counts"]["tokens"], manifest["counts"]["padding"]) == (14, 2)
    assert manifest["real_token_share"] == 0.875
    capsys.readouterr()
    assert main(["inspect", f"{tmp_path}/out"]) == 0
    assert "real tokens 87.50%" in " ".join(capsys.readouterr().out.split())
    assert main(["inspect", f"{tmp_path}/out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["real_token_share"] == 0.875
