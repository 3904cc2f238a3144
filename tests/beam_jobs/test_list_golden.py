"""Datasets of lists keep the bytes of earlier versions: shards, keys, rejects, labels and manifest."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from beam_jobs.images import run
from tests.beam_jobs.golden import dataset_digest, one_pixel_png
from tests.beam_jobs.sources.inputs import write_files
from tpudata.errors import TpudataError

# The first 16 digits of SHA-256 over the names and bytes of all files; those of "rejects" and "jsonl" include the words of reasons.
GOLDEN = {
    "quoted": "7d53045de3acc0cd",
    "rejects": "e98d16054c10106a",
    "jsonl": "38152b3e3e17bb9a",
    "array": "7e3171b4a37e8805",
    "several": "03cf9566a1d4e923",
    "in order": "3006cc5d3a6a2a8b",
    "integers": "09868211523407d2",
    "unlabelled": "16239b498c2fa34f",
    "declared": "4b416895dc85c701",
}
SKIP = ["--on-bad-record=skip", "--max-bad-records=9"]
CASES = {
    "quoted": ["quoted.csv", "--num-shards=3"],
    "rejects": ["rejects.csv", "--shard-size=4kB", *SKIP],
    "jsonl": ["rows.jsonl", "--num-shards=2", *SKIP],
    "array": ["rows.json", "--split=train=0.7,test=0.3"],
    "several": ["many/*.csv", "--shard-size=5kB", "--label-separator=|"],
    "in order": ["many/*.csv", "--no-shuffle", "--shard-size=3kB"],
    "integers": ["integers.tsv", "--layout=imagenet"],
    "unlabelled": ["quoted.csv", "--unlabelled", "--no-shuffle", "--num-shards=2"],
    "declared": ["declared.csv", "--column-types=id=int=0,zip=str,age=float32"],
}
COUNT = 40


def table(rows: Iterable[Sequence[object]], ending: str = "\n", delimiter: str = ",") -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator=ending, delimiter=delimiter).writerows(rows)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists")
    write_files(folder, {f"{name}{n}.jpg": one_pixel_png(n) for n in range(COUNT) for name in ("", "many/a")})
    quoted = [
        [f"{n}.jpg", f'c "{n % 3}"', ["plain", 'two\nlines, and "quotes"', "", "é\r\nx"][n % 4], n]
        for n in range(COUNT)
    ]
    # Blank lines are skipped, and counted.
    text = table([["path", "label", "note", "n"], *quoted], "\r\n").replace("\r\n9.jpg", "\r\n\r\n\r\n9.jpg")
    rejects = [[f"{n}.jpg" if n % 7 else f"none{n}.jpg", f"k{n % 4}"] for n in range(COUNT)]
    rejects[3][0], rejects[4][1] = "", ""
    rows = [
        {"path": f"{n}.jpg", "label": [["x", "y"], "x", [], "z"][n % 4], "f": n / 4, "s": None if n % 5 else f"t{n}"}
        for n in range(COUNT)
    ]
    bad = [*rows[:9], {"path": "none.jpg", "label": "x"}, *rows[9:], {"path": "0.jpg/", "label": 1.5}]
    named: list[list[object]] = [
        ["path", "label", "split"],
        *([f"{n}.jpg", 7 * n % 9, ["train", "VAL", "extra"][n % 3]] for n in range(COUNT)),
    ]
    many = {
        f"many/{name}.csv": table(
            [["file", "labels", "x"], *([f"a{n}.jpg", f"q{n % 2}|r{n % 3}", x * n] for n in range(first, COUNT, 4))]
        )
        for first, (name, x) in enumerate({"a": 1, "b": 2.5, "c": 3, "d": 0.1}.items())
    }
    declared: list[list[object]] = [["path", "label", "id", "zip", "age"]]
    declared += [[f"{n}.jpg", "one", "" if n % 3 else n, f"{n:05d}", 16777217 + n] for n in range(COUNT)]
    texts = {
        "quoted.csv": f"\ufeff{text}",
        "rejects.csv": table([["path", "label"], *rejects]).removesuffix("\n"),
        "rows.jsonl": "\n\n".join(map(json.dumps, bad)),
        "rows.json": json.dumps(rows, indent=1),
        "integers.tsv": table(named, delimiter="\t"),
        "declared.csv": table(declared),
        **many,
    }
    write_files(folder, {name: text.encode() for name, text in texts.items()})
    return folder


@pytest.mark.parametrize("name", GOLDEN)
def test_datasets_keep_the_bytes_of_earlier_versions(
    name: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Messages and the manifest have the paths of the input.
    monkeypatch.chdir(inputs)
    source, *flags = CASES[name]
    assert run(["--input", source, "--output", str(tmp_path / "out"), *flags]) == 0
    assert dataset_digest(tmp_path / "out") == GOLDEN[name]


def test_rejects_a_compressed_list(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.csv.gz").write_bytes(gzip.compress((inputs / "quoted.csv").read_bytes()))
    with pytest.raises(TpudataError, match="compressed with gzip"):
        run(["--input", "list.csv.gz", "--output", "out"])
