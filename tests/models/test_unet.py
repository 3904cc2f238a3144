import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.models.programs import estimator, first_values, random_values, rehearsed, rows, run_graph, variables
from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys
from tpudata.models.unet import UnetParams, model_fn, unet

RNG = np.random.default_rng(2)
SHAPE: dict[str, Any] = {"num_classes": 3, "depth": 2, "filters": 8}
PARAMS = UnetParams.from_params(SHAPE)
IMAGES = RNG.normal(size=(2, 8, 12, 3)).astype(np.float32)


def network(images: Any = IMAGES, params: UnetParams = PARAMS) -> Any:
    return lambda: unet(tf.constant(images), params, training=False)


def of_keras(v: dict[str, Any], images: Any) -> Any:
    """The logits, by layers of Keras."""
    layers = tf_keras.layers

    def block(net: Any, name: str) -> Any:
        for number in range(2):
            net = tf.nn.conv2d(net, v[f"{name}/{number}/kernel"], 1, "SAME") + v[f"{name}/{number}/bias"]
            net = tf.nn.relu(net)
        return net

    net, levels = tf.constant(images), []
    for level in range(PARAMS.depth):
        levels.append(block(net, f"down_{level}"))
        net = layers.MaxPooling2D()(levels[-1])
    net = block(net, "lowest")
    for level in reversed(range(PARAMS.depth)):
        larger = layers.UpSampling2D()(net)
        reduced = larger @ v[f"up_{level}/reduce/kernel"] + v[f"up_{level}/reduce/bias"]
        net = block(tf.concat([levels[level], reduced], -1), f"up_{level}")
    return (net @ v["logits/kernel"] + v["logits/bias"]).numpy()


def test_logits_equal_keras() -> None:
    values = random_values(network())
    found, _ = run_graph(network(), values)
    assert (found.shape, found.dtype.name) == ((2, 8, 12, 3), "float32")
    np.testing.assert_allclose(found, of_keras(values, IMAGES), rtol=1e-3, atol=1e-4)


def test_initial_values_follow_he_and_have_their_count() -> None:
    values = first_values(network())
    assert values["lowest/1/kernel"].shape == (3, 3, 32, 32)
    # Sums of rectified values keep their variance with these weights (He et al., 2015).
    assert values["lowest/1/kernel"].std() == pytest.approx(np.sqrt(2 / (9 * 32)), rel=0.05)
    sizes = {"down_0": 3 + 8, "down_1": 8 + 16, "lowest": 16 + 32, "up_1": 32 + 16, "up_0": 16 + 8}
    filters = {"down_0": 8, "down_1": 16, "lowest": 32, "up_1": 16, "up_0": 8}
    blocks = sum(9 * sizes[name] * filters[name] + 2 * filters[name] for name in sizes)
    assert sum(value.size for value in values.values()) == blocks + 33 * 16 + 17 * 8 + 9 * 3


def test_bfloat16_logits_are_close_and_variables_stay_float32() -> None:
    values = random_values(network())
    near = UnetParams.from_params({**SHAPE, "precision": "bfloat16"})
    exact, found = run_graph(network(), values)[0], run_graph(network(params=near), values)[0]
    assert found.dtype.name == "float32"
    assert 1e-4 < np.abs(found - exact).max() < 0.1 * np.abs(exact).max()
    assert {value.dtype.name for value in first_values(network(params=near)).values()} == {"float32"}


def shapes(count: int) -> tuple[dict[str, Any], Any]:
    """Grey noise with a bright and a dark rectangle, and maps of them; a row of pixels of each map is ignored."""
    images = RNG.integers(90, 150, size=(count, 16, 16, 1))
    maps = np.zeros((count, 16, 16, 1), np.uint8)
    for row in range(count):
        for kind, value in ((1, 180), (2, 60)):
            y, x = RNG.integers(0, 10, size=2)
            height, width = RNG.integers(3, 7, size=2)
            images[row, y : y + height, x : x + width] = value + RNG.integers(-20, 20)
            maps[row, y : y + height, x : x + width] = kind
        maps[row, RNG.integers(16)] = 255
    return {"image": images.astype(np.uint8)}, maps


def mean_iou(maps: Any, classes: Any) -> float:
    counted, shares = maps != 255, []
    for kind in range(3):
        label, predicted = counted & (maps == kind), counted & (classes == kind)
        if (label | predicted).any():
            shares.append((label & predicted).sum() / (label | predicted).sum())
    return float(np.mean(shares))


