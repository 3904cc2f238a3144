"""Packages that add a source and a storage: the one of docs/convert/extending.md, as it stands there."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from beam_jobs import images, text
from beam_jobs.sources import Payload, Reject, Source, make_reference, raise_rejection
from tests.beam_jobs.images import encode, picture
from tests.beam_jobs.one_unit import OneUnit
from tpudata import Images, RecordSource, make_input_fn
from tpudata.cli import main
from tpudata.errors import BadRecordError, TpudataError, UsageError
from tpudata.format import Feature, open_dataset
from tpudata.storage import files_below, folder_ranges
from tpudata.tokenizers import Ids, TokenizerIdentity, dataset_tokenizer
from tpudata.tokenizers.open_tokenizer import FileUse, TokenizerKind


def make_pets(folder: Path) -> None:
    folder.mkdir()
    for number in range(6):
        name = ("cat", "dog")[number % 2]
        (folder / f"{name}.{number}.jpg").write_bytes(encode(picture(8 + number, 9), "JPEG"))
    (folder / "more").mkdir()


@pytest.mark.usefixtures("installed")
def test_reads_a_source_and_a_storage_of_another_package(tmp_path: Path) -> None:
    make_pets(tmp_path / "share-disk")
    flags = ["--source=pets", "--split=train=0.5,validation=0.5"]
    assert images.run(["--input=share://disk", "--output=there", *flags]) == 0
    assert images.run([f"--input={tmp_path}/share-disk", "--output=here", *flags]) == 0
    here, there = (open_dataset(name).manifest for name in ("here", "there"))
    assert here.splits == there.splits
    assert (tmp_path / "here" / "labels.txt").read_text() == "cat\ndog\n"
    assert sum(split.records for split in here.splits.values()) == 6
    assert (here.source.ignored_files, here.options["source"]) == (1, "pets")
    # An append reads its input as the conversion has.
    (tmp_path / "share-disk" / "dog.7.jpg").write_bytes(encode(picture(30, 9), "JPEG"))
    assert images.run([f"--input={tmp_path}/share-disk", "--output=here", "--append"]) == 0
    assert sum(split.records for split in open_dataset("here").manifest.splits.values()) == 7


@pytest.mark.usefixtures("installed")
def test_tokenizes_with_a_tokenizer_of_another_package(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cat saw the dog\nthe dog sat\n")
    (tmp_path / "words").write_text("cat\ndog\nsat\nsaw\nthe")
    flags = ["--input=in.txt", "--output=out", "--sequence-length=12", "--no-shuffle"]
    assert text.run([*flags, "--tokenizer=words:words"]) == 0
    (record,) = RecordSource("out", "train")
    assert record["input_ids"].tolist()[:10] == [6, 2, 5, 6, 3, 1, 6, 3, 4, 1]
    assert dataset_tokenizer("out").decode(record["input_ids"][:5]) == "the cat saw the dog"
    (tmp_path / "in.txt").write_text("the cat saw the dog\nthe dog sat\nthe eel\n")
    with pytest.raises(TpudataError, match="'eel' is not in the vocabulary"):
        text.run([*flags, "--overwrite", "--tokenizer=words:words"])
    expected = (
        r"expected one of bytes, chars, chars:FILE, sentencepiece:FILE, hf:FILE, words:FILE\); did you mean words"
    )
    with pytest.raises(UsageError, match=expected):
        text.run([*flags, "--overwrite", "--tokenizer=wordz:words"])


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("value", ["nowhere:WORDS", "builtins:int"])
def test_a_broken_package_does_not_hide_a_wrong_name(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = importlib.metadata.EntryPoint("broken", value, "tpudata.tokenizers")
    points = [*importlib.metadata.entry_points(group="tpudata.tokenizers"), broken]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: points)
    with pytest.raises(UsageError, match=r"'wordz' \(expected one of .*, broken, words:FILE\); did you mean words"):
        text.run(["--input=in", "--output=out", "--tokenizer=wordz:words"])


@pytest.mark.usefixtures("installed")
def test_rejects_a_source_of_the_other_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--source=diary is for `tpudata convert text`"):
        images.run(["--input=in", "--output=out", "--source=diary"])
    with pytest.raises(UsageError, match=r"^--source=pets is for `tpudata convert images`"):
        text.run(["--input=in", "--output=out", "--source=pets"])


@pytest.mark.usefixtures("installed")
def test_counts_bad_records_of_another_package(tmp_path: Path) -> None:
    make_pets(tmp_path / "in")
    (tmp_path / "in" / "stray.jpg").write_bytes(b"x")
    flags = ["--source=pets", "--on-bad-record=skip", "--max-bad-records=1"]
    assert images.run(["--input=in", "--output=out", *flags]) == 0
    assert open_dataset("out").manifest.rejected == {"no class and number in its name": 1}


@pytest.mark.usefixtures("installed")
def test_passes_arguments_to_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in (4, 5):
        (folder / f"cat-{number}.jpg").write_bytes(encode(picture(8 + number, 9), "JPEG"))
    flags = ["--input=in", "--output=out", "--source=pets", "--source-arg=separator=-", "--no-shuffle"]
    assert images.run(flags) == 0
    assert open_dataset("out").manifest.options["source_args"] == {"separator": "-"}
    (folder / "cat-6.jpg").write_bytes(encode(picture(30, 9), "JPEG"))
    assert images.run(["--input=in", "--output=out", "--append"]) == 0
    source = RecordSource("out", "train", features=["image/number"])
    assert [int(record["image/number"]) for record in source] == [4, 5, 6]
    assert main(["help", "pets"]) == 0
    shown = capsys.readouterr().out
    assert "Pictures whose class is the first part of their names" in shown
    assert "separator (str, default: '.')" in shown


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--source=pets", "--source-arg=seperator=-"],
            r"no such argument (expected one of separator); did you mean separator",
        ),
        (["--source=pets", "--source-arg=separator"], "write it as NAME=VALUE"),
        (["--source=pets", "--source-arg=separator=-", "--source-arg=separator=."], "passed twice"),
        (["--source-arg=separator=-"], "Pass --source=NAME, too"),
        (["--source=files", "--source-arg=separator=-"], "--source=files takes no arguments"),
    ],
)
def test_rejects_wrong_arguments_of_a_source(flags: list[str], message: str, tmp_path: Path) -> None:
    make_pets(tmp_path / "in")
    with pytest.raises(UsageError, match=re.escape(message)):
        images.run(["--input=in", "--output=out", *flags])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn(Source):
    """Pictures with features of several shapes."""

    options: Any
    count: int
    scale: float = 1.0
    is_short: bool = False
    note: str | None = None

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count} (expected 1 or more)")

    @property
    def features(self) -> tuple[Feature, ...]:
        return (
            Feature("box", "float", "float32", (4,)),
            Feature("points", "int64", "int64", (None,)),
            Feature("matrix", "float", "float32", (2, 2)),
            Feature("words", "bytes", "string", (2,), encoding="utf8"),
            Feature("text", "bytes", "string", encoding="utf8"),
        )

    def parts(self) -> list[str]:
        return [self.options.input]

    def units(self, part: str, ignored: list[str]) -> Iterator[Any]:
        del ignored
        return folder_ranges(part, deep=True)

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Any]:
        del ignored, reject
        for number, (entry, below) in enumerate(files_below(unit, skip=lambda _: False)):
            features = {
                "box": np.array([0, 0.25, 0.5, self.scale], np.float32),
                "points": list(range(number if self.is_short else number + 2)),
                "matrix": [[1, 2], [3, 4.5]] if number < self.count else [[1, 2], [3]],
                "words": ["a", str(self.note)],
                "text": below,
            }
            yield make_reference(self.options, below, path=entry.path, size=entry.size, features=features)


def run_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str, kind: type = Drawn) -> int:
    (folder / "in").mkdir()
    for number in range(3):
        (folder / "in" / f"{number}.jpg").write_bytes(encode(picture(8 + number, 9), "JPEG"))
    point = importlib.metadata.EntryPoint("drawn", f"{__name__}:{kind.__name__}", "tpudata.sources")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == "tpudata.sources" else [])
    flags = [f"--input={folder}/in", f"--output={folder}/out", "--source=drawn", "--no-shuffle"]
    return images.run([*flags, *(f"--source-arg={argument}" for argument in arguments)])


def test_stores_features_of_any_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_drawn(tmp_path, monkeypatch, "count=3", "scale=0.75", "is_short=true", "note=b") == 0
    (shard,) = (tmp_path / "out").glob("*.tfrecord")
    records = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(shard))]
    found = [record.features.feature for record in records]
    assert [list(one["points"].int64_list.value) for one in found] == [[], [0], [0, 1]]
    assert list(found[0]["box"].float_list.value) == [0, 0.25, 0.5, 0.75]
    assert list(found[0]["matrix"].float_list.value) == [1, 2, 3, 4.5]
    assert list(found[0]["words"].bytes_list.value) == [b"a", b"b"]
    assert [one["text"].bytes_list.value[0] for one in found] == [b"0.jpg", b"1.jpg", b"2.jpg"]
    shapes = {feature.name: feature.shape for feature in open_dataset(str(tmp_path / "out")).manifest.features}
    assert (shapes["box"], shapes["points"], shapes["matrix"]) == ((4,), (None,), (2, 2))
    assert main(["verify", f"{tmp_path}/out"]) == 0
    names = ("box", "matrix", "words")
    input_fn = make_input_fn(
        str(tmp_path / "out"), "train", training=False, images=Images(size=(8, 8)), extra_features=names
    )
    (batch,) = input_fn({"batch_size": 3}).as_numpy_iterator()
    assert batch["matrix"].tolist() == [[[1, 2], [3, 4.5]]] * 3
    assert batch["words"].tolist() == [[b"a", b"b"]] * 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Viewed(Drawn):
    """Pictures with a second picture, a label map and a picture of which there are only pixels."""

    @property
    def features(self) -> tuple[Feature, ...]:
        return (
            Feature("view", "bytes", "uint8", (None, None, 3), encoding="image"),
            Feature("map", "bytes", "uint8", (None, None, 1), encoding="label_map"),
            Feature("pixels", "bytes", "uint8", (2, 2, 3), encoding="raw"),
        )

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Any]:
        for number, reference in enumerate(super().references(unit, ignored, reject)):
            features = {
                "view": encode(picture(4, 5 + number), "JPEG"),
                "map": np.full((8 + number, 9), number, np.uint8),
                "pixels": np.full((2, 2, 3), number, np.uint8),
            }
            yield reference._replace(features=features)


def test_stores_pictures_as_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_drawn(tmp_path, monkeypatch, "count=3", kind=Viewed) == 0
    output = f"{tmp_path}/out"
    assert main(["verify", output, "--decode"]) == 0
    found = list(RecordSource(output, "train", features=["view", "map", "pixels"]))
    assert [one["view"].shape for one in found] == [(4, 5, 3), (4, 6, 3), (4, 7, 3)]
    assert [(one["map"].shape, int(one["map"].max())) for one in found] == [
        ((8, 9, 1), 0),
        ((9, 9, 1), 1),
        ((10, 9, 1), 2),
    ]
    assert [int(one["pixels"].max()) for one in found] == [0, 1, 2]
    # An append knows such inputs again, and takes the new one alone.
    (tmp_path / "in" / "3.jpg").write_bytes(encode(picture(20, 9), "JPEG"))
    assert images.run([f"--input={tmp_path}/in", f"--output={output}", "--append"]) == 0
    assert open_dataset(output).manifest.splits["train"].records == 4


@dataclasses.dataclass(frozen=True)
class Stacked(Payload):
    """A picture among those of a NumPy file, whose number is the offset of its reference."""

    is_fetched = True

    def fetch(self, reference: Any) -> bytes:
        pictures = np.load(reference.path)
        if reference.offset >= len(pictures):
            raise ValueError(f"there are {len(pictures)} pictures")
        return encode(Image.fromarray(pictures[reference.offset]), "PNG")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack(OneUnit):
    """Pictures in a NumPy file, and one more that is not there."""

    def references(self, unit: str, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Any]:
        del ignored, reject
        for number in range(4):
            yield make_reference(self.options, str(number), path=unit, offset=number, size=90, payload=Stacked())


def test_fetches_pictures_through_their_payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = np.arange(3 * 8 * 9 * 3, dtype=np.uint8).reshape(3, 8, 9, 3)
    np.save(tmp_path / "in.npy", pictures)
    point = importlib.metadata.EntryPoint("stack", f"{__name__}:Stack", "tpudata.sources")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == "tpudata.sources" else [])
    flags = [f"--input={tmp_path}/in.npy", f"--output={tmp_path}/out", "--source=stack", "--no-shuffle"]
    with pytest.raises(BadRecordError, match=r"^3 in .*/in.npy: rejected: could not be read: there are 3 pictures"):
        images.run(flags)
    assert images.run([*flags, "--resume", "--on-bad-record=skip", "--max-bad-records=1"]) == 0
    found = [record["image"] for record in RecordSource(f"{tmp_path}/out", "train")]
    assert np.array_equal(np.stack(found), pictures)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs --source-arg count=VALUE"),
        (["count=x"], "--source-arg count=x: not of its type (expected int)"),
        (["count=3", "is_short=maybe"], "(expected true or false)"),
        (["count=0"], "--source=drawn: count is 0 (expected 1 or more)"),
        (["count=2"], "no float32 of shape (2, 2) in column 'matrix': [[1, 2], [3]]"),
    ],
)
def test_rejects_arguments_and_values_of_another_kind(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TpudataError, match=re.escape(message)):
        run_drawn(tmp_path, monkeypatch, *arguments)


@dataclasses.dataclass(frozen=True)
class Listed(Drawn):
    """An argument of a type that no text has."""

    sizes: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Labelled(Drawn):
    """A field with the name of an attribute of all sources."""

    labels: str = "names.txt"  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class Unresolved(Drawn):
    """A type that is not there at run time."""

    path: "Missing" = ""  # type: ignore[name-defined]  # noqa: F821, UP037


_UNDECLARED: dict[str, dict[str, Any]] = {
    "class": {"labels": ("a",)},
    "feature": {"features": {"age": 3}},
    "text": {"labels": "cat"},
    "list": {"labels": ["cat"]},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Undeclared(Source):
    """Pictures with a class or a feature that the source does not declare, or labels of another type."""

    options: Any
    of: str

    def parts(self) -> Iterator[str]:
        yield self.options.input

    def units(self, part: str, ignored: list[str]) -> Iterator[Any]:
        del ignored
        yield from folder_ranges(part, deep=True)

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Any]:
        del ignored, reject
        for entry, below in files_below(unit, skip=lambda _: False):
            yield make_reference(self.options, below, path=entry.path, size=entry.size, **_UNDECLARED[self.of])


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ("class", "Undeclared.references: '0.jpg' has a class, but the source's `has_classes` is False"),
        ("feature", "Undeclared.references: '0.jpg' has the feature 'age', which the source's `features` lack"),
        ("text", "the labels of '0.jpg' are of another type (got 'cat', expected a tuple of str)"),
        ("list", "the labels of '0.jpg' are of another type (got ['cat'], expected a tuple of str)"),
    ],
)
@pytest.mark.parametrize("group", ["tpudata.sources", "tpudata.text_sources"])
def test_rejects_classes_and_features_that_a_source_does_not_declare(
    of: str, message: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0.jpg").write_bytes(encode(picture(8, 9), "JPEG"))
    point = importlib.metadata.EntryPoint("drawn", f"{__name__}:Undeclared", group)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == point.group else [])
    run = images.run if group == "tpudata.sources" else text.run
    with pytest.raises(UsageError, match=re.escape(message)):
        run([f"--input={tmp_path}", f"--output={tmp_path}-out", "--source=drawn", f"--source-arg=of={of}"])


class Short:
    """A tokenizer of one token a text."""

    unknown_id = None
    file_bytes = b""
    name = "short"

    def __init__(self, *_: Any) -> None:
        self.identity = TokenizerIdentity(self.name, 3, 1, 0)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        return [np.array([2], np.int32) for _ in texts]

    def decode(self, ids: Iterable[int]) -> str:
        return "x" * len([*ids])


class Renamed(Short):
    """One whose identity has another name than its entry point."""

    name = "long"


class Fewer(Short):
    """One that drops a text."""

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        return super().encode_batch(texts)[1:]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Renamed, r"^--tokenizer short: its identity has another name \(got 'long', expected 'short'\)"),
        (Fewer, r"^Fewer.encode_batch: wrong number of results \(got 0, expected 1,"),
    ],
)
def test_rejects_tokenizers_that_break_their_promises(
    kind: type[Short], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_text("a\nb\n")
    monkeypatch.setitem(globals(), "SHORT", TokenizerKind(FileUse.NONE, kind, takes_eos=False))
    point = importlib.metadata.EntryPoint("short", f"{__name__}:SHORT", "tpudata.tokenizers")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == point.group else [])
    with pytest.raises(UsageError, match=message):
        text.run([f"--input={tmp_path}/in", f"--output={tmp_path}/out", "--tokenizer=short"])


class Plain:
    """A class that is no source."""


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Listed, "--source-arg sizes: --source=drawn declares it as list[int] (expected str, int, float or bool"),
        (Labelled, "Labelled: the field labels has the name of an attribute of all sources"),
        (Unresolved, "Unresolved: its type annotations cannot be evaluated: name 'Missing' is not defined. Import"),
        (Plain, "Plain: not a source (expected a dataclass that derives from beam_jobs.sources.Source)"),
    ],
)
def test_rejects_invalid_source_classes(
    kind: type, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("count=1", "sizes=3") if kind is Listed else ()
    with pytest.raises(UsageError, match=re.escape(message)):
        run_drawn(tmp_path, monkeypatch, *arguments, kind=kind)
    if kind is not Listed:
        assert main(["help", "drawn"]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.usefixtures("installed")
def test_rejects_unknown_sources(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = "folders, files, list, tar, zip, parquet, idx, arrays, imagenet, pets"
    known = rf"^--source is 'pest' \(expected one of {kinds}\).*did you mean pets"
    with pytest.raises(UsageError, match=known):
        images.run(["--input=in", "--output=out", "--source=pest"])
    assert main(["help", "pest"]) == 2
    assert (
        "'pest' is neither a command, a page, nor a source of an installed package; did you mean pets?"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("source", ["folders", "files"])
def test_a_named_source_converts_class_folders(source: str, tmp_path: Path) -> None:
    # Without --source, these would be class folders.
    for label in ("a", "b"):
        (tmp_path / "in" / label).mkdir(parents=True)
        (tmp_path / "in" / label / "1.jpg").write_bytes(encode(picture(), "JPEG"))
    assert images.run([f"--input={tmp_path}/in", f"--output={tmp_path}/out", f"--source={source}"]) == 0
    assert open_dataset(str(tmp_path / "out")).manifest.labels == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--source=files", "--split-column=s"], "--split-column is for CSV and JSONL lists, and --source is files"),
        (["--source=folders", "--unlabelled"], "--unlabelled: --source=folders takes classes from folders"),
    ],
)
def test_rejects_options_of_other_sources(flags: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "1.jpg").write_bytes(encode(picture(), "JPEG"))
    with pytest.raises(UsageError, match=re.escape(message)):
        images.run([f"--input={tmp_path}/in", f"--output={tmp_path}/out", *flags])
