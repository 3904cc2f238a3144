"""Optimizers of a program's: several replicas do what one does, or say that they would not."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.graph.test_replica import assert_equal_runs, trained
from tests.estimator.programs import make_estimator, train_input_fn, v1
from tpudata.estimator import CrossShardOptimizer, ModelFnError, TPUEstimatorSpec

STEPS = 6
_PATH = Path(__file__).parents[3] / "scripts" / "tf215" / "optimizers.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("optimizers", _PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


custom = _load()


def regression(features: Any, labels: Any) -> Any:
    return tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)


def model_fn_of(name: str, *, wraps: bool = True) -> Callable[..., TPUEstimatorSpec]:
    """The program counts the steps that the optimizer does not count."""

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = regression(features, labels)
        step = v1.train.get_global_step()
        optimizer = custom.OPTIMIZERS[name]()
        if wraps:
            optimizer = CrossShardOptimizer(optimizer)
        train_op = optimizer.minimize(loss, global_step=step)
        if name in custom.COUNT_NO_STEPS:
            train_op = tf.group(train_op, step.assign(step + 1))
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


# Those in other tests as well, or like another.
LIKE_OTHERS = {"layerwise", "decayed", "clipped by hand"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.matrix if name in LIKE_OTHERS else []) for name in custom.OPTIMIZERS]
)
def test_several_replicas_train_as_one(name: str, tmp_path: Path) -> None:
    one = trained(tmp_path, model_fn_of(name), 1, steps=STEPS)
    assert_equal_runs(one, trained(tmp_path, model_fn_of(name), 2, steps=STEPS))
    assert one[1]["global_step"] == STEPS
    assert one[0][-1] < one[0][0]


@pytest.mark.parametrize("name", custom.OPTIMIZERS)
def test_an_unwrapped_one_is_an_error_on_several_replicas(name: str, tmp_path: Path) -> None:
    model_fn = model_fn_of(name, wraps=False)
    with pytest.raises(ModelFnError, match=r"'linear/[wb]'.*CrossShardOptimizer\(optimizer\)"):
        trained(tmp_path, model_fn, 2, steps=1)


def assigned(how: str) -> Callable[..., TPUEstimatorSpec]:
    """A wrapped optimizer, and a variable that changes in a way of the program's."""

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = regression(features, labels)
        trainable = not how.startswith("not trainable")
        other = v1.get_variable("other", [3], initializer=v1.ones_initializer(), trainable=trainable)
        average = v1.get_variable("average", [3], initializer=v1.zeros_initializer(), trainable=False)
        rows = tf.reduce_mean(features["x"], axis=0)
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        with tf.control_dependencies([train_op]):
            changes = {
                "assign": lambda: other.assign(rows),
                "assign_add": lambda: other.assign_add(rows),
                "assign_sub": lambda: v1.assign_sub(other, rows),
                "scatter_update": lambda: v1.scatter_update(other, [0], rows[:1]),
                "scatter_add": lambda: other.scatter_add(tf.IndexedSlices(rows[:1], [1])),
                "slice": lambda: other[:1].assign(rows[:1]),
                "through another variable": lambda: other.assign(average.assign(rows).read_value() ** 2),
                "not trainable": lambda: other.assign_add(rows),
                "of the variable": lambda: other.assign(tf.clip_by_value(other + 1.0, -2.0, 2.0)),
                "of the weights": lambda: other.assign(v1.trainable_variables()[0].read_value()[:, 0]),
            }
            train_op = tf.group(train_op, changes[how]())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


@pytest.mark.parametrize(
    "how",
    ["assign", "assign_add", "assign_sub", "scatter_update", "scatter_add", "slice", "through another variable"],
)
def test_a_trainable_variable_is_assigned_nothing_that_differs_between_replicas(how: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFnError, match=r"changes the trainable variable 'other'.*trainable=False"):
        trained(tmp_path, assigned(how), 2, steps=1)


@pytest.mark.parametrize("how", ["not trainable", "of the variable", "of the weights"])
def test_other_assigns_are_as_on_one_replica(how: str, tmp_path: Path) -> None:
    one = trained(tmp_path, assigned(how), 1, steps=3)
    assert_equal_runs(one, trained(tmp_path, assigned(how), 2, steps=3))


