"""Training and evaluating a ResNet with the estimator."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.models.keras_resnet import KerasResNet
from tests.models.programs import estimator, rehearsed, rows, variables
from tpudata.models.resnet import model_fn

RNG = np.random.default_rng(7)
# Quick steps for tests: the smallest images, and a block of each kind: without a shortcut, with one, and after one.
TINY: dict[str, Any] = {"depth": 18, "blocks": (1, 2), "num_classes": 4, "stem": "large"}


def labelled(count: int, size: int = 32) -> tuple[dict[str, Any], Any]:
    """uint8 images of four colours with noise."""
    labels = np.arange(count, dtype=np.int32) % 4
    colours = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200], [120, 120, 120]])
    images = colours[labels][:, None, None] + RNG.integers(-40, 40, size=(count, size, size, 3))
    return {"image": images.astype(np.uint8)}, labels


def test_learns_and_evaluates_exactly_in_either_layout(tmp_path: Path) -> None:
    features, labels = labelled(22)
    trained = estimator(model_fn, tmp_path, 8, learning_rate=0.02, label_smoothing=0.1, batch_norm_momentum=0.5, **TINY)
    trained.train(rows(features, labels, forever=True), max_steps=10)
    held_out = rows(features, labels, padded=True)
    found = trained.evaluate(held_out)
    assert found["accuracy"] > 0.9
    assert found["top_5_accuracy"] == 1
    values = variables(trained)
    images = (features["image"] / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    logits = np.asarray(KerasResNet(18, TINY["blocks"], values, False, "large")(images.astype(np.float32)), np.float64)
    entropy = np.log(np.exp(logits).sum(1)) - logits[np.arange(22), labels]
    assert found["cross_entropy"] == pytest.approx(entropy.mean(), rel=1e-3)
    assert found["loss"] == pytest.approx(entropy.mean(), rel=1e-3)

    def transposed(params: dict[str, Any]) -> Any:
        def turned(features: Any, labels: Any) -> Any:
            return {**features, "image": tf.transpose(features["image"], [1, 2, 3, 0])}, labels

        return held_out(params).map(turned)

    other = estimator(model_fn, tmp_path, 8, transpose_input=True, **TINY)
    assert other.evaluate(transposed)["cross_entropy"] == pytest.approx(found["cross_entropy"], rel=1e-5)


def test_replicas_normalize_their_own_rows(tmp_path: Path) -> None:
    """With the same rows on both, two replicas train as one does with these rows."""
    features, labels = labelled(4)
    twice = {"image": np.concatenate([features["image"]] * 2)}
    one = estimator(model_fn, tmp_path / "one", 4, **TINY)
    one.train(rows(features, labels, forever=True), max_steps=1)
    two = estimator(model_fn, tmp_path / "two", 8, 2, **TINY)
    two.train(rows(twice, np.r_[labels, labels], forever=True), max_steps=1)
    assert two.last_loss == pytest.approx(one.last_loss, rel=1e-5)
    found, expected = variables(two), variables(one)
    for name in ("stem/conv/kernel", "stem/conv_norm/moving_mean", "stem/conv_norm/moving_variance", "logits/bias"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


# test_tutorials rehearses the training and the evaluation of a ResNet.
@pytest.mark.matrix
def test_rehearsal_finds_nothing_a_tpu_rejects(tmp_path: Path) -> None:
    # XLA compiles the step of each mode: without and with a shortcut.
    params = {**TINY, "blocks": (1, 1)}
    features, labels = labelled(16)
    findings = rehearsed(model_fn, tmp_path, features, labels, optimizer="lars", **params)
    assert [str(finding) for finding in findings] == []
