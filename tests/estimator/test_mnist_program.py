"""The MNIST program that TPUEstimator was introduced with trains on real digits, unchanged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from tests.helpers.forked import run


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """Scikit-learn's digits, 28 pixels wide, in a file with the features of the MNIST tutorials; and their labels."""
    found = load_digits()
    wide = np.pad(np.kron(found.images, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2))) * (255 / 16)
    filename = str(tmp_path_factory.mktemp("digits") / "train.tfrecords")
    with tf.io.TFRecordWriter(filename) as writer:
        for image, label in zip(wide.round().astype(np.uint8), found.target, strict=True):
            features = {
                "image_raw": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    return filename, found.target


def test_the_unchanged_program_learns_digits(digits: tuple[str, Any], tmp_path: Path) -> None:
    filename, labels = digits
    # tf.layers needs the variable.
    done = run(
        *("-m", "tests.estimator.mnist_program", filename, str(tmp_path), "8"), environment={"TF_USE_LEGACY_KERAS": "1"}
    )
    assert done.returncode == 0, done.stderr
    # The output includes the log of device placement.
    (found,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"loss"')]
    assert found["step"] == 60
    assert found["loss"] < 1.4
    classes = found["classes"]
    assert np.mean(np.equal(classes, labels[: len(classes)])) > 0.6