def by_steps(optimizer: Callable[[], Any], norm: float, source: str) -> Callable[..., TPUEstimatorSpec]:
    """Gradients that the program clips between computing and applying them, as BERT does."""

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = regression(features, labels)
        step = v1.train.get_global_step()
        wrapper = CrossShardOptimizer(optimizer())
        variables = v1.trainable_variables()
        if source == "compute_gradients":
            gradients, variables = zip(*wrapper.compute_gradients(loss), strict=True)
        else:
            gradients = tf.gradients(loss, variables)
        gradients, _ = tf.clip_by_global_norm(gradients, norm)
        train_op = wrapper.apply_gradients(zip(gradients, variables, strict=True), global_step=step)
        return TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(train_op, step.assign(step + 1)))

    return model_fn


def test_clipping_sees_one_replica_s_gradients(tmp_path: Path) -> None:
    """The original, too, clips before it reduces: each replica's share of the gradient has a norm of at most 0.2."""
    model_fn = by_steps(lambda: v1.train.GradientDescentOptimizer(0.1), 0.2, "compute_gradients")
    _, values = trained(tmp_path, model_fn, 4, steps=1)
    total = np.zeros(4)
    for rows in np.split(np.arange(8), 4):
        x, y = programs.X[rows], programs.Y[rows]
        error = (x @ programs.W0)[:, 0] - y
        gradient = np.append(2 * x.T @ error / 2, 2 * error.mean()) / 4
        total += gradient * min(1.0, 0.2 / np.linalg.norm(gradient))
    np.testing.assert_allclose(values["linear/w"][:, 0], programs.W0[:, 0] - 0.1 * total[:3], rtol=1e-5)
    np.testing.assert_allclose(values["linear/b"], -0.1 * total[3:], rtol=1e-5)


def test_compute_gradients_then_clip_then_apply(tmp_path: Path) -> None:
    model_fn = by_steps(custom.WeightDecayAdam, 1e6, "compute_gradients")
    one = trained(tmp_path, model_fn, 1, steps=STEPS)
    assert_equal_runs(one, trained(tmp_path, model_fn, 2, steps=STEPS))


def test_gradients_from_elsewhere_are_summed_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def twice(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = regression(features, labels)
        step = v1.train.get_global_step()
        train_op = custom.WeightDecayAdam().minimize(2 * loss)
        return TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(train_op, step.assign(step + 1)))

    one = trained(tmp_path, twice, 1, steps=STEPS)
    assert "compute_gradients" not in caplog.text
    several = trained(tmp_path, by_steps(custom.WeightDecayAdam, 1e6, "tf.gradients"), 2, steps=STEPS)
    assert caplog.text.count("summed over 2 replicas") == 1
    assert_equal_runs(one, several)


@pytest.mark.parametrize("name", ["by hand", "decayed"])
def test_a_sum_is_not_averaged(name: str, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = regression(features, labels)
        step = v1.train.get_global_step()
        reduction = v1.losses.Reduction.SUM
        pairs = CrossShardOptimizer(custom.OPTIMIZERS[name](), reduction).compute_gradients(loss)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        pairs = [(gradient / replicas, variable) for gradient, variable in pairs]
        train_op = CrossShardOptimizer(custom.OPTIMIZERS[name](), reduction).apply_gradients(pairs)
        return TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(train_op, step.assign(step + 1)))

    one = trained(tmp_path, model_fn, 1, steps=STEPS)
    assert_equal_runs(one, trained(tmp_path, model_fn, 2, steps=STEPS))


def keras_model_fn(make: Callable[[Any], Any], library: str) -> Callable[..., TPUEstimatorSpec]:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        keras = pytest.importorskip(library)
        loss = regression(features, labels)
        optimizer = CrossShardOptimizer(make(keras.optimizers))
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def plain_steps(optimizers: Any) -> Any:
    """Overrides apply_gradients, and updates with plain assigns."""

    class PlainSteps(optimizers.SGD):  # type: ignore[misc]
        def apply_gradients(self, grads_and_vars: Any, **kwargs: Any) -> Any:  # noqa: ARG002
            return tf.group(*[variable.assign(variable - 0.1 * tf.sign(g) * g**2) for g, variable in grads_and_vars])

    return PlainSteps()


