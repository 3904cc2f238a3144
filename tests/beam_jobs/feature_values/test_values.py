"""Values of examples: the feature inferred for each, and the stored values as TensorFlow parses them.

One bad value ends a pipeline, so tests encode some thousand values of any type and shape directly.
"""

from __future__ import annotations

import array
import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from beam_jobs.feature_values.values import compute_decoded_size, describe, fit_feature, infer_feature
from tests.beam_jobs.images import encode, picture
from tpudata.errors import FeatureError
from tpudata.format import Feature, decode_example, encode_example

NAMES = st.text(min_size=1, max_size=8)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)
ARRAYS = st.one_of(
    hnp.arrays(st.sampled_from([np.int8, np.uint16, np.int32, np.int64, np.bool_, np.uint8]), SHAPES),
    hnp.arrays(st.sampled_from([np.float16, np.float32]), SHAPES, elements={"allow_nan": False}),
)
VALUES = st.one_of(
    *(st.one_of(item, st.lists(item, max_size=4)) for item in (st.binary(max_size=9), st.text(), INTEGERS, FLOATS)),
    st.booleans(),
    ARRAYS,
)


@settings(max_examples=150)
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4))
def test_tensorflow_parses_the_stored_values(example: dict[str, Any]) -> None:
    tf = pytest.importorskip("tensorflow")
    pairs = {name: infer_feature(name, value) for name, value in example.items()}
    parsed = tf.train.Example.FromString(encode_example({name: stored for name, (_, stored) in pairs.items()}))
    assert set(parsed.features.feature) == set(example)
    for name, value in example.items():
        feature = pairs[name][0]
        found = parsed.features.feature[name]
        assert feature.name == name
        if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim:
            assert feature == Feature(name, "bytes", "uint8", value.shape, "raw")
            assert list(found.bytes_list.value) == [value.tobytes()]
            continue
        wanted = np.asarray(value).ravel().tolist() if isinstance(value, np.ndarray) else value
        flat = wanted if isinstance(wanted, list) else [wanted]
        assert feature.shape == (
            value.shape if isinstance(value, np.ndarray) else (len(value),) if isinstance(value, list) else ()
        )
        if flat:
            assert found.WhichOneof("kind") == f"{feature.kind}_list"
        stored = {"bytes": found.bytes_list, "int64": found.int64_list, "float": found.float_list}[feature.kind].value
        assert list(stored) == [item.encode() if isinstance(item, str) else item for item in flat]


DATA = b"\x00a\xff\x00"


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (bytearray(DATA), ()),
        (memoryview(DATA), ()),
        (memoryview(bytearray(DATA)).toreadonly(), ()),
        (np.bytes_(DATA), ()),
        ([bytearray(DATA)], (1,)),
        ((memoryview(DATA),), (1,)),
        ([np.bytes_(DATA)], (1,)),
        (np.array([b"\x00a\xff"]), (1,)),
        (np.array(b"\x00a\xff"), ()),
    ],
)
def test_stores_all_types_of_bytes_as_bytes(value: Any, shape: tuple[int, ...]) -> None:
    tf = pytest.importorskip("tensorflow")
    feature, stored = infer_feature("x", value)
    assert feature == Feature("x", "bytes", "string", shape)
    found = tf.train.Example.FromString(encode_example({"x": stored})).features.feature["x"]
    # numpy drops zero bytes at the end of each value of an array.
    wanted = DATA.rstrip(b"\0") if isinstance(value, np.ndarray) else DATA
    assert list(found.bytes_list.value) == [wanted]
    assert fit_feature(feature, value)[0] == feature
    assert encode_example({"x": value}) == encode_example({"x": stored})


def test_bytes_of_any_type_fit_raw_features() -> None:
    feature = Feature("x", "bytes", "int16", (2,), "raw")
    for value in (DATA, bytearray(DATA), memoryview(DATA)):
        assert fit_feature(feature, value) == (feature, DATA)


