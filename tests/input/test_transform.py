"""The transform of make_input_fn: its arguments and its results."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpudata
from tests.helpers.datasets import Written, write_dataset
from tpudata import FeatureError, UsageError, make_input_fn
from tpudata.format import Feature


def test_transform_gets_single_records(digits: Written) -> None:
    shapes = []

    def transform(features: Any, labels: Any) -> Any:
        shapes.append((features["image"].shape, labels.shape))
        return {"flat": tf.reshape(features["image"], [64]), "odd": labels % 2}, tf.one_hot(labels, 10)

    dataset = make_input_fn(digits.path, "test", training=False, transform=transform)({"batch_size": 101})
    assert shapes == [((8, 8, 1), ())]
    features, labels = next(iter(dataset))
    np.testing.assert_array_equal(features["flat"], np.stack(digits.images["test"]).reshape(101, 64))
    assert features["odd"].numpy().tolist() == [label % 2 for label in digits.labels["test"]]
    assert labels.numpy().argmax(axis=1).tolist() == digits.labels["test"]
    assert features["weights"].numpy().sum() == 101


def test_transform_can_branch_on_tensors(raw_digits: Written) -> None:
    def transform(features: Any, labels: Any) -> Any:
        if labels > 4:
            labels = labels - 5
        return features, labels

    dataset = make_input_fn(raw_digits.path, "test", training=False, transform=transform)({"batch_size": 101})
    assert next(iter(dataset))[1].numpy().tolist() == [label % 5 for label in raw_digits.labels["test"]]


def test_transform_gets_the_cast_image_and_runs_after_the_cache(raw_digits: Written) -> None:
    def transform(features: Any, labels: Any) -> Any:
        return {"image": features["image"] + tf.random.uniform([])}, labels

    input_fn = make_input_fn(
        raw_digits.path, "test", training=False, transform=transform, images=tpudata.Images(dtype="float32"), cache=True
    )
    dataset = input_fn({"batch_size": 101})
    first, second = (next(iter(dataset))[0]["image"].numpy() for _ in range(2))
    assert first.dtype == np.float32
    assert np.abs(first - second).max() > 0  # Drawn anew, so not cached.


def test_int64_results_become_int32(raw_digits: Written) -> None:
    def transform(features: Any, labels: Any) -> Any:
        return {"brightest": tf.argmax(tf.reshape(features["image"], [64]))}, tf.cast(labels, tf.int64)

    spec = make_input_fn(raw_digits.path, "test", training=True, transform=transform)({"batch_size": 5}).element_spec
    assert spec == ({"brightest": tf.TensorSpec([5], tf.int32)}, tf.TensorSpec([5], tf.int32))


def test_rejects_a_result_without_a_static_shape(raw_digits: Written) -> None:
    def transform(features: Any, labels: Any) -> Any:
        return {"bright": tf.boolean_mask(features["image"], features["image"] > 9)}, labels

    input_fn = make_input_fn(raw_digits.path, "test", training=False, transform=transform)
    with pytest.raises(FeatureError, match=r"\['bright'\].*not static.*tf.ensure_shape"):
        input_fn({"batch_size": 5})


def test_rejects_a_ragged_result(raw_digits: Written) -> None:
    def transform(features: Any, labels: Any) -> Any:
        return {"rows": (labels, {"odd": tf.RaggedTensor.from_tensor(features["image"][..., 0], padding=0)})}, labels

    input_fn = make_input_fn(raw_digits.path, "test", training=False, transform=transform)
    with pytest.raises(FeatureError, match=r"\[0\]\['rows'\]\[1\]\['odd'\] is RaggedTensorSpec.*not static"):
        input_fn({"batch_size": 5})


def test_rejects_a_transform_that_returns_nothing(raw_digits: Written) -> None:
    def transform(features: Any, labels: Any) -> None:
        features["image"] = features["image"] // 2

    input_fn = make_input_fn(raw_digits.path, "test", training=False, transform=transform)
    with pytest.raises(UsageError, match="transform returned None"):
        input_fn({"batch_size": 5})


def test_rejects_wrong_results_in_one_line(raw_digits: Written) -> None:
    for wrong, message in (
        (lambda _, __: None, "transform returned None. End it with `return features, labels`."),
        (
            lambda features, labels: [features["image"], labels],
            "transform returned a list. End it with `return features, labels`, which is a tuple.",
        ),
    ):
        input_fn = make_input_fn(raw_digits.path, "test", training=False, transform=wrong)
        with pytest.raises(UsageError) as raised:
            input_fn({"batch_size": 5})
        assert str(raised.value) == message


@pytest.mark.parametrize(
    ("transform", "given", "reason"),
    [
        (lambda f: f, "(features, labels)", "takes (f), too many positional arguments"),
        (
            lambda f, y, more: (f, y, more),
            "(features, labels)",
            "takes (f, y, more), missing a required argument: 'more'",
        ),
        (lambda: None, "(features, labels)", "takes (), too many positional arguments"),
        (functools.partial(lambda f, y: (f, y), 1), "(features, labels)", "takes (y), too many positional arguments"),
        (
            lambda f, *, seed: (f, seed),
            "(features, labels, seed=seed)",
            "takes (f, *, seed), too many positional arguments",
        ),
    ],
)
def test_rejects_a_transform_with_other_arguments_in_one_line(
    raw_digits: Written, transform: Any, given: str, reason: str
) -> None:
    input_fn = make_input_fn(raw_digits.path, "test", training="seed" in given, transform=transform)
    with pytest.raises(UsageError) as raised:
        input_fn({"batch_size": 5})
    assert str(raised.value) == f"transform is called with {given}, and {reason}. Let it take {given}."


def test_transform_gets_one_argument_without_labels(tmp_path: Path) -> None:
    feature = Feature("x", "int64", "int64")
    path = write_dataset(str(tmp_path), {"train": [{"x": 3}]}, [feature], layout="", shards=1)
    input_fn = make_input_fn(path, "train", training=True, transform=lambda features, labels: (features, labels))
    with pytest.raises(
        UsageError, match=r"^transform is called with \(features\), and takes \(features, labels\), missing"
    ):
        input_fn({"batch_size": 1})


def test_raises_the_users_own_type_error(raw_digits: Written) -> None:
    def one(features: Any) -> Any:
        return features

    def transform(features: Any, labels: Any) -> Any:
        return one(features, labels)  # type: ignore[call-arg]

    for wrong in (transform, tf.autograph.experimental.do_not_convert(transform)):
        with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
            make_input_fn(raw_digits.path, "test", training=False, transform=wrong)({"batch_size": 5})


def test_accepts_callables_of_any_kind(raw_digits: Written) -> None:
    class Doubled:
        def __call__(self, features: Any, labels: Any = None) -> Any:
            return features, 2 * labels

    for transform in (
        Doubled(),
        functools.partial(Doubled()),
        tf.function(Doubled()),
        lambda *all: (all[0], 2 * all[1]),
    ):
        input_fn = make_input_fn(raw_digits.path, "test", training=False, transform=transform)
        found = next(input_fn({"batch_size": 101}).as_numpy_iterator())[1]
        assert found.tolist() == [2 * label for label in raw_digits.labels["test"]]


def test_transform_can_return_python_and_numpy_values(raw_digits: Written) -> None:
    def transform(features: Any, labels: Any) -> Any:
        return {"one": 1, "two": np.arange(2)}, labels

    spec = make_input_fn(raw_digits.path, "test", training=True, transform=transform)({"batch_size": 5}).element_spec
    assert spec[0] == {"one": tf.TensorSpec([5], tf.int32), "two": tf.TensorSpec([5, 2], tf.int32)}


@pytest.mark.parametrize("name", ["transform", "batch_transform"])
def test_features_without_names_are_only_for_training(raw_digits: Written, name: str) -> None:
    options: dict[str, Any] = {name: lambda features, labels: ({1: features["image"]}, labels)}
    training = make_input_fn(raw_digits.path, "train", training=True, seed=1, **options)
    assert list(training({"batch_size": 5}).element_spec[0]) == [1]
    with pytest.raises(FeatureError, match="the key 1"):
        make_input_fn(raw_digits.path, "test", training=False, **options)({"batch_size": 5})


def test_rejects_a_transform_that_drops_the_labels(raw_digits: Written) -> None:
    input_fn = make_input_fn(raw_digits.path, "test", training=False, transform=lambda features, _: features)
    with pytest.raises(UsageError, match="return features, labels"):
        input_fn({"batch_size": 5})