def scaled_first(optimizers: Any) -> Any:
    """Overrides apply_gradients, and leaves the update to Keras."""

    class ScaledFirst(optimizers.Adam):  # type: ignore[misc]
        def apply_gradients(self, grads_and_vars: Any, **kwargs: Any) -> Any:
            return super().apply_gradients(
                [(g / (1.0 + tf.norm(g)), variable) for g, variable in grads_and_vars], **kwargs
            )

    return ScaledFirst(0.05)


KERAS: dict[str, Callable[[Any], Any]] = {
    "plain steps": plain_steps,
    "scaled first": scaled_first,
    "clipped": lambda optimizers: optimizers.SGD(0.2, global_clipnorm=0.3),
    "weight decay": lambda optimizers: optimizers.AdamW(0.05, weight_decay=0.1, clipnorm=0.4),
}
# Covered by the same optimizer of the other library, and by another one of the same library.
MATRIX = {("plain steps", "keras"), ("clipped", "keras"), ("weight decay", "tf_keras")}


@pytest.mark.parametrize(
    ("name", "library"),
    [
        pytest.param(name, library, marks=pytest.mark.matrix if (name, library) in MATRIX else [])
        for name in KERAS
        for library in ("tf_keras", "keras")
    ],
)
def test_optimizers_of_keras(name: str, library: str, tmp_path: Path) -> None:
    model_fn = keras_model_fn(KERAS[name], library)
    one = trained(tmp_path, model_fn, 1, steps=STEPS)
    assert_equal_runs(one, trained(tmp_path, model_fn, 2, steps=STEPS))
    assert one[0][-1] < one[0][0]


@pytest.mark.parametrize("name", ["by hand", "adam"])
def test_gradients_of_rows(name: str, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        table = v1.get_variable("table", [5, 3], initializer=v1.ones_initializer())
        rows = tf.gather(table, tf.cast(tf.abs(features["x"][:, 0]) * 2.0, tf.int32) % 5)
        loss = tf.reduce_mean((tf.reduce_sum(rows * features["x"], axis=1) - labels) ** 2)
        make = {**custom.OPTIMIZERS, "adam": lambda: v1.train.AdamOptimizer(0.05)}[name]
        train_op = CrossShardOptimizer(make()).minimize(loss, global_step=v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    one = trained(tmp_path, model_fn, 1, steps=STEPS)
    assert_equal_runs(one, trained(tmp_path, model_fn, 2, steps=STEPS))


def test_step_by_step_loss_scaling(tmp_path: Path) -> None:
    """TensorFlow's own wrapper for mixed precision, which runs the inner optimizer on replicas that it starts itself."""

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = regression(features, labels)
        scaled = v1.mixed_precision.MixedPrecisionLossScaleOptimizer(v1.train.MomentumOptimizer(0.05, 0.9), 128.0)
        train_op = CrossShardOptimizer(scaled).minimize(loss, global_step=v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    one = trained(tmp_path, model_fn, 1, steps=STEPS)
    assert_equal_runs(one, trained(tmp_path, model_fn, 2, steps=STEPS))


def test_any_optimizer_of_the_program_equals_one_written_by_hand(tmp_path: Path) -> None:
    """The oracle for the rule itself: NumPy, with the gradients of the whole batch."""
    model_fn = model_fn_of("weight decay")
    estimator = make_estimator(tmp_path, model_fn, iterations=5, tpu_config={"num_replicas": 4})
    estimator.train(train_input_fn, max_steps=STEPS)
    w, b = programs.W0.astype(np.float64), np.zeros(1)
    moments = [[np.zeros_like(item), np.zeros_like(item)] for item in (w, b)]
    for step in range(STEPS):
        rows = np.arange(step * 8, step * 8 + 8) % len(programs.X)
        x, y = programs.X[rows], programs.Y[rows]
        error = (x @ w)[:, 0] + b - y
        for item, gradient, moment in zip((w, b), (x.T @ error[:, None] / 4, [2 * error.mean()]), moments, strict=True):
            moment[0] = 0.9 * moment[0] + 0.1 * np.asarray(gradient)
            moment[1] = 0.99 * moment[1] + 0.01 * np.asarray(gradient) ** 2
            update = moment[0] / (np.sqrt(moment[1]) + 1e-6) + (0.1 * item if item.ndim == 2 else 0)
            item -= 0.02 * update
    np.testing.assert_allclose(estimator.get_variable_value("linear/w"), w, rtol=1e-4)
    np.testing.assert_allclose(estimator.get_variable_value("linear/b"), b, rtol=1e-4)
