from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.image_records.converter import ImageConverter
from beam_jobs.image_records.options import ImageOptions
from beam_jobs.image_records.pixels import Pixels
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.references.labels import Labels
from beam_jobs.references.packs.pack import Pack
from beam_jobs.references.reference import WHOLE_FILE, Reference
from beam_jobs.sources.lists.columns import LISTED_IMAGE
from tests.beam_jobs.images import encode, exif, picture
from tpudata.errors import BadRecordError, SourceError, UsageError
from tpudata.format import Feature, decode_example

CLASSES = Labels(("cat", "dog", "owl"))
RAW = ImageOptions(layout="raw")
JPEG = encode(picture(), "JPEG")
GREY = picture()[..., 0]


def reference(*labels: str, key: str = "cat/1.jpg", **fields: Any) -> Reference:
    return Reference(key, "train", labels, f"/in/{key}", WHOLE_FILE, len(JPEG), **fields)


def parse(record: bytes, features: tuple[Feature, ...]) -> dict[str, Any]:
    """A record as TensorFlow parses it by the schema."""
    dtypes = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}
    spec = {
        feature.name: tf.io.FixedLenFeature((), dtypes[feature.kind])
        if feature.encoding in ("image", "raw") or feature.shape == ()
        else tf.io.FixedLenSequenceFeature((), dtypes[feature.kind], allow_missing=True)
        for feature in features
    }
    return {name: value.numpy() for name, value in tf.io.parse_single_example(record, spec).items()}


def convert(
    converter: ImageConverter, where: Reference, data: bytes = JPEG, labels: Labels = CLASSES
) -> dict[str, Any]:
    """A record, parsed by the schema of a dataset that holds it alone; the schema names every feature in it."""
    summary = converter.new_summary()
    record = b"".join(converter.convert(where, labels, data, summary))
    features = converter.features(summary, labels)
    parsed = parse(record, features)
    assert set(decode_example(record)) == set(parsed)
    return parsed


def test_stores_the_features_of_the_imagenet_layout() -> None:
    assert convert(ImageConverter(label_offset=1), reference("dog")) == {
        "image/encoded": JPEG,
        "image/format": b"JPEG",
        "image/height": 24,
        "image/width": 40,
        "image/channels": 3,
        "image/colorspace": b"RGB",
        "image/class/label": 2,
        "image/class/text": b"dog",
        "image/filename": b"cat/1.jpg",
    }


def test_stores_turned_pixels_in_the_raw_layout() -> None:
    parsed = convert(ImageConverter(options=RAW), reference("owl"), encode(picture(), "PNG", exif=exif(6)))
    pixels = tf.io.decode_raw(parsed.pop("image_raw"), tf.uint8).numpy().reshape(40, 24, 3)
    np.testing.assert_array_equal(pixels, np.rot90(picture(), -1))
    assert parsed == {"label": 2}


@pytest.mark.parametrize("shape", [(24, 40), (24, 40, 3)])
def test_idx_pixels_are_stored_as_they_are_in_the_raw_layout(shape: tuple[int, ...]) -> None:
    pixels = (picture() if len(shape) == 3 else GREY).tobytes()
    where = reference("cat", payload=Pixels(shape))
    converter, summary = ImageConverter(options=RAW), ImageSummary()
    record = decode_example(b"".join(converter.convert(where, CLASSES, pixels, summary)))
    assert record == {"image_raw": [pixels], "label": [0]}
    image, label = converter.features(summary, CLASSES)
    assert image == Feature("image_raw", "bytes", "uint8", (24, 40, 3 if len(shape) == 3 else 1), encoding="raw")
    assert label == Feature("label", "int64", "int64", num_classes=3)


def test_idx_pixels_become_png_in_the_imagenet_layout() -> None:
    parsed = convert(ImageConverter(), reference("cat", payload=Pixels((24, 40))), GREY.tobytes())
    assert (parsed["image/format"], parsed["image/channels"], parsed["image/height"]) == (b"PNG", 1, 24)
    np.testing.assert_array_equal(tf.io.decode_png(parsed["image/encoded"])[..., 0], GREY)


