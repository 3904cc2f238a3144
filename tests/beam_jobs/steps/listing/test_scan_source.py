"""Lists are scanned in the pipeline; the result depends neither on workers nor on blocks."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import tpudata
from beam_jobs import images
from beam_jobs.images import run
from tests.beam_jobs.pipelines import run_with_limits
from tests.beam_jobs.sources.inputs import jpeg, write_files
from tpudata.errors import OutputError, SourceError, TpudataError, UsageError


def lists(root: Path, rows: int, count: int = 1) -> str:
    """Lists of pictures with splits, labels and a further column; returns the pattern that matches them."""
    write_files(root, {f"{n}.jpg": jpeg(n) for n in range(rows)})
    for number in range(count):
        lines = [f'{n}.jpg,c{n % 3},{["train", "test"][n % 2]},"{n}\n,"' for n in range(number, rows, count)]
        (root / f"{number}.csv").write_text("\n".join(["path,label,split,note", *lines]))
    return f"{root}/*.csv"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.cases(1)
@pytest.mark.parametrize(("shuffle", "workers"), [(True, 1), (False, 1), (True, 2)])
def test_blocks_and_workers_change_no_record(tmp_path: Path, shuffle: bool, workers: int) -> None:
    # Of the first list more blocks than come one by one.
    source = lists(tmp_path / "in", 135)
    (tmp_path / "in" / "1.csv").write_text("path,label,split,note\n./1.jpg,c7,train,x\n./2.jpg,c7,test,y\n")

    def convert(name: str, workers: int, **limits: int) -> dict[str, bytes]:
        flags = ["--num-shards=2", f"--workers={workers}", *["--no-shuffle"] * (not shuffle)]
        run_with_limits(images, [f"--input={source}", f"--output={tmp_path / name}", *flags], **limits)
        return contents(tmp_path / name)

    whole = convert("whole", 1)
    cut = convert("cut", workers, block_bytes=30)
    if shuffle:
        assert cut == whole
    for split in ("train", "test"):
        shards = [[data for name, data in sorted(found.items()) if name.startswith(split)] for found in (cut, whole)]
        assert b"".join(shards[0]) == b"".join(shards[1])


def test_finds_a_repeated_path_70_000_rows_apart(tmp_path: Path) -> None:
    # More rows than a worker holds back.
    write_files(tmp_path, {"0.jpg": jpeg(0)})
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *(f"{n}.jpg,c" for n in range(70_000)), "0.jpg,c"]))
    with pytest.raises(SourceError, match=r"list\.csv line 70002 and .*list\.csv line 2 have the same path '0\.jpg'"):
        run(["--input", f"{tmp_path}/list.csv", "--output", str(tmp_path / "out")])


def test_rejects_a_repeated_path_before_it_writes_a_shard(tmp_path: Path) -> None:
    source = lists(tmp_path / "in", 30, 3)
    with (tmp_path / "in" / "1.csv").open("a") as file:
        file.write("\n0.jpg,c0,test,x\n4.jpg,c1,train,y\n")
    with pytest.raises(SourceError) as error:
        run(["--input", source, "--output", str(tmp_path / "out"), "--num-shards=1"])
    assert (
        str(error.value)
        .splitlines()[0]
        .startswith(f"{tmp_path}/in/1.csv line 22 and {tmp_path}/in/0.csv line 3 have the same path '0.jpg'.")
    )
    assert not list((tmp_path / "out").rglob("*.tfrecord"))


REJECTED = [
    ({"path": "1.jpg", "label": ["a", "b"]}, ["--for=tensorflow-tpu"], UsageError, "reads one label of each image"),
    ({"path": "1.jpg", "label": "a", "image/height": "x"}, [], UsageError, "'image/height' has the name of a feature"),
    ({"path": "1.jpg", "label": "7"}, [], SourceError, "line 1: label 'a' is not a whole number from 0"),
    ({"path": "1.jpg", "label": "a", "n": None}, ["--column-types=m=str"], UsageError, "no extra column 'm'"),
]


@pytest.mark.parametrize(("row", "flags", "kind", "message"), REJECTED)
@pytest.mark.parametrize("dry_run", [True, False])
def test_runs_and_dry_runs_report_the_same_scan_errors(
    tmp_path: Path, row: dict[str, Any], flags: list[str], kind: type[TpudataError], message: str, dry_run: bool
) -> None:
    write_files(tmp_path, {f"{n}.jpg": jpeg(n) for n in range(2)})
    # The list is looked at before it is scanned: its first row alone is in order.
    text = "\n".join(map(json.dumps, [{"path": "0.jpg", "label": "a"}, row]))
    (tmp_path / "list.jsonl").write_text(text)
    with pytest.raises(kind, match=message):
        run(["--input", f"{tmp_path}/list.jsonl", "--output", str(tmp_path / "out"), *flags, *["--dry-run"] * dry_run])


def test_append_with_other_columns_changes_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, {f"{n}.jpg": jpeg(n) for n in range(3)})
    path, flags = tmp_path / "list.csv", ["--input", f"{tmp_path}/list.csv", "--output", str(tmp_path / "out")]
    path.write_text("path,label,n\n0.jpg,a,1\n1.jpg,b,2\n")
    assert run(flags) == 0
    before = contents(tmp_path / "out")
    path.write_text("path,label,n\n0.jpg,a,1\n1.jpg,b,2\n2.jpg,b,2.5\n")
    with pytest.raises(OutputError, match=r"feature 'n' of .* is int64, and in new records it would be float32"):
        run([*flags, "--append"])
    assert contents(tmp_path / "out") == before
    path.write_text("path,label,n\n0.jpg,a,1\n1.jpg,b,2\n2.jpg,d,5\n")
    assert run([*flags, "--append"]) == 0
    assert (tmp_path / "out" / "labels.txt").read_text() == "a\nb\nd\n"


@pytest.mark.parametrize("seed", range(3))
def test_kinds_of_columns_do_not_depend_on_the_division_into_lists(seed: int, tmp_path: Path) -> None:
    mixer = random.Random(seed)
    values = ["1", "2.5", "x", "16777217", "9223372036854775808"][seed:]
    rows = [{"path": f"{n}.jpg", **{name: mixer.choice(values) for name in "abc"}} for n in range(8)]
    found = []
    for count in (1, 3):
        folder = write_files(tmp_path / f"{count}", {f"{n}.jpg": jpeg(n) for n in range(8)})
        for number in range(count):
            lines = [json.dumps(row) for row in rows[number::count]]
            (folder / f"{number}.jsonl").write_text("\n".join(lines))
        try:
            manifest = tpudata.convert_images(f"{folder}/*.jsonl", f"{folder}-out", unlabelled=True)
        except SourceError as error:
            found.append(str(error).partition("line")[2].partition(":")[2])
        else:
            found.append(str(manifest.features))
    assert found[0] == found[1]