@pytest.mark.parametrize(
    ("value", "feature", "stored"),
    [
        (np.array(5), Feature("x", "int64", "int64"), [5]),
        (np.array(7, np.uint8), Feature("x", "int64", "int64"), [7]),
        (np.str_("é"), Feature("x", "bytes", "string", (), "utf8"), ["é".encode()]),
        (np.array("é"), Feature("x", "bytes", "string", (), "utf8"), ["é".encode()]),
        (np.bool_(True), Feature("x", "int64", "int64"), [1]),
        ([True, 2, np.int8(3)], Feature("x", "int64", "int64", (3,)), [1, 2, 3]),
        ((1, 2), Feature("x", "int64", "int64", (2,)), [1, 2]),
        ([], Feature("x", "bytes", "string", (0,)), []),
        ((), Feature("x", "bytes", "string", (0,)), []),
        ([b"a", "é"], Feature("x", "bytes", "string", (2,)), [b"a", "é".encode()]),
        (np.float64(1.5), Feature("x", "float", "float32"), [1.5]),
        (np.array([0.1]), Feature("x", "float", "float32", (1,)), [np.float32(0.1)]),
        (np.uint64(2**63 - 1), Feature("x", "int64", "int64"), [2**63 - 1]),
        (np.ma.array([1, 2], mask=[False, False]), Feature("x", "int64", "int64", (2,)), [1, 2]),
    ],
)
def test_infers_the_feature_of_scalars_and_sequences(value: Any, feature: Feature, stored: list[Any]) -> None:
    found, kept = infer_feature("x", value)
    assert found == feature
    assert decode_example(encode_example({"x": kept}))["x"] == stored


JPEG, PNG, GIF = (encode(picture(), name) for name in ("JPEG", "PNG", "GIF"))
ID = 1234567890123
JPEG, PNG, GIF = (encode(picture(), name) for name in ("JPEG", "PNG", "GIF"))


@pytest.mark.parametrize("value", [float(ID), [0.5, float(ID)], np.array([[float(ID)]]), np.float64(ID), 1700000000.75])
def test_rejects_floats_that_float32_changes(value: Any) -> None:
    with pytest.raises(FeatureError, match=r"Feature 'x': \d+\.\d+ would become \d+\.0 in float32.*numpy\.float32"):
        infer_feature("x", value)
    # An explicit float32 is rounded.
    rounded = decode_example(encode_example({"x": infer_feature("x", np.float32(value))[1]}))["x"]
    feature = Feature("x", "float", "float32", np.shape(value))
    assert decode_example(encode_example({"x": fit_feature(feature, value)[1]}))["x"] == rounded


