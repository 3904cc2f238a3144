"""From an example to its record: classes, given schemas, nested features and defaults."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.beam_jobs.examples.flowers import write
from tpudata.errors import BadRecordError, FeatureError, TpudataError
from tpudata.format import Feature, open_dataset

NUMBER = Feature("n", "int64", "int64")


def write_and_read(examples: Sequence[dict[Any, Any]], output: Path, **options: Any) -> list[dict[str, Any]]:
    """The records of examples, in their order."""
    write(({"n": number, **example} for number, example in enumerate(examples)), output, **options)
    records: dict[Any, dict[str, Any]] = {}
    for record in map(dict, open_dataset(str(output)).examples("train")):
        (number,) = record.pop("n")
        records[number] = record
    return [records[number] for number in range(len(examples))]


def test_a_class_is_stored_as_its_number(tmp_path: Path) -> None:
    labels = ["dog", b"dog", 1, 1.0, np.int64(1), np.array(1), True]
    found = write_and_read([{"label": label} for label in labels], tmp_path / "out", labels=("cat", "dog"))
    assert found == [{"label": [1]}] * len(labels)
    assert open_dataset(str(tmp_path / "out")).manifest.feature("label").num_classes == 2


def test_takes_the_class_from_the_named_feature(tmp_path: Path) -> None:
    example = {"image": {"kind": "dog"}, "label": "free text"}
    (found,) = write_and_read([example], tmp_path / "out", labels=("cat", "dog"), label="image/kind")
    assert found == {"image/kind": [1], "label": [b"free text"]}


def test_stores_the_features_of_a_given_schema_in_its_types(tmp_path: Path) -> None:
    schema = (NUMBER, Feature("x", "float", "float32"), Feature("a/b", "bytes", "string"))
    found = write_and_read([{"x": 2, "a/b": "a"}, {"x": 2.5, "a": {"b": "a"}}], tmp_path / "out", features=schema)
    assert found == [{"x": [2.0], "a/b": [b"a"]}, {"x": [2.5], "a/b": [b"a"]}]


@pytest.mark.parametrize(
    ("example", "options", "kind", "message"),
    [
        *(
            ({"label": label}, {"labels": ("cat", "dog")}, BadRecordError, ": rejected")
            for label in (-1, 0.5, None, [1, 2])
        ),
        ({"label": 3}, {"labels": ("cat", "dog", "eel")}, BadRecordError, "from 0 to 2"),
        ({"x": 1}, {"labels": ("cat",)}, BadRecordError, "no feature 'label'"),
        ({"label": float("inf")}, {"labels": ("cat",)}, BadRecordError, "unknown label: inf; it is a class name"),
        (
            {"n": 1},
            {"features": (NUMBER, Feature("y", "int64", "int64"))},
            FeatureError,
            "'y': it is in the schema but not",
        ),
        ({"n": 1, "z": 1}, {"features": (NUMBER,)}, FeatureError, "'z': it is not in"),
        ({"n": [1, 2]}, {"features": (NUMBER,)}, FeatureError, "does not fit the schema"),
        ({"a": {3: 1}}, {}, FeatureError, "feature name 3 is not text"),
        ({"x": 1e300}, {}, FeatureError, "Feature 'x': 1e+300 does not fit float32"),
        ({"a": {}, "b": 1}, {}, FeatureError, "Feature 'a': a dict without features"),
        ({"a": {"b": {}}}, {}, FeatureError, "Feature 'a/b': a dict without features"),
        ({"a": {"b": 1}, "a/b": 2}, {}, FeatureError, "Feature 'a/b': the example has it twice"),
        ({"a": [{"b": 1}]}, {}, FeatureError, "Feature 'a': unsupported type (got a sequence of dict"),
    ],
)
def test_names_the_reason_for_a_rejection(
    tmp_path: Path, example: Any, options: Any, kind: type[TpudataError], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        write([example], tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("name", "options", "kind", "message"),
    [
        ("x", {}, FeatureError, "Feature 'x': an integer of 16,610 bits does not fit int64"),
        ("label", {"labels": ("cat", "dog")}, BadRecordError, "unknown label: an integer of 16,610 bits"),
    ],
)
def test_rejects_an_integer_that_is_too_large_for_a_text(
    tmp_path: Path, name: str, options: Any, kind: type[TpudataError], message: str
) -> None:
    # Beam cannot encode it between two steps.
    with pytest.raises(kind, match=message):
        write([1], tmp_path / "out", lambda _: {name: 10**5000}, **options)


def test_names_nested_features_by_path(tmp_path: Path) -> None:
    example = {"image": {"size": {"height": 3}, "name": "a"}, "image/format": b"PNG"}
    (found,) = write_and_read([example], tmp_path / "out")
    assert found == {"image/size/height": [3], "image/name": [b"a"], "image/format": [b"PNG"]}


def test_defaults_replace_none_and_missing_values(tmp_path: Path) -> None:
    defaults = {"age": -1, "a/b": "none", "label": "dog"}
    examples: list[dict[str, Any]] = [
        {"x": 1, "age": None},
        {"x": 1, "a": {"b": None}, "label": None},
        {"x": 1, "a/b": None, "age": None},
        {"x": 1, "age": 0, "a/b": "", "label": "cat"},
    ]
    *found, last = write_and_read(examples, tmp_path / "out", defaults=defaults, labels=("cat", "dog"))
    assert found == [{"x": [1], "age": [-1], "a/b": [b"none"], "label": [1]}] * 3
    assert last == {"x": [1], "age": [0], "a/b": [b""], "label": [0]}
    schema = (NUMBER, Feature("age", "float", "float32"))
    assert write_and_read([{}], tmp_path / "typed", features=schema, defaults={"age": 2}) == [{"age": [2.0]}]
