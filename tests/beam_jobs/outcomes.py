"""Converting many cases at once: a file each, and what became of each by its name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tpudata
from tests.beam_jobs.sources.inputs import write_files
from tpudata.format import Manifest, open_dataset

# Everything may be rejected.
SKIP: dict[str, Any] = {"on_bad_record": "skip", "max_bad_records": "100%"}


class Outcome(NamedTuple):
    """What became of the files of an input.

    Attributes:
        records: the features of each by its name; lists of one are the value.
        rejects: the reason for each that was rejected, by its name.
        manifest: of the dataset.
    """

    records: dict[str, dict[str, Any]]
    rejects: dict[str, str]
    manifest: Manifest


def outcome_of(output: Path, input: Path, key: str = "image/filename") -> Outcome:
    """Read a dataset whose records have their keys, and the rejects next to it."""
    dataset = open_dataset(str(output))
    records = {}
    for split in dataset.manifest.splits:
        for example in dataset.examples(split):
            values: dict[str, Any] = {name: one[0] if len(one) == 1 else list(one) for name, one in example.items()}
            records[values[key].decode("utf-8", "surrogateescape").removeprefix("c/")] = values
    return Outcome(records, read_rejects(output, input), dataset.manifest)


def read_rejects(output: Path, input: Path) -> dict[str, str]:
    """Return the reason of each reject by the name of its file below an input."""
    lines = [line for path in (output / "rejects").glob("*") for line in path.read_text().splitlines()]
    rejects = [json.loads(line) for line in lines]
    names = [reject["source"].removeprefix(f"{input}/").removeprefix("c/") for reject in rejects]
    return dict(zip(names, (reject["reason"] for reject in rejects), strict=True))


def convert_pictures(folder: Path, files: Mapping[str, bytes], **options: Any) -> Outcome:
    """Convert files of one class `c`; what is bad is skipped.

    Args:
        folder: where to write.
        files: bytes by name.
        **options: further keywords of `tpudata.convert_images`.
    """
    write_files(folder / "in" / "c", files)
    tpudata.convert_images(folder / "in", folder / "out", **{**SKIP, **options})
    return outcome_of(folder / "out", folder / "in")


class Texts(NamedTuple):
    """What became of the documents of an input.

    Attributes:
        records: the features of each by its key, `NAME:PLACE`, in order; lists of one are the value.
        rejects: the reason for each that was rejected, by the name of its file and its place: the offset in the file, or None.
        manifest: of the dataset.
    """

    records: dict[str, dict[str, Any]]
    rejects: dict[tuple[str, int | None], str]
    manifest: Manifest

    def of(self, name: str, field: str = "text") -> list[Any]:
        """Return a field of the documents of a file, in order; texts as str."""
        found = [values[field] for key, values in self.records.items() if key == name or key.startswith(f"{name}:")]
        return [value.decode() if isinstance(value, bytes) else value for value in found]


def convert_texts(folder: Path, files: Mapping[str, bytes], **options: Any) -> Texts:
    """Convert files of text in order; what is bad is skipped.

    Args:
        folder: where to write.
        files: bytes by name.
        **options: further keywords of `tpudata.convert_text`.
    """
    write_files(folder / "in", files)
    fixed: dict[str, Any] = {"keep_key": True, "shuffle": False}
    tpudata.convert_text(folder / "in", folder / "out", **{**SKIP, **fixed, **options})
    dataset = open_dataset(str(folder / "out"))
    records = {}
    for example in dataset.examples("train"):
        values: dict[str, Any] = {name: one[0] if len(one) == 1 else list(one) for name, one in example.items()}
        records[values.pop("key").decode()] = values
    rejects = {}
    for path in (folder / "out" / "rejects").glob("*"):
        for reject in map(json.loads, path.read_text().splitlines()):
            name = reject["source"].split(" in ")[-1].removeprefix(f"{folder / 'in'}/")
            rejects[name, reject.get("offset")] = reject["reason"]
    return Texts(records, rejects, dataset.manifest)