def test_rounds_measured_floats_to_float32() -> None:
    values = [0.1, 6.02214076e23, 16777216.0, math.inf, -math.inf]
    assert (
        decode_example(encode_example({"x": infer_feature("x", values)[1]}))["x"]
        == np.asarray(values, np.float32).tolist()
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            memoryview(array.array("f", [0, 0])),
            "unsupported memoryview (got format 'f' and 1 dimensions, expected bytes in one)",
        ),
        (memoryview(bytes(4)).cast("B", (2, 2)), "got format 'B' and 2 dimensions"),
        ([memoryview(array.array("f", [0, 0]))], "got format 'f'"),
        ([bytearray(b"a"), 1], "(got bytes, int, expected one of"),
        (np.ma.array([1, 2], mask=[False, True]), "a numpy array with masked values"),
        (np.array([2**64 - 1], np.uint64), "18446744073709551615 does not fit int64"),
        ([1, 2.5], "(got float, int, expected one of"),
        ([True, 2.5], "(got float, int, expected one of"),
        ([1, "a"], "(got bytes, int, expected one of"),
    ],
)
def test_rejects_values_of_mixed_or_unsupported_types(value: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=f"Feature 'x': .*{re.escape(message)}"):
        encode_example({"x": infer_feature("x", value)[1]})
    with pytest.raises(FeatureError, match=f"Feature 'x': .*{re.escape(message)}"):
        encode_example({"x": value})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([None], "got a sequence of NoneType"),
        ([np.array(1)], "got a sequence of ndarray"),
        ({1}, "got set, expected"),
        ([[1], [2]], "got a sequence of list"),
        (np.zeros(2, complex), "got complex128"),
        (np.array([None]), "got object"),
    ],
)
def test_rejects_values_that_no_feature_holds(value: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        infer_feature("x", value)


@pytest.mark.parametrize(
    ("feature", "value", "stored"),
    [
        (Feature("x", "bytes", "float64", (2,), "raw"), [1.5, -2], np.array([1.5, -2.0], "<f8").tobytes()),
        (Feature("x", "bytes", "uint16", (1, 2), "raw"), np.array([[1, 2]], ">u2"), b"\1\0\2\0"),
        (Feature("x", "bytes", "int16", (2,), "raw"), b"\1\0\2\0", b"\1\0\2\0"),
        (Feature("x", "bytes", "int64", (2,), "raw"), bytes(range(16)), bytes(range(16))),
        *((Feature("x", "bytes", "uint8", (None, None, 3), "image"), data, data) for data in (JPEG, PNG, GIF)),
        (Feature("x", "bytes", "uint8", (24, 40, 3), "image"), bytearray(JPEG), JPEG),
        (Feature("x", "float", "float32", (2,)), [1, 2], [1.0, 2.0]),
        (Feature("x", "float", "float32"), 3, 3.0),
        (Feature("x", "float", "float32"), 2**40, float(2**40)),
        (Feature("x", "int64", "int64", (None,)), np.array([1, 255], np.uint8), [1, 255]),
        *(
            (Feature("x", kind, dtype, (None,)), [], np.zeros(0, stored))
            for kind, dtype, stored in (("int64", "int64", "i8"), ("float", "float32", "f4"), ("bytes", "string", "S1"))
        ),
        (Feature("x", "bytes", "string", (), "utf8"), "é", "é"),
    ],
)
def test_stores_values_as_given_features_declare(feature: Feature, value: Any, stored: Any) -> None:
    found, got = fit_feature(feature, value)
    assert encode_example({"x": got}) == encode_example({"x": stored})
    assert (found.kind, found.dtype, found.encoding) == (feature.kind, feature.dtype, feature.encoding)


@pytest.mark.parametrize(
    ("feature", "value", "message"),
    [
        (Feature("x", "int64", "int64"), 1.5, r"got float of shape \(\), expected int64 of shape \(\)"),
        (Feature("x", "int64", "int64", (3,)), [1, 2], r"got shape \(2,\), expected int64 of shape \(3,\)"),
        (Feature("x", "float", "float32", (None,)), np.zeros((2, 2)), r"shape \(2, 2\)"),
        (Feature("x", "float", "float32"), "1.5", "bytes of shape"),
        (Feature("x", "float", "float32"), ID, "do not fit float32"),
        (Feature("x", "float", "float32"), 1e39, "do not fit float32"),
        (Feature("x", "float", "float32", (1,)), np.array([2**24 + 1]), "do not fit float32"),
        (Feature("x", "bytes", "int64", (2,), "raw"), bytes(8), "got 8 bytes"),
        (Feature("x", "bytes", "float32", (1,), "raw"), [2**24 + 1], "do not fit float32"),
        (Feature("x", "bytes", "float16", (1,), "raw"), [2049], "do not fit float16"),
        (Feature("x", "bytes", "float16", (1,), "raw"), [70000], "do not fit float16"),
        (Feature("x", "int64", "int64", (2,)), bytearray(b"ab"), "bytes of shape"),
        (Feature("x", "bytes", "string"), 1, "int64 of shape"),
        (Feature("x", "bytes", "string", (None,)), np.zeros(2, np.uint8), "raw uint8 of shape"),
        (Feature("x", "bytes", "uint8", (2,), "raw"), [1, 256], "do not fit uint8"),
        (Feature("x", "bytes", "float32", (2,), "raw"), [1.0, 1e39], "do not fit float32"),
        (Feature("x", "bytes", "uint8", (2,), "raw"), [1.0, 2.0], "got dtype float64"),
        (Feature("x", "bytes", "uint8", (2,), "raw"), b"abc", "3 bytes"),
        (Feature("x", "bytes", "uint8", (None,), "raw"), b"abc", "Pass an array"),
        *(
            (Feature("x", "bytes", "uint8", shape, "image"), np.zeros(size, dtype), message)
            for shape, size, dtype, message in (
                ((4, None, 3), (5, 4, 3), "u1", r"got shape \(5, 4, 3\), expected image uint8 of shape \(4, None, 3\)"),
                ((None, None, 3), (4, 4), "u1", r"got shape \(4, 4, 1\), expected image"),
                ((None, None, 3), (4, 4, 4), "u1", r"got shape \(4, 4, 4\), expected image"),
                ((None, None, 3), (4,), "u1", r"got shape \(4,\), expected image"),
                ((None, None, 3), (0, 4, 3), "u1", r"got shape \(0, 4, 3\), expected image .* with pixels"),
                ((None, None, 2), (4, 4, 2), "u1", r"got shape \(4, 4, 2\), expected 1, 3 or 4 channels"),
                ((None, None, 3), (4, 4, 3), "f4", r"got dtype float32, expected image"),
            )
        ),
        (Feature("x", "bytes", "uint8", (None, None, 1), "image"), np.full((4, 4), 256), "do not fit uint8"),
        *(
            (Feature("x", "bytes", "uint8", shape, "image"), value, message)
            for shape, value, message in (
                ((None, None, 3), b"", r"got the file is empty; expected image uint8 of shape \(None, None, 3\)"),
                ((None, None, 3), b"no image", "got unknown image format: it begins with"),
                (
                    (None, None, 3),
                    "text",
                    r"got bytes of shape \(\), expected image .* Pass the bytes of an encoded image",
                ),
                ((None, None, 3), [JPEG], r"got bytes of shape \(1,\)"),
                ((None, None, 3), JPEG[:-10], "JPEG cut"),
                ((None, None, 3), PNG[:-10], "PNG cut"),
                ((None, None, 3), encode(picture(), "TIFF"), "got a TIFF, which TensorFlow does not decode"),
                ((24, 24, 3), JPEG, "got a JPEG of height 24 and width 40; expected image"),
                ((24, None, 3), encode(picture(25, 40), "PNG"), "a PNG of height 25"),
                ((None, 39, 3), GIF, "a GIF of height 24 and width 40"),
            )
        ),
    ],
)
def test_rejects_values_that_do_not_fit_the_given_feature(feature: Feature, value: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=message) as caught:
        fit_feature(feature, value)
    assert "Feature 'x'" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "size"),
    [(np.zeros((3, 4), np.float32), 48), (np.zeros((3, 4), np.uint8), 12), (7, 4), ("text", None), (b"", None)],
)
def test_decoded_size_is_the_size_of_the_tensor(value: npt.NDArray[Any] | int | str | bytes, size: int | None) -> None:
    feature, _ = infer_feature("x", value)
    assert compute_decoded_size(feature) == size
    assert describe(feature).endswith(f"of shape {feature.shape}")


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_encodes_arrays_as_png_if_the_schema_declares_an_image(channels: int) -> None:
    tf = pytest.importorskip("tensorflow")
    feature = Feature("x", "bytes", "uint8", (None, None, channels), "image")
    for height, width in ((1, 1), (5, 9), (9, 5)):
        pixels = np.random.default_rng(height).integers(0, 256, (height, width, channels), np.uint8)
        for value in (pixels, np.asfortranarray(pixels), pixels.astype(np.int64)):
            _, stored = fit_feature(feature, value)
            assert stored.startswith(b"\x89PNG")
            assert np.array_equal(tf.io.decode_image(stored, channels).numpy(), pixels)
    if channels == 1:
        assert fit_feature(feature, pixels[:, :, 0]) == fit_feature(feature, pixels)


