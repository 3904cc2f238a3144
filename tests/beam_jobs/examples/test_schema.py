"""The schema of many examples: the same whatever the order, and loud where two do not fit."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.examples.schema import ExampleConverter, ExampleSummary, signature
from beam_jobs.feature_values.values import infer
from beam_jobs.references.labels import Labels
from tpudata.errors import FeatureError
from tpudata.format import Feature

Example = dict[str, Any]


def summary_of(examples: Sequence[Example]) -> ExampleSummary:
    summary = ExampleSummary()
    for number, example in enumerate(examples):
        features = [infer(name, value)[0] for name, value in example.items()]
        summary.add(signature(features), f"key{number}", 100)
    return summary


def schema_of(*examples: Example) -> dict[str, Feature]:
    features = ExampleConverter().features(summary_of(examples), Labels(()))
    return {feature.name: feature for feature in features}


@given(
    st.lists(
        st.sampled_from(
            [[], [1], [2, 3], [1.5], np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(3), ["a"], [b"b"]]
        ),
        min_size=1,
        max_size=6,
    ),
    st.randoms(),
    st.integers(0, 6),
)
def test_neither_order_nor_grouping_matters(values: list[Any], mixer: random.Random, cut: int) -> None:
    def outcome(parts: Sequence[Sequence[Any]]) -> Any:
        total = ExampleSummary()
        try:
            for part in parts:
                total.merge(summary_of([{"x": value} for value in part]))
        except FeatureError:
            return "conflict"
        return {name: feature for name, (feature, _) in total.features.items()}, total.decoded_bytes

    mixed = list(values)
    mixer.shuffle(mixed)
    assert outcome([values]) == outcome([mixed[:cut], mixed[cut:]])


def test_dimensions_that_vary_become_none() -> None:
    schema = schema_of({"x": np.zeros((2, 5)), "y": [1]}, {"x": np.zeros((3, 5)), "y": [2]})
    assert schema["x"] == Feature("x", "float", "float32", (None, 5))
    assert schema["y"] == Feature("y", "int64", "int64", (1,))


def test_text_in_one_record_and_bytes_in_another_is_bytes() -> None:
    assert schema_of({"x": "a"}, {"x": b"b"})["x"] == Feature("x", "bytes", "string")


def test_an_empty_list_is_of_the_kind_of_the_others() -> None:
    assert schema_of({"x": []}, {"x": [1.5, 2.5]}, {"x": []})["x"] == Feature("x", "float", "float32", (None,))
    with pytest.raises(FeatureError, match="'x': it is empty in every record"):
        schema_of({"x": []}, {"x": []})


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({"x": 1}, {"x": 1.5}, r"'x': record 'key0' has int64 of shape \(\), record 'key1' has float of shape \(\)"),
        ({"x": [1]}, {"x": 1}, r"int64 of shape \(1,\), record 'key1' has int64 of shape \(\)"),
        ({"x": np.zeros(3, np.uint8)}, {"x": b"abc"}, "has raw uint8 of shape"),
        ({"x": 1, "y": 2}, {"x": 1}, "'y': record 'key0' has it, record 'key1' has not"),
        ({"x": 1}, {"x": 1, "z": 2}, "'z': record 'key1' has it, record 'key0' has not"),
        ({"x": np.zeros((2, 3))}, {"x": np.zeros((3, 2))}, r"\(None, None\) varies \(None\) in more than one"),
    ],
)
def test_records_that_do_not_fit_each_other(one: Example, other: Example, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        schema_of(one, other)


def test_the_summary_survives_json() -> None:
    summary = summary_of([{"x": np.zeros((2, 5)), "t": "a"}, {"x": np.zeros((3, 5)), "t": "b"}])
    assert ExampleSummary.from_json(json.loads(json.dumps(summary.to_json()))) == summary
    # Two float32 arrays; a record with text counts with its own size for it.
    assert summary.decoded_bytes == 2 * 5 * 4 + 3 * 5 * 4 + 2 * 100


def test_a_given_schema_is_what_the_dataset_has() -> None:
    given_schema = (Feature("x", "float", "float32", (None, 5)),)
    summary = summary_of([{"x": np.zeros((2, 5))}])
    assert ExampleConverter(given_schema).features(summary, Labels(())) == given_schema
