"""Losses, metrics and predictions of classifiers, compared with numpy and TensorFlow.

Tests give the logits, which follow from variables in a model.
"""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf

from tests.models.programs import estimator, rows
from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys, TPUEstimatorSpec
from tpudata.models.layers.linear import variable
from tpudata.models.tasks.classification import _mark_top_rows, make_classification_spec
from tpudata.models.training.train_op import TrainingParams

RNG = np.random.default_rng(3)
CLASSES = 9
LOGITS = RNG.normal(scale=2, size=(21, CLASSES)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, size=21).astype(np.int32)


class Params(TrainingParams):
    model: ClassVar[str] = "a_classifier"
    # Steps that change nothing.
    learning_rate: float = 1e-30


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
    logits = features["logits"] + variable("bias", [CLASSES], tf.compat.v1.zeros_initializer())
    return make_classification_spec(features, labels, mode, logits, Params(), has_top_5=True, **params["head"])


def log_probabilities(logits: Any) -> Any:
    values = logits.astype(np.float64)
    return values - np.log(np.exp(values).sum(axis=1, keepdims=True))


def head(folder: Path, batch_size: int = 8, replicas: int | None = None, **params: Any) -> Any:
    return estimator(model_fn, folder, batch_size, replicas, head=params)


@pytest.mark.parametrize(("offset", "batch_size", "replicas"), [(0, 8, None), (1, 21, None), (3, 6, 2)])
def test_evaluation_is_exact_and_ignores_padding(
    offset: int, batch_size: int, replicas: int | None, tmp_path: Path
) -> None:
    trained = head(tmp_path, batch_size, replicas, label_offset=offset)
    found = trained.evaluate(rows({"logits": LOGITS}, LABELS + np.int32(offset), padded=True))
    entropy = -log_probabilities(LOGITS)[np.arange(21), LABELS].mean()
    assert found["cross_entropy"] == pytest.approx(entropy, rel=1e-5)
    assert found["loss"] == pytest.approx(entropy, rel=1e-5)
    assert found["accuracy"] == pytest.approx(np.mean(LOGITS.argmax(1) == LABELS))
    best = np.argsort(-LOGITS, axis=1)[:, :5]
    assert found["top_5_accuracy"] == pytest.approx(
        np.mean([label in row for label, row in zip(LABELS, best, strict=True)])
    )
    predictions = list(trained.predict(rows({"logits": LOGITS}, LABELS)))
    assert [row["classes"] for row in predictions] == list(LOGITS.argmax(1) + offset)
    probabilities = np.array([row["probabilities"] for row in predictions])
    np.testing.assert_allclose(probabilities, np.exp(log_probabilities(LOGITS)), rtol=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shared", [False, True])
def test_training_loss_is_the_smoothed_cross_entropy(smoothing: float, shared: bool, tmp_path: Path) -> None:
    shares = np.eye(CLASSES, dtype=np.float32)[LABELS]
    if shared:
        shares = 0.7 * shares + 0.3 * shares[::-1]
    target = (1 - smoothing) * shares + smoothing / CLASSES
    labels: Any = LABELS + np.int32(1)
    if shared:  # As with mixed images: a column for each stored label, including the unused 0.
        labels = np.concatenate([np.zeros((21, 1), np.float32), shares], axis=1).astype(np.float32)
    trained = head(tmp_path, 21, label_offset=1, label_smoothing=smoothing)
    trained.train(rows({"logits": LOGITS}, labels, forever=True), max_steps=1)
    assert trained.last_loss == pytest.approx(-(target * log_probabilities(LOGITS)).sum(1).mean(), rel=1e-5)


def test_top_5_equals_tensorflow_and_counts_nan_as_wrong() -> None:
    logits = RNG.integers(0, 4, size=(200, CLASSES)).astype(np.float32)
    labels = RNG.integers(0, CLASSES, size=200).astype(np.int32)
    logits[:20, 0] = np.nan
    logits[20:40, 3] = -np.inf
    finite = np.isfinite(logits[np.arange(200), labels])
    found = _mark_top_rows(5, labels, logits).numpy()
    expected = tf.math.in_top_k(labels, np.where(np.isfinite(logits), logits, -100), 5).numpy()
    np.testing.assert_array_equal(found[finite], expected[finite])
    assert not found[~finite].any()


def test_rejects_labels_that_do_not_match_the_logits() -> None:
    logits = tf.zeros([2, CLASSES])
    with pytest.raises(UsageError, match="a_classifier: mode 'eval' needs labels"):
        make_classification_spec({}, None, ModeKeys.EVAL, logits, Params())
    with pytest.raises(UsageError, match="labels of evaluation must be integers"):
        make_classification_spec({}, tf.zeros([2, CLASSES]), ModeKeys.EVAL, logits, Params())
    with pytest.raises(UsageError, match=r"must be \[batch, 10\].*Set num_classes \(it is 9\)"):
        make_classification_spec({}, tf.zeros([2, CLASSES]), ModeKeys.TRAIN, logits, Params(), label_offset=1)
    for mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
        with pytest.raises(
            UsageError, match=r"labels must be integers \[batch\], one for each row, got int32 \(2, 3\)"
        ):
            make_classification_spec({}, tf.zeros([2, 3], tf.int32), mode, logits, Params())


@pytest.mark.parametrize("wrong", [2**32, -(2**32)])
def test_labels_beyond_int32_are_no_classes(wrong: int, tmp_path: Path) -> None:
    labels = LABELS.astype(np.int64) + wrong
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside the valid range"):
        head(tmp_path, 21).train(rows({"logits": LOGITS}, labels), max_steps=1)
