"""A dataset of lists of any length on disk, and what plain loops make of its records."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.datasets import write_dataset
from tpudata.format import Feature

BOXES = Feature("image/object/bbox", "float", "float32", (None, 4))
CLASSES = Feature("image/object/class/label", "int64", "int64", (None,))
NAMES = Feature("image/object/class/text", "bytes", "string", (None,), "utf8")
SHADES = Feature("image/object/shade", "bytes", "uint8", (None, 2), "raw")
CAPTIONS = Feature("caption", "bytes", "string", (None,))
IDS = Feature("ids", "bytes", "int32", (None,), "raw")
NUMBER = Feature("number", "int64", "int64")
OBJECTS = (BOXES, CLASSES, NAMES, SHADES)
FEATURES = (*OBJECTS, CAPTIONS, IDS, NUMBER)
LONGEST = 7


@dataclasses.dataclass(frozen=True)
class Lists:
    """A split "train" of records with 0 to 7 objects, captions and ids each."""

    path: str
    records: list[dict[str, Any]]


def write_lists(folder: Path, count: int = 37, shards: int = 3) -> Lists:
    rng = np.random.default_rng(5)
    records = []
    for number in range(count):
        objects, captions, ids = rng.integers(0, LONGEST + 1, 3).tolist()
        records.append(
            {
                BOXES.name: rng.random((objects, 4), np.float32),
                CLASSES.name: rng.integers(1, 91, objects),
                NAMES.name: [f"kind {kind}" for kind in rng.integers(0, 9, objects)],
                SHADES.name: rng.integers(0, 256, (objects, 2), np.uint8),
                CAPTIONS.name: [f"caption {number}/{caption}".encode() for caption in range(captions)],
                IDS.name: rng.integers(-9, 9, ids, np.int32),
                NUMBER.name: number,
            }
        )
    return Lists(write_records(folder, records, shards), records)


def write_records(folder: Path, records: list[dict[str, Any]], shards: int = 3) -> str:
    """Write records of these features; a value of None is not stored."""
    raw = {feature.name for feature in FEATURES if feature.encoding == "raw"}
    stored = [
        {name: value.tobytes() if name in raw else value for name, value in record.items() if value is not None}
        for record in records
    ]
    return write_dataset(str(folder), {"train": stored}, FEATURES, layout="examples", shards=shards)


def padded(value: Any, feature: Feature, length: int, fill: Any = None) -> Any:
    """The first entries of a list, and after them padding, by a plain loop."""
    kind: Any = {"string": object, "int64": np.int32}.get(feature.dtype, feature.dtype)
    fill = (b"" if kind is object else 0) if fill is None else fill
    out: Any = np.full((length, *(size or 0 for size in feature.shape[1:])), fill, kind)
    for place, entry in enumerate(value[:length]):
        out[place] = entry.encode() if isinstance(entry, str) else entry
    return out