@pytest.mark.parametrize("other", [encode(picture(24, 41), "JPEG"), encode(GREY, "JPEG")], ids=["width", "channels"])
def test_the_raw_layout_names_the_first_file_that_differs(other: bytes) -> None:
    converter = ImageConverter(options=RAW)
    one, two = converter.new_summary(), converter.new_summary()
    converter.convert(reference("cat", key="1.jpg"), CLASSES, JPEG, one)
    converter.convert(reference("cat", key="2.jpg"), CLASSES, JPEG, one)
    message = r"3.jpg is 24 x 4\d x \d .*, but 1.jpg is 24 x 40 x 3. .* use --layout imagenet"
    # In one shard ...
    with pytest.raises(SourceError, match=message):
        converter.convert(
            reference("cat", key="3.jpg"), CLASSES, other, dataclasses.replace(one, examples=[*one.examples])
        )
    # ... and between two.
    converter.convert(reference("cat", key="3.jpg"), CLASSES, other, two)
    total = converter.new_summary()
    for summary in (one, two):
        total.merge(converter.summary_from_json(json.loads(json.dumps(summary.to_json()))))
    with pytest.raises(SourceError, match=message):
        converter.features(total, CLASSES)


@pytest.mark.parametrize("options", [ImageOptions(), RAW])
def test_several_labels_are_lists(options: ImageOptions) -> None:
    converter = ImageConverter(1, options, several_labels=True)
    label = "label" if options is RAW else "image/class/label"
    for names in ((), ("dog",), ("owl", "cat")):
        parsed = convert(converter, reference(*names))
        assert parsed[label].tolist() == [CLASSES.names.index(name) + 1 for name in names]
        if options is not RAW:
            assert parsed["image/class/text"].tolist() == [name.encode() for name in names]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (ImageOptions(), {"image/class/label": "int64_list", "image/class/text": "bytes_list"}),
        (RAW, {"label": "int64_list"}),
    ],
)
def test_no_class_of_several_is_an_empty_list_of_their_kind(options: ImageOptions, kinds: dict[str, str]) -> None:
    converter = ImageConverter(options=options, several_labels=True)
    record = b"".join(converter.convert(reference(), CLASSES, JPEG, converter.new_summary()))
    features = tf.train.Example.FromString(record).features.feature
    assert {name: features[name].WhichOneof("kind") for name in kinds} == kinds


@pytest.mark.parametrize("options", [ImageOptions(), RAW])
def test_without_classes_there_are_no_labels(options: ImageOptions) -> None:
    parsed = convert(ImageConverter(options=options), reference(), labels=Labels(()))
    assert not {"label", "image/class/label", "image/class/text"} & set(parsed)


@pytest.mark.parametrize(
    ("names", "message"),
    [((), "0 labels"), (("cat", "dog"), "2 labels"), (("cow",), "unknown label: 'cow'; 3 are known")],
)
def test_labels_that_do_not_fit_are_rejected(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(BadRecordError, match=message) as caught:
        convert(ImageConverter(), reference(*names))
    assert caught.value.source == "/in/cat/1.jpg"


EXTRA = (
    Feature("age", "int64", "int64"),
    Feature("weight", "float", "float32"),
    Feature("note", "bytes", "string", encoding="utf8"),
)


@pytest.mark.parametrize("options", [ImageOptions(), RAW])
def test_stores_extra_features(options: ImageOptions) -> None:
    converter = ImageConverter(options=options, extra=EXTRA)
    values = {"age": -3, "weight": 2, "note": "für Äpfel"}
    parsed = convert(converter, reference("cat", features=values))
    assert (parsed["age"], parsed["weight"], parsed["note"].decode()) == (-3, 2.0, "für Äpfel")
    assert parsed["weight"].dtype == np.float32
    assert converter.features(ImageSummary(), CLASSES)[-3:] == EXTRA


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"age": None}, "no int64 in column 'age': no value"),
        ({"age": 1.5}, "no int64 in column 'age': 1.5"),
        ({"age": 2**63}, "no int64 in column 'age': 9223372036854775808"),
        ({"weight": "much"}, "no float32 in column 'weight': 'much'"),
        ({"weight": True}, "no float32 in column 'weight': True"),
        ({"weight": 1e300}, r"1e\+300 in column 'weight' is too large for float32"),
        ({"weight": 10**400}, r"0{9} in column 'weight' is too large for float32"),
        ({"note": 7}, "no string in column 'note': 7"),
    ],
)
def test_extra_values_that_do_not_fit_are_rejected(changed: dict[str, Any], message: str) -> None:
    values = {"age": 1, "weight": 2.0, "note": "x"} | changed
    with pytest.raises(BadRecordError, match=message):
        convert(ImageConverter(extra=EXTRA), reference("cat", features=values))
    with pytest.raises(BadRecordError, match="no int64 in column 'age': no value"):
        convert(ImageConverter(extra=EXTRA), reference("cat"))


