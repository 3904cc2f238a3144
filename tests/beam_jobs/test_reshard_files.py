"""Files of other programs that `tpudata reshard` makes a dataset of: their features, odd names and damage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.beam_jobs.resharding import assert_whole, manifest, records_of, reshard, write_files
from tests.helpers.label_maps import PALETTE, png_of
from tpudata import RecordSource, make_input_fn
from tpudata.errors import BadRecordError, FeatureError, SourceError
from tpudata.format import Feature, decode_example


def test_infers_features_of_foreign_records(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    examples = [
        {
            "id": [number],
            "pixels": [rng.bytes(6)],
            "words": [b"w"] * (number % 3),
            "three": [0.5, 1.5, float(number)],
            "blob": [b"\xff\xfe" if number == 3 else b"text"],
            **({"rare": [number]} if number % 2 else {}),
        }
        for number in range(10)
    ]
    files = write_files(tmp_path / "in", {"a": examples})
    assert reshard(files / "a", "--output", tmp_path / "out", "--raw=pixels=uint8:1x2x3") == 0
    assert manifest(tmp_path / "out").features == (
        Feature("blob", "bytes", "string"),
        Feature("id", "int64", "int64"),
        Feature("pixels", "bytes", "uint8", (1, 2, 3), "raw"),
        Feature("rare", "int64", "int64", (None,)),
        Feature("three", "float", "float32", (3,)),
        Feature("words", "bytes", "string", (None,), "utf8"),
    )
    assert_whole(tmp_path / "out")
    read = list(RecordSource(str(tmp_path / "out"), "train", features=["id", "rare", "three"]))
    assert [int(record["id"]) for record in read] == list(range(10))
    assert [record["rare"].tolist() for record in read] == [[n] if n % 2 else [] for n in range(10)]


def test_feature_flags_declare_and_check_features(tmp_path: Path) -> None:
    good = [
        {
            "id": [number],
            "boxes": [0.5] * 8,
            "names": [b"a", b"b"],
            "hash": [b"abc"],
            "pair": [1, 2],
            "other": [3],
            **({"tags": [b"x"]} if number else {}),
        }
        for number in range(5)
    ]
    declared = ["boxes=float:Nx4", "names=strings", "hash=bytes", "pair=int:2", "tags=str:N", "id=int"]
    flags = [f"--feature={text}" for text in declared]
    files = write_files(tmp_path / "in", {"a": good})
    assert reshard(files, "--output", tmp_path / "out", *flags) == 0
    expected = {
        "boxes": ("float", "float32", (None, 4), None),
        "hash": ("bytes", "string", (), None),
        "id": ("int64", "int64", (), None),
        "names": ("bytes", "string", (None,), "utf8"),
        "other": ("int64", "int64", (), None),
        "pair": ("int64", "int64", (2,), None),
        "tags": ("bytes", "string", (None,), "utf8"),
    }
    assert manifest(tmp_path / "out").features == tuple(Feature(name, *parts) for name, parts in expected.items())
    assert_whole(tmp_path / "out")
    types = json.loads((tmp_path / "out" / "features.json").read_text())["featuresDict"]["features"]
    assert types["pair"]["tensor"] == {"dtype": "int64", "encoding": "none", "shape": {"dimensions": ["2"]}}
    bad = [{**good[1], "boxes": [0.5] * 6}, {**good[1], "id": [0.5]}, {**good[1], "names": [b"\xff"]}]
    bad += [{name: values for name, values in good[1].items() if name != "hash"}]
    files = write_files(tmp_path / "bad", {"a": [*good, *bad]})
    with pytest.raises(
        BadRecordError, match=r"a:5 in .*feature 'boxes' has 6 values .expected float:Nx4, as --feature"
    ):
        reshard(files, "--output", tmp_path / "none", *flags)
    skip = ["--on-bad-record=skip", "--max-bad-records=4"]
    assert reshard(files, "--output", tmp_path / "some", *flags, *skip) == 0
    (rejects,) = (tmp_path / "some" / "rejects").iterdir()
    reasons = [json.loads(line)["reason"] for line in rejects.read_text().splitlines()]
    assert [reason.partition(" (")[0] for reason in reasons] == [
        "feature 'boxes' has 6 values",
        "feature 'id' has floats",
        "feature 'names' has bytes that are not UTF-8",
        "feature 'hash' is missing",
    ]


def test_label_map_flags_declare_label_maps(tmp_path: Path) -> None:
    classes = np.random.default_rng(0).integers(0, 256, (8, 3, 4))
    examples = [{"map": [png_of(found)], "deep": [png_of(found * 9, 16)], "grey": [png_of(found)]} for found in classes]
    files = write_files(tmp_path / "in", {"a": examples})
    flags = ("--output", tmp_path / "out", "--num-shards=2")
    assert reshard(files / "a", *flags, "--label-map=map", "--label-map=deep") == 0
    assert manifest(tmp_path / "out").features == (
        Feature("deep", "bytes", "uint16", (3, 4, 1), "label_map"),
        Feature("grey", "bytes", "uint8", (3, 4, 1), "image"),
        Feature("map", "bytes", "uint8", (3, 4, 1), "label_map"),
    )
    assert_whole(tmp_path / "out")
    read = [record["map"][..., 0] for record in RecordSource(str(tmp_path / "out"), "train")]
    assert sorted(array.tobytes() for array in read) == sorted(found.astype(np.uint8).tobytes() for found in classes)
    mixed = write_files(tmp_path / "mixed", {"a": [{"map": [png_of(classes[0])]}, {"map": [png_of(classes[0], 16)]}]})
    with pytest.raises(FeatureError, match="record a:1 has a label map of uint16, record a:0 of uint8"):
        reshard(mixed, "--output", tmp_path / "none", "--label-map=map")
    palette = write_files(tmp_path / "palette", {"a": [{"map": [png_of(classes[0] % 9, 8, PALETTE)]}]})
    with pytest.raises(BadRecordError, match="feature 'map' is not a grey PNG of 8 or 16 bits"):
        reshard(palette, "--output", tmp_path / "none", "--label-map=map")


def test_infers_a_list_for_masks_of_several_objects(tmp_path: Path) -> None:
    mask, photo = png_of([[0, 1]]), png_of([[5, 6]])
    examples = [{"image": [photo], "image/object/mask": [mask] * count} for count in (1, 2, 0)]
    assert reshard(write_files(tmp_path / "in", {"a": examples}), "--output", tmp_path / "out") == 0
    assert manifest(tmp_path / "out").features == (
        Feature("image", "bytes", "uint8", (1, 2, 1), "image"),
        Feature("image/object/mask", "bytes", "string", (None,)),
    )
    assert_whole(tmp_path / "out")


def test_readers_read_features_that_are_empty_in_all_records(tmp_path: Path) -> None:
    example = tf.train.Example()
    for name, field in (("f", "float_list"), ("i", "int64_list"), ("b", "bytes_list")):
        getattr(example.features.feature[name], field).SetInParent()
    example.features.feature["none"].SetInParent()
    example.features.feature["id"].int64_list.value.append(1)
    (tmp_path / "in").mkdir()
    with tf.io.TFRecordWriter(str(tmp_path / "in" / "a")) as writer:
        writer.write(example.SerializeToString())
    assert reshard(tmp_path / "in", "--output", tmp_path / "out") == 0
    assert manifest(tmp_path / "out").features == (
        Feature("b", "bytes", "string", (None,)),
        Feature("f", "float", "float32", (None,)),
        Feature("i", "int64", "int64", (None,)),
        Feature("id", "int64", "int64"),
        Feature("none", "bytes", "string", (None,)),
    )
    assert_whole(tmp_path / "out")
    input_fn = make_input_fn(str(tmp_path / "out"), "train", training=False, pad={"f": 2, "i": 2, "b": 2, "none": 2})
    assert [features["f"].numpy().tolist() for features in input_fn({"batch_size": 1})] == [[[0.0, 0.0]]]


def write_ints_with_an_empty_float_list(folder: Path) -> Path:
    """Write two records whose feature n differs in kind, as the empty list of the second one shows."""
    kinds = (
        tf.train.Feature(int64_list=tf.train.Int64List(value=[1])),
        tf.train.Feature(float_list=tf.train.FloatList()),
    )
    folder.mkdir()
    with tf.io.TFRecordWriter(str(folder / "train.tfrecord")) as writer:
        for kind in kinds:
            writer.write(tf.train.Example(features=tf.train.Features(feature={"n": kind})).SerializeToString())
    return folder


def test_rejects_empty_lists_of_another_kind(tmp_path: Path) -> None:
    # TensorFlow's parser rejects them, and so do the readers.
    source = str(write_ints_with_an_empty_float_list(tmp_path / "in"))
    with pytest.raises(FeatureError, match=r"tfrecord:1 has an empty list of floats, record .*:0 has integers"):
        reshard(source, "--output", tmp_path / "out")
    flags = ["--feature=n=ints", "--on-bad-record=skip", "--max-bad-records=1"]
    assert reshard(source, "--output", tmp_path / "out", *flags) == 0
    assert [decode_example(record)["n"] for record in records_of(tmp_path / "out")] == [[1]]
    assert manifest(tmp_path / "out").rejected


def test_rejects_foreign_records_that_do_not_fit(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"a": [{"x": [1]}, {"x": [b"one"]}]})
    with pytest.raises(FeatureError, match="Feature 'x': record a:1 has text, record a:0 has integers"):
        reshard(tmp_path / "in", "--output", tmp_path / "out")
    files = write_files(tmp_path / "labels", {"a": [{"label": [0]}] * 5 + [{"label": [2]}]})
    (tmp_path / "names").write_text("ant\nbee\n")
    with pytest.raises(BadRecordError, match=r"a:5 in .*unknown label: 2; labels go from 0 to 1"):
        reshard(files, "--output", tmp_path / "out2", "--labels", tmp_path / "names")
    with tf.io.TFRecordWriter(str(tmp_path / "bytes")) as writer:
        writer.write(b"no example")
    with pytest.raises(SourceError, match=r"/bytes at byte 0: the record is not a tf.train.Example"):
        reshard(tmp_path / "bytes", "--output", tmp_path / "out3")


@pytest.mark.parametrize(
    ("values", "got"), [([5], "1 value"), ([5, 6], "2 values"), ([b"abcd"], "4 bytes"), ([b"abc", b"abc"], "2 values")]
)
def test_rejects_values_that_are_not_the_array_of_raw(values: list[Any], got: str, tmp_path: Path) -> None:
    files = write_files(tmp_path / "in", {"a": [{"x": values}]})
    with pytest.raises(BadRecordError, match=rf"'x' has {got} \(expected 3 bytes, as --raw describes it\)"):
        reshard(files, "--output", tmp_path / "out", "--raw=x=uint8:3")


def test_ignores_other_files_of_a_folder_but_not_of_a_pattern(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_files(tmp_path / "in", {"a.tfrecord": [{"x": [1]}], "empty.tfrecord": []})
    (files / "features.json").write_text('{"a": 1, "b": "long enough"}')
    (files / "a.tfrecord.idx").write_text("0 71")
    assert reshard(files, "--output", tmp_path / "out") == 0
    assert manifest(tmp_path / "out").source.ignored_files == 3
    assert "ignored     3 without TFRecords: a.tfrecord.idx, empty.tfrecord, features.json\n" in capsys.readouterr().out
    # Rejected files are not named as ignored ones.
    zlib = tf.io.TFRecordOptions(compression_type="ZLIB")
    with tf.io.TFRecordWriter(str(files / "old.dat"), zlib) as writer:
        writer.write(b"")
    assert reshard(files, "--output", tmp_path / "skip", "--on-bad-record=skip", "--max-bad-records=1") == 0
    assert manifest(tmp_path / "skip").source.ignored_files == 3
    assert "ignored     3 without TFRecords: a.tfrecord.idx, empty.tfrecord, features.json\n" in capsys.readouterr().out
    with pytest.raises(BadRecordError, match=r"features.json at byte 0: rejected: not a TFRecord file"):
        reshard(files / "*.json", files / "a.tfrecord", "--output", tmp_path / "other")


def test_reports_zlib_files_and_damaged_first_records(tmp_path: Path) -> None:
    rows = [{"x": [number]} for number in range(20)]
    packed = write_files(tmp_path / "zlib", {"a.tfrecord": rows}, "ZLIB") / "a.tfrecord"
    with pytest.raises(
        SourceError, match=r"a\.tfrecord at byte 0: its TFRecords are compressed with ZLIB, which is not read"
    ):
        reshard(packed, "--output", tmp_path / "out")
    whole = (write_files(tmp_path / "in", {"a.tfrecord": rows}) / "a.tfrecord").read_bytes()
    damaged = tmp_path / "b.tfrecord"
    for place in (0, 9):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(SourceError, match=r"b\.tfrecord at byte 0: the first record is damaged"):
            reshard(damaged, "--output", tmp_path / "out")
    # If only its data are damaged, the other records can be kept.
    damaged.write_bytes(whole[:14] + bytes([whole[14] ^ 1]) + whole[15:])
    with pytest.raises(BadRecordError, match=r"b\.tfrecord at byte 0: rejected: the checksum"):
        reshard(damaged, "--output", tmp_path / "out")
    skip = ["--on-bad-record=skip", "--max-bad-records=1"]
    assert reshard(damaged, "--output", tmp_path / "kept", *skip) == 0
    assert manifest(tmp_path / "kept").records == 19
    # Next to a good file, a bad one is rejected for the same reasons.
    (tmp_path / "in" / "b.tfrecord").write_bytes(packed.read_bytes())
    with pytest.raises(
        BadRecordError, match=r"b\.tfrecord at byte 0: rejected: its TFRecords are compressed with ZLIB"
    ):
        reshard(tmp_path / "in", "--output", tmp_path / "both")


NAMES = ("train-0000{}-of-00003", "{}.tfrecord", "train.tfrecord-0000{}-of-00003", "{}.TFREC")


DAMAGED = {(NAMES[0], "gzip"), (NAMES[1], "short"), (NAMES[2], "header"), (NAMES[3], "header")}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        # Names are looked at before content.
        pytest.param(name, damage, marks=[] if (name, damage) in DAMAGED else pytest.mark.matrix)
        for name in NAMES
        for damage in ("header", "short", "gzip")
    ],
)
def test_rejects_a_damaged_file_of_a_folder_instead_of_ignoring_it(
    name: str, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compression = "GZIP" if damage == "gzip" else ""
    names = [name.format(number) for number in range(3)]
    files = write_files(tmp_path / "in", {name: [{"x": [1]}] * 60 for name in names}, compression)
    path = files / names[1]
    data = bytearray(path.read_bytes())
    data[1 if damage == "header" else 10] ^= 0xFF  # Byte 10 of a gzip file is the first of the packed data.
    path.write_bytes(data[:11] if damage == "short" else data)
    if name == NAMES[0]:
        with pytest.raises(BadRecordError, match=rf"{names[1]} at byte 0: rejected: "):
            reshard(files, "--output", tmp_path / "out")
    assert reshard(files, "--output", tmp_path / "out", "--on-bad-record=skip", "--max-bad-records=1") == 0
    (rejects,) = (tmp_path / "out" / "rejects").iterdir()
    assert f'{names[1]}", "offset": 0, ' in rejects.read_text()
    found = manifest(tmp_path / "out")
    assert (found.records, sum(found.rejected.values()), found.source.ignored_files) == (120, 1, 0)
    assert "ignored" not in capsys.readouterr().out
    assert_whole(tmp_path / "out")


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_accepts_a_file_without_records(compression: str, tmp_path: Path) -> None:
    files = write_files(tmp_path / "in", {"0.tfrecord": [], "1.tfrecord": [{"x": [1]}]}, compression)
    assert reshard(files, "--output", tmp_path / "out") == 0
    assert manifest(tmp_path / "out").records == 1


@pytest.mark.parametrize("compression", [pytest.param("", marks=pytest.mark.matrix), "GZIP"])
def test_keeps_the_records_before_the_end_of_a_truncated_file(compression: str, tmp_path: Path) -> None:
    files = write_files(tmp_path / "in", {"a": [{"x": [number] * 50} for number in range(300)]}, compression)
    data = (files / "a").read_bytes()
    (files / "a").write_bytes(data[: len(data) - 10])
    with pytest.raises(BadRecordError, match="/a"):
        reshard(files, "--output", tmp_path / "out")
    flags = ["--resume", "--on-bad-record=skip", "--max-bad-records=1"]
    assert reshard(files, "--output", tmp_path / "out", *flags) == 0
    read = [decode_example(record)["x"][0] for record in records_of(tmp_path / "out")]
    assert read == list(range(len(read)))
    assert 100 < len(read) <= 300
    assert sum(manifest(tmp_path / "out").rejected.values()) == 1
    assert_whole(tmp_path / "out")
