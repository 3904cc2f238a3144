"""The steps from shards to batches: no record lost or doubled for any sizes, and windows of the stated length."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.datasets import Written, write_dataset
from tpudata import FeatureError, UsageError, make_input_fn
from tpudata.format import Feature
from tpudata.input import pipeline
from tpudata.input.pipeline import Options

FEATURES = [Feature("image_raw", "bytes", "uint8", (2,), "raw"), Feature("label", "int64", "int64")]


def write_numbers(folder: str, count: int, shards: int) -> str:
    """Records 0, 1, 2, ... of one size on disk."""
    records = [{"image_raw": np.uint16(i).tobytes(), "label": i + 1000} for i in range(count)]
    return write_dataset(folder, {"train": records}, FEATURES, layout="raw", shards=shards)


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_evaluation_is_exact_for_any_sizes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 70), "records")
    shards = data.draw(st.integers(1, min(count, 5)), "shards")
    batch_size = data.draw(st.integers(1, 80), "batch size")
    chunk = data.draw(st.integers(1, 30), "records decoded at a time")
    cache = data.draw(st.booleans(), "cache")
    transform = data.draw(st.sampled_from([None, lambda features, labels: (features, labels)]), "transform")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_CHUNK_RECORDS", chunk)
        path = write_numbers(folder, count, shards)
        input_fn = make_input_fn(path, "train", training=False, cache=cache, transform=transform)
        rows = list(input_fn({"batch_size": batch_size}).as_numpy_iterator())
    assert all(features["image"].shape == (batch_size, 2) for features, _ in rows)
    weights = np.concatenate([features["weights"] for features, _ in rows])
    labels = np.concatenate([labels for _, labels in rows])
    values = np.concatenate([features["image"] for features, _ in rows]).view("<u2")[:, 0]
    assert labels[weights == 1].tolist() == list(range(1000, 1000 + count))
    assert values[weights == 1].tolist() == list(range(count))
    assert len(rows) == -(-count // batch_size)


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_training_epochs_are_permutations_for_any_sizes(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 50), "records")
    shards = data.draw(st.integers(1, min(count, 5)), "shards")
    batch_size = data.draw(st.integers(1, 60), "batch size")
    chunk = data.draw(st.integers(1, 30), "records decoded at a time")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_CHUNK_RECORDS", chunk)
        input_fn = make_input_fn(write_numbers(folder, count, shards), "train", training=True)
        rows = input_fn({"batch_size": batch_size}).take(-(-3 * count // batch_size)).as_numpy_iterator()
        labels = np.concatenate([labels for _, labels in rows]) - 1000
    for epoch in range(3):
        assert sorted(labels[epoch * count : (epoch + 1) * count]) == list(range(count))


def places(path: str, count: int, **options: Any) -> Any:
    """By record of a one-shard dataset, its place in the first epoch."""
    input_fn = make_input_fn(path, "train", training=True, seed=0, **options)
    (labels,) = [labels for _, labels in input_fn({"batch_size": count}).take(1).as_numpy_iterator()]
    return np.argsort(labels)


def test_a_window_moves_no_record_forward_by_more_than_its_length(tmp_path: Path) -> None:
    path = write_numbers(str(tmp_path), 500, 1)
    forward = np.arange(500) - places(path, 500, shuffle_buffer=40)
    assert 20 < forward.max() < 40
    # By default a small split is one window: as far as a true permutation moves them.
    everywhere = np.abs(np.arange(500) - places(path, 500))
    assert everywhere.mean() == pytest.approx(500 / 3, rel=0.1)


def test_the_default_window_holds_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_numbers(str(tmp_path / "data"), 500, 1)
    record = sum(file.stat().st_size for file in (tmp_path / "data").glob("*.tfrecord")) // 500
    monkeypatch.setattr(pipeline, "_WINDOW_RECORDS", 5)
    monkeypatch.setattr(pipeline, "_WINDOW_BYTES", 40 * record)
    assert 20 < (np.arange(500) - places(path, 500)).max() < 40
    # Cached in memory, a window over all costs nothing more.
    assert np.abs(np.arange(500) - places(path, 500, cache=True)).mean() == pytest.approx(500 / 3, rel=0.1)
    # Cached in files, the window holds decoded records: 2 bytes and a label of 4.
    monkeypatch.setattr(pipeline, "_WINDOW_BYTES", 40 * 6)
    assert 20 < (np.arange(500) - places(path, 500, cache=str(tmp_path / "cache"))).max() < 40
    monkeypatch.setattr(pipeline, "_WINDOW_RECORDS", 400)
    assert (np.arange(500) - places(path, 500)).max() > 200


def test_options_are_checked_at_the_door() -> None:
    good: dict[str, Any] = {
        "training": True,
        "dtype": "uint8",
        "bare": False,
        "transform": None,
        "shuffle_buffer": None,
        "seed": None,
        "weights": "feature",
    }
    Options(**good)
    for wrong in ({"dtype": "int8"}, {"weights": "x"}, {"shuffle_buffer": -1}, {"seed": 2**32}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Options(**{**good, **wrong})


def test_a_feature_called_weights_is_refused_in_evaluation(raw_digits: Written) -> None:
    def transform(features: Any, labels: Any) -> Any:
        return {**features, "weights": tf.ones([])}, labels

    make_input_fn(raw_digits.path, "test", training=True, transform=transform)({"batch_size": 2})
    with pytest.raises(FeatureError, match=r"'weights'.*another name"):
        make_input_fn(raw_digits.path, "test", training=False, transform=transform)({"batch_size": 2})