@pytest.mark.parametrize(
    ("shape", "value", "items"),
    [
        ((2, 2), [[1, 2], [3, math.inf]], [1, 2, 3, math.inf]),
        ((2, 0), [[], []], []),
        ((0, 3), [], []),
        ((None,), [], []),
        ((None,), [1, 2.5], [1, 2.5]),
    ],
)
def test_arrays_of_extra_features_are_stored_flat(
    shape: tuple[int | None, ...], value: Any, items: list[float]
) -> None:
    converter = ImageConverter(extra=(Feature("box", "float", "float32", shape),))
    where = reference("cat", features={"box": value})
    record = b"".join(converter.convert(where, CLASSES, JPEG, ImageSummary()))
    assert decode_example(record)["box"] == items


@pytest.mark.parametrize(
    ("shape", "value", "got"),
    [
        ((2,), 3, "3"),
        ((2,), None, "no value"),
        ((2,), [1, 2, 3], "[1, 2, 3]"),
        ((2, 2), [[1, 2], 3], "[[1, 2], 3]"),
        ((2, 2), [[1, 2], [3]], "[[1, 2], [3]]"),
        ((None,), [[1], [2]], "[[1], [2]]"),
        ((4,), [*range(3000)], "[0, 1, 2, 3, 4, 5, ...]"),
    ],
)
def test_rejects_arrays_of_another_shape(shape: tuple[int | None, ...], value: Any, got: str) -> None:
    converter = ImageConverter(extra=(Feature("box", "float", "float32", shape),))
    message = re.escape(f"no float32 of shape {shape} in column 'box': {got}")
    with pytest.raises(BadRecordError, match=message):
        convert(converter, reference("cat", features={"box": value}))


def test_extra_names_may_not_collide() -> None:
    with pytest.raises(UsageError, match="'image/height' has the name of a feature"):
        ImageConverter(extra=(Feature("image/height", "int64", "int64"),))
    with pytest.raises(UsageError, match="'label' has the name"):
        ImageConverter(options=RAW, extra=(Feature("label", "int64", "int64"),))
    with pytest.raises(UsageError, match="'age' has the name"):
        ImageConverter(extra=(EXTRA[0], EXTRA[0]))
    with pytest.raises(UsageError, match=r"'boxes': of another kind \(got shape \(None, 4\)"):
        ImageConverter(extra=(Feature("boxes", "float", "float32", (None, 4)),))
    # A name of the other layout is free.
    assert ImageConverter(extra=(Feature("label", "int64", "int64"),)).extra


def test_a_schema_has_the_sides_that_all_images_share() -> None:
    converter, summary = ImageConverter(), ImageSummary()
    for number, data in enumerate([JPEG, encode(GREY, "JPEG"), encode(picture(24, 60), "GIF"), encode(GREY, "BMP")]):
        converter.convert(reference("cat", key=f"{number}"), CLASSES, data, summary)
    image = converter.features(summary, CLASSES)[0]
    assert image == Feature("image/encoded", "bytes", "uint8", (24, None, 3), encoding="image")
    assert summary.converted == {"GIF": 1, "BMP": 1}
    assert summary.decoded_bytes == 24 * 40 * 3 + 24 * 40 + 24 * 60 * 3 + 24 * 40


def test_a_rejected_image_is_not_counted() -> None:
    converter, summary = ImageConverter(), ImageSummary()
    with pytest.raises(BadRecordError):
        converter.convert(reference("cat"), CLASSES, JPEG[:-9], summary)
    assert summary == ImageSummary()


def test_a_member_of_a_container_is_named_with_it() -> None:
    member = reference("cat", key="shard.tar/7.jpg")._replace(offset=512)
    with pytest.raises(BadRecordError, match=r"shard.tar/7.jpg in /in/shard.tar/7.jpg: rejected: the file is empty"):
        convert(ImageConverter(), member, b"")


@pytest.mark.parametrize("converter", [ImageConverter(extra=EXTRA), ImageConverter(), ImageConverter(options=RAW)])
@pytest.mark.parametrize("key", ["cat/1.jpg", "train/cat/" + "long/" * 200 + "n0144_1.jpg"])
@pytest.mark.parametrize("note", ["some", "a caption, " * 300, "Überschrift " * 100])
def test_content_texts_and_overhead_make_a_record(converter: ImageConverter, key: str, note: str) -> None:
    features = {"age": 5, "weight": 2.0, "note": note} if converter.extra else {}
    where = reference("cat", key=key, features=features, payload=LISTED_IMAGE)
    record = b"".join(converter.convert(where, CLASSES, JPEG, ImageSummary()))
    (texts,) = converter.text_bytes(Pack.of([where], np.zeros(1, np.uint64))).tolist()
    overhead = len(record) - converter.content_size(where, JPEG)
    assert converter.record_overhead + texts == pytest.approx(overhead, rel=0.15)


