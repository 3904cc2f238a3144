from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tests.models.programs import first_values, random_values, run_graph
from tpudata.errors import UsageError
from tpudata.estimator import ModeKeys, RunConfig, TPUConfig, TPUEstimator
from tpudata.models.mnist_cnn import MnistCnnParams, mnist_cnn, model_fn

BATCH = 64


def network(images: Any) -> Any:
    return lambda: mnist_cnn(tf.constant(images), 7, training=False)


def test_initial_values_have_the_shapes_and_scales_of_glorot() -> None:
    values = first_values(network(np.zeros((1, 12, 9, 3), np.float32)))
    assert {name: value.shape for name, value in values.items()} == {
        "conv2d/kernel": (5, 5, 3, 32),
        "conv2d/bias": (32,),
        "conv2d_1/kernel": (5, 5, 32, 64),
        "conv2d_1/bias": (64,),
        "dense/kernel": (3 * 2 * 64, 128),
        "dense/bias": (128,),
        "dense_1/kernel": (128, 7),
        "dense_1/bias": (7,),
    }
    for name, value in values.items():
        if name.endswith("bias"):
            assert not value.any()
            continue
        # Glorot's uniform values: a convolution's inputs and outputs are those of its window.
        window = np.prod(value.shape[:-2])
        limit = np.sqrt(6 / (window * value.shape[-2] + window * value.shape[-1]))
        assert 0.97 * limit < np.abs(value).max() <= limit
        assert value.std() == pytest.approx(limit / np.sqrt(3), rel=0.1)


