"""References are read as they were listed, or rejected before more than that is read.

One test lets the file that every shard is written with report a full disk.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import random
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tpudata
from beam_jobs.sources import Reject, Source, make_reference, raise_rejection
from tests.beam_jobs.golden import one_pixel_png
from tests.beam_jobs.one_unit import OneUnit
from tests.beam_jobs.outcomes import SKIP, read_rejects
from tests.beam_jobs.plugins import install
from tests.helpers.pictures import digests
from tpudata.errors import BadRecordError, OutputError, SourceError
from tpudata.format import Feature, open_dataset
from tpudata.storage.local.uncached_file import UncachedFile

# By key: what `make_reference` takes besides it, or an error that is raised there or rejected with.
PLACES: Mapping[str, Mapping[str, Any] | Exception] = {}
MOST = 1 << 30
# Far more than a machine's memory.
HUGE = 1 << 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Given(OneUnit):
    """A source that lists `PLACES`, which are in this process alone."""

    @property
    def has_classes(self) -> bool:
        return any(isinstance(place, Mapping) and "labels" in place for place in PLACES.values())

    def references(self, unit: str, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Any]:
        for key, place in PLACES.items():
            if isinstance(place, BadRecordError):
                reject(place)
            elif isinstance(place, Exception):
                raise place
            elif place.get("path") == "":
                ignored.append(key)
            else:
                yield make_reference(self.options, key, **{"path": unit, **place})


@pytest.fixture
def convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Function that converts places, of the file `in` unless they have a path."""

    def run(places: Mapping[str, Any], **options: Any) -> Any:
        monkeypatch.setitem(globals(), "PLACES", places)
        return tpudata.convert_images(tmp_path / "in", tmp_path / "out", source="given", **options)

    install(monkeypatch, "tpudata.sources", given=Given)
    return run


def test_rejects_inputs_that_differ_from_their_listing(tmp_path: Path, convert: Any) -> None:
    data = one_pixel_png(1)
    (tmp_path / "in").write_bytes(data)
    (tmp_path / "large").touch()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(HUGE + 512)
    for name in ("smaller", "larger", "empty"):
        (tmp_path / name).write_bytes(data)
    places: dict[str, Any] = {
        "good": {"size": len(data)},
        "range": {"size": len(data), "offset": 0},
        "smaller": {"path": str(tmp_path / "smaller"), "size": len(data) + 1},
        "larger": {"path": str(tmp_path / "larger"), "size": len(data) - 1},
        "empty": {"path": str(tmp_path / "empty"), "size": 0},
        "cut": {"size": len(data), "offset": 3},
        "gone": {"path": str(tmp_path / "gone"), "size": 5},
        "large": {"path": str(tmp_path / "large"), "size": HUGE},
        "large range": {"path": str(tmp_path / "large"), "size": HUGE, "offset": 512},
        "crc": {"size": len(data), "offset": 0, "crc32": 5},
    }
    manifest = convert(places, **SKIP)
    rejects = {name.split(" in ")[0]: reason for name, reason in read_rejects(tmp_path / "out", tmp_path).items()}
    count = len(data)
    assert rejects == {
        "smaller": f"changed during the run: {count} bytes, {count + 1} when it was listed",
        "larger": f"changed during the run: {count} bytes, {count - 1} when it was listed",
        "empty": f"changed during the run: {count} bytes, 0 when it was listed",
        "cut": f"cut: {count - 3} of {count} bytes",
        "gone": rejects["gone"],
        "large": f"too large: {HUGE} bytes; an input has {MOST} at most",
        "large range": f"too large: {HUGE} bytes; an input has {MOST} at most",
        "crc": rejects["crc"],
    }
    assert rejects["gone"] == "could not be read: No such file or directory. Check whether it was moved or removed."
    assert rejects["crc"].startswith("damaged in the archive: its CRC-32 is ")
    assert manifest.records == 2


BAD = [BadRecordError("/in/a", "cut: 3 of 7 bytes"), BadRecordError("/in/list.csv", "it is gone", 7, "b.jpg")]


def test_counts_inputs_that_the_listing_rejects_or_ignores(tmp_path: Path, convert: Any) -> None:
    (tmp_path / "in").write_bytes(one_pixel_png(1))
    good = {"size": len(one_pixel_png(1))}
    places = {"one": good, "bad": BAD[0], "worse": BAD[1], "hidden": {"path": ""}, "two": good}
    with pytest.raises(BadRecordError, match=r"^/in/a: rejected: cut"):
        convert(places)
    assert not list((tmp_path / "out").rglob("*.*"))
    manifest = convert(places, **SKIP)
    assert (manifest.records, manifest.source.ignored_files) == (2, 1)
    assert manifest.rejected == {"cut": 1, "it is gone": 1}
    (path,) = (tmp_path / "out" / "rejects").iterdir()
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [
        {"source": "/in/a", "offset": None, "reason": "cut: 3 of 7 bytes"},
        {"source": "/in/list.csv", "offset": 7, "reason": "it is gone", "key": "b.jpg"},
    ]


