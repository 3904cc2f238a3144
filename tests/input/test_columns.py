"""Records as matrices of bytes, against TensorFlow's parser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tpudata import FeatureError
from tpudata.errors import CorruptionError
from tpudata.format import Feature, ShardIndex, encode_example
from tpudata.input import columns as columns_module
from tpudata.input.columns import FixedColumns, has_fixed_layout
from tpudata.input.dataset.fields import Field

IMAGE = Feature("image_raw", "bytes", "uint8", (2, 3), "raw")
LABEL = Feature("label", "int64", "int64")
SCORE = Feature("score", "float", "float32", (2,))
BOX = Feature("box", "int64", "int64", (4,))


def field(feature: Feature) -> Field:
    shape = tuple(size for size in feature.shape if size is not None)
    return Field(feature, feature.name, shape)


FIELDS = [field(feature) for feature in (IMAGE, LABEL, SCORE, BOX)]


def frames(records: list[bytes]) -> tuple[bytes, Any]:
    """Records with frames of zeros, which are for the source to look at."""
    data = b"".join(bytes(12) + record + bytes(4) for record in records)
    return data, np.cumsum([0, *(len(record) + 16 for record in records)])


def decode(records: list[bytes], fields: list[Field] = FIELDS) -> Any:
    return FixedColumns(fields).decode(*frames(records), "file", 1000)


def parsed(records: list[bytes]) -> Any:
    spec: dict[str, Any] = {
        "image_raw": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "score": tf.io.FixedLenFeature([2], tf.float32),
        "box": tf.io.FixedLenFeature([4], tf.int64),
    }
    found = tf.io.parse_example(records, spec)
    return {**found, "image_raw": tf.reshape(tf.io.decode_raw(found["image_raw"], tf.uint8), (-1, 2, 3))}


def check(records: list[bytes]) -> None:
    got = decode(records)
    for name, want in parsed(records).items():
        assert got[name].dtype == want.dtype.as_numpy_dtype
        np.testing.assert_array_equal(got[name], want, name)


integers = st.one_of(st.integers(0, 300), st.sampled_from([-1, 127, 128, 2**14, 2**31, 2**63 - 1, -(2**63)]))
examples = st.fixed_dictionaries(
    {
        "image_raw": st.binary(min_size=6, max_size=6),
        "label": integers,
        "score": st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2),
        "box": st.lists(integers, min_size=4, max_size=4),
    },
    # Not read: of the same size or not.
    optional={"name": st.binary(max_size=4), "empty": st.just([])},
)


@settings(max_examples=40)
@given(st.lists(examples, min_size=1, max_size=30))
def test_any_records_equal_tensorflows_parser(values: list[dict[str, Any]]) -> None:
    check([encode_example(value) for value in values])


@settings(max_examples=15)
@given(st.lists(examples, min_size=1, max_size=6), st.data())
def test_records_of_other_writers_equal_tensorflows_parser(values: list[dict[str, Any]], data: st.DataObject) -> None:
    """Features in any order, as protobuf's own writer has them, and lists that are not packed."""
    records = []
    for value in values:
        example = tf.train.Example()
        for name in data.draw(st.permutations(sorted(value))):
            found = value[name]
            feature = example.features.feature[name]
            if isinstance(found, bytes):
                feature.bytes_list.value.append(found)
            elif name == "score":
                feature.float_list.value.extend(found)
            elif name != "empty":
                feature.int64_list.value.extend([found] if isinstance(found, int) else found)
        records.append(example.SerializeToString())
    # An int64 list with its one value not packed: a tag and the value.
    records.append(records[0] + b"\x0a\x0f\x0a\x0d\x0a\x05label\x12\x04\x1a\x02\x08\x07")
    check(records)


def test_labels_of_one_byte_and_two_are_read_as_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = []
    monkeypatch.setattr(FixedColumns, "_by_hand", lambda *arguments: by_hand.append(arguments))
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 1000, 500)
    pixels = rng.integers(0, 256, (500, 2, 3), dtype=np.uint8)
    records = [
        encode_example({"image_raw": image.tobytes(), "label": int(label)})
        for image, label in zip(pixels, labels, strict=True)
    ]
    found = decode(records, FIELDS[:2])
    np.testing.assert_array_equal(found["image_raw"], pixels)
    np.testing.assert_array_equal(found["label"], labels)
    assert by_hand == []


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
)
def test_raw_values_of_any_dtype(dtype: str) -> None:
    values = np.arange(-12, 12).reshape(4, 2, 3).astype(dtype)
    records = [encode_example({"x": row.astype(row.dtype.newbyteorder("<")).tobytes()}) for row in values]
    found = decode(records, [field(Feature("x", "bytes", dtype, (2, 3), "raw"))])["x"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"label": 1}, "feature 'image_raw' is not in the record"),
        (
            {"image_raw": bytes(5), "label": 1},
            r"feature 'image_raw' has 5 bytes, and not the 6 of \(2, 3\) uint8 values",
        ),
        ({"image_raw": [bytes(6), b""], "label": 1}, "feature 'image_raw' has 2 values of another kind or number"),
        ({"image_raw": bytes(6), "label": [1, 2]}, r"feature 'label' has 2 values .* than int64 of shape \(\)"),
        ({"image_raw": bytes(6), "label": 1.0}, "feature 'label' has 1 values of another kind"),
        ({"image_raw": bytes(6), "label": []}, "feature 'label' has 0 values"),
    ],
)
def test_records_that_do_not_fit_are_named(record: dict[str, Any], message: str) -> None:
    good = encode_example({"image_raw": bytes(6), "label": 1})
    offset = 1000 + len(good) + 16
    with pytest.raises(FeatureError, match=rf"file at byte {offset}: {message}"):
        decode([good, encode_example(record)], FIELDS[:2])


def test_what_is_no_example_is_damage() -> None:
    with pytest.raises(CorruptionError, match=r"file at byte 1000: the record is not a tf\.train\.Example"):
        decode([b"\x0a\xff"])


def test_which_datasets_are_worth_it() -> None:
    def index(sizes: list[int]) -> ShardIndex:
        offsets = np.cumsum([0, *sizes]).astype(np.uint64)
        return ShardIndex(offsets, np.zeros(1, np.uint32), 64, int(offsets[-1]), 0, None, {})

    assert has_fixed_layout(FIELDS, index([100] * 9 + [101]))
    assert not has_fixed_layout(FIELDS, index(list(range(100, 200))))
    assert not has_fixed_layout([field(Feature("x", "bytes", "uint8", (4, 4, 3), "image"))], index([100]))
    assert not has_fixed_layout([field(Feature("x", "bytes", "string"))], index([100]))
    assert not has_fixed_layout([field(Feature("x", "int64", "int64", (512,)))], index([100]))
    assert columns_module.Layout.of(b"\x12\x00") is None
