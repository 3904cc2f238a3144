"""Bytes at the sizes where the encoder's short cuts begin and end; `test_codec.py` has the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpudata.errors import FeatureError
from tpudata.format import decode_example, encode_entry, encode_example


def to_proto(features: dict[str, Any]) -> bytes:
    out = tf.train.Example()
    for name, value in features.items():
        if isinstance(value, bytes):
            out.features.feature[name].bytes_list.value.append(value)
        elif isinstance(value, float):
            out.features.feature[name].float_list.value.append(value)
        else:
            out.features.feature[name].int64_list.value.append(int(value))
    data: bytes = out.SerializeToString(deterministic=True)
    return data


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, *range(95, 135), 16_350, 16_383, 16_384, 2_097_140, 2_097_152])
def test_encodes_bytes_of_any_size_as_protobuf_does(size: int) -> None:
    for name in ("a", "image/encoded", "n" * 130):
        features = {name: np.random.default_rng(size).bytes(size), "between": 5}
        assert encode_example(features) == to_proto(features)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1e39, r"1e\+39 does not fit float32"),
        ([0.0, -1e300], r"-1e\+300 does not fit float32"),
        (np.array([1.0, 4e38]), r"4e\+38 does not fit float32"),
        ("a\udcff", "is not UTF-8"),
        (np.array(["\udcff"]), "is not UTF-8"),
    ],
)
def test_rejects_values_that_would_not_decode_to_the_same(value: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=f"Feature 'x': .*{message}"):
        encode_example({"x": value})
    stored = encode_example({"x": [float("inf"), float("-inf"), 3.4e38]})
    assert decode_example(stored)["x"] == [float("inf"), float("-inf"), np.float32(3.4e38)]


@pytest.mark.parametrize("value", [1, b"x", bytes(20_000), [0.5]], ids=["int", "short", "long", "list"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a\udcff", r"'a\\udcff': its name is not UTF-8"),
        (3, r"3: unsupported name \(got int, expected str\)"),
        (b"a", r"b'a': unsupported name \(got bytes, expected str\)"),
    ],
)
def test_rejects_names_that_are_not_text(name: Any, message: str, value: Any) -> None:
    for features in ({name: value}, {name: value, "other": 1}):
        with pytest.raises(FeatureError, match=f"Feature {message}"):
            encode_example(features)
    with pytest.raises(FeatureError, match=f"Feature {message}"):
        encode_entry(name, value)


def test_values_that_compare_equal_keep_their_types() -> None:
    for value in (1, True, 1.0, 0, False, 0.0, -1, 2**63 - 1, -(2**63)):
        assert encode_example({"value": value}) == to_proto({"value": value})
        assert encode_example({"value": np.asarray(value)}) == to_proto({"value": value})


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.zeros(0, np.int32), "int64_list"),
        (np.zeros(0, np.bool_), "int64_list"),
        (np.zeros((0, 4), np.float64), "float_list"),
        (np.array([], "S1"), "bytes_list"),
        (np.array([], "U1"), "bytes_list"),
    ],
)
def test_encodes_an_empty_array_as_an_empty_list_of_its_kind(value: Any, name: str) -> None:
    out = tf.train.Example()
    getattr(out.features.feature["a"], name).SetInParent()
    data = encode_example({"a": value})
    assert data == out.SerializeToString()
    assert decode_example(data) == {"a": []}
