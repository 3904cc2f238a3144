"""Who takes an input_fn's batches: distribution strategies, Keras of both kinds, a session of TensorFlow 1, and plain loops."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.datasets import Written
from tests.helpers.forked import run
from tpudata import Images, TextLineFiles, make_input_fn


def test_mirrored_replicas_take_the_global_batch(raw_digits: Written) -> None:
    done = run("-m", "tests.input.mirrored_program", raw_digits.path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    images, labels = raw_digits.images["test"], raw_digits.labels["test"]
    right = sum(int(image.max()) % 10 == label for image, label in zip(images, labels, strict=True))
    assert 0 < right < 101
    assert found == {"replicas": 2, "same": 20, "right": right, "count": 101}


@pytest.mark.parametrize(
    ("package", "batch_size"),
    [
        ("tf_keras", 40),
        ("keras", 40),
        *(pytest.param(name, 101, marks=pytest.mark.matrix) for name in ("tf_keras", "keras")),
    ],
)
def test_keras_evaluates_what_a_plain_loop_does(raw_digits: Written, package: str, batch_size: int) -> None:
    keras = importlib.import_module(package)
    options: Any = {"features": "image", "images": Images(dtype="float32"), "weights": "sample_weight"}
    train = make_input_fn(raw_digits.path, "train", training=True, seed=1, **options)({"batch_size": 50})
    test = make_input_fn(raw_digits.path, "test", training=False, **options)({"batch_size": batch_size})
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="entropy")
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    model.compile("adam", loss, weighted_metrics=[metric, accuracy])
    before = model.evaluate(test, verbose=0, return_dict=True)
    model.fit(train, steps_per_epoch=6, epochs=3, shuffle=False, verbose=0)
    after = model.evaluate(test, verbose=0, return_dict=True)
    assert after["entropy"] < before["entropy"]
    logits = np.asarray(model(np.stack(raw_digits.images["test"]).astype(np.float32) / 255), np.float64)
    labels = np.array(raw_digits.labels["test"])
    log_shares = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert after["accuracy"] == pytest.approx((logits.argmax(1) == labels).mean(), abs=1e-6)
    assert after["entropy"] == pytest.approx(-log_shares[np.arange(101), labels].mean(), rel=1e-5)


def test_a_session_of_tensorflow_1_takes_files(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{i}\n" for i in range(10)))
    input_fn = make_input_fn(TextLineFiles(path), training=False)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        batch = tf.compat.v1.data.make_one_shot_iterator(input_fn({"batch_size": 6})).get_next()
        found = [session.run(batch) for _ in range(2)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(batch)
    rows = [int(line) for features in found for line in features["text"][features["weights"] > 0]]
    assert rows == list(range(10))