ml_dtypes = pytest.importorskip("ml_dtypes")
WIDE = {
    "bfloat16": [1.5, -(2.0**120), math.inf],
    "float8_e5m2": [1.5, -2.0, math.inf],
    "float8_e4m3fn": [0.5, -448.0, 0.0],
}


@pytest.mark.parametrize("name", WIDE)
def test_stores_ml_dtypes_floats_as_float32_without_loss(name: str) -> None:
    kind = getattr(ml_dtypes, name)
    array = np.array(WIDE[name], kind)
    feature, stored = infer_feature("x", array)
    assert feature == Feature("x", "float", "float32", (3,))
    assert decode_example(encode_example({"x": stored}))["x"] == WIDE[name]
    assert infer_feature("x", [*array])[0] == feature
    assert decode_example(encode_example({"x": infer_feature("x", [*array])[1]}))["x"] == WIDE[name]
    assert infer_feature("x", kind(1.5))[0] == Feature("x", "float", "float32")
    assert infer_feature("x", array.reshape(1, 3))[0].shape == (1, 3)
    assert decode_example(encode_example({"x": fit_feature(feature, array)[1]}))["x"] == WIDE[name]
    raw = Feature("x", "bytes", "float32", (3,), "raw")
    assert fit_feature(raw, array) == (raw, np.array(WIDE[name], "<f4").tobytes())
    with pytest.raises(FeatureError, match=r"got float of shape \(3,\), expected int64"):
        fit_feature(Feature("x", "int64", "int64", (3,)), array)


@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_stores_ml_dtypes_integers_as_int64(name: str) -> None:
    array = np.array([1, 7], getattr(ml_dtypes, name))
    assert infer_feature("x", array)[0] == Feature("x", "int64", "int64", (2,))
    assert decode_example(encode_example({"x": infer_feature("x", array)[1]}))["x"] == [1, 7]
    assert fit_feature(Feature("x", "bytes", "uint8", (2,), "raw"), array)[1] == b"\1\7"


def test_none_without_a_default_suggests_defaults() -> None:
    with pytest.raises(FeatureError, match=r"Feature 'x': None, and no default.* Pass defaults=\{'x': VALUE\}"):
        infer_feature("x", None)
    with pytest.raises(FeatureError, match=r"Feature 'x': None, and no default"):
        fit_feature(Feature("x", "int64", "int64"), None)
