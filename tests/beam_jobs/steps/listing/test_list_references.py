from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apache_beam.pvalue import TaggedOutput

from beam_jobs.options import ConvertOptions
from beam_jobs.planning.input_counts import InputCounts
from beam_jobs.planning.tally import Tally
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reading import read_reference
from beam_jobs.references.reference import WHOLE_FILE, Reference
from beam_jobs.sources import Reject, Source, raise_rejection
from beam_jobs.steps.listing.list_references import COUNTS, NAMES, SAMPLE, TALLY, ListReferences
from tpudata.errors import BadRecordError, StorageError
from tpudata.storage.local.uncached_file import UncachedFile


@dataclasses.dataclass(frozen=True)
class Given(Source):
    """A source whose units are what they list: references, ignored paths, and rejections."""

    given: tuple[tuple[Reference | str | BadRecordError, ...], ...]
    has_classes: bool = True

    def parts(self) -> Sequence[Any]:
        return self.given

    def units(self, part: Any, ignored: list[str]) -> Sequence[Any]:
        del ignored
        return (part,)

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        for item in unit:
            if isinstance(item, str):
                ignored.append(item)
            elif isinstance(item, BadRecordError):
                reject(item)
            else:
                yield item


def file(number: int, data: bytes = b"") -> Reference:
    offset = number if data else WHOLE_FILE
    split, label = ("train", "test")[number % 3 == 0], f"class {number % 5}"
    return Reference(f"{number}", split, (label,), f"/in/{number}", offset, len(data) or number, data=data)


def listed(output: Path, *parts: Any, **said: Any) -> tuple[list[Reference], dict[str, list[Any]]]:
    """The references of all units, and what came aside, by name."""
    source = Given(tuple(map(tuple, parts)))
    step = ListReferences(
        source, ConvertOptions("in", str(output), **said), lambda pack: np.zeros(len(pack.keys), np.int64)
    )
    references: list[Reference] = []
    aside: dict[str, list[Any]] = {TALLY: [], NAMES: [], SAMPLE: [], COUNTS: []}
    for numbered in enumerate(source.parts()):
        for item in step.process([numbered]):
            if isinstance(item, TaggedOutput):
                aside[item.tag].append(item.value)
            else:
                references.extend(Pack.from_bytes(item).references())
    return references, aside


def test_every_reference_comes_once_and_is_counted(tmp_path: Path) -> None:
    items = [file(number) for number in range(9000)]
    references, aside = listed(tmp_path, items[:8000], items[8000:])
    assert references == items
    tally = Tally()
    for part in aside[TALLY]:
        tally.add(part)
    assert tally.bytes == sum(range(9000))
    assert sum(int(tally.buckets(split).records.sum()) for split in tally.splits) == 9000
    assert set().union(*aside[NAMES]) == {f"class {number}" for number in range(5)}
    sampled = [key for data in aside[SAMPLE] for key in Pack.from_bytes(data).keys]
    assert sampled
    assert set(sampled) < {item.key for item in items}
    classes = {split: {f"class {number}" for number in range(5)} for split in ("test", "train")}
    assert aside[COUNTS] == [InputCounts(classes=classes), InputCounts(classes=classes)]
    assert list(tmp_path.iterdir()) == []


def test_bytes_without_an_address_are_written_aside(tmp_path: Path) -> None:
    contents = [bytes([number]) * (1 + number * 1000) for number in range(40)]
    items = [file(number, data) for number, data in enumerate(contents)]
    references, _ = listed(tmp_path, items[:25], [*items[25:], file(99)])
    assert [read_reference(reference) for reference in references[:-1]] == contents
    assert references[-1] == file(99)
    for item, reference in zip(items, references, strict=False):
        # Known by what it is, read from where it was put.
        assert (reference.key, reference.path, reference.size, reference.data) == (item.key, item.path, item.size, b"")
    assert {reference.spool for reference in references[:-1]} == {str(path) for path in tmp_path.iterdir()}
    assert all(path.name.startswith(".tpudata-spool-") for path in tmp_path.iterdir())


def test_a_unit_that_is_listed_again_writes_the_same_file_aside(tmp_path: Path) -> None:
    first, _ = listed(tmp_path, [file(1, b"abc")])
    again, _ = listed(tmp_path, [file(1, b"abc")])
    assert first == again
    assert len(list(tmp_path.iterdir())) == 1


BAD = [BadRecordError("/in/a", "cut: 3 of 7 bytes"), BadRecordError("/in/list.csv", "it is gone", 7, "b.jpg")]


def test_rejections_are_listed_and_counted_by_kind(tmp_path: Path) -> None:
    references, aside = listed(tmp_path, [file(1), *BAD, file(2), "/in/.x"], ["/in/.y", file(4)], on_bad_record="skip")
    assert references == [file(1), file(2), file(4)]
    first = InputCounts(1, {"cut": 1, "it is gone": 1}, classes={"train": {"class 1", "class 2"}})
    assert aside[COUNTS] == [first, InputCounts(1, classes={"train": {"class 4"}})]
    (path,) = (tmp_path / "rejects").iterdir()
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [
        {"source": "/in/a", "offset": None, "reason": "cut: 3 of 7 bytes"},
        {"source": "/in/list.csv", "offset": 7, "reason": "it is gone", "key": "b.jpg"},
    ]


def test_the_first_rejection_ends_a_run_that_does_not_skip(tmp_path: Path) -> None:
    with pytest.raises(BadRecordError) as error:
        listed(tmp_path, [file(1, b"data"), *BAD])
    assert error.value.source == "/in/a"
    assert list(tmp_path.rglob("*.*")) == []


@dataclasses.dataclass(frozen=True)
class Broken(Given):
    """A source that meets an error of the system after its references."""

    def references(self, unit: Any, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        yield from super().references(unit, ignored, reject)
        raise OSError("Invalid data stream")


def run(source: Given, output: Path) -> None:
    step = ListReferences(source, ConvertOptions("in", str(output)), lambda pack: np.zeros(len(pack.keys), np.int64))
    list(step.process([(0, source.given[0])]))


def test_an_error_of_reading_keeps_its_name_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^Invalid data stream$"):
        run(Broken(((file(1, b"data"),),)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_writing_aside_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(UncachedFile, "write", full)
    with pytest.raises(StorageError, match=r"spool-\w+ could not be written: No space left on device"):
        run(Given(((file(1, b"data"),),)), tmp_path)
    assert list(tmp_path.iterdir()) == []
