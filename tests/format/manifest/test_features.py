"""Features that a schema accepts and rejects."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tpudata.errors import FeatureError
from tpudata.format import Feature


@pytest.mark.parametrize(
    "feature",
    [
        Feature("image/encoded", "bytes", "uint8", (None, 5, 3), "image"),
        Feature("map", "bytes", "uint16", (None, 5, 1), "label_map"),
        Feature("label", "int64", "int64", num_classes=3, label_offset=1),
        Feature("label", "int64", "int64", num_classes=3),
        Feature("rank", "int64", "int64", label_offset=1),
        Feature("ids", "int64", "int64", (16,)),
        Feature("text", "bytes", "string", encoding="utf8"),
        Feature("x", "bytes", "float16", (2, 2), "raw"),
        Feature("score", "float", "float32"),
    ],
)
def test_json_round_trip_keeps_a_feature(feature: Feature) -> None:
    assert Feature.from_json(json.loads(json.dumps(feature.to_json()))) == feature


def test_json_omits_defaults() -> None:
    assert Feature("x", "float", "float32").to_json() == {"name": "x", "kind": "float", "dtype": "float32", "shape": []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "int64", "int64"), "name is empty"),
        ((3, "int64", "int64"), r"3: unsupported name \(got int, expected str"),
        (("x", "int32", "int64"), r"'x': unknown kind \(got 'int32', expected bytes, int64, float"),
        (("x", "int64", "int32"), "expected int64"),
        (("x", "float", "float64"), "expected float32"),
        (("x", "bytes", "string", (), "raw"), "uint8"),
        (("x", "int64", "uint8", (1, 1, 1), "image"), "none"),
        (("x", "bytes", "string", (), "base64"), "none"),
        (("x", "bytes", "uint8", (2, 3), "image"), r"\(height, width, channels\)"),
        (("x", "bytes", "uint8", (2, 3), "label_map"), r"got \(2, 3\), expected \(height, width, 1\)"),
        (("x", "bytes", "uint8", (2, 3, 3), "label_map"), r"got \(2, 3, 3\), expected \(height, width, 1\)"),
        (("x", "bytes", "int32", (2, 3, 1), "label_map"), r"got 'int32', expected uint8, uint16"),
        (("x", "bytes", "uint8", (2, 3, 1), "label_map", 3), "num_classes is for labels of records"),
        (("x", "int64", "int64", (-1,)), "negative"),
        (("x", "int64", "int64", None), r"'x': unsupported shape \(got None.*\(\) for a scalar, \(None,\) for a list"),
        (("x", "int64", "int64", 3), r"'x': unsupported shape \(got 3"),
        (("x", "int64", "int64", "3"), r"'x': unsupported shape \(got '3'"),
        (("x", "int64", "int64", (2.5,)), r"'x': unsupported shape \(got \(2\.5,\)"),
        (("x", "int64", "int64", (True,)), r"'x': unsupported shape \(got \(True,\)"),
    ],
)
def test_rejects_invalid_features(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        Feature(*arguments)


def test_accepts_any_sequence_of_integers_as_shape() -> None:
    shapes: list[Any] = [(2, None), [2, None], (np.int64(2), None)]
    features = [Feature("x", "int64", "int64", shape) for shape in shapes]
    assert len({*features}) == 1
    assert Feature("x", "int64", "int64", tuple(np.array([2, 3]))).to_json()["shape"] == [2, 3]


def test_only_shapes_without_none_are_static() -> None:
    assert Feature("x", "int64", "int64").is_static
    assert Feature("x", "int64", "int64", (3,)).is_static
    assert not Feature("x", "int64", "int64", (None,)).is_static


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "x\ud800"}, "its name is not UTF-8"),
        ({"shape": (1,) * 33}, r"too many dimensions \(got 33, expected at most 32\)"),
        ({"shape": (2**20, None, 2**12)}, "expected at most 2147483647"),
        ({"dtype": "uint8", "encoding": "image", "kind": "bytes", "shape": (2**20, 2**20, 3)}, "expected at most"),
        ({"num_classes": 2**62, "label_offset": 2**62}, "do not fit int64"),
        ({"num_classes": 10**5000}, "do not fit int64"),
        ({"shape": (10**5000,)}, "expected at most 2147483647"),
    ],
)
def test_rejects_features_that_no_record_can_hold(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        Feature(**{"name": "x", "kind": "int64", "dtype": "int64", **changes})