def test_predictions_equal_keras(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 12, 9, 3), np.uint8)
    values = random_values(network(images.astype(np.float32)), scale=0.1)
    layers = tf_keras.layers
    twin = tf_keras.Sequential(
        [
            layers.Conv2D(32, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(7),
        ]
    )
    twin.build(images.shape)
    names = ("conv2d", "conv2d_1", "dense", "dense_1")
    twin.set_weights([values[f"{name}/{part}"] for name in names for part in ("kernel", "bias")])
    logits = twin(images.astype(np.float64) / 255 - 0.5).numpy()

    def predictions() -> Any:
        return model_fn({"image": tf.constant(images)}, None, ModeKeys.PREDICT, {"num_classes": 7}).predictions

    found, _ = run_graph(predictions, values)
    np.testing.assert_allclose(found["probabilities"], tf.nn.softmax(logits), rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(found["classes"], logits.argmax(axis=1))
    assert np.ptp(found["probabilities"], axis=0).max() > 0.1


def estimator_for(folder: Path, iterations: int = 50, **params: Any) -> TPUEstimator:
    config = RunConfig(TPUConfig(iterations), tf_random_seed=1, model_dir=str(folder))
    return TPUEstimator(
        model_fn,
        config=config,
        params=params,
        use_tpu=False,
        train_batch_size=BATCH,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
    )


@pytest.fixture(scope="module")
def digits() -> Any:
    """Real digits: uint8 images [1797, 8, 8, 1] and labels, in a fixed random order."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.images * 255 / 16).astype(np.uint8)[order, :, :, None]
    return images, data.target.astype(np.int32)[order]


def training(images: Any, labels: Any, skip: int = 0) -> Any:
    def input_fn(params: dict[str, Any]) -> Any:
        data = tf.data.Dataset.from_tensor_slices(({"image": images}, labels)).shuffle(len(images), seed=3).repeat()
        return data.batch(params["batch_size"], drop_remainder=True).skip(skip)

    return input_fn


def padded(images: Any, labels: Any) -> Any:
    def input_fn(params: dict[str, Any]) -> Any:
        padding = -len(images) % params["batch_size"]
        images_ = np.concatenate([images, np.full((padding, *images.shape[1:]), 200, np.uint8)])
        weights = np.r_[np.ones(len(images)), np.zeros(padding)].astype(np.float32)
        features = {"image": images_, "weights": weights}
        data = tf.data.Dataset.from_tensor_slices((features, np.r_[labels, np.zeros(padding, np.int32)]))
        return data.batch(params["batch_size"], drop_remainder=True)

    return input_fn


def test_learns_real_digits(digits: Any, tmp_path: Path) -> None:
    images, labels = digits
    estimator = estimator_for(tmp_path)
    estimator.train(training(images[:1440], labels[:1440]), max_steps=150)
    held_out = padded(images[1440:], labels[1440:])
    result = estimator.evaluate(held_out)
    assert result["accuracy"] >= 0.95
    rows = list(estimator.predict(held_out))
    classes = np.array([row["classes"] for row in rows])
    probabilities = np.array([row["probabilities"] for row in rows])
    assert (classes.dtype.name, probabilities.dtype.name) == ("int32", "float32")
    assert probabilities.shape == (357, 10)
    assert np.mean(classes == labels[1440:]) == pytest.approx(result["accuracy"], abs=1e-6)
    entropy = -np.log(probabilities[np.arange(357), labels[1440:]]).mean()
    assert result["cross_entropy"] == pytest.approx(entropy, rel=1e-3)
    np.testing.assert_array_equal(probabilities.argmax(1), classes)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("batch_size", [7, 100, 357])
def test_evaluation_loss_is_exact_at_any_batch_size(batch_size: int, digits: Any, tmp_path: Path) -> None:
    images, labels = digits[0][1440:], digits[1][1440:]
    estimator = TPUEstimator(
        model_fn,
        config=RunConfig(tf_random_seed=1, model_dir=str(tmp_path)),
        use_tpu=False,
        eval_batch_size=batch_size,
        predict_batch_size=357,
    )
    result = estimator.evaluate(padded(images, labels))
    probabilities = np.array([row["probabilities"] for row in estimator.predict(padded(images, labels))], np.float64)
    plain = np.mean([-np.log(row[label]) for row, label in zip(probabilities, labels, strict=True)])
    assert result["loss"] == pytest.approx(plain, rel=1e-5)
    assert result["cross_entropy"] == pytest.approx(plain, rel=1e-5)


def test_a_resumed_run_with_dropout_equals_an_uninterrupted_one(digits: Any, tmp_path: Path) -> None:
    images, labels = digits
    estimator_for(tmp_path / "a", 3).train(training(images, labels), max_steps=8)
    estimator_for(tmp_path / "b", 3).train(training(images, labels), max_steps=5)
    fresh = estimator_for(tmp_path / "b", 3)
    fresh.train(training(images, labels, skip=5), max_steps=8)
    whole = estimator_for(tmp_path / "a")
    for name in whole.get_variable_names():
        # Sums in other orders may differ in the last bits from run to run.
        np.testing.assert_allclose(
            fresh.get_variable_value(name), whole.get_variable_value(name), rtol=1e-4, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("shape", [(4, 4, 1), (5, 9, 3), (28, 28, 1)])
def test_accepts_any_image_size(shape: tuple[int, int, int]) -> None:
    with tf.Graph().as_default():
        logits = mnist_cnn(tf.zeros([2, *shape]), num_classes=7, training=True)
        assert (logits.shape, logits.dtype) == ((2, 7), tf.float32)
        names = {variable.op.name for variable in tf.compat.v1.trainable_variables()}
    assert names == {
        f"{layer}/{part}" for layer in ("conv2d", "conv2d_1", "dense", "dense_1") for part in ("kernel", "bias")
    }


@pytest.mark.parametrize("optimizer", ["momentum", pytest.param("sgd", marks=pytest.mark.matrix)])
def test_learns_from_flat_float_images_with_each_optimizer(optimizer: str, digits: Any, tmp_path: Path) -> None:
    images, labels = digits
    flat = (images.reshape(-1, 64) / 255 - 0.5).astype(np.float32)

    def input_fn(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensor_slices((flat, labels)).batch(params["batch_size"]).take(4)

    estimator = estimator_for(tmp_path, optimizer=optimizer, learning_rate=0.01, image_shape=(8, 8, 1))
    before = estimator.evaluate(input_fn)["cross_entropy"]
    estimator.train(lambda params: input_fn(params).repeat(), max_steps=8)
    assert estimator.evaluate(input_fn)["cross_entropy"] < before


def test_the_loss_of_a_batch_of_padding_is_0() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        features = {"image": tf.zeros([2, 4, 4, 1]), "weights": tf.zeros([2])}
        spec = model_fn(features, tf.zeros([2], tf.int32), ModeKeys.EVAL, {})
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(spec.loss) == 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"learning_rat": 0.1}, "Did you mean 'learning_rate'"),
        ({"optimizer": "lion"}, "adam, momentum, sgd"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"num_classes": 1}, "num_classes"),
        ({"dropout": 1.0}, "dropout"),
        ({"image_shape": (8, 8)}, "image_shape must be a list of 3 int or None"),
    ],
)
def test_rejects_wrong_params(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MnistCnnParams.from_params({"batch_size": 8, "use_tpu": False, **params})


def test_rejects_wrong_images() -> None:
    with pytest.raises(UsageError, match="image_shape"):
        mnist_cnn(tf.zeros([2, 784]), 10, training=False)
    with pytest.raises(UsageError, match="4x4"):
        mnist_cnn(tf.zeros([2, 3, 8, 1]), 10, training=False)
    with pytest.raises(UsageError, match="got pixels"):
        model_fn({"pixels": tf.zeros([2, 8, 8, 1])}, None, ModeKeys.PREDICT, {})
