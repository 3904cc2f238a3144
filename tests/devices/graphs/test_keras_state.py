"""model_fns of unnamed Keras layers, with Keras 3 and tf_keras."""

import random
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import finite_input_fn, make_estimator, train_input_fn, v1
from tpudata.devices.graphs.keras_state import fresh_keras_state
from tpudata.estimator import CrossShardOptimizer, ModeKeys, TPUEstimatorSpec


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param)


@pytest.fixture(autouse=True)
def _random_state() -> Iterator[None]:
    state = random.getstate()
    yield
    random.setstate(state)


def layers_model_fn(keras: Any, optimizer: str) -> Callable[..., TPUEstimatorSpec]:
    """Dense, BatchNormalization and Dropout without names, trained by a v1 optimizer or by Keras' own.

    As in the original, model_fn runs the updates of tf_keras' layers; those of Keras 3 run by themselves.
    """

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        training = mode == ModeKeys.TRAIN
        layers = [
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(1),
        ]
        net = features["x"]
        for layer in layers:
            net = layer(net, training=training) if "Dense" not in type(layer).__name__ else layer(net)
        outputs = net[:, 0]
        if mode == ModeKeys.PREDICT:
            return TPUEstimatorSpec(mode, predictions={"outputs": outputs})
        loss = tf.reduce_mean((outputs - labels) ** 2)
        if not training:
            return TPUEstimatorSpec(mode, loss=loss)
        step = v1.train.get_global_step()
        if optimizer == "v1":
            train_op = CrossShardOptimizer(v1.train.AdamOptimizer(0.05)).minimize(loss, global_step=step)
        else:
            variables = [variable for layer in layers for variable in layer.trainable_variables]
            adam = keras.optimizers.Adam(0.05)
            handles = [variable.value if keras.__name__ == "keras" else variable for variable in variables]
            adam.apply_gradients(zip(tf.gradients(loss, handles), variables, strict=True))
            train_op = step.assign_add(1)
        updates = [] if keras.__name__ == "keras" else layers[1].updates
        return TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(train_op, *updates))

    return model_fn


# The next test also trains with Keras' own optimizers.
@pytest.mark.parametrize(
    ("library", "optimizer"),
    [
        *(("keras", "keras"), ("tf_keras", "v1")),
        *(pytest.param(*case, marks=pytest.mark.matrix) for case in (("keras", "v1"), ("tf_keras", "keras"))),
    ],
)
def test_unnamed_layers_train_and_resume(library: str, optimizer: str, tmp_path: Path) -> None:
    keras = pytest.importorskip(library)
    model_fn = layers_model_fn(keras, optimizer)
    estimator = make_estimator(tmp_path, model_fn, batch_size=40, iterations=1, save_summary_steps=1)
    estimator.train(train_input_fn, steps=60)
    losses = programs.losses(tmp_path)
    assert np.mean(losses[-5:]) < 0.4 * np.mean(losses[:5])
    names = set(estimator.get_variable_names())
    normalization = {f"batch_normalization/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")}
    assert {"dense/kernel", "dense/bias"} | normalization <= names
    assert np.abs(estimator.get_variable_value("batch_normalization/moving_mean")).max() > 0
    # A new process, and another model that takes the names first, find the same variables.
    keras.layers.Dense(1)
    again = make_estimator(tmp_path, model_fn, batch_size=40)
    again.train(train_input_fn, steps=1)
    assert again.get_variable_value("global_step") == 61
    rows = [row["outputs"] for row in again.predict(finite_input_fn(40))]
    expected = np.mean((np.array(rows) - programs.Y) ** 2)
    assert again.evaluate(finite_input_fn(40))["loss"] == pytest.approx(expected, rel=1e-4)


def test_a_sequential_model_learns_with_a_keras_optimizer(keras: Any, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(features["x"])[:, 0] - labels) ** 2)
        variables = model.trainable_variables
        keras.optimizers.Adam(0.05).apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return TPUEstimatorSpec(mode, loss=loss, train_op=v1.train.get_global_step().assign_add(1))

    estimator = make_estimator(tmp_path, model_fn, iterations=1, save_summary_steps=1)
    estimator.train(train_input_fn, steps=40)
    losses = programs.losses(tmp_path)
    assert losses[-1] < 0.3 * losses[0]


def test_the_configs_seed_overrides_the_seed_of_keras(
    keras: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if keras.__name__ == "tf_keras":
        request.addfinalizer(lambda: delattr(keras.src.backend._SEED_GENERATOR, "generator"))
    found = []
    for number in (3, 4):
        keras.utils.set_random_seed(number)
        estimator = make_estimator(tmp_path / str(number), layers_model_fn(keras, "v1"), tf_random_seed=1)
        found.append([row["outputs"].tolist() for row in estimator.predict(finite_input_fn(8))])
    assert found[0] == found[1]


def test_initial_values_follow_the_seed(keras: Any, tmp_path: Path) -> None:
    def run(folder: str, seed: int | None) -> Any:
        random.seed()  # as in a new process
        # Without a checkpoint, predictions are those of the initial values.
        estimator = make_estimator(tmp_path / folder, layers_model_fn(keras, "v1"), tf_random_seed=seed)
        return np.array([row["outputs"] for row in estimator.predict(finite_input_fn(8))])

    first = run("a", 1)
    np.testing.assert_array_equal(run("b", 1), first)
    assert np.abs(run("c", 2) - first).max() > 1e-3
    assert np.abs(run("d", None) - first).max() > 1e-3


def test_unseeded_keras_3_draws_repeat_per_run_but_differ_per_step(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        noise = keras.random.normal([8])
        return TPUEstimatorSpec(mode, predictions={"noise": noise, "outputs": programs.linear(features["x"])})

    first, second = (
        [row["noise"] for row in make_estimator(tmp_path / folder, model_fn).predict(finite_input_fn(8))]
        for folder in "ab"
    )
    assert first == second
    assert len(set(first)) == 8
    eager = keras.random.normal([2])  # the generator of the traces is not left behind
    assert np.isfinite(eager.numpy()).all()


def test_restores_the_state_of_keras_and_random() -> None:
    keras = pytest.importorskip("keras")
    with fresh_keras_state(None):
        names = [keras.layers.Dense(1).name for _ in range(2)]
        assert names == ["dense", "dense_1"]
        with fresh_keras_state(3):
            assert keras.layers.Dense(1).name == "dense"
        assert keras.layers.Dense(1).name == "dense_2"
    drawn = []
    for _ in range(2):
        random.seed(5)
        with fresh_keras_state(3):
            drawn.append(random.random())
        drawn.append(random.random())
    assert drawn[:2] == drawn[2:] == [random.Random(3).random(), random.Random(5).random()]


@pytest.mark.parametrize("module", [None, types.ModuleType("keras of another build")])
def test_works_without_keras_or_with_an_unknown_build(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras.src.backend.common.global_state", module)
    with fresh_keras_state(1):
        assert random.random() == random.Random(1).random()


def test_a_model_fn_may_be_the_first_to_import_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    keras = pytest.importorskip("keras")
    name = "keras.src.backend.common.global_state"
    module = sys.modules[name]
    monkeypatch.delitem(sys.modules, name)
    with fresh_keras_state(1):
        monkeypatch.setitem(sys.modules, name, module)
        keras.layers.Dense(1)
    for _ in range(2):
        with fresh_keras_state(1):
            assert keras.layers.Dense(1).name == "dense"
