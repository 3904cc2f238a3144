"""Defaults of features that some records lack, and weights of records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.helpers.datasets import encode_image, write_dataset
from tpudata import (
    DatasetError,
    FeatureError,
    FixedLengthRecordFiles,
    Images,
    MixUp,
    TFRecordFiles,
    Tokens,
    UsageError,
    as_keras,
    as_numpy,
    make_input_fn,
)
from tpudata.format import Feature

X = Feature("x", "float", "float32", (2,))
AGE = Feature("age", "int64", "int64")
PLACE = Feature("place", "float", "float32", (2,))
CITY = Feature("city", "bytes", "string", encoding="utf8")
TAGS = Feature("tags", "bytes", "string", (2,))
GRID = Feature("grid", "bytes", "uint16", (2, 2), "raw")
LIST = Feature("list", "int64", "int64", (None,))
LABEL = Feature("label", "int64", "int64", num_classes=4)
WEIGHT = Feature("importance", "float", "float32")
FEATURES = (X, AGE, PLACE, CITY, TAGS, GRID, LIST, LABEL, WEIGHT)
DEFAULTS: dict[str, Any] = {
    "age": -1,
    "place": [0.5, 2],
    "city": "nowhere",
    "tags": [b"a\0", "b"],
    "grid": 65535,
    "label": np.int64(3),
    "importance": 1,
}
COUNT = 11


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """Records of which each has some features."""
    rng = np.random.default_rng(3)
    found = []
    for number in range(COUNT):
        record: dict[str, Any] = {
            "age": number,
            "place": rng.random(2, np.float32),
            "city": f"city {number}".encode(),
            "tags": [b"c", b"d"],
            "grid": rng.integers(0, 65536, (2, 2)).astype("<u2").tobytes(),
            "label": number % 4,
            "importance": float(rng.integers(0, 3)) / 2,
        }
        kept = {name: value for name, value in record.items() if rng.random() < 0.6}
        found.append({**kept, "x": rng.random(2, np.float32), "list": [1] * (number % 3)})
    return found


@pytest.fixture(scope="module")
def path(records: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(str(tmp_path_factory.mktemp("some")), {"train": records}, FEATURES, layout="mine", shards=2)


def rows_of(path: Any, **options: Any) -> list[tuple[dict[str, Any], Any]]:
    arguments = {"training": False, "defaults": DEFAULTS, "pad": {"list": 3}, **options}
    batches = as_numpy(make_input_fn(path, "train", **arguments), 4)
    rows = [({n: v[row] for n, v in features.items()}, labels[row]) for features, labels in batches for row in range(4)]
    return [row for row in rows if row[0]["weights"]]


def test_records_that_lack_a_feature_get_its_default(path: str, records: list[dict[str, Any]], tmp_path: Path) -> None:
    fills = {
        "age": -1,
        "place": [0.5, 2],
        "city": b"nowhere",
        "tags": [b"a\0", b"b"],
        "grid": np.full((2, 2), 65535).astype("<u2").tobytes(),
        "label": 3,
        "importance": 1,
    }
    for cache in (False, True, tmp_path, tmp_path):
        rows = rows_of(path, cache=cache)
        assert len(rows) == COUNT
        for (features, label), record in zip(rows, records, strict=True):
            want = {**fills, **record}
            want["grid"] = np.frombuffer(want["grid"], "<u2").reshape(2, 2)
            assert label == want["label"]
            for name in ("age", "place", "city", "tags", "grid", "importance"):
                dtype = getattr(features[name], "dtype", object)
                np.testing.assert_array_equal(features[name], np.asarray(want[name], dtype))


def test_the_filter_gets_defaults(path: str, records: list[dict[str, Any]]) -> None:
    rows = rows_of(path, filter=lambda record: record["age"] < 0)
    assert [features["x"].tolist() for features, _ in rows] == [r["x"].tolist() for r in records if "age" not in r]
    assert rows


def test_names_a_missing_feature_without_a_default(path: str) -> None:
    others = {name: value for name, value in DEFAULTS.items() if name != "age"}
    with pytest.raises((FeatureError, DatasetError), match="'age'"):
        rows_of(path, defaults=others)


def test_files_without_a_manifest_get_defaults(path: str, records: list[dict[str, Any]]) -> None:
    # The first record may lack features.
    data = TFRecordFiles(f"{path}/train-*", (X, AGE, CITY))
    input_fn = make_input_fn(data, training=False, defaults={"age": 5, "city": ""})
    (got,) = as_numpy(input_fn, COUNT)
    assert got["age"].tolist() == [record.get("age", 5) for record in records]
    assert got["city"].tolist() == [record.get("city", b"") for record in records]


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ([1], "pass a dict of values"),
        ({1: 1}, "pass a dict of values"),
        ({"ages": 1}, "'ages' is not read .expected one of x, age"),
        ({"list": 1}, "'list' is a list, which is empty"),
        ({"age": 1.5}, "invalid value of 'age' .got 1.5, expected one of integers"),
        ({"age": True}, "invalid value of 'age'"),
        ({"age": 2**31}, "'age' is out of range .got 2147483648"),
        ({"age": [1, 2]}, "invalid value of 'age'"),
        ({"age": [[1], [2, 3]]}, "invalid value of 'age' .got ..1., .2, 3.., expected one of integers"),
        ({"tags": [["a"], "b"]}, "invalid value of 'tags'"),
        ({"place": [1, 2, 3]}, "invalid value of 'place' .*an array of shape .2,., of numbers"),
        ({"city": 3}, "invalid value of 'city' .*str or bytes"),
        ({"grid": -1}, "'grid' is out of range .got -1, expected 0 to 65535"),
    ],
)
def test_rejects_wrong_defaults(path: str, defaults: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rows_of(path, defaults=defaults)


def test_rejects_defaults_for_images_and_records_of_one_length(tmp_path: Path) -> None:
    image = Feature("image/encoded", "bytes", "uint8", (2, 2, 3), "image")
    record = {"image/encoded": encode_image(np.zeros((2, 2, 3), np.uint8))}
    path = write_dataset(str(tmp_path / "images"), {"train": [record]}, (image,), layout="imagenet", shards=1)
    with pytest.raises(UsageError, match="'image/encoded' is an image file"):
        make_input_fn(path, "train", training=False, defaults={"image/encoded": b""})
    (tmp_path / "fixed").write_bytes(bytes(8))
    data = FixedLengthRecordFiles(tmp_path / "fixed", [("a", "<i4")])
    with pytest.raises(UsageError, match="records of one length have all their parts"):
        make_input_fn(data, training=False, defaults={"a": 1})


def weights_of(records: list[dict[str, Any]], least: float = 0.0) -> list[float]:
    return [max(record.get("importance", 1), least) for record in records]


def test_weights_of_records_apply_in_training_and_evaluation(
    path: str, records: list[dict[str, Any]], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"defaults": DEFAULTS, "pad": {"list": 3}, "weight": "importance"}
    for cache in (False, tmp_path, tmp_path):
        train = make_input_fn(path, "train", training=True, shuffle=False, cache=cache, **options)
        features, _ = next(as_numpy(train, COUNT))
        assert features["weights"].tolist() == weights_of(records)
        assert "importance" not in features
        evaluation = make_input_fn(path, "train", training=False, cache=cache, **options)
        weights = np.concatenate([features["weights"] for features, _ in as_numpy(evaluation, 4)])
        # 0 is padding.
        np.testing.assert_array_equal(weights, np.array([*weights_of(records, 2.0**-126), 0], np.float32))
    for training in (True, False):
        other = make_input_fn(path, "train", training=training, weights="sample_weight", seed=1, **options)
        features, labels, weights = next(as_numpy(other, 4))
        assert (labels.shape, weights.shape, weights.dtype) == ((4,), (4,), np.float32)
        assert "weights" not in features


def test_transforms_do_not_change_weights(path: str, records: list[dict[str, Any]]) -> None:
    def only_x(features: dict[str, tf.Tensor], labels: tf.Tensor) -> Any:
        assert "weights" not in features
        return {"x": features["x"]}, labels

    options: dict[str, Any] = {"defaults": DEFAULTS, "pad": {"list": 3}, "weight": "importance", "transform": only_x}
    input_fn = make_input_fn(path, "train", training=True, shuffle=False, **options)
    features, _ = next(as_numpy(input_fn, 6))
    assert features.keys() == {"x", "weights"}
    assert features["weights"].tolist() == weights_of(records)[:6]
    with pytest.raises(FeatureError, match="weight='importance': features that are not a dict"):
        make_input_fn(path, "train", training=True, **{**options, "transform": lambda f, labels: (f["x"], labels)})(
            {"batch_size": 4}
        )
    twice: Any = lambda f, labels: ({"x": tf.tile(f["x"], [2, 1])}, tf.tile(labels, [2]))  # noqa: E731
    input_fn = make_input_fn(path, "train", training=True, batch_transform=twice, **options)
    with pytest.raises(FeatureError, match="Keep all rows"):
        input_fn({"batch_size": 4})


@pytest.mark.parametrize("weights", ["feature", "sample_weight"])
def test_keras_applies_the_weights_of_records(path: str, records: list[dict[str, Any]], weights: Any) -> None:
    def batches(training: bool, **options: Any) -> tf.data.Dataset:
        arguments: dict[str, Any] = {"defaults": DEFAULTS, "pad": {"list": 3}, "weight": "importance"}
        transform: Any = lambda features, labels: ({"x": features["x"]}, labels)  # noqa: E731
        input_fn = make_input_fn(
            path, "train", training=training, seed=1, weights=weights, transform=transform, **arguments
        )
        return as_keras(input_fn, 4, **options)

    x = keras.Input((2,), name="x")
    model = keras.Model({"x": x}, keras.layers.Dense(4)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        "sgd", loss, weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")]
    )
    model.fit(batches(True), steps_per_epoch=2, verbose=0)
    predicted = model.predict(batches(False), verbose=0)
    # A record of weight 0 is predicted, too.
    assert len(predicted) == COUNT
    labels = np.array([record.get("label", 3) for record in records])
    losses = keras.losses.sparse_categorical_crossentropy(labels, predicted, from_logits=True).numpy()
    want = np.average(losses, weights=weights_of(records))
    for pad in (False, True):
        found = model.evaluate(batches(False, pad=pad), verbose=0, return_dict=True)
        np.testing.assert_allclose(found["ce"], want, rtol=1e-5)


def test_weights_of_records_multiply_token_weights(tmp_path: Path) -> None:
    ids = Feature("input_ids", "int64", "int64", (4,))
    records = [{"input_ids": [1, 2, 3, 4], "w": 0.5 * number} for number in range(3)]
    features = (ids, Feature("w", "float", "float32"))
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="sequences", shards=1)
    for training in (True, False):
        arguments: dict[str, Any] = {"training": training, "shuffle": False if training else None, "weight": "w"}
        got, _ = next(as_numpy(make_input_fn(path, "train", **arguments), 3))
        np.testing.assert_allclose(got["token_weights"], [[w * 0.5] * 3 + [0] for w in range(3)], atol=1e-30)
        for weights in ("feature", "sample_weight"):
            input_fn = make_input_fn(path, "train", weights=weights, **arguments)
            if training or weights == "feature":
                x, _, sample_weight = next(as_keras(input_fn, 3).as_numpy_iterator())
                assert x.keys() == {"input_ids"}
                np.testing.assert_allclose(sample_weight, got["token_weights"])


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_rejects_negative_and_non_finite_weights(value: float, tmp_path: Path) -> None:
    records = [{"a": 1, "w": 1.0}, {"a": 1, "w": value}]
    path = write_dataset(
        str(tmp_path),
        {"train": records},
        (Feature("a", "int64", "int64"), Feature("w", "float", "float32")),
        layout="x",
        shards=1,
    )
    with pytest.raises(
        FeatureError, match="Feature w: a record has a weight that is negative, infinite or not a number"
    ):
        list(as_numpy(make_input_fn(path, "train", training=False, weight="w"), 2))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"weight": 3}, UsageError, "weight=3: pass the name"),
        ({"weight": "heft"}, FeatureError, "weight='heft': the records have x, age"),
        ({"weight": "label"}, UsageError, "weight='label': it is the label, too"),
        ({"weight": "x"}, FeatureError, "weight='x': a weight is one int64 or float32 .got float32 of shape"),
        ({"weight": "city"}, FeatureError, "weight='city': a weight is one"),
        ({"weight": "age", "extra_features": ("age",)}, UsageError, "'age' is read anyway"),
        ({"weight": "age", "features": "x", "pad": None}, UsageError, 'Pass weights="sample_weight"'),
        ({"weight": "age", "tokens": Tokens(names="t5x")}, UsageError, "names='t5x' has its own weights"),
        ({"weight": "age", "images": Images(mix=MixUp()), "training": True}, UsageError, "weight: a mixed row"),
    ],
)
def test_rejects_wrong_weight_options(path: str, options: Any, kind: type[Exception], message: str) -> None:
    arguments = {"training": False, "defaults": None, "pad": {"list": 3}, **options}
    with pytest.raises(kind, match=message):
        make_input_fn(path, "train", **arguments)


def test_keras_requires_labels_for_weights(tmp_path: Path) -> None:
    features = (Feature("a", "int64", "int64"), Feature("w", "float", "float32"))
    path = write_dataset(str(tmp_path), {"train": [{"a": 1, "w": 1.0}]}, features, layout="x", shards=1)
    with pytest.raises(UsageError, match="weight= needs labels"):
        as_keras(make_input_fn(path, "train", training=False, weight="w"), 1)
