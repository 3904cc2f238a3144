"""make_input_fn as its users call it: the contents of batches, and its checks."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tpudata
from tests.helpers.datasets import Written, write_dataset
from tests.input.flat_options import grouped
from tpudata import CorruptionError, DatasetError, FeatureError, UsageError, make_input_fn
from tpudata.format import Feature, open_dataset


def batches(dataset: tf.data.Dataset, count: int) -> list[Any]:
    return list(dataset.take(count).as_numpy_iterator())


def key(image: Any) -> bytes:
    return bytes(image.tobytes())


@pytest.mark.parametrize(
    ("layout", "batch_size"),
    [("digits", 100), ("raw_digits", 1), ("raw_digits", 7), ("raw_digits", 101), ("digits", 128)],
)
def test_evaluation_feeds_each_record_once_in_order_with_weights(
    layout: str, batch_size: int, request: pytest.FixtureRequest
) -> None:
    data: Written = request.getfixturevalue(layout)
    dataset = make_input_fn(data.path, "test", training=False)({"batch_size": batch_size})
    images, labels, weights = [], [], []
    for features, label in dataset.as_numpy_iterator():
        assert features["image"].shape == (batch_size, 8, 8, 1)
        assert features["image"].dtype == np.uint8
        assert label.shape == features["weights"].shape == (batch_size,)
        assert label.dtype == np.int32
        assert features["weights"].dtype == np.float32
        images.append(features["image"])
        labels.append(label)
        weights.append(features["weights"])
    assert len(dataset) == len(weights) == -(-101 // batch_size)
    weight = np.concatenate(weights)
    assert weight.tolist() == [1.0] * 101 + [0.0] * (len(weight) - 101)
    np.testing.assert_array_equal(np.concatenate(images)[:101], np.stack(data.images["test"]))
    assert np.concatenate(labels)[:101].tolist() == data.labels["test"]


def test_padding_repeats_the_last_record(raw_digits: Written) -> None:
    dataset = make_input_fn(raw_digits.path, "test", training=False)({"batch_size": 64})
    features, labels = list(dataset.as_numpy_iterator())[-1]
    assert (features["image"][37:] == raw_digits.images["test"][-1]).all()
    assert set(labels[37:]) == {raw_digits.labels["test"][-1]}


@pytest.mark.parametrize("cache", [False, True])
def test_each_training_epoch_has_every_record_once_in_a_new_order(raw_digits: Written, cache: bool) -> None:
    dataset = make_input_fn(raw_digits.path, "train", training=True, seed=3, cache=cache)({"batch_size": 60})
    assert dataset.cardinality().numpy() == tf.data.INFINITE_CARDINALITY
    assert dataset.element_spec == (
        {"image": tf.TensorSpec([60, 8, 8, 1], tf.uint8)},
        tf.TensorSpec([60], tf.int32),
    )
    rows = [
        (key(image), int(label))
        for features, labels in batches(dataset, 15)
        for image, label in zip(features["image"], labels, strict=True)
    ]
    epochs = [rows[i : i + 300] for i in (0, 300, 600)]
    everything = sorted(
        (key(image), label) for image, label in zip(raw_digits.images["train"], raw_digits.labels["train"], strict=True)
    )
    assert all(sorted(epoch) == everything for epoch in epochs)
    assert all(first != second for first, second in itertools.combinations(epochs, 2))
    assert [image for image, _ in epochs[0]] != [key(image) for image in raw_digits.images["train"]]


def test_batches_run_across_the_ends_of_epochs(raw_digits: Written) -> None:
    dataset = make_input_fn(raw_digits.path, "train", training=True)({"batch_size": 70})
    labels = np.concatenate([labels for _, labels in batches(dataset, 30)])
    counts = np.bincount(labels[: 7 * 300], minlength=10)
    np.testing.assert_array_equal(counts, 7 * np.bincount(raw_digits.labels["train"], minlength=10))


def test_a_batch_can_be_larger_than_the_split(raw_digits: Written) -> None:
    ((features, _),) = batches(make_input_fn(raw_digits.path, "test", training=True)({"batch_size": 250}), 1)
    seen = {key(image) for image in features["image"]}
    assert seen == {key(image) for image in raw_digits.images["test"]}


def test_the_seed_decides_the_batches(raw_digits: Written) -> None:
    def labels(seed: int | None) -> list[Any]:
        input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=seed)
        return [y.tolist() for _, y in batches(input_fn({"batch_size": 50}), 2)]

    # The same seed gives the same batches: test_numpy_integers_give_the_same_batches.
    assert labels(6) != labels(5)
    assert labels(None) != labels(None)


@pytest.mark.parametrize(("dtype", "expected"), [("float32", tf.float32), (tf.bfloat16, tf.bfloat16)])
@pytest.mark.parametrize("cache", [False, True])
def test_dtype_scales_images_to_0_to_1(digits: Written, dtype: Any, expected: tf.DType, cache: bool) -> None:
    dataset = make_input_fn(digits.path, "test", training=False, images=tpudata.Images(dtype=dtype), cache=cache)(
        {"batch_size": 101}
    )
    (features, _) = next(iter(dataset))
    assert features["image"].dtype == expected
    want = (np.stack(digits.images["test"]).astype(np.float32) / 255).astype(expected.as_numpy_dtype)
    np.testing.assert_array_equal(features["image"].numpy(), want)


def test_extra_features_keep_their_names(digits: Written) -> None:
    input_fn = make_input_fn(digits.path, "test", training=False, extra_features=("image/filename",))
    features, _ = next(iter(input_fn({"batch_size": 4})))
    assert sorted(features) == ["image", "image/filename", "weights"]
    assert features["image/filename"].numpy().tolist() == [f"test/{i}.png".encode() for i in range(4)]


def test_resizes_pictures(pictures: Written) -> None:
    input_fn = make_input_fn(pictures.path, "train", training=False, images=tpudata.Images(size=(16, 24)))
    features, labels = next(iter(input_fn({"batch_size": 7})))
    assert labels.numpy().tolist() == list(range(7))
    assert features["image"].dtype == tf.uint8
    for got, source in zip(features["image"].numpy(), pictures.images["train"], strict=True):
        want = tf.image.resize(source, (16, 24), antialias=True).numpy()
        np.testing.assert_allclose(got, want, atol=0.51)


def test_rejects_varying_sizes_with_the_feature_and_the_fix(pictures: Written) -> None:
    with pytest.raises(FeatureError, match=r"'image/encoded'.*\(None, None, 3\).*size=\(height, width\)"):
        make_input_fn(pictures.path, "train", training=True)


@pytest.mark.parametrize("context", ["x", 3, tf.distribute.InputContext(2, None, 2), tf.distribute.InputContext(2.5)])
def test_rejects_other_input_contexts(raw_digits: Written, context: Any) -> None:
    input_fn = make_input_fn(raw_digits.path, "test", training=True)
    with pytest.raises(UsageError, match=r"input_context=.*pass a tf\.distribute\.InputContext, of which num_input"):
        input_fn({"batch_size": 5}, context)


def test_features_can_name_a_bare_tensor(raw_digits: Written) -> None:
    train = make_input_fn(raw_digits.path, "train", training=True, features="image")({"batch_size": 8})
    assert train.element_spec == (tf.TensorSpec([8, 8, 8, 1], tf.uint8), tf.TensorSpec([8], tf.int32))
    evaluate = make_input_fn(raw_digits.path, "train", training=False, features="image")
    rows = np.concatenate([image for image, _ in evaluate({"batch_size": 100}).as_numpy_iterator()])
    np.testing.assert_array_equal(rows, np.stack(raw_digits.images["train"]))
    with pytest.raises(UsageError, match=r"300 records in batches of 128.*sample_weight"):
        evaluate({"batch_size": 128})


def test_keras_fits_and_evaluates_exactly(raw_digits: Written) -> None:
    options: Any = {"features": "image", "images": tpudata.Images(dtype="float32"), "weights": "sample_weight"}
    train = make_input_fn(raw_digits.path, "train", training=True, seed=1, **options)({"batch_size": 50})
    test = make_input_fn(raw_digits.path, "test", training=False, **options)({"batch_size": 40})
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    model.fit(train, steps_per_epoch=6, epochs=2, verbose=0)
    result = model.evaluate(test, verbose=0)
    logits = model(np.stack(raw_digits.images["test"]).astype(np.float32) / 255).numpy()
    assert result[2] == pytest.approx(np.mean(logits.argmax(1) == raw_digits.labels["test"]), abs=1e-6)


def test_training_with_sample_weight_yields_pairs(raw_digits: Written) -> None:
    input_fn = make_input_fn(raw_digits.path, "train", training=True, weights="sample_weight")
    assert len(input_fn({"batch_size": 8}).element_spec) == 2


def test_text_without_labels_yields_only_features(tmp_path: Path) -> None:
    lines = [f"line {i} ä" for i in range(10)]
    text = Feature("text", "bytes", "string", encoding="utf8")
    path = write_dataset(str(tmp_path), {"train": [{"text": line} for line in lines]}, [text], layout="text")
    dataset = make_input_fn(path, "train", training=False)({"batch_size": 4})
    rows = [row.decode() for features in dataset.as_numpy_iterator() for row in features["text"]]
    assert rows == [*lines, lines[-1], lines[-1]]
    assert make_input_fn(path, "train", training=True)({"batch_size": 4}).element_spec == {
        "text": tf.TensorSpec([4], tf.string)
    }
    lengths = make_input_fn(path, "train", training=False, transform=lambda f: tf.strings.length(f["text"]))
    with pytest.raises(UsageError, match="have no place for its weights"):
        lengths({"batch_size": 4})
    assert len(lengths({"batch_size": 5})) == 2
    with pytest.raises(UsageError, match="needs labels"):
        make_input_fn(path, "train", training=False, weights="sample_weight")


def test_tokens_and_other_features_keep_their_shapes(tmp_path: Path) -> None:
    features = [
        Feature("input_ids", "int64", "int64", (4,)),
        Feature("score", "float", "float32", (2,)),
        Feature("signal", "bytes", "int16", (3,), "raw"),
    ]
    records = [
        {"input_ids": [i, -i, 2, 3], "score": [i / 2, -1.0], "signal": np.array([i, -1, 300], "<i2").tobytes()}
        for i in range(5)
    ]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="tokens", shards=1)
    extra = ("score", "signal")
    (batch,) = make_input_fn(path, "train", training=False, extra_features=extra)({"batch_size": 5}).as_numpy_iterator()
    assert batch["input_ids"].dtype == np.int32
    assert batch["input_ids"].tolist() == [[i, -i, 2, 3] for i in range(5)]
    assert batch["score"].tolist() == [[i / 2, -1.0] for i in range(5)]
    assert batch["signal"].dtype == np.int16
    assert batch["signal"].tolist() == [[i, -1, 300] for i in range(5)]


def test_large_images_are_decoded_in_parts_and_joined(tmp_path: Path) -> None:
    features = [Feature("image_raw", "bytes", "uint8", (1500, 1500, 3), "raw"), Feature("label", "int64", "int64")]
    records = [{"image_raw": bytes([i]) * (1500 * 1500 * 3), "label": i} for i in range(5)]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="raw", shards=2)
    first, second = make_input_fn(path, "train", training=False)({"batch_size": 4}).as_numpy_iterator()
    assert first[0]["image"].shape == second[0]["image"].shape == (4, 1500, 1500, 3)
    assert first[0]["image"][:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert second[0]["image"][:, -1, -1, -1].tolist() == [4, 4, 4, 4]
    ((train, labels),) = batches(make_input_fn(path, "train", training=True)({"batch_size": 4}), 1)
    assert train["image"][:, 7, 7, 1].tolist() == labels.tolist()


def test_strategies_and_graph_functions_accept_the_dataset(raw_digits: Written) -> None:
    input_fn = make_input_fn(raw_digits.path, "test", training=False)
    strategy = tf.distribute.get_strategy()
    distributed = strategy.distribute_datasets_from_function(lambda context: input_fn({"batch_size": 25}, context))

    def total_weight(dataset: Any) -> tf.Tensor:
        total = tf.constant(0.0)
        for features, _ in dataset:
            total += tf.reduce_sum(features["weights"])
        return total

    count = tf.function(total_weight)
    assert count(distributed).numpy() == count(input_fn({"batch_size": 25})).numpy() == 101


def test_a_v1_graph_accepts_the_dataset(raw_digits: Written) -> None:
    input_fn = make_input_fn(raw_digits.path, "train", training=True, cache=True)
    input_fn({"batch_size": 3})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(input_fn({"batch_size": 10})).get_next()
        features, labels = session.run(batch)
    assert features["image"].shape == (10, 8, 8, 1)
    assert labels.shape == (10,)


def test_a_v1_graph_accepts_an_exact_pass_and_a_cache_on_disk(raw_digits: Written, tmp_path: Path) -> None:
    for _ in range(2):
        input_fn = make_input_fn(raw_digits.path, "test", training=False, cache=tmp_path)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            batch = tf.compat.v1.data.make_one_shot_iterator(input_fn({"batch_size": 60})).get_next()
            found = [session.run(batch) for _ in range(2)]
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(batch)
        assert np.concatenate([y for _, y in found])[:101].tolist() == raw_digits.labels["test"]
        assert [x["weights"].sum() for x, _ in found] == [60, 41]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, 'no "batch_size"'),
        ({"batch_size": 0}, "got 0,"),
        ({"batch_size": 2**31}, r"got 2147483648, expected an integer from 1 to 2\*\*31 - 1"),
        ({"batch_size": 2**40}, "got 1099511627776"),
        ({"batch_size": True}, "got True"),
        ({"batch_size": 8.0}, "got 8.0"),
        ({"batch_size": "8"}, "got '8'"),
        (8, r"params: not a dict \(got 8\)"),
    ],
)
def test_rejects_wrong_params_and_batch_sizes(raw_digits: Written, params: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_input_fn(raw_digits.path, "train", training=True)(params)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"split": "valid"}, DatasetError, "No split 'valid'.*test, train"),
        ({"features": "text"}, FeatureError, "features='text'.*image"),
        ({"extra_features": ("image/width",)}, FeatureError, "No feature 'image/width'"),
        ({"extra_features": ("image/encoded",)}, UsageError, "is read anyway"),
        ({"features": "image", "extra_features": ("image/filename",)}, UsageError, "no place for extra_features"),
        ({"size": (0, 4)}, UsageError, "1 or more"),
        ({"size": (10**9, 4)}, UsageError, "16384 at most"),
        ({"size": 4}, UsageError, r"pass \(height, width\)"),
        ({"dtype": "int32"}, UsageError, "uint8, float32, bfloat16, float16"),
        ({"dtype": "floaty"}, UsageError, "dtype='floaty'"),
        ({"shuffle": 0}, UsageError, "1 or more"),
        ({"training": False, "shuffle": 10}, UsageError, "in order"),
        ({"training": False, "num_epochs": 1}, UsageError, "evaluation is one pass"),
        ({"num_epochs": 0}, UsageError, "num_epochs=0"),
        ({"num_epochs": 1.5}, UsageError, "num_epochs=1.5"),
        ({"filter": 3}, UsageError, "filter=3: pass a function"),
        ({"batch_transform": 3}, UsageError, "batch_transform=3: pass a function"),
        ({"seed": -1}, UsageError, "seed: .*got -1"),
        ({"seed": 2**32}, UsageError, "seed: .*got 4294967296"),
        ({"weights": "mask"}, UsageError, "sample_weight"),
        ({"cache": "gs://bucket/cache"}, UsageError, "local folder"),
        ({"cache": None}, UsageError, "cache: .*got None"),
        ({"cache": ""}, UsageError, "cache: .*got ''"),
        ({"extra_features": "image/filename"}, UsageError, r"\('image/filename',\)"),
        ({"extra_features": 5}, UsageError, "extra_features=5"),
        ({"extra_features": (5,)}, UsageError, r"extra_features=\(5,\)"),
        ({"extra_features": {"image/filename"}}, UsageError, "pass a sequence of names"),
        ({"seed": "x"}, UsageError, r"seed: invalid value \(got 'x', expected None or an integer"),
        ({"seed": 1.5}, UsageError, "seed: .*got 1.5"),
        ({"seed": True}, UsageError, "seed: .*got True"),
        ({"shuffle": "a"}, UsageError, "shuffle='a': pass True, False or the number of records to mix"),
        ({"shuffle": 2.0}, UsageError, "shuffle=2.0"),
        ({"split": ["train"]}, UsageError, r"split=\['train'\]: pass the name of one split"),
        ({"split": None}, UsageError, "split=None"),
        ({"transform": 3}, UsageError, "transform=3: pass a function"),
        ({"training": "x"}, UsageError, r"training: invalid value \(got 'x', expected True or False"),
        ({"training": 1}, UsageError, "training: .*got 1"),
        ({"features": ["image"]}, FeatureError, r"features=\['image'\]"),
        ({"weights": ["feature"]}, UsageError, r"weights: .*got \['feature'\]"),
        ({"dtype": None}, UsageError, "dtype=None"),
    ],
)
def test_rejects_wrong_arguments(digits: Written, options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make_input_fn(digits.path, **{"split": "train", "training": True, **grouped(options)})


@pytest.mark.parametrize("path", [5, None, b"bytes", ""])
def test_rejects_data_that_is_not_a_path(path: Any) -> None:
    with pytest.raises(UsageError, match=rf"data={path!r}: pass the path of the dataset's folder"):
        make_input_fn(path, "train", training=True)


def test_numpy_integers_give_the_same_batches(raw_digits: Written) -> None:
    def labels(seed: Any, buffer: Any, size: Any) -> list[list[int]]:
        input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=seed, shuffle=buffer)
        return [y.tolist() for _, y in batches(input_fn({"batch_size": size}), 3)]

    assert labels(np.int64(7), np.int32(50), np.int64(20)) == labels(7, 50, 20)


def test_a_window_larger_than_the_split_equals_one_of_all_records(raw_digits: Written) -> None:
    def labels(buffer: int) -> list[list[int]]:
        input_fn = make_input_fn(raw_digits.path, "train", training=True, seed=4, shuffle=buffer)
        return [y.tolist() for _, y in batches(input_fn({"batch_size": 70}), 9)]

    whole = labels(300)
    assert labels(2**70) == whole
    assert labels(30) != whole


def test_rejects_image_options_on_a_dataset_without_images(tmp_path: Path, raw_digits: Written) -> None:
    text = Feature("text", "bytes", "string")
    path = write_dataset(str(tmp_path), {"train": [{"text": "a"}]}, [text], layout="text", shards=1)
    with pytest.raises(UsageError, match="dtype=float32"):
        make_input_fn(path, "train", training=True, images=tpudata.Images(dtype="float32"))
    with pytest.raises(UsageError, match="no encoded images"):
        make_input_fn(raw_digits.path, "train", training=True, images=tpudata.Images(size=(4, 4)))


def test_rejects_a_folder_that_is_not_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="not a complete dataset"):
        make_input_fn(str(tmp_path), "train", training=True)
    assert issubclass(CorruptionError, DatasetError)


@pytest.mark.parametrize("name", ["train-*", "a.bin", "absent.tfrecord", "absent.tfrecords", "absent.gz", "part[0-9]"])
@pytest.mark.parametrize("split", ["train", None])
def test_files_in_place_of_a_folder_advise_tfrecord_files(tmp_path: Path, name: str, split: str | None) -> None:
    (tmp_path / "a.bin").write_bytes(b"no record")
    path = str(tmp_path / name)
    with pytest.raises(DatasetError) as raised:
        make_input_fn(path, split, training=True)
    assert str(raised.value) == (
        f"data={path!r} names files, and not the folder of a dataset that `tpudata convert` has finished. For files without a"
        f" manifest pass tpudata.TFRecordFiles({path!r}, features=[tpudata.format.Feature(...), ...]), or FixedLengthRecordFiles"
        " or TextLineFiles."
    )


def test_accepts_a_folder_named_like_a_pattern(tmp_path: Path, raw_digits: Written) -> None:
    folder = tmp_path / "digits[1].tfrecord"
    folder.mkdir()
    with pytest.raises(DatasetError, match=r"\]\.tfrecord has no manifest\.json, so it is not a complete dataset"):
        make_input_fn(folder, "test", training=True)
    shutil.copytree(raw_digits.path, folder, dirs_exist_ok=True)
    assert make_input_fn(folder, "test", training=False)({"batch_size": 101}).cardinality() == 1


def test_an_unknown_layout_feeds_all_features_but_the_label(tmp_path: Path) -> None:
    features = [Feature("a", "int64", "int64"), Feature("b", "float", "float32"), Feature("label", "int64", "int64")]
    records = [{"a": i, "b": float(i), "label": i % 2} for i in range(4)]
    path = write_dataset(str(tmp_path), {"train": records}, features, layout="table", shards=1)
    assert json.loads((tmp_path / "manifest.json").read_text())["layout"] == "table"
    ((batch, labels),) = make_input_fn(path, "train", training=False)({"batch_size": 4}).as_numpy_iterator()
    assert sorted(batch) == ["a", "b", "weights"]
    assert labels.tolist() == [0, 1, 0, 1]
    assert open_dataset(path).manifest.records == 4
    assert "make_input_fn" in dir(tpudata)
