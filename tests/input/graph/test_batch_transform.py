"""batch_transform: a user's function of whole batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import Written
from tpudata import FeatureError, Images, MixUp, UsageError, as_keras, make_input_fn


def centred(features: Any, labels: Any) -> Any:
    image = tf.cast(features["image"], tf.float32)
    return {**features, "image": image - tf.reduce_mean(image)}, tf.one_hot(labels, 10)


@pytest.mark.parametrize("options", [{}, {"cache": True}, {"transform": lambda x, y: (x, y)}])
def test_batch_transform_gets_the_whole_batch(raw_digits: Written, options: dict[str, Any]) -> None:
    input_fn = make_input_fn(raw_digits.path, "test", training=False, batch_transform=centred, **options)
    first, last = list(input_fn({"batch_size": 64}).as_numpy_iterator())
    images = np.asarray(raw_digits.images["test"][:64], np.float32)
    np.testing.assert_allclose(first[0]["image"], images - images.mean(), rtol=1e-5, atol=1e-3)
    assert first[1].argmax(axis=1).tolist() == list(raw_digits.labels["test"][:64])
    assert last[0]["weights"].tolist() == [1.0] * 37 + [0.0] * 27
    pairs = list(as_keras(input_fn, 64))
    assert [len(labels) for _, labels in pairs] == [64, 37]


def test_draws_the_same_after_a_restart(raw_digits: Written) -> None:
    def noisy(features: Any, labels: Any, seed: Any) -> Any:
        if labels[0] > 4:  # AutoGraph converts it.
            return {"noise": tf.random.stateless_uniform([len(labels)], seed)}, labels
        return {"noise": tf.random.stateless_normal([len(labels)], seed)}, labels

    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1, batch_transform=noisy)
    whole = [f["noise"].tobytes() for f, _ in input_fn({"batch_size": 8}).take(9).as_numpy_iterator()]
    late = [f["noise"].tobytes() for f, _ in input_fn({"batch_size": 8}, start_step=5).take(4).as_numpy_iterator()]
    assert late == whole[5:]
    assert len(set(whole)) == 9


def test_runs_after_mixing(raw_digits: Written) -> None:
    def shares(_: Any, labels: Any) -> Any:
        return {"largest": tf.reduce_max(labels, axis=1)}, labels

    images = Images(dtype="float32", mix=MixUp(1.0))
    input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=1, images=images, batch_transform=shares)
    features, labels = next(input_fn({"batch_size": 32}).as_numpy_iterator())
    np.testing.assert_array_equal(features["largest"], labels.max(axis=1))
    assert (features["largest"] < 1).any()


def test_requires_a_place_for_weights(raw_digits: Written) -> None:
    def bare(features: Any, labels: Any) -> Any:
        return features["image"], labels

    input_fn = make_input_fn(raw_digits.path, "test", training=False, batch_transform=bare)
    with pytest.raises(UsageError, match=r"101 records in batches of 8: the last one would be padded"):
        input_fn({"batch_size": 8})
    assert len(list(input_fn({"batch_size": 101}))) == 1
    for wrong in (lambda _, labels: labels, lambda features, labels: (features, labels, labels)):
        input_fn = make_input_fn(
            raw_digits.path,
            "test",
            training=False,
            parse=lambda records: ({"x": tf.strings.length(records)}, tf.strings.length(records)),
            weights="sample_weight",
            batch_transform=wrong,
        )
        with pytest.raises(UsageError, match="needs labels"):
            input_fn({"batch_size": 8})


def test_rejects_results_that_are_not_a_batch(raw_digits: Written) -> None:
    wrong: list[tuple[Any, type, str]] = [
        (lambda _, __: None, UsageError, "batch_transform returned None"),
        (lambda features, labels: [features, labels], UsageError, "batch_transform returned a list"),
        (lambda features, _: features, UsageError, r"returned no \(features, labels\)"),
        (lambda features, labels: (features, labels[labels > 3]), FeatureError, "its shape is not static"),
        (lambda features, labels: (features, labels[:4]), FeatureError, r"has the shape \(4,\) \(expected 8 rows\)"),
        (lambda features, labels: (features, tf.ragged.range(labels)), FeatureError, "its shape is not static"),
        (lambda features: features, UsageError, "batch_transform is called with"),
    ]
    for function, error, message in wrong:
        input_fn = make_input_fn(raw_digits.path, "test", training=False, batch_transform=function)
        with pytest.raises(error, match=message):
            input_fn({"batch_size": 8})