def test_what_decides_the_bytes_is_in_the_fields() -> None:
    # Shards are kept by --resume where these are the same.
    one = ImageConverter(options=ImageOptions(quality=80), extra=EXTRA)
    assert json.loads(json.dumps(dataclasses.asdict(one)))["options"]["quality"] == 80
    assert dataclasses.asdict(one) != dataclasses.asdict(ImageConverter(extra=EXTRA))


def test_what_is_rejected_for_another_column_does_not_count() -> None:
    converter = ImageConverter(options=RAW, extra=(Feature("age", "int64", "int64"),))
    summary = ImageSummary()
    with pytest.raises(BadRecordError, match="no int64 in column 'age'"):
        converter.convert(reference("cat"), CLASSES, encode(picture(9, 9), "PNG"), summary)
    assert summary == ImageSummary()


ENCODED = (
    Feature("view", "bytes", "uint8", (None, None, 3), encoding="image"),
    Feature("map", "bytes", "uint8", (None, None, 1), encoding="label_map"),
    Feature("pixels", "bytes", "uint8", (2, 3), encoding="raw"),
    Feature("parts", "bytes", "string", (None,)),
    Feature("grid", "int64", "int64", (2, 2)),
)


def test_features_may_be_encoded_images_arrays_and_bytes() -> None:
    converter = ImageConverter(extra=ENCODED)
    classes, pixels = np.array([[0, 1], [20, 3]], np.uint8), np.arange(6, dtype=np.uint8).reshape(2, 3)
    features = {"view": picture(), "map": classes, "pixels": pixels, "parts": [b"a", b""], "grid": [[1, 2], (3, 4)]}
    record = decode_example(
        b"".join(converter.convert(reference("cat", features=features), CLASSES, JPEG, ImageSummary()))
    )
    np.testing.assert_array_equal(tf.io.decode_png(record["view"][0]), picture())
    np.testing.assert_array_equal(tf.io.decode_png(record["map"][0])[..., 0], classes)
    assert (record["pixels"], record["parts"], record["grid"]) == ([pixels.tobytes()], [b"a", b""], [1, 2, 3, 4])
    # The bytes of a file are stored as they are.
    again = converter.convert(reference("cat", features=features | {"view": JPEG}), CLASSES, JPEG, ImageSummary())
    assert decode_example(b"".join(again))["view"] == [JPEG]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"view": b"no image"}, "Feature 'view': it does not fit the schema"),
        ({"view": None}, "no uint8 of shape .* in column 'view': no value"),
        ({"map": np.full((2, 2), 300)}, "Feature 'map': its label map does not fit uint8"),
        ({"pixels": np.zeros((3, 2), np.uint8)}, "Feature 'pixels': it does not fit the schema"),
        ({"parts": b"a"}, r"no string of shape \(None,\) in column 'parts': b'a'"),
        ({"grid": [[1, 2], [3, 2**63]]}, r"no int64 of shape \(2, 2\) in column 'grid'"),
        ({"grid": np.zeros((2, 2))}, r"no int64 of shape \(2, 2\) in column 'grid'"),
    ],
)
def test_rejects_encoded_features_that_do_not_fit(changed: dict[str, Any], message: str) -> None:
    features = {
        "view": JPEG,
        "map": np.zeros((2, 2), np.uint8),
        "pixels": bytes(6),
        "parts": [],
        "grid": [[1, 2], [3, 4]],
    }
    summary = ImageSummary()
    with pytest.raises(BadRecordError, match=message):
        ImageConverter(extra=ENCODED).convert(reference("cat", features=features | changed), CLASSES, JPEG, summary)
    assert summary == ImageSummary()


def test_texts_of_file_names_keep_their_bytes() -> None:
    converter = ImageConverter(extra=(Feature("from", "bytes", "string", encoding="utf8"),))
    where = reference("cat", features={"from": "caf\udce9.jpg"})
    record = b"".join(converter.convert(where, CLASSES, JPEG, ImageSummary()))
    assert decode_example(record)["from"] == [b"caf\xe9.jpg"]
