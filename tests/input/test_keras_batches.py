"""`as_keras` with Keras 3 and tf_keras, compared with plain loops in numpy."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

import tpudata
from tests.helpers.datasets import Written, encode_image, write_dataset, write_images
from tests.helpers.forked import run
from tests.helpers.sequences import write_sequences
from tpudata import UsageError, as_keras, make_input_fn
from tpudata.format import Feature

CLASSES = 10
RECORDS = 2_000
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request: pytest.FixtureRequest) -> Any:
    return importlib.import_module(request.param)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """2,000 records of 4 pixels."""
    rng = np.random.default_rng(1)
    images = list(rng.integers(0, 256, (RECORDS, 2, 2, 1), dtype=np.uint8))
    labels = rng.integers(0, CLASSES, RECORDS).tolist()
    path = str(tmp_path_factory.mktemp("many"))
    return write_images(path, {"test": images}, {"test": labels}, shape=(2, 2, 1), layout="raw", shards=1)


def small_model(keras: Any, shape: tuple[int, ...], *, by_name: bool = False) -> Any:
    """A linear model, of a bare tensor or of `features["image"]`, compiled with all that could count padding."""
    keras.utils.set_random_seed(1)
    image = keras.Input(shape, name="image")
    logits = keras.layers.Dense(CLASSES)(keras.layers.Flatten()(image))
    model = keras.Model({"image": image} if by_name else image, logits)
    model.compile(
        "sgd",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="plain")],
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="weighted")],
    )
    return model


def plain_loop(model: Any, written: Written, split: str) -> tuple[npt.NDArray[np.float64], float, float]:
    """The logits of every record, the mean cross-entropy and the accuracy."""
    kernel, bias = (np.asarray(value, np.float64) for value in model.get_weights())
    images = np.stack(written.images[split]).astype(np.float32) / np.float32(255)
    logits = images.reshape(len(images), -1) @ kernel + bias
    labels = np.array(written.labels[split])
    shifted = logits - logits.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]
    return logits, float(losses.mean()), float((logits.argmax(1) == labels).mean())


@pytest.mark.parametrize(
    ("keras", "by_name"),
    [
        *(("keras", False), ("tf_keras", True)),
        *(pytest.param(*case, marks=pytest.mark.matrix) for case in (("keras", True), ("tf_keras", False))),
    ],
    indirect=["keras"],
)
def test_evaluate_and_predict_count_every_record_once(keras: Any, by_name: bool, many: Written) -> None:
    options: dict[str, Any] = {} if by_name else {"features": "image", "weights": "sample_weight"}
    input_fn = make_input_fn(many.path, "test", training=False, images=tpudata.Images(dtype="float32"), **options)
    model = small_model(keras, (2, 2, 1), by_name=by_name)
    logits, loss, accuracy = plain_loop(model, many, "test")
    dataset = as_keras(input_fn, 128)
    found = model.evaluate(dataset, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["plain"] == pytest.approx(accuracy, abs=1e-7)
    assert found["weighted"] == pytest.approx(accuracy, abs=1e-7)
    np.testing.assert_allclose(model.predict(dataset, verbose=0), logits, atol=1e-4)


@pytest.mark.cases(1)
def test_fit_validates_every_record_once(keras: Any, digits: Written) -> None:
    train = as_keras(
        make_input_fn(digits.path, "train", training=True, images=tpudata.Images(dtype="float32"), seed=1), 32
    )
    test = as_keras(make_input_fn(digits.path, "test", training=False, images=tpudata.Images(dtype="float32")), 32)
    model = small_model(keras, (8, 8, 1), by_name=True)
    history = model.fit(train, steps_per_epoch=5, validation_data=test, shuffle=False, verbose=0).history
    _, loss, accuracy = plain_loop(model, digits, "test")
    assert history["val_loss"] == pytest.approx([loss], rel=1e-5)
    assert history["val_plain"] == pytest.approx([accuracy])


@pytest.mark.parametrize("hosts", [3, pytest.param(2, marks=pytest.mark.matrix)])
def test_several_hosts_feed_every_record_once(hosts: int, digits: Written) -> None:
    input_fn = make_input_fn(digits.path, "test", training=False)
    contexts = [tf.distribute.InputContext(hosts, host, hosts) for host in range(hosts)]
    datasets = [list(as_keras(input_fn, 32, context).as_numpy_iterator()) for context in contexts]
    assert len({len(batches) for batches in datasets}) == 1
    # Each global batch has the rows of the first host, then those of the next one.
    batches = [batch for step in zip(*datasets, strict=True) for batch in step]
    np.testing.assert_array_equal(np.concatenate([x["image"] for x, _ in batches]), np.stack(digits.images["test"]))
    assert np.concatenate([y for _, y in batches]).tolist() == digits.labels["test"]


def test_two_mirrored_replicas_evaluate_exactly(digits: Written) -> None:
    done = run("-m", "tests.input.mirrored_keras_program", digits.path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["replicas"] == 2
    for way in ("distributed by Keras", "distributed by the caller"):
        loss, accuracy, predictions = found[way]
        assert loss == pytest.approx(found["loss"], rel=1e-5)
        assert accuracy == pytest.approx(found["accuracy"], abs=1e-7)
        assert predictions == len(digits.labels["test"])


@pytest.mark.cases(1)
def test_pad_gives_full_batches_and_exact_weighted_metrics(keras: Any, digits: Written) -> None:
    input_fn = make_input_fn(digits.path, "test", training=False, images=tpudata.Images(dtype="float32"))
    dataset = as_keras(input_fn, 32, pad=True)
    assert all(leaf.shape[0] == 32 for leaf in tf.nest.flatten(dataset.element_spec))
    model = small_model(keras, (8, 8, 1), by_name=True)
    logits, _, accuracy = plain_loop(model, digits, "test")
    found = model.evaluate(dataset, verbose=0, return_dict=True)
    assert found["weighted"] == pytest.approx(accuracy, abs=1e-7)
    predictions = model.predict(dataset, verbose=0)
    assert len(predictions) == 128
    np.testing.assert_allclose(predictions[: len(logits)], logits, atol=1e-4)


def test_next_tokens_become_labels_with_weights(tmp_path: Path) -> None:
    path = str(write_sequences(tmp_path, {"train": 21}))
    train = as_keras(make_input_fn(path, "train", training=True, seed=1), 8)
    x, y, weights = next(train.as_numpy_iterator())
    assert (set(x), y.shape, weights.shape) == ({"input_ids"}, (8, 16), (8, 16))
    batches = list(as_keras(make_input_fn(path, "train", training=False), 8).as_numpy_iterator())
    ids, targets, weights = (
        np.concatenate(parts)
        for parts in zip(*((x["input_ids"], y, weights) for x, y, weights in batches), strict=True)
    )
    assert len(ids) == 21
    np.testing.assert_array_equal(targets[:, :-1], ids[:, 1:])
    # The last token of a row has no next one, and a trailing 0 is padding.
    expected = sum(len(np.trim_zeros(row, "b")) - 1 for row in ids)
    assert weights.sum() == expected
    padded = list(as_keras(make_input_fn(path, "train", training=False), 8, pad=True).as_numpy_iterator())
    assert sum(weights.sum() for _, _, weights in padded) == expected
    assert [len(y) for _, y, _ in padded] == [8, 8, 8]


@pytest.mark.parametrize("keras", ["keras", pytest.param("tf_keras", marks=pytest.mark.matrix)], indirect=True)
def test_weighted_metrics_are_exact_per_token_and_loss_per_position(keras: Any, tmp_path: Path) -> None:
    # Rows with 1 to 16 tokens, the rest padding: in batches of 8 the shares of tokens differ.
    rng = np.random.default_rng(3)
    rows = [np.concatenate([rng.integers(1, 12, 1 + 3 * i % 16), np.zeros(16)])[:16].astype("<i4") for i in range(21)]
    feature = Feature("input_ids", "bytes", "int32", (16,), "raw")
    records = {"test": [{"input_ids": row.tobytes()} for row in rows]}
    path = write_dataset(str(tmp_path), records, [feature], layout="sequences", shards=1)
    keras.utils.set_random_seed(1)
    ids = keras.Input((16,), name="input_ids", dtype="int32")
    model = keras.Model({"input_ids": ids}, keras.layers.Embedding(12, 12, embeddings_initializer="normal")(ids))
    table = np.asarray(model.get_weights()[0], np.float64) * 40
    model.set_weights([table])
    shifted = table - table.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1, keepdims=True)) - shifted
    # A token predicts the next one; padding predicts nothing, and neither does the last token.
    of_tokens = [np.array([losses[a, b] for a, b in itertools.pairwise(row) if b], float) for row in rows]
    right = [[table[a].argmax() == b for a, b in itertools.pairwise(row) if b] for row in rows]
    tokens = sum(map(len, of_tokens))
    crossentropy = keras.losses.SparseCategoricalCrossentropy
    metrics = [
        keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="per_token"),
        keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
    ]
    model.compile("sgd", crossentropy(from_logits=True), weighted_metrics=metrics)
    input_fn = make_input_fn(path, "test", training=False)
    for pad, places in ((False, 21 * 16), (True, 24 * 16)):
        found = model.evaluate(as_keras(input_fn, 8, pad=pad), verbose=0, return_dict=True)
        assert found["per_token"] == pytest.approx(sum(map(sum, of_tokens)) / tokens, rel=1e-5)
        assert found["accuracy"] == pytest.approx(sum(map(sum, right)) / tokens, abs=1e-6)
        assert found["loss"] == pytest.approx(sum(map(sum, of_tokens)) / places, rel=1e-5)
    if keras.__name__ == "keras":
        model.compile("sgd", crossentropy(from_logits=True, reduction="mean_with_sample_weight"))
        batches = [np.concatenate(of_tokens[first : first + 8]) for first in (0, 8, 16)]
        found = model.evaluate(as_keras(input_fn, 8), verbose=0, return_dict=True)
        expected = np.average([batch.mean() for batch in batches], weights=[8, 8, 5])
        assert found["loss"] == pytest.approx(expected, rel=1e-5)


def test_rejects_token_weights_that_hide_padding_in_evaluation(tmp_path: Path) -> None:
    path = str(write_sequences(tmp_path, {"train": 21}))
    training = make_input_fn(path, "train", training=True, weights="sample_weight", seed=1)
    assert len(next(as_keras(training, 8).as_numpy_iterator())) == 3
    with pytest.raises(UsageError, match="weights of tokens"):
        as_keras(make_input_fn(path, "train", training=False, weights="sample_weight"), 8)


@pytest.mark.cases(1)
def test_predicts_on_records_without_labels(keras: Any, tmp_path: Path) -> None:
    pictures = [encode_image(np.full((4, 4, 1), number, np.uint8)) for number in range(21)]
    features = [Feature("image/encoded", "bytes", "uint8", (4, 4, 1), "image")]
    path = write_dataset(
        str(tmp_path), {"test": [{"image/encoded": data} for data in pictures]}, features, layout="imagenet"
    )
    dataset = as_keras(make_input_fn(path, "test", training=False, images=tpudata.Images(dtype="float32")), 8)
    assert [set(x) for x in dataset] == [{"image"}] * 3
    assert len(small_model(keras, (4, 4, 1), by_name=True).predict(dataset, verbose=0)) == 21


def test_starts_at_a_step(digits: Written) -> None:
    input_fn = make_input_fn(digits.path, "test", training=False)
    labels = [y.tolist() for _, y in as_keras(input_fn, 32, start_step=2).as_numpy_iterator()]
    assert labels == [digits.labels["test"][64:96], digits.labels["test"][96:]]


def test_accepts_a_bare_tensor_if_batches_divide_the_records(digits: Written) -> None:
    input_fn = make_input_fn(digits.path, "train", training=False, features="image")
    assert [len(y) for _, y in as_keras(input_fn, 50)] == [50] * 6


def test_rejects_plain_datasets_and_transposed_batches(digits: Written) -> None:
    with pytest.raises(UsageError, match="not an input_fn"):
        as_keras(tf.data.Dataset.range(3), 8)
    input_fn = make_input_fn(digits.path, "test", training=False, images=tpudata.Images(transpose="HWCN"))
    with pytest.raises(UsageError, match=r"the first axis of .*'image'.* is not the batch"):
        as_keras(input_fn, 32)


ON_BACKEND = """
import sys
import keras
import tpudata

assert keras.backend.backend() == sys.argv[2]
input_fn = tpudata.make_input_fn(sys.argv[1], "test", training=False, images=tpudata.Images(dtype="float32"))
image = keras.Input((2, 2, 1), name="image")
model = keras.Model({"image": image}, keras.layers.Dense(10)(keras.layers.Flatten()(image)))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("sgd", loss, weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")])
batches = tpudata.as_keras(input_fn, 128)
model.fit(batches, epochs=1, verbose=0)
print(len(model.predict(batches, verbose=0)), sorted(model.evaluate(batches, verbose=0, return_dict=True)))
"""


@pytest.mark.matrix
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_keras_evaluates_on_another_backend(many: Written, backend: str) -> None:
    pytest.importorskip(backend)
    # A new interpreter, since Keras takes its backend as it is imported.
    command = [sys.executable, "-c", ON_BACKEND, many.path, backend]
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{RECORDS} ['accuracy', 'loss']"