def test_system_errors_keep_their_message_and_leave_no_file(
    tmp_path: Path, convert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = one_pixel_png(1)
    (tmp_path / "in").write_bytes(data)
    stream = {"size": len(data), "data": data}
    with pytest.raises(OSError, match=r"^Invalid data stream"):
        convert({"one": stream, "error": OSError("Invalid data stream")})
    assert not list((tmp_path / "out").rglob("*"))

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(UncachedFile, "write", full)
    with pytest.raises(OutputError, match=r"spool-\w+ could not be written: No space left on device"):
        convert({"one": stream})
    assert not list((tmp_path / "out").rglob("*"))


@pytest.mark.parametrize("name", ["", "two\nlines", "end\n", "\u2028", "form\x0cfeed", "caf\udce9"])
def test_rejects_class_names_that_labels_txt_cannot_hold(name: str, tmp_path: Path, convert: Any) -> None:
    (tmp_path / "in").write_bytes(one_pixel_png(1))
    place = {"size": len(one_pixel_png(1))}
    with pytest.raises(
        BadRecordError, match=r"two in .*: rejected: its class name is .*, which labels\.txt cannot hold"
    ):
        convert({"one": place | {"labels": ("fine",)}, "two": place | {"labels": (name,), "offset": 0}})


def test_each_seed_shuffles_records_differently(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{n}\n" for n in range(200)))
    for seed in (0, 1, -3):
        tpudata.convert_text(tmp_path / "in.txt", tmp_path / f"{seed}", seed=seed)
    found = [
        [example["text"] for example in open_dataset(str(tmp_path / f"{n}")).examples("train")] for n in (0, 1, -3)
    ]
    assert sorted(map(str, found[0])) == sorted(map(str, found[1])) == sorted(map(str, found[2]))
    assert len({str(some) for some in found}) == 3


@pytest.mark.parametrize("dry_run", [True, False])
def test_names_the_first_repeated_path_of_lists(dry_run: bool, tmp_path: Path) -> None:
    mixer = random.Random(dry_run)
    (tmp_path / "pictures").mkdir()
    names = [f"p{n}.png" for n in range(30)]
    for number, name in enumerate(names):
        (tmp_path / "pictures" / name).write_bytes(one_pixel_png(number))
    for trial in range(4 if dry_run else 2):
        folder = tmp_path / f"lists{trial}"
        folder.mkdir()
        seen: dict[str, tuple[int, int]] = {}
        expected = None
        for number in range(3):
            keys = mixer.choices(names, k=6)
            lines = ["path,label", *(f"../pictures/{key},c" for key in keys)]
            (folder / f"{number}.csv").write_text("\n".join(lines))
            for line, key in enumerate(keys, 2):
                if key in seen and expected is None:
                    expected = (number, line, *seen[key])
                seen.setdefault(key, (number, line))
        assert expected is not None
        where = r"{}\.csv line {} and .*{}\.csv line {} have the same path".format(*expected)
        with pytest.raises(SourceError, match=where):
            tpudata.convert_images(f"{folder}/*.csv", tmp_path / "out", dry_run=dry_run)


def test_dedup_keeps_the_text_with_the_smallest_key(tmp_path: Path) -> None:
    # Keys by their bytes. Nothing is normalized, and what cannot be read is no double of another.
    texts = {"b": "x", "a": "x", "é": "x", "c": "yy", "B": "yy", "d": "é", "D": "e\u0301", "e": "É", "f": "é "}
    lines = [json.dumps({"id": key, "text": text}).encode() for key, text in texts.items()]
    lines += [b'{"id": "y", "text": "\xff"}', b'{"id": "z", "text": "\xff"}']
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    options: dict[str, Any] = {"key_field": "id", "keep_key": True, "dedup": True}
    manifest = tpudata.convert_text(tmp_path / "in.jsonl", tmp_path / "out", **options, **SKIP)
    examples = open_dataset(str(tmp_path / "out")).examples("train")
    assert {bytes(example["key"][0]).decode() for example in examples} == {*"aBdDef"}  # type: ignore[arg-type]
    assert sum(manifest.rejected.values()) == 2
    assert re.search("duplicate", json.dumps(dict(manifest.counts)))


ODD_KEYS = [
    "a",
    "caf\udce9",
    "x/y",
    "a:01",
    "a:-0",
    "a:-7",
    "a: 7",
    "a:1_0",
    "a:٣",
    "a:+1",
    "7 ",
    "a:",
    "007",
    ":0",
    "18446744073709551617",
]
TEXT_FEATURES = (
    Feature("number", "int64", "int64"),
    Feature("list", "float", "float32", (None,)),
    Feature("box", "float", "float32", (2, 2)),
    Feature("note", "bytes", "string", encoding="utf8"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Many(Source):
    """Documents of a file in many units, of several splits, classes and features, and other numbers of each unit."""

    options: Any
    has_classes = True
    several_labels = True
    features = TEXT_FEATURES

    def parts(self) -> list[int]:
        return [3, 0, 4500, 1, *range(10, 30)]

    def units(self, part: int, ignored: list[str]) -> Iterator[tuple[int, int]]:
        for number in range(0, part, 1500):
            ignored.append(f"{part}/skipped")
            yield part, number

    def references(self, unit: tuple[int, int], ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Any]:
        del reject
        part, first = unit
        ignored.append("one of the unit")
        for number in range(first, min(first + 1500, part)):
            line = (part * 7 + number) % 1000
            labels = ("a", "b", "é")[: number % 4]
            place: dict[str, Any] = {"path": self.options.input, "offset": 9 * line, "size": 8}
            if number % 5 == 0:
                place = {"path": self.options.input, "size": 8, "data": b"held %03d" % (line % 1000)}
            features = {
                "number": 2**62 - number,
                "list": [0.5] * (number % 3),
                "box": np.full((2, 2), number, np.float32),
                "note": ("plain", "é", f"{number}")[number % 3],
            }
            split = ("train", "test")[number % 7 == 0]
            yield make_reference(
                self.options, f"{part}:{number}", **place, split=split, labels=labels, features=features
            )


@pytest.mark.cases(1)
@pytest.mark.parametrize("shuffle", [True, False])
def test_keeps_all_of_a_reference_in_any_number_of_units_and_shards(
    shuffle: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").write_bytes(b"".join(b"text %03d\n" % n for n in range(1000)))
    install(monkeypatch, "tpudata.text_sources", many=Many)
    output = tmp_path / "out"
    manifest = tpudata.convert_text(
        tmp_path / "in", output, source="many", keep_key=True, shuffle=shuffle, num_shards=20
    )
    parts = Many(options=None).parts()
    assert (manifest.records, manifest.labels) == (sum(parts), 3)
    assert manifest.source.ignored_files == 2 * sum(len(range(0, part, 1500)) for part in parts)
    dataset, order = open_dataset(str(output)), {part: number for number, part in enumerate(parts)}
    for split in ("train", "test"):
        places = []
        for example in dataset.examples(split):
            part, number = map(int, bytes(example["key"][0]).split(b":"))  # type: ignore[arg-type]
            line = (part * 7 + number) % 1000
            assert split == ("train", "test")[number % 7 == 0]
            assert example["text"] == [b"held %03d" % line if number % 5 == 0 else b"text %03d" % line]
            assert example["label"] == [*range(number % 4)][:3]
            assert (example["number"], example["box"]) == ([2**62 - number], [float(number)] * 4)
            assert (example["list"], example["note"]) == (
                [0.5] * (number % 3),
                [(b"plain", "é".encode(), b"%d" % number)[number % 3]],
            )
            places.append((order[part], number))
        assert (places == sorted(places)) == (not shuffle)
    if shuffle:
        before = digests(output)
        tpudata.convert_text(tmp_path / "in", output, source="many", append=True)
        assert digests(output) == before


def test_accepts_any_text_as_a_key(tmp_path: Path, convert: Any) -> None:
    (tmp_path / "in").write_bytes(one_pixel_png(1))
    place = {"size": len(one_pixel_png(1)), "offset": 0}
    convert(dict.fromkeys(ODD_KEYS, place))
    examples = open_dataset(str(tmp_path / "out")).examples("train")
    keys = {bytes(example["image/filename"][0]) for example in examples}  # type: ignore[arg-type]
    assert keys == {key.encode("utf-8", "surrogateescape") for key in ODD_KEYS}
    before = digests(tmp_path / "out")
    convert(dict.fromkeys(ODD_KEYS, place), append=True)
    assert digests(tmp_path / "out") == before


def test_append_detects_changed_size_labels_split_or_checksum(tmp_path: Path, convert: Any) -> None:
    data = one_pixel_png(1)
    (tmp_path / "in").write_bytes(data * 2)
    (tmp_path / "moved").write_bytes(data)
    place = {"size": len(data), "offset": 0, "labels": ("cat",), "split": "train", "crc32": zlib.crc32(data)}
    convert({"one": place, "two": place | {"labels": ("dog",), "split": "test"}})
    before = digests(tmp_path / "out")
    changes: list[dict[str, Any]] = [
        {"size": 2 * len(data)},
        {"labels": ("dog",)},
        {"split": "test"},
        {"crc32": 1},
    ]
    for change in changes:
        with pytest.raises(SourceError, match="has a record of 'one' already"):
            convert({"one": place | change}, append=True)
    # Where its bytes are does not matter.
    convert({"one": place | {"path": str(tmp_path / "moved")}}, append=True)
    assert digests(tmp_path / "out") == before
