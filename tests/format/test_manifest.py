"""The manifest: round trip, and everything it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tpudata.errors import DatasetError
from tpudata.format import Feature, Manifest, Shard, Source, Split

TRAIN = Split((Shard("train-0", 3, 100, 0xDEADBEEF), Shard("train-1", 4, 120, 7)), decoded_bytes=999)
TEST = Split((Shard("test-0", 2, 50, 0),))
FEATURES = (Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"), Feature("label", "int64", "int64"))
SOURCE = Source(input="/data/ü", files=9, bytes=1234, fingerprint="abc", ignored_files=1)


def make(**changes: Any) -> Manifest:
    arguments: dict[str, Any] = {
        "layout": "imagenet",
        "splits": {"train": TRAIN, "test": TEST},
        "features": FEATURES,
        "source": SOURCE,
        "created_by": "1.2.3",
        "labels": 5,
        "rejected": {"not an image": 2},
        "options": {"seed": 3, "quality": None},
        **changes,
    }
    return Manifest(**arguments)


def test_round_trip() -> None:
    manifest = make()
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert make(labels=None, rejected={}, options={}) == Manifest.from_bytes(
        make(labels=None, rejected={}, options={}).to_bytes()
    )


def test_equal_manifests_are_equal_bytes() -> None:
    turned = make(splits={"test": TEST, "train": TRAIN}, options={"quality": None, "seed": 3})
    assert turned.to_bytes() == make().to_bytes()


def test_on_disk_it_is_as_documented() -> None:
    value = json.loads(make().to_bytes())
    assert sorted(value) == [
        "created_by",
        "features",
        "format_version",
        "labels",
        "layout",
        "options",
        "rejected",
        "source",
        "splits",
    ]
    assert value["format_version"] == 1
    assert value["splits"]["train"] == {
        "decoded_bytes": 999,
        "shards": [
            {"name": "train-0", "records": 3, "bytes": 100, "crc32c": "deadbeef"},
            {"name": "train-1", "records": 4, "bytes": 120, "crc32c": "00000007"},
        ],
    }
    assert "ü" in make().to_bytes().decode()


def test_counts() -> None:
    manifest = make()
    assert (TRAIN.records, TRAIN.bytes, manifest.records) == (7, 220, 9)
    assert manifest.split("train") is TRAIN
    assert manifest.feature("label") is FEATURES[1]


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(DatasetError, match=r"No split 'valid'; the dataset has train, test"):
        make().split("valid")
    with pytest.raises(DatasetError, match=r"No feature 'x'; the dataset has image/encoded, label"):
        make().feature("x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format version 2.*reads version 1"),
        ({"splits": {"train": TRAIN, "again": TRAIN}}, "names a shard twice"),
        ({"features": (FEATURES[0], FEATURES[0])}, "names a feature twice"),
    ],
)
def test_parts_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        make(**changes)


@pytest.mark.parametrize(("records", "size"), [(0, 10), (10, 0), (-1, 10)])
def test_an_empty_shard_is_refused(records: int, size: int) -> None:
    with pytest.raises(DatasetError, match="never empty"):
        Shard("x", records, size, 0)


def damaged(change: Any) -> bytes:
    value = json.loads(make().to_bytes())
    change(value)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"not json",
        b"\xff\xfe",
        make().to_bytes()[:-30],
        damaged(lambda value: value.pop("source")),
        damaged(lambda value: value["source"].update(more=1)),
        damaged(lambda value: value["splits"]["train"]["shards"][0].pop("bytes")),
        damaged(lambda value: value["splits"]["train"]["shards"][0].update(crc32c="zz")),
        damaged(lambda value: value["features"][0].pop("kind")),
        damaged(lambda value: value.update(splits=[1])),
    ],
)
def test_bytes_that_are_no_manifest_name_the_file(data: bytes) -> None:
    with pytest.raises(DatasetError, match=r"^/some/manifest\.json is not a manifest"):
        Manifest.from_bytes(data, "/some/manifest.json")


def test_another_version_names_the_file() -> None:
    data = damaged(lambda value: value.update(format_version=99))
    with pytest.raises(DatasetError, match=r"^/some/manifest\.json: Manifest of format version 99"):
        Manifest.from_bytes(data, "/some/manifest.json")
