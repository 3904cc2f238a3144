"""Packages that add sources of documents: those of docs/convert/extending.md, as they stand there, and odd ones."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpudata
from beam_jobs import text
from beam_jobs.sources import DocumentForm, Reject, Source, make_reference, raise_rejection
from tests.beam_jobs.run.test_runner import NO_FREEZE
from tests.beam_jobs.texts import in_segments, records, texts
from tests.helpers.pictures import digests
from tpudata import RecordSource
from tpudata.cli import main
from tpudata.errors import BadRecordError, TpudataError, UsageError
from tpudata.format import Feature, open_dataset
from tpudata.tokenizers import dataset_tokenizer

NOTES = [(("cat", "dog", "eel")[n % 3], f"note {n} {'wörd ' * (n % 5)}\nand more\n") for n in range(60)]


def write_notes(folder: Path, notes: list[tuple[str, str]] = NOTES, mark: str = "@") -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(0, len(notes), 25):
        body = "".join(f"{mark}{label}\n{note}" for label, note in notes[number : number + 25])
        (folder / f"{number:03}.txt").write_text(f"a heading\n{body}")
    return folder


def write_letters(path: Path, count: int = 30) -> Path:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE letters (letter TEXT)")
        rows = [(f"About {n}\nDear {n},\nyours",) for n in range(count)]
        database.executemany("INSERT INTO letters VALUES (?)", rows)
    return path


def convert(folder: Path, source: str, output: str, *flags: str) -> int:
    return text.run([f"--input={folder}", f"--source={source}", f"--output={output}", *flags])


@pytest.mark.usefixtures("installed")
def test_stores_text_classes_and_features_of_documents(tmp_path: Path) -> None:
    notes = write_notes(tmp_path / "in")
    assert convert(notes, "diary", "out", "--no-shuffle", "--keep-key") == 0
    assert (tmp_path / "out" / "labels.txt").read_text() == "cat\ndog\neel\n"
    assert texts(tmp_path / "out") == [note for _, note in NOTES]
    found = list(open_dataset("out").examples("train"))
    assert [int(one["label"][0]) for one in found] == [n % 3 for n in range(60)]
    assert [int(one["note/number"][0]) for one in found] == [n % 25 for n in range(60)]
    assert found[0]["key"][0] == b"000.txt:10"
    manifest = open_dataset("out").manifest
    assert (manifest.options["source"], manifest.labels, manifest.counts["documents"]) == ("diary", 3, 60)
    (record, *_) = RecordSource("out", "train", features=["label", "note/number"])
    assert (int(record["label"]), int(record["note/number"])) == (0, 0)


# Both engines start processes that load the package.
@pytest.mark.cases(1)
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("engine", ["prism", "two workers"])
@pytest.mark.parametrize(
    "flags",
    [
        ["--split=train=0.8,test=0.2", "--num-shards=3", "--keep-key"],
        ["--tokenizer=chars", "--num-shards=2", "--dedup"],
        ["--tokenizer=bytes", "--sequence-length=64", "--pack", "--no-shuffle"],
    ],
)
def test_engines_write_the_same_bytes(
    flags: list[str], engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    notes = write_notes(tmp_path / "in")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    assert convert(notes, "diary", "one", *flags) == 0
    words = [*request.getfixturevalue("prism"), NO_FREEZE] if engine == "prism" else ["--workers=2"]
    assert convert(notes, "diary", "two", *flags, *words) == 0
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


@pytest.mark.usefixtures("installed")
def test_sequences_store_only_tokens(tmp_path: Path) -> None:
    notes = write_notes(tmp_path / "in")
    flags = ["--tokenizer=bytes", "--sequence-length=96"]
    assert convert(notes, "diary", "packed", *flags, "--pack") == 0
    assert sorted(in_segments(tmp_path / "packed")) == sorted(note for _, note in NOTES)
    assert not (tmp_path / "packed" / "labels.txt").exists()
    assert convert(notes, "diary", "rows", *flags, "--no-shuffle") == 0
    ids = [number for record in records(tmp_path / "rows") for number in record["input_ids"]]
    assert dataset_tokenizer("rows").decode(np.array(ids)).startswith(NOTES[0][1])


@pytest.mark.usefixtures("installed")
def test_tokenized_documents_keep_their_features(tmp_path: Path) -> None:
    notes = write_notes(tmp_path / "in")
    assert convert(notes, "diary", "out", "--tokenizer=bytes", "--no-shuffle") == 0
    found = list(RecordSource("out", "train", features=["input_ids", "label", "note/number"]))
    assert bytes(found[7]["input_ids"].tolist()).decode() == NOTES[7][1]
    assert [int(one["note/number"]) for one in found] == [n % 25 for n in range(60)]
    assert [int(one["label"]) for one in found] == [n % 3 for n in range(60)]


@pytest.mark.usefixtures("installed")
def test_append_adds_new_documents_with_inherited_options(tmp_path: Path) -> None:
    notes = write_notes(tmp_path / "in", mark="#")
    assert convert(notes, "diary", "out", "--source-arg=mark=#", "--keep-key") == 0
    before = digests(tmp_path / "out")
    (notes / "100.txt").write_text("#yak\nof a new class\n#cat\nof an old one\n")
    assert text.run(["--input=in", "--output=out", "--append"]) == 0
    manifest = open_dataset("out").manifest
    assert (manifest.splits["train"].records, manifest.labels) == (62, 4)
    assert (tmp_path / "out" / "labels.txt").read_text() == "cat\ndog\neel\nyak\n"
    shards = {name for name in before if name.endswith(".tfrecord")}
    assert {name: before[name] for name in shards} == {name: digests(tmp_path / "out")[name] for name in shards}
    # A document is another one if its features are.
    (notes / "100.txt").write_text("#yak\nof a new class\n")
    (notes / "000.txt").write_text("a heading\n#cat\n" + NOTES[0][1][:-2] + "\n")
    with pytest.raises(TpudataError, match=r"has a record of '000\.txt:10' already"):
        text.run(["--input=in", "--output=out", "--append"])


@pytest.mark.usefixtures("installed")
def test_a_resumed_run_keeps_finished_shards(tmp_path: Path) -> None:
    notes = write_notes(tmp_path / "in")
    flags = ["--num-shards=4", "--tokenizer=bytes"]
    assert convert(notes, "diary", "whole", *flags) == 0
    assert convert(notes, "diary", "out", *flags) == 0
    # As a killed run leaves it.
    (tmp_path / "out" / "manifest.json").unlink()
    lost, *kept = sorted((tmp_path / "out").glob("*.tfrecord"))
    lost.unlink()
    times = [path.stat().st_mtime_ns for path in kept]
    assert convert(notes, "diary", "out", *flags, "--resume") == 0
    assert [path.stat().st_mtime_ns for path in kept] == times
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


@pytest.mark.usefixtures("installed")
def test_resume_accepts_the_same_tokenizer_at_another_path(tmp_path: Path) -> None:
    notes = write_notes(tmp_path / "in")
    words = sorted({word for path in notes.iterdir() for word in path.read_text().split()})
    (tmp_path / "here").write_text("\n".join(words))
    (tmp_path / "there").write_text("\n".join(words))
    assert convert(notes, "diary", "out", "--num-shards=4", "--tokenizer=words:here") == 0
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tfrecord")}
    state = digests(tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    assert convert(notes, "diary", "out", "--num-shards=4", f"--tokenizer=words:{tmp_path}/there", "--resume") == 0
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tfrecord")} == before
    assert digests(tmp_path / "out") == state


@pytest.mark.usefixtures("installed")
def test_the_plan_counts_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = write_notes(tmp_path / "in")
    plan = tpudata.convert_text(notes, "out", source="diary", num_shards=2, dry_run=True)
    assert (plan.inputs, plan.splits["train"].shards) == (60, 2)
    manifest = tpudata.convert_text(notes, "out", source="diary", source_args={"mark": "@"}, num_shards=2)
    stored = sum((tmp_path / "out" / shard.name).stat().st_size for shard in manifest.splits["train"].shards)
    assert plan.splits["train"].bytes == pytest.approx(stored, rel=0.1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("installed")
def test_help_shows_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "diary"]) == 0
    shown = capsys.readouterr().out
    assert "Notes about pets" in shown
    assert "mark (str, default: '@')" in shown
    assert main(["help", "diery"]) == 2
    assert "did you mean diary?" in capsys.readouterr().err


@pytest.mark.cases(1)
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_fetch_documents(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    letters = write_letters(tmp_path / "letters.db")
    flags = ["--field=text", "--field=subject:str", "--num-shards=2", f"--workers={workers}"]
    assert convert(letters, "letters", "out", *flags) == 0
    found = {record["subject"][0].decode(): record["text"][0].decode() for record in records(tmp_path / "out")}
    assert found == {f"About {n}": f"Dear {n},\nyours" for n in range(30)}
    flags = ["--inputs=subject", "--targets=text", "--tokenizer=chars", "--sequence-length=64", "--pack", "--dedup"]
    assert convert(letters, "letters", "pairs", *flags) == 0
    assert open_dataset("pairs").manifest.counts["documents"] == 30


@dataclasses.dataclass(frozen=True)
class Fields(DocumentForm):
    """Fields in JSON, some of which are no document."""

    def read(self, data: bytes) -> str | bytes | Mapping[str, Any]:
        found = json.loads(data)
        if isinstance(found, str):
            return found
        return bytes(found) if isinstance(found, list) else dict(found)


@dataclasses.dataclass(frozen=True)
class Lost(DocumentForm):
    """Documents of which every third is not there, or not in UTF-8."""

    is_fetched = True
    is_there: bool = False

    def fetch(self, reference: Any) -> bytes:
        if reference.offset % 3 == 2 and self.is_there:
            return b"caf\xe9"
        if reference.offset % 3 == 2:
            raise ValueError("it is gone")
        return f"{reference.key} {'long ' * reference.offset}".encode()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Odd(Source):
    """Lines of a file, as documents of several kinds."""

    options: Any
    kind: str = "plain"
    several: bool = False
    has_classes = True

    @property
    def several_labels(self) -> bool:
        return self.several

    @property
    def features(self) -> tuple[Feature, ...]:
        return (
            Feature("box", "float", "float32", (4,)),
            Feature("points", "int64", "int64", (None,)),
            Feature("map", "bytes", "uint8", (None, None, 1), encoding="label_map"),
            Feature("where", "bytes", "string", encoding="utf8"),
        )

    def parts(self) -> Iterator[str]:
        yield self.options.input

    def units(self, part: str, ignored: list[str]) -> Iterator[str]:
        del ignored
        yield part

    def references(self, unit: str, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Any]:
        del ignored, reject
        offset = 0
        for number, line in enumerate(Path(unit).read_bytes().splitlines(keepends=True)):
            place: dict[str, Any] = {"path": unit, "offset": offset, "size": len(line.rstrip())}
            offset += len(line)
            if self.kind == "data":
                place = {"path": unit, "size": len(line), "data": b"here: " + line.rstrip()}
            if self.kind in ("fields", "lost", "latin"):
                place["payload"] = Fields() if self.kind == "fields" else Lost(self.kind == "latin")
            if self.kind in ("lost", "latin"):
                place["offset"] = number
            features = {
                "box": np.array([0, 0.25, 0.5, number], np.float32),
                "points": list(range(number)),
                "map": np.full((2, 3), number, np.uint8),
                "where": f"line {number}" if b"no place" not in line else None,
            }
            label = "c\n" if line.startswith(b"no class") else "ab"[number % 2]
            names = ("a", "b")[: 1 + number % 2] if self.several else (label,)
            split = ("train", "test")[number % 4 == 3]
            yield make_reference(
                self.options, f"line-{number}", **place, split=split, labels=tuple(names), features=features
            )


def run_odd(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], *flags: str, kind: str = "Odd") -> int:
    (folder / "in").write_text("".join(f"{line}\n" for line in lines))
    point = importlib.metadata.EntryPoint("odd", f"{__name__}:{kind}", "tpudata.text_sources")
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [point] if group == "tpudata.text_sources" else []
    )
    return convert(folder / "in", "odd", f"{folder}/out", "--no-shuffle", *flags)


@pytest.mark.parametrize("tokenizer", [[], ["--tokenizer=bytes"]])
def test_stores_features_of_any_kind_in_the_splits_of_the_source(
    tokenizer: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"line {n}" for n in range(8)]
    assert run_odd(tmp_path, monkeypatch, lines, "--source-arg=several=true", *tokenizer) == 0
    output = f"{tmp_path}/out"
    assert main(["verify", output, "--decode"]) == 0
    manifest = open_dataset(output).manifest
    assert {name: split.records for name, split in manifest.splits.items()} == {"train": 6, "test": 2}
    found = list(RecordSource(output, "test", features=["label", "box", "points", "map", "where"]))
    assert [one["label"].tolist() for one in found] == [[0, 1], [0, 1]]
    assert [one["box"].tolist() for one in found] == [[0, 0.25, 0.5, 3], [0, 0.25, 0.5, 7]]
    assert [one["points"].tolist() for one in found] == [[0, 1, 2], list(range(7))]
    assert [(one["map"].shape, int(one["map"].max())) for one in found] == [((2, 3, 1), 3), ((2, 3, 1), 7)]
    assert [one["where"] for one in found] == ["line 3", "line 7"]


def test_converts_documents_passed_as_bytes_and_removes_their_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_odd(tmp_path, monkeypatch, ["one", "two"], "--source-arg=kind=data") == 0
    assert texts(tmp_path / "out") == ["here: one", "here: two"]
    assert not [path.name for path in (tmp_path / "out").iterdir() if "spool" in path.name]


def test_reads_documents_as_text_bytes_or_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ['"a text"', "[98, 121]", '{"text": "of a row", "stars": 3}']
    assert run_odd(tmp_path, monkeypatch, lines, "--source-arg=kind=fields") == 0
    assert texts(tmp_path / "out") == ["a text", "by", "of a row"]
    rows = ["--field=text", "--field=stars:int", "--overwrite", "--on-bad-record=skip", "--max-bad-records=2"]
    assert run_odd(tmp_path, monkeypatch, lines, "--source-arg=kind=fields", *rows) == 0
    assert texts(tmp_path / "out") == ["of a row"]
    assert open_dataset(f"{tmp_path}/out").manifest.rejected == {"no field 'stars'": 2}


BAD = [
    ("plain", "caf\udce9", "not UTF-8"),
    ("plain", "no place", "no string in column 'where': no value"),
    ("fields", "{", "Expecting property name"),
    ("fields", '{"words": "x"}', "no field 'text': the row has 'words'"),
    ("fields", '"\\ud800"', "the text has half of a surrogate pair"),
    ("lost", "x", "could not be read: it is gone"),
    ("latin", "x", "in: rejected: not UTF-8: byte 0xe9. Save the file as UTF-8"),
    ("plain", "no class", "its class name is empty, not UTF-8 or with a line break"),
    ("plain", "x" * 1001, "larger than --document-bytes (got 1,001 bytes"),
]


@pytest.mark.parametrize(("kind", "line", "reason"), BAD)
def test_rejects_bad_documents_or_skips_them_within_the_budget(
    kind: str, line: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_text("")
    lines = ['"a"', '"b"', line]
    monkeypatch.setattr(Path, "write_text", lambda path, data: path.write_bytes(data.encode(errors="surrogateescape")))
    flags = [f"--source-arg=kind={kind}", "--document-bytes=1000"]
    with pytest.raises(BadRecordError, match=re.escape(reason)) as error:
        run_odd(tmp_path, monkeypatch, lines, *flags)
    assert str(tmp_path / "in") in error.value.source
    flags += ["--on-bad-record=skip", "--max-bad-records=1", "--resume"]
    assert run_odd(tmp_path, monkeypatch, lines, *flags) == 0
    manifest = open_dataset(f"{tmp_path}/out").manifest
    assert (manifest.records, sum(manifest.rejected.values())) == (2, 1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--form=lines"], "--form is for files of text, and --source is odd"),
        (["--label-field=label"], "--label-field is for files of text"),
        (["--key-field=id"], "--key-field is for files of text"),
        (
            ["--source-arg=kin=x"],
            "--source=odd has no such argument (expected one of kind, several); did you mean kind",
        ),
        (["--field=box:float", "--field=text"], "the column 'box' has the name of a feature that is written already"),
        (["--field=label:int", "--field=text"], "--field label: label is the name of the class"),
        (["--source=od"], "--source is 'od' (expected one of odd); did you mean odd"),
    ],
)
def test_rejects_options_that_do_not_fit_a_source(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        run_odd(tmp_path, monkeypatch, ["x"], *flags)


def test_labels_file_sets_the_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tmp_path / "names.txt"
    names.write_text("c\nb\na\n")
    assert run_odd(tmp_path, monkeypatch, ["x", "y"], f"--labels={names}") == 0
    assert [record["label"][0] for record in records(tmp_path / "out")] == [2, 1]
    names.write_text("a\n")
    with pytest.raises(BadRecordError, match=r"unknown label: 'b'; --labels .*names.txt has 1 name"):
        run_odd(tmp_path, monkeypatch, ["x", "y"], f"--labels={names}", "--overwrite")
