"""From an example to its record: classes and given schemas.

One bad example ends a pipeline, so tests call the rules directly: a pipeline for each value would take a second.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from beam_jobs.examples.rules import ExampleRules
from tpudata.errors import BadRecordError, FeatureError, TpudataError
from tpudata.format import Feature, decode_example


def rules(**said: Any) -> ExampleRules:
    return ExampleRules(**{"key": None, "split_of": None, "schema": None, "label": "label", "classes": None, **said})


@pytest.mark.parametrize("label", ["dog", b"dog", 1, 1.0, np.int64(1), np.array(1), True])
def test_a_class_is_stored_as_its_number(label: Any) -> None:
    data, text = rules(classes=("cat", "dog")).encode({"label": label}, "here")
    assert decode_example(data) == {"label": [1]}
    assert '"num_classes":2' in text


@pytest.mark.parametrize("label", ["eel", 2, -1, 0.5, None, [1, 2], np.zeros(2)])
def test_rejects_labels_that_are_not_classes(label: Any) -> None:
    with pytest.raises(BadRecordError, match="here: rejected"):
        rules(classes=("cat", "dog")).encode({"label": label}, "here")


def test_takes_the_class_from_the_named_feature() -> None:
    data, _ = rules(classes=("cat", "dog"), label="kind").encode({"kind": "cat", "label": "free text"}, "here")
    assert decode_example(data) == {"kind": [0], "label": [b"free text"]}


def test_examples_must_have_exactly_the_features_of_a_given_schema() -> None:
    schema = (Feature("x", "float", "float32"), Feature("y", "bytes", "string"))
    data, _ = rules(schema=schema).encode({"x": 2, "y": "a"}, "here")
    assert decode_example(data) == {"x": [2.0], "y": [b"a"]}
    for example, message in (
        ({"x": 2}, "'y': it is in the schema but not"),
        ({"x": 2, "y": "a", "z": 1}, "'z': it is not in"),
    ):
        with pytest.raises(FeatureError, match=message):
            rules(schema=schema).encode(example, "here")


@pytest.mark.parametrize(
    ("example", "said", "kind", "message"),
    [
        ({"label": 3}, {"classes": ("cat", "dog", "eel")}, BadRecordError, "from 0 to 2"),
        ({"x": 1}, {"classes": ("cat",)}, BadRecordError, "no feature 'label'"),
        ({"label": float("inf")}, {"classes": ("cat",)}, BadRecordError, "unknown label: inf; it is a class name"),
        ({"x": [1, 2]}, {"schema": (Feature("x", "int64", "int64", (3,)),)}, FeatureError, "does not fit the schema"),
        ({3: 1}, {}, FeatureError, "feature name 3 is not text"),
        ({"x": 1e300}, {}, FeatureError, "Feature 'x': 1e+300 does not fit float32"),
    ],
)
def test_names_the_reason_for_a_rejection(example: Any, said: Any, kind: type[TpudataError], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        rules(**said).encode(example, "here")


def test_names_nested_features_by_path() -> None:
    data, _ = rules().encode({"image": {"size": {"height": 3}, "name": "a"}, "image/format": b"PNG"}, "here")
    assert decode_example(data) == {"image/size/height": [3], "image/name": [b"a"], "image/format": [b"PNG"]}
    schema = (Feature("a/b", "int64", "int64"),)
    assert rules(schema=schema).encode({"a": {"b": 1}}, "here")[0] == rules(schema=schema).encode({"a/b": 1}, "here")[0]
    data, _ = rules(classes=("cat", "dog"), label="image/label").encode({"image": {"label": "dog"}}, "here")
    assert decode_example(data) == {"image/label": [1]}


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"a": {}, "b": 1}, r"Feature 'a': a dict without features.*Omit it"),
        ({"a": {"b": {}}}, r"Feature 'a/b': a dict without features"),
        ({"a": {"b": 1}, "a/b": 2}, r"Feature 'a/b': the example has it twice"),
        ({"a": {3: 1}}, r"feature name 3 is not text"),
        ({"a": [{"b": 1}]}, r"Feature 'a': unsupported type \(got a sequence of dict"),
    ],
)
def test_rejects_empty_dicts_and_repeated_features(example: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        rules().encode(example, "here")


def test_defaults_replace_none_and_missing_values() -> None:
    said = rules(defaults={"age": -1, "a/b": "none"})
    expected = {"x": [1], "age": [-1], "a/b": [b"none"]}
    for example in ({"x": 1, "age": None}, {"x": 1, "a": {"b": None}}, {"x": 1, "a/b": None, "age": None}):
        assert decode_example(said.encode(example, "here")[0]) == expected
    assert decode_example(said.encode({"x": 1, "age": 0, "a/b": ""}, "here")[0]) == {
        **expected,
        "age": [0],
        "a/b": [b""],
    }
    schema = (Feature("x", "int64", "int64"), Feature("age", "float", "float32"))
    assert decode_example(rules(schema=schema, defaults={"age": 2}).encode({"x": 1}, "here")[0])["age"] == [2.0]
    labelled = rules(classes=("cat", "dog"), defaults={"label": "dog"})
    assert decode_example(labelled.encode({"label": None}, "here")[0]) == {"label": [1]}
