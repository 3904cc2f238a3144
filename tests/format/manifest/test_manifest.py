"""The manifest: round trip, and everything it rejects.

Tests call the private check of the checksum: for a flipped bit, readers may report the invalid value first.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpudata.errors import DatasetError
from tpudata.format import Feature, Manifest, Shard, Source, Split
from tpudata.format.checksums import checksum_fits

NAMES = ["train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord", "test-00000-of-00001.tfrecord"]
TRAIN = Split((Shard(NAMES[0], 3, 100, 0xDEADBEEF), Shard(NAMES[1], 4, 120, 7)), decoded_bytes=999)
TEST = Split((Shard(NAMES[2], 2, 50, 0),))
FEATURES = (Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image"), Feature("label", "int64", "int64"))
SOURCE = Source(input="/data/ü", files=9, bytes=1234, fingerprint="abc", ignored_files=1)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner) | st.dictionaries(st.text(), inner)


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
        "converted": {"CMYK": 4},
        "appends": 2,
        **changes,
    }
    return Manifest(**arguments)


def test_round_trip_keeps_a_manifest() -> None:
    manifest = make()
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    assert make(labels=None, rejected={}, options={}) == Manifest.from_bytes(
        make(labels=None, rejected={}, options={}).to_bytes()
    )


def test_the_share_of_real_tokens_follows_from_the_counts() -> None:
    manifest = make(counts={"documents": 3, "tokens": 97, "padding": 2})
    assert json.loads(manifest.to_bytes())["real_token_share"] == 0.979798
    assert Manifest.from_bytes(manifest.to_bytes()).real_token_share == pytest.approx(97 / 99)
    for counts in ({}, {"documents": 3}, {"documents": 3, "tokens": 97}):
        assert make(counts=counts).real_token_share is None
        assert "real_token_share" not in json.loads(make(counts=counts).to_bytes())


def test_reads_a_manifest_without_later_fields() -> None:
    value = json.loads(make().to_bytes())
    for name in ("converted", "appends", "keys", "rejects"):
        del value[name]
    assert Manifest.from_bytes(json.dumps(value).encode()) == make(converted={}, appends=0)


def test_keeps_an_input_name_that_is_not_utf8() -> None:
    source = Source(input="/data/ü\udcff", files=9, bytes=1, fingerprint="abc")
    data = make(source=source).to_bytes()
    assert '"/data/ü\\udcff"'.encode() in data
    assert Manifest.from_bytes(data).source == source


def test_equal_manifests_have_equal_bytes() -> None:
    turned = make(splits={"test": TEST, "train": TRAIN}, options={"quality": None, "seed": 3})
    assert turned.to_bytes() == make().to_bytes()


def test_json_has_the_documented_keys() -> None:
    value = json.loads(make().to_bytes())
    assert sorted(value) == [
        "appends",
        "checksum",
        "compression",
        "converted",
        "counts",
        "created_by",
        "dali_index",
        "features",
        "format_version",
        "keys",
        "labels",
        "labels_crc32c",
        "layout",
        "options",
        "rejected",
        "rejects",
        "source",
        "splits",
        "tfds",
    ]
    assert value["format_version"] == 1
    assert value["splits"]["train"] == {
        "decoded_bytes": 999,
        "shards": [
            {"name": NAMES[0], "records": 3, "bytes": 100, "crc32c": "deadbeef"},
            {"name": NAMES[1], "records": 4, "bytes": 120, "crc32c": "00000007"},
        ],
    }
    assert "ü" in make().to_bytes().decode()


@pytest.mark.parametrize("labels_crc32c", [None, 0xDEADBEEF])
def test_checksum_detects_every_changed_bit(labels_crc32c: int | None) -> None:
    data = make(labels_crc32c=labels_crc32c).to_bytes()
    assert Manifest.from_bytes(data).labels_crc32c == labels_crc32c
    assert checksum_fits(data) is True
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        assert not checksum_fits(bytes(changed)), place
    assert checksum_fits(data.replace(b' "checksum"', b' "unknown"')) is None


def test_sums_records_and_bytes_of_shards() -> None:
    manifest = make()
    assert (TRAIN.records, TRAIN.bytes, manifest.records) == (7, 220, 9)
    assert manifest.split("train") is TRAIN
    assert manifest.feature("label") is FEATURES[1]


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(DatasetError, match=r"No split 'valid'; the dataset has train, test"):
        make().split("valid")
    with pytest.raises(DatasetError, match=r"No feature 'x'; the dataset has image/encoded, label"):
        make().feature("x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, r"another format version \(got 2, expected 1\)"),
        ({"splits": {"train": TRAIN, "again": TRAIN}}, "names a shard twice"),
        ({"features": (FEATURES[0], FEATURES[0])}, "names a feature twice"),
        ({"splits": {"../train": TRAIN}}, r"Split '\.\./train'"),
        ({"splits": {"": TRAIN}}, "Split ''"),
    ],
)
def test_rejects_inconsistent_parts(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        make(**changes)


@pytest.mark.parametrize(("records", "size"), [(0, 10), (10, 0), (-1, 10)])
def test_rejects_an_empty_shard(records: int, size: int) -> None:
    with pytest.raises(DatasetError, match="it is empty"):
        Shard(NAMES[0], records, size, 0)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "victim.txt",
        "../victim.txt",
        "../train-00000-of-00001.tfrecord",
        "/etc/train-00000-of-00001.tfrecord",
        "a/train-00000-of-00001.tfrecord",
        "a\\train-00000-of-00001.tfrecord",
        ".train-00000-of-00001.tfrecord",
        "-train-00000-of-00001.tfrecord",
        "-00000-of-00001.tfrecord",
        "train-00000-of-00001.tfrecord\n",
        "train-00000-of-00001.tfrecord\0",
        "train-0000-of-0001.tfrecord",
        "train-00001-of-00001.tfrecord",
        "train-00000-of-99999999.tfrecord",
        "train-00000-of-00001",
        "manifest.json",
        "tr\u00e4in-00000-of-00001.tfrecord",
        "train-\u0660\u0660\u0660\u0660\u0660-of-00001.tfrecord",
    ],
)
def test_rejects_invalid_shard_names(name: str) -> None:
    with pytest.raises(DatasetError, match=r"invalid name \(expected SPLIT-NNNNN-of-NNNNN\.tfrecord\)"):
        Shard(name, 1, 20, 0)
    data = damaged(lambda value: value["splits"]["train"]["shards"][0].update(name=name))
    with pytest.raises(DatasetError, match=r"^/some/manifest\.json: Shard"):
        Manifest.from_bytes(data, "/some/manifest.json")


@pytest.mark.parametrize(
    "name", ["train-a001-00000-of-00003.tfrecord", "a.b_C-100000-of-123456.tfrecord", "0-00000-of-00001.tfrecord"]
)
def test_accepts_valid_shard_names(name: str) -> None:
    assert Shard(name, 1, 20, 0).name == name


@pytest.mark.parametrize("name", ["../listing-00.jsonl", "listing-.jsonl", "/x", "listing-0\n.jsonl", "train-0.jsonl"])
def test_rejects_invalid_names_of_reject_lists(name: str) -> None:
    assert make(rejects=("listing-0af.jsonl",), keys=True) == Manifest.from_bytes(
        make(rejects=("listing-0af.jsonl",), keys=True).to_bytes()
    )
    with pytest.raises(DatasetError, match=r"expected listing-HEXDIGITS\.jsonl"):
        make(rejects=(name,))


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
def test_names_a_file_that_is_not_a_manifest(data: bytes) -> None:
    with pytest.raises(DatasetError, match=r"^/some/manifest\.json: not a manifest: .* convert into another folder\.$"):
        Manifest.from_bytes(data, "/some/manifest.json")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda value: value.update(rejected=7), "rejected is 7, not an object"),
        (lambda value: value.update(rejected={"bad": "2"}), r"rejected\['bad'\] is '2', not a whole number"),
        (lambda value: value["splits"]["train"].update(decoded_bytes="zz"), r"splits\.train\.decoded_bytes is 'zz'"),
        (lambda value: value.update(layout=5), "layout is 5, not a string"),
        (lambda value: value.update(options=[]), r"options is \[\], not an object"),
        (lambda value: value.update(created_by=None), "created_by is None, not a string"),
        (lambda value: value.update(labels="5"), "labels is '5', not a whole number or null"),
        (lambda value: value.update(labels=-1), "labels is -1, not a number from 0"),
        (lambda value: value.update(labels=True), "labels is True"),
        (lambda value: value.update(format_version="1"), "format_version is '1'"),
        (lambda value: value.pop("rejected"), "rejected is missing"),
        (lambda value: value["source"].update(input={}), r"source\.input is \{\}, not a string"),
        (lambda value: value["source"].update(files=1.5), r"source\.files is 1\.5"),
        (lambda value: value["source"].update(more=1), "source has the unknown key 'more'"),
        (lambda value: value["source"].pop("fingerprint"), r"source\.fingerprint is missing"),
        (lambda value: value["splits"].update(test=[]), r"splits\.test is \[\]"),
        (lambda value: value["splits"]["test"].update(shards={}), r"splits\.test\.shards is \{\}"),
        (
            lambda value: value["splits"]["train"]["shards"][1].update(records="3"),
            r"splits\.train\.shards\[1\]\.records is '3'",
        ),
        (
            lambda value: value["splits"]["train"]["shards"][1].update(records=2**63),
            r"records is 9223372036854775808, not a number from 0 to 2\*\*63 - 1",
        ),
        (lambda value: value["splits"]["train"]["shards"][0].update(crc32c="-1"), r"crc32c is '-1'"),
        (lambda value: value["splits"]["train"]["shards"][0].update(crc32c="0xDEAD"), r"crc32c is '0xDEAD'"),
        (lambda value: value["features"].append("x"), r"features\[2\] is 'x', not an object"),
        (lambda value: value["features"][0].update(shape="ab"), r"features\[0\]\.shape is 'ab'"),
        (lambda value: value["features"][0].update(shape=[1.5, 2, 3]), r"features\[0\]\.shape\[0\] is 1\.5"),
        (lambda value: value["features"][1].update(num_classes="x"), r"features\[1\]\.num_classes is 'x'"),
        (lambda value: value.update(keys=1), "keys is 1, not true or false"),
        (lambda value: value.update(warnings=[]), r"warnings is \[\], not an object"),
        (lambda value: value.update(warnings={"columns": 1}), r"warnings\['columns'\] is 1, not a string"),
        (lambda value: value.update(converted=[]), r"converted is \[\], not an object"),
        (lambda value: value.update(converted={"GIF": -1}), r"converted\['GIF'\] is -1, not a number from 0"),
        (lambda value: value.update(appends="1"), "appends is '1', not a whole number"),
        (lambda value: value.update(rejects={}), r"rejects is \{\}, not a list"),
        (lambda value: value.update(rejects=[5]), r"rejects\[0\] is 5, not a string"),
        (lambda value: value["features"][1].update(size=1), r"features\[1\] has the unknown key 'size'"),
    ],
)
def test_names_a_field_of_another_type(change: Any, field: str) -> None:
    with pytest.raises(DatasetError, match=rf"^/some/manifest\.json: not a manifest: .*{field}"):
        Manifest.from_bytes(damaged(change), "/some/manifest.json")


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000])
def test_rejects_deeply_nested_json(data: bytes) -> None:
    with pytest.raises(DatasetError, match=r"^/some/manifest\.json: not a manifest: "):
        Manifest.from_bytes(data, "/some/manifest.json")


def test_checks_the_version_before_other_fields() -> None:
    with pytest.raises(DatasetError, match=r"^m: Manifest of another format version \(got 7, expected 1\)\."):
        Manifest.from_bytes(b'{"format_version": 7, "parts": []}', "m")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), _nested), st.data())
def test_reads_or_rejects_any_json_in_place_of_a_field(other: Any, data: st.DataObject) -> None:
    value = json.loads(make().to_bytes())
    holders = [value, value["source"], value["splits"], value["splits"]["train"], *value["features"]]
    holders += value["splits"]["train"]["shards"]
    holder = data.draw(st.sampled_from(holders))
    holder[data.draw(st.sampled_from([*holder, "new"]))] = other
    try:
        manifest = Manifest.from_bytes(json.dumps(value).encode())
    except DatasetError:
        return
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


def test_another_version_names_the_file() -> None:
    data = damaged(lambda value: value.update(format_version=99))
    with pytest.raises(DatasetError, match=r"^/some/manifest\.json: Manifest of another format version \(got 99"):
        Manifest.from_bytes(data, "/some/manifest.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"splits": {"train": Split((Shard(NAMES[0], 10**15, 100, 0),))}}, "too many records for its size"),
        ({"splits": {"train": Split((Shard(NAMES[0], 7, 111, 0),))}}, "expected at most 6"),
        (
            {"splits": {name: Split((Shard(f"{name}-00000-of-9999999.tfrecord", 1, 16, 0),)) for name in ("a", "b")}},
            "announce too many shards in all",
        ),
        ({"appends": 2**31}, "appends is 2147483648"),
        ({"options": {"label_offset": "1"}}, "options.label_offset is '1', not a whole number"),
        ({"options": {"tokenizer": {"pad_id": -1}}}, "options.tokenizer.pad_id is -1"),
        ({"options": {"a": float("inf")}}, "Infinity is not JSON"),
        ({"options": {"a": json.loads("[" * 40 + "]" * 40)}}, "options is nested too deeply"),
    ],
)
def test_rejects_values_that_readers_cannot_use(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message) as caught:
        Manifest.from_bytes(make(**changes).to_bytes(), "there/manifest.json")
    assert str(caught.value).startswith("there/manifest.json: ")


def test_rejects_shards_that_share_an_index() -> None:
    shards = (Shard(NAMES[0], 3, 100, 0), Shard(f"{NAMES[0]}.gz", 3, 100, 0))
    with pytest.raises(DatasetError, match="names a shard twice"):
        make(splits={"train": Split(shards)})
