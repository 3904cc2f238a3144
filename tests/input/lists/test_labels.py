"""Labels other than one class of a record: several classes, vectors, floats, and lists of one length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from tests.helpers.datasets import write_dataset
from tests.input.test_serving import serve
from tpudata import (
    CutMix,
    FeatureError,
    FixedLengthRecordFiles,
    Images,
    MixUp,
    Pad,
    TFRecordFiles,
    UsageError,
    as_keras,
    as_numpy,
    make_input_fn,
)
from tpudata.format import Feature, encode_example

IMAGE = Feature("image_raw", "bytes", "uint8", (4, 4, 3), "raw")
ONE = Feature("label", "int64", "int64", num_classes=3)
KINDS = Feature("kinds", "int64", "int64", (None,), num_classes=5, label_offset=1)
SMALL_KINDS = Feature("small_kinds", "bytes", "uint8", (None,), "raw", num_classes=5, label_offset=1)
GAZE = Feature("gaze", "float", "float32", (2,))
AGE = Feature("age", "float", "float32")
PLACE = Feature("place", "int64", "int64", (3,))
CAPTION = Feature("caption_ids", "int64", "int64", (None,))
FEATURES = (IMAGE, ONE, KINDS, SMALL_KINDS, GAZE, AGE, PLACE, CAPTION)
COUNT = 22


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    rng = np.random.default_rng(2)
    found = []
    for number in range(COUNT):
        # A class may come twice.
        kinds = rng.integers(1, 6, rng.integers(0, 5))
        found.append(
            {
                "image_raw": rng.integers(0, 256, (4, 4, 3), np.uint8).tobytes(),
                "label": number % 3,
                "kinds": kinds,
                "small_kinds": kinds.astype(np.uint8).tobytes(),
                "gaze": rng.normal(size=2).astype(np.float32),
                "age": float(number) / 4,
                "place": rng.integers(0, 9, 3),
                "caption_ids": rng.integers(0, 99, number % 4),
            }
        )
    return found


@pytest.fixture(scope="module")
def path(records: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("labels"))
    return write_dataset(folder, {"train": records}, FEATURES, layout="raw", shards=2, classes=3)


def hot(kinds: Any) -> Any:
    out = np.zeros(5, np.float32)
    for kind in kinds:
        out[kind - 1] = 1
    return out


def labels_of(path: Any, label: str | None, batch_size: int = 8, **options: Any) -> Any:
    """The labels of all records of an evaluation."""
    input_fn = make_input_fn(path, "train", training=False, label=label, **options)
    return np.concatenate([labels[f["weights"] > 0] for f, labels in as_numpy(input_fn, batch_size)])


def test_label_chooses_another_feature(path: str, records: list[dict[str, Any]], tmp_path: Path) -> None:
    wants = {
        None: [record["label"] for record in records],
        "age": np.array([record["age"] for record in records], np.float32),
        "gaze": np.stack([record["gaze"] for record in records]),
        "place": np.stack([record["place"] for record in records]).astype(np.int32),
        "kinds": np.stack([hot(record["kinds"]) for record in records]),
        "small_kinds": np.stack([hot(record["kinds"]) for record in records]),
    }
    for label, want in wants.items():
        for cache in (False, True, tmp_path, tmp_path) if label == "kinds" else (False,):
            got = labels_of(path, label, cache=cache)
            assert got.dtype == (np.int32 if label in (None, "place") else np.float32)
            np.testing.assert_array_equal(got, want)


def test_the_usual_label_becomes_a_feature_if_another_is_chosen(
    path: str, records: list[dict[str, Any]], tmp_path: Path
) -> None:
    input_fn = make_input_fn(path, "train", training=True, label="gaze", extra_features=("label",), shuffle=False)
    features, _ = next(as_numpy(input_fn, 4))
    assert features["label"].tolist() == [record["label"] for record in records[:4]]
    write_dataset(str(tmp_path), {"train": records}, (ONE, GAZE, AGE), layout="mine", shards=1)
    features, labels = next(as_numpy(make_input_fn(str(tmp_path), "train", training=False, label="age"), 4))
    assert features.keys() == {"label", "gaze", "weights"}
    assert labels.tolist() == [0, 0.25, 0.5, 0.75]


def test_a_padded_list_can_be_the_label(path: str, records: list[dict[str, Any]]) -> None:
    input_fn = make_input_fn(path, "train", training=False, label="caption_ids", pad={"caption_ids": Pad(4, -1)})
    features, labels = next(as_numpy(input_fn, COUNT))
    assert features["caption_ids/count"].tolist() == [len(record["caption_ids"]) for record in records]
    for got, record in zip(labels, records, strict=True):
        want = record["caption_ids"].tolist()
        assert got.tolist() == [*want, *[-1] * (4 - len(want))]
    with pytest.raises(UsageError, match=r"pad: 'c\*' has 'caption_ids', which is the label"):
        make_input_fn(path, "train", training=False, label="caption_ids", pad={"c*": 4})


def test_rejects_an_unknown_class(tmp_path: Path) -> None:
    for kind in (0, 6):
        with tf.io.TFRecordWriter(str(tmp_path / "records")) as writer:
            writer.write(encode_example({"x": 1, "kinds": [2]}))
            writer.write(encode_example({"x": 1, "kinds": [1, kind]}))
        data = TFRecordFiles(str(tmp_path / "records"), (Feature("x", "int64", "int64"), KINDS))
        with pytest.raises(
            FeatureError, match="Feature kinds: a record has a label that is none of its classes, 1 to 5"
        ):
            list(as_numpy(make_input_fn(data, training=False, label="kinds"), 2))


@pytest.mark.parametrize("mix", [MixUp(1.0), CutMix()])
def test_mixing_blends_several_classes_and_floats_by_their_shares(
    path: str, records: list[dict[str, Any]], mix: MixUp | CutMix
) -> None:
    def batch(label: str, **options: Any) -> Any:
        input_fn = make_input_fn(
            path, "train", training=True, seed=1, shuffle=False, label=label, images=Images(mix=mix), **options
        )
        return next(as_numpy(input_fn, 8))[1]

    # With one class for each row, the shares of the rows are read from the labels.
    shares = None
    for label, values in (
        ("age", np.array([record["age"] for record in records[:8]])),
        ("gaze", np.stack([record["gaze"] for record in records[:8]])),
        ("kinds", np.stack([hot(record["kinds"]) for record in records[:8]])),
    ):
        got, partner = batch(label), np.roll(values, 1, axis=0)
        if shares is None:
            shares = (got - partner) / (values - partner)
            assert ((shares > -1e-5) & (shares < 1 + 1e-5)).all()
        weight = shares.reshape([-1] + [1] * (values.ndim - 1))
        np.testing.assert_allclose(got, weight * values + (1 - weight) * partner, atol=1e-5)
        assert got.dtype == np.float32


def test_mixing_rejects_labels_without_shares(path: str) -> None:
    with pytest.raises(UsageError, match=r"mix: it mixes labels, too .got 'place', expected one class"):
        make_input_fn(path, "train", training=True, label="place", images=Images(mix=MixUp()))
    input_fn = make_input_fn(
        path,
        "train",
        training=True,
        label="gaze",
        images=Images(mix=MixUp()),
        transform=lambda features, labels: (features, tf.cast(labels[0], tf.int32)),
    )
    with pytest.raises(FeatureError, match=r"number of classes is unknown .*'gaze'"):
        input_fn({"batch_size": 4})


def test_keras_trains_on_several_classes(path: str) -> None:
    def batches(training: bool) -> tf.data.Dataset:
        input_fn = make_input_fn(
            path, "train", training=training, seed=1, label="kinds", images=Images(dtype="float32")
        )
        return as_keras(input_fn, 8)

    image = keras.Input((4, 4, 3), name="image")
    model = keras.Model({"image": image}, keras.layers.Dense(5)(keras.layers.Flatten()(image)))
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    model.fit(batches(True), steps_per_epoch=3, verbose=0)
    assert np.isfinite(model.evaluate(batches(False), verbose=0))
    assert len(model.predict(batches(False), verbose=0)) == COUNT


def test_serving_features_omit_the_label(path: str, records: list[dict[str, Any]]) -> None:
    stored = [encode_example({name: value for name, value in records[0].items() if name != "age"})]
    served = serve(path, stored, label="age", extra_features=("gaze",), pad={"caption_ids": 4})
    assert served.keys() == {"image", "gaze", "caption_ids", "caption_ids/count"}


def test_label_chooses_a_part_of_fixed_length_records(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(np.array([(3, 1.5), (4, 2.5)], [("a", "<i4"), ("b", "<f4")]).tobytes())
    data = FixedLengthRecordFiles(path, [("a", "<i4"), ("b", "<f4")])
    features, labels = next(as_numpy(make_input_fn(data, training=False, label="b"), 2))
    assert (features["a"].tolist(), labels.tolist()) == ([3, 4], [1.5, 2.5])


@pytest.mark.parametrize(
    ("label", "kind", "message"),
    [
        ("gazes", FeatureError, "label='gazes': the records have image_raw, label, kinds"),
        ("", UsageError, "label='': pass the name of a feature"),
        (3, UsageError, "label=3: pass the name of a feature"),
        ("image_raw", FeatureError, "label='image_raw': layout 'raw' then feeds no feature"),
        ("caption_ids", FeatureError, "'caption_ids': a label is int64 or float32 of a static shape.*num_classes"),
    ],
)
def test_rejects_wrong_labels(path: str, label: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make_input_fn(path, "train", training=False, label=label)
