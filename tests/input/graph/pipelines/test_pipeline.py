"""The steps from shards to batches, for any sizes: each record comes once per epoch."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.datasets import Written, write_dataset
from tpudata import FeatureError, Reading, make_input_fn
from tpudata.format import Feature

FEATURES = [Feature("image_raw", "bytes", "uint8", (2,), "raw"), Feature("label", "int64", "int64")]


def write_numbers(folder: str, count: int, shards: int) -> str:
    """Records 0, 1, 2, ... of one size on disk."""
    records = [{"image_raw": np.uint16(i).tobytes(), "label": i + 1000} for i in range(count)]
    return write_dataset(folder, {"train": records}, FEATURES, layout="raw", shards=shards)


@settings(max_examples=4)
@given(st.data())
def test_evaluation_is_exact_for_any_sizes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 70), "records")
    shards = data.draw(st.integers(1, min(count, 5)), "shards")
    batch_size = data.draw(st.integers(1, 80), "batch size")
    reading = Reading(chunk_bytes=data.draw(st.sampled_from([1, 200, 10_000]), "bytes read at a time"))
    cache = data.draw(st.booleans(), "cache")
    transform = data.draw(st.sampled_from([None, lambda features, labels: (features, labels)]), "transform")
    with tempfile.TemporaryDirectory() as folder:
        path = write_numbers(folder, count, shards)
        input_fn = make_input_fn(path, "train", training=False, cache=cache, transform=transform, reading=reading)
        rows = list(input_fn({"batch_size": batch_size}).as_numpy_iterator())
    assert all(features["image"].shape == (batch_size, 2) for features, _ in rows)
    weights = np.concatenate([features["weights"] for features, _ in rows])
    labels = np.concatenate([labels for _, labels in rows])
    values = np.concatenate([features["image"] for features, _ in rows]).view("<u2")[:, 0]
    assert labels[weights == 1].tolist() == list(range(1000, 1000 + count))
    assert values[weights == 1].tolist() == list(range(count))
    assert len(rows) == -(-count // batch_size)


@settings(max_examples=4)
@given(st.data())
def test_training_epochs_are_permutations_for_any_sizes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 50), "records")
    shards = data.draw(st.integers(1, min(count, 5)), "shards")
    batch_size = data.draw(st.integers(1, 60), "batch size")
    reading = Reading(chunk_bytes=data.draw(st.sampled_from([1, 200, 10_000]), "bytes read at a time"))
    with tempfile.TemporaryDirectory() as folder:
        buffer = data.draw(st.none() | st.integers(1, count), "window")
        path = write_numbers(folder, count, shards)
        input_fn = make_input_fn(path, "train", training=True, shuffle=buffer, reading=reading)
        rows = input_fn({"batch_size": batch_size}).take(-(-3 * count // batch_size)).as_numpy_iterator()
        batches = [labels - 1000 for _, labels in rows]
    seen = np.zeros(count, int)
    for batch in batches:
        # Every record once per epoch: at no time was one seen twice more often than another.
        seen += np.bincount(batch, minlength=count)
        assert seen.max() - seen.min() <= 1
    assert seen.min() >= 3


def test_evaluation_rejects_a_feature_called_weights(raw_digits: Written) -> None:
    def transform(features: Any, labels: Any) -> Any:
        return {**features, "weights": tf.ones([])}, labels

    make_input_fn(raw_digits.path, "test", training=True, transform=transform)({"batch_size": 2})
    with pytest.raises(FeatureError, match=r"'weights'.*another name"):
        make_input_fn(raw_digits.path, "test", training=False, transform=transform)({"batch_size": 2})
