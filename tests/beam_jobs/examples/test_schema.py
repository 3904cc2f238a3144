"""The schema is inferred from all examples; examples that do not fit each other are rejected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest

from beam_jobs import WriteTFRecordShards
from tests.beam_jobs.pipelines import local_pipeline, run_pipeline
from tpudata.errors import FeatureError
from tpudata.format import Feature, Manifest, open_dataset, verify


def write(folder: Path, examples: Sequence[dict[str, Any]], **options: Any) -> Manifest:
    pipeline = local_pipeline()
    keyed = [(f"key{number}", example) for number, example in enumerate(examples)]
    _ = pipeline | beam.Create(keyed, reshuffle=False) | WriteTFRecordShards(folder / "out", **options)
    run_pipeline(pipeline)
    return open_dataset(str(folder / "out")).manifest


@pytest.mark.parametrize(("order", "shards"), [(1, 1), (-1, 3)])
def test_infers_a_schema_that_fits_all_records(order: int, shards: int, tmp_path: Path) -> None:
    examples = [
        {"varies": np.zeros((2, 5)), "same": [1], "text": "a", "list": [], "words": ["a"]},
        {"varies": np.zeros((3, 5)), "same": [2], "text": b"b", "list": [1.5, 2.5], "words": []},
        {"varies": np.zeros((2, 5)), "same": [3], "text": "c", "list": [], "words": [b"a", "b"]},
    ]
    manifest = write(tmp_path, examples[::order], num_shards=shards)
    assert manifest.features == (
        # An empty list is of the kind of the others.
        Feature("list", "float", "float32", (None,)),
        Feature("same", "int64", "int64", (1,)),
        # Text in one record and bytes in another is bytes.
        Feature("text", "bytes", "string"),
        # Dimensions that vary become None.
        Feature("varies", "float", "float32", (None, 5)),
        Feature("words", "bytes", "string", (None,)),
    )
    # Two float32 arrays, numbers, and texts with the sizes of their records.
    assert manifest.split("train").decoded_bytes > (2 + 3 + 2) * 5 * 4


def test_empty_arrays_fit_values_of_any_kind(tmp_path: Path) -> None:
    # np.array([]) has the dtype float64.
    examples: list[dict[str, Any]] = [
        {"ids": np.array([]), "scores": np.array([1.5])},
        {"ids": [3], "scores": np.zeros(0, np.int64)},
    ]
    manifest = write(tmp_path, examples)
    assert manifest.features == (
        Feature("ids", "int64", "int64", (None,)),
        Feature("scores", "float", "float32", (None,)),
    )
    # `verify` compares the kinds of empty lists, as TensorFlow's parser does.
    assert list(verify(str(tmp_path / "out"))) == []


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({"x": 1}, {"x": 1.5}, r"'x': record 'key\d' has .*, record 'key\d' has .* of shape \(\)"),
        ({"x": [1]}, {"x": 1}, r"record 'key\d' has int64 of shape .*, record 'key\d' has int64 of shape"),
        ({"x": np.zeros(3, np.uint8)}, {"x": b"abc"}, "has raw uint8 of shape"),
        ({"x": 1, "y": 2}, {"x": 1}, "'y': record 'key0' has it, record 'key1' has not"),
        ({"x": 1}, {"x": 1, "z": 2}, "'z': record 'key1' has it, record 'key0' has not"),
        ({"x": np.zeros((2, 3))}, {"x": np.zeros((3, 2))}, r"\(None, None\) varies \(None\) in more than one"),
        ({"x": []}, {"x": []}, "'x': it is empty in every record"),
    ],
)
def test_rejects_records_that_do_not_fit_each_other(
    one: dict[str, Any], other: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(FeatureError, match=message):
        write(tmp_path, [one, other])


def test_keeps_a_given_schema(tmp_path: Path) -> None:
    schema = (Feature("x", "float", "float32", (None, 5)),)
    assert write(tmp_path, [{"x": np.zeros((2, 5), np.float32)}], features=schema).features == schema