def test_learns_evaluates_exactly_and_predicts(tmp_path: Path) -> None:
    features, maps = shapes(48)
    trained = estimator(model_fn, tmp_path, 8, learning_rate=0.01, **SHAPE)
    trained.train(rows(features, maps, forever=True), max_steps=80)
    held_out, expected = shapes(21)
    found = trained.evaluate(rows(held_out, expected, padded=True))
    # Nothing but background has a mean IoU of less than a third.
    assert found["mean_iou"] > 0.7
    predicted = np.array([row["classes"] for row in trained.predict(rows(held_out, expected, padded=True))])
    assert (predicted.shape, predicted.dtype.name) == ((21, 16, 16), "int32")
    labels = expected[..., 0]
    assert found["mean_iou"] == pytest.approx(mean_iou(labels, predicted), rel=1e-5)
    counted = labels != 255
    assert found["accuracy"] == pytest.approx((predicted == labels)[counted].mean(), rel=1e-5)
    assert found["loss"] == pytest.approx(found["cross_entropy"], rel=1e-2)


def test_ignored_pixels_and_padding_do_not_affect_loss_and_metrics() -> None:
    features, maps = shapes(3)
    weights = np.array([1, 1, 0], np.float32)
    other = {"image": np.where(weights[:, None, None, None] > 0, features["image"], 7).astype(np.uint8)}
    changed = np.where(weights[:, None, None, None] > 0, maps, 2).astype(np.uint8)
    found = []
    for images, labels in ((features, maps), (other, changed)):

        def build(images: Any = images, labels: Any = labels) -> Any:
            given = {"image": tf.constant(images["image"]), "weights": tf.constant(weights)}
            spec: Any = model_fn(given, tf.constant(labels), ModeKeys.EVAL, SHAPE)
            return spec.loss, spec.eval_metrics[1]

        loss, tensors = run_graph(build)[0]
        counts = np.sum(labels[:2] != 255)
        assert tensors["weights"].sum() == tensors["confusion"].sum() == counts
        found.append((loss, tensors["confusion"].sum(0).tolist()))
    assert found[0] == found[1]


def test_accepts_maps_without_a_last_axis() -> None:
    features, maps = shapes(2)

    def loss(labels: Any) -> Any:
        return run_graph(
            lambda: model_fn(tf.constant(features["image"]), tf.constant(labels), ModeKeys.EVAL, SHAPE).loss
        )[0]

    assert loss(maps) == loss(maps[..., 0].astype(np.int32))


@pytest.mark.matrix
def test_replicas_train_as_one(tmp_path: Path) -> None:
    features, maps = shapes(8)
    # Replicas have different numbers of counted pixels.
    maps[:4, 3:] = 255
    found = []
    for name, replicas in (("one", None), ("two", 2)):
        trained = estimator(model_fn, tmp_path / name, 8, replicas, **SHAPE)
        trained.train(rows(features, maps, forever=True), max_steps=3)
        found.append((trained.last_loss, variables(trained)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    np.testing.assert_allclose(found[0][1]["logits/kernel"], found[1][1]["logits/kernel"], rtol=1e-3, atol=1e-4)


def test_rehearsal_finds_nothing_a_tpu_rejects(tmp_path: Path) -> None:
    features, maps = shapes(16)
    findings = rehearsed(model_fn, tmp_path, features, maps, **SHAPE, dropout=0.1, precision="bfloat16")
    assert [str(finding) for finding in findings] == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"num_classes": 1}, "num_classes must be 2 or more"),
        ({"ignored_label": 2}, r"ignored_label must be num_classes \(3\) or more, got 2"),
        ({"depth": 0}, "depth must be 1 or more"),
        ({"dropout": 1.0}, "dropout must be in"),
        ({"precision": "float16"}, "one of float32, bfloat16"),
    ],
)
def test_rejects_wrong_params(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        UnetParams.from_params({**SHAPE, **params})


def test_rejects_wrong_images_and_labels() -> None:
    with pytest.raises(UsageError, match="multiples of 4, got"):
        unet(tf.zeros([2, 8, 10, 3]), PARAMS, training=False)
    for shape, dtype in (((2,), "int32"), ((2, 8, 8), "float32")):
        got = rf"labels must be integers .* got {dtype} {re.escape(str(shape))}"
        with tf.Graph().as_default(), pytest.raises(UsageError, match=got):
            model_fn(tf.zeros([2, 8, 8, 3]), tf.zeros(shape, dtype), ModeKeys.EVAL, SHAPE)
    with tf.Graph().as_default(), pytest.raises(UsageError, match="needs label maps as labels"):
        model_fn(tf.zeros([2, 8, 8, 3]), None, ModeKeys.TRAIN, SHAPE)


def test_labels_beyond_int32_are_no_classes() -> None:
    labels = np.full((2, 8, 8), 2**32 + 1, np.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside the valid range"):
        run_graph(lambda: model_fn(tf.zeros([2, 8, 8, 3]), tf.constant(labels), ModeKeys.EVAL, SHAPE).loss)
