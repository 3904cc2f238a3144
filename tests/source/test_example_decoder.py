"""ExampleDecoder: the values that TensorFlow's own parser gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.label_maps import PALETTE, png_of
from tpudata import CorruptionError, FeatureError
from tpudata.format import Feature, Manifest, Source, Split, encode_example
from tpudata.source import ExampleDecoder


def decoder(*features: Feature, layout: str = "other") -> ExampleDecoder:
    return ExampleDecoder(Manifest(layout, {"train": Split(())}, features, Source("", 0, 0, "0"), "tests"))


def parsed(data: bytes, name: str, dtype: tf.DType, shape: tuple[int, ...] | None) -> Any:
    spec = tf.io.VarLenFeature(dtype) if shape is None else tf.io.FixedLenFeature(shape, dtype)
    value = tf.io.parse_single_example(data, {name: spec})[name]
    return tf.sparse.to_dense(value).numpy() if shape is None else value.numpy()


@pytest.mark.parametrize(
    ("values", "kind", "dtype", "shape"),
    [
        ([-(2**63), 2**63 - 1, 0], "int64", "int64", (3,)),
        ([1, 2, 3, 4, 5, 6], "int64", "int64", (2, 3)),
        ([7], "int64", "int64", ()),
        ([1, 2, 3, 4], "int64", "int64", (None,)),
        ([0.5, -1e30], "float", "float32", (2,)),
        ([float("nan")], "float", "float32", ()),
        ([b"a\0", b""], "bytes", "string", (2,)),
        ([b"\xff"], "bytes", "string", ()),
    ],
)
def test_values_equal_those_of_tensorflow(
    values: list[Any], kind: str, dtype: str, shape: tuple[int | None, ...]
) -> None:
    data = encode_example({"x": values, "label": 1})
    decoded = decoder(Feature("x", kind, dtype, shape), Feature("label", "int64", "int64"))(data)
    want = parsed(data, "x", tf.as_dtype(dtype), None if None in shape else shape)  # type: ignore[arg-type]
    np.testing.assert_array_equal(decoded["x"], want)
    if dtype != "string":
        assert decoded["x"].dtype == want.dtype  # type: ignore[union-attr]
    assert decoded["label"] == 1


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]
)
def test_raw_arrays_equal_those_of_tensorflow(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    decoded = decoder(Feature("x", "bytes", dtype, (2, None), "raw"))(encode_example({"x": array.tobytes()}))["x"]
    np.testing.assert_array_equal(decoded, tf.io.decode_raw(array.tobytes(), dtype).numpy().reshape(2, 3))
    assert isinstance(decoded, np.ndarray)
    assert decoded.dtype == dtype
    assert decoded.flags.writeable


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_lossless_images_decode_to_the_original_pixels(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)
    encoded = tf.io.encode_png(pixels).numpy()
    feature = Feature("image/encoded", "bytes", "uint8", (None, None, channels), "image")
    decoded = decoder(feature, layout="imagenet")(encode_example({"image/encoded": encoded}))
    np.testing.assert_array_equal(decoded["image"], pixels)


def test_jpegs_differ_from_tensorflows_accurate_decoder_by_at_most_1() -> None:
    pixels = tf.image.resize(tf.random.stateless_uniform((4, 5, 3), (1, 2)) * 255, (64, 48))
    encoded = tf.io.encode_jpeg(tf.cast(pixels, tf.uint8), quality=90).numpy()
    feature = Feature("image/encoded", "bytes", "uint8", (None, None, 3), "image")
    decoded = decoder(feature, layout="imagenet")(encode_example({"image/encoded": encoded}))["image"]
    want = tf.io.decode_jpeg(encoded, dct_method="INTEGER_ACCURATE").numpy().astype(int)
    assert np.abs(np.asarray(decoded).astype(int) - want).max() <= 1


def test_decodes_text_to_str() -> None:
    decoded = decoder(Feature("text", "bytes", "string", (), "utf8"), layout="text")(encode_example({"text": "grün"}))
    assert decoded == {"text": "grün"}


def test_requires_a_choice_between_features_of_one_short_name() -> None:
    features = (
        Feature("image/encoded", "bytes", "uint8", (None, None, 1), "image"),
        Feature("image_raw", "bytes", "uint8", (2, 1, 1), "raw"),
    )
    with pytest.raises(FeatureError, match=r"'image': several features .* \(image/encoded, image_raw\)"):
        decoder(*features)
    manifest = Manifest("other", {"train": Split(())}, features, Source("", 0, 0, "0"), "tests")
    decoded = ExampleDecoder(manifest, ["image_raw"])(encode_example({"image_raw": b"ab"}))
    np.testing.assert_array_equal(decoded["image_raw"], np.array([[[97]], [[98]]], np.uint8))
    with pytest.raises(FeatureError, match="No feature 'image'"):
        ExampleDecoder(manifest, ["image"])


@pytest.mark.parametrize(
    ("feature", "value"),
    [
        (Feature("x", "int64", "int64", (2,)), [1, 2, 3]),
        (Feature("x", "int64", "int64"), [1.5]),
        (Feature("x", "int64", "int64"), []),
        (Feature("x", "bytes", "int32", (None,), "raw"), b"12345"),
        (Feature("x", "bytes", "uint8", (2,), "raw"), [b"1", b"2"]),
        (Feature("y", "int64", "int64"), [1]),
    ],
)
def test_rejects_records_that_the_manifest_does_not_describe(feature: Feature, value: Any) -> None:
    with pytest.raises(FeatureError, match=repr(feature.name)):
        decoder(feature)(encode_example({"x": value}))


@pytest.mark.parametrize("shape", [(None, None), (None, 0)])
def test_rejects_a_shape_whose_sizes_do_not_follow_from_the_values(shape: tuple[int | None, ...]) -> None:
    features = Feature("x", "int64", "int64", shape), Feature("y", "int64", "int64")
    with pytest.raises(FeatureError, match=r"^Feature 'x': .*expected one None and no 0\)"):
        decoder(*features)
    manifest = Manifest("other", {"train": Split(())}, features, Source("", 0, 0, "0"), "tests")
    assert ExampleDecoder(manifest, ["y"])(encode_example({"y": 3})) == {"y": 3}


def test_decodes_label_maps_to_their_classes_and_rejects_others() -> None:
    for dtype, bits, largest, want in (("uint8", 8, 255, np.uint8), ("uint16", 16, 65535, np.int32)):
        feature = Feature("m/encoded", "bytes", dtype, (None, None, 1), "label_map")
        classes = np.array([[0, 1, largest], [7, 20, 3]])
        for options in ({}, {"chunks": [(b"tRNS", b"\0\x14")]}):
            data = encode_example({"m/encoded": png_of(classes, bits, **options)})  # type: ignore[arg-type]
            found: Any = decoder(feature)(data)["m"]
            assert found.dtype == want
            np.testing.assert_array_equal(found, classes[..., None])
        for wrong in (png_of(classes % 2, 8, PALETTE), png_of(classes % 2, 24 - bits), b"GIF89a"):
            with pytest.raises(
                FeatureError, match=rf"'m/encoded' is .*label map of {dtype} is a PNG of {bits} bits, grey"
            ):
                decoder(feature)(encode_example({"m/encoded": wrong}))
        with pytest.raises(CorruptionError, match="does not decode"):
            decoder(feature)(encode_example({"m/encoded": png_of(classes, bits)[:40]}))
