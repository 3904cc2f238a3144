"""A program's own optimizers: several replicas train as one, or reject the optimizer."""

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
from tests.estimator.programs import Program, make_estimator, own_variables, side_by_side, train_input_fn, v1
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


def minimized(name: str) -> Program:
    """The program counts the steps that the optimizer does not count."""

    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = regression(features, labels)
        optimizer = CrossShardOptimizer(custom.OPTIMIZERS[name]())
        train_op = optimizer.minimize(loss, global_step=steps, var_list=own_variables())
        if name in custom.COUNT_NO_STEPS:
            train_op = tf.group(train_op, steps.assign(steps + 1))
        return loss, train_op

    return program


@pytest.mark.parametrize("name", custom.OPTIMIZERS)
def test_rejects_an_unwrapped_optimizer_on_several_replicas(name: str, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = regression(features, labels)
        train_op = custom.OPTIMIZERS[name]().minimize(loss, global_step=v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    with pytest.raises(ModelFnError, match=r"'linear/[wb]'.*CrossShardOptimizer\(optimizer\)"):
        trained(tmp_path, model_fn, 2, steps=1)


def assigned(how: str) -> Program:
    """Return a program with a wrapped optimizer, and a variable that it changes itself."""

    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = regression(features, labels)
        weights = own_variables()[0]
        other = v1.get_variable("other", [3], initializer=v1.ones_initializer())
        average = v1.get_variable("average", [3], initializer=v1.zeros_initializer(), trainable=False)
        rows = tf.reduce_mean(features["x"], axis=0)
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, global_step=steps)
        with tf.control_dependencies([train_op]):
            changes = {
                "assign": lambda: other.assign(rows),
                "assign_add": lambda: other.assign_add(rows),
                "assign_sub": lambda: v1.assign_sub(other, rows),
                "scatter_update": lambda: v1.scatter_update(other, [0], rows[:1]),
                "scatter_add": lambda: other.scatter_add(tf.IndexedSlices(rows[:1], [1])),
                "slice": lambda: other[:1].assign(rows[:1]),
                "through another variable": lambda: other.assign(average.assign(rows).read_value() ** 2),
                "of the variable": lambda: other.assign(tf.clip_by_value(other + 1.0, -2.0, 2.0)),
                "of the weights": lambda: other.assign(weights.read_value()[:, 0]),
            }
            return loss, tf.group(train_op, changes[how]())

    return program


@pytest.mark.parametrize(
    "how",
    ["assign", "assign_add", "assign_sub", "scatter_update", "scatter_add", "slice", "through another variable"],
)
def test_rejects_assigning_differing_values_to_a_trainable_variable(how: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFnError, match=r"changes the trainable variable 'it/other'.*trainable=False"):
        trained(tmp_path, side_by_side({"it": assigned(how)}), 2, steps=1)


def by_steps(optimizer: Callable[[], Any], norm: float, source: str = "compute_gradients") -> Program:
    """Gradients that the program clips between computing and applying them, as BERT does."""

    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = regression(features, labels)
        wrapper = CrossShardOptimizer(optimizer())
        variables: Any = own_variables()
        if source == "compute_gradients":
            gradients, variables = zip(*wrapper.compute_gradients(loss, variables), strict=True)
        else:
            gradients = tf.gradients(loss, variables)
        gradients, _ = tf.clip_by_global_norm(gradients, norm)
        train_op = wrapper.apply_gradients(zip(gradients, variables, strict=True), global_step=steps)
        return loss, tf.group(train_op, steps.assign(steps + 1))

    return program


def test_sums_gradients_from_elsewhere_and_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def twice(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = regression(features, labels)
        train_op = custom.WeightDecayAdam().minimize(2 * loss)
        return loss, tf.group(train_op, steps.assign(steps + 1))

    one = trained(tmp_path, side_by_side({"it": twice}), 1, steps=STEPS)
    assert "compute_gradients" not in caplog.text
    elsewhere = by_steps(custom.WeightDecayAdam, 1e6, "tf.gradients")
    several = trained(tmp_path, side_by_side({"it": elsewhere}), 2, steps=STEPS)
    assert caplog.text.count("summed over 2 replicas") == 1
    assert_equal_runs(one, several)


def summed(name: str) -> Program:
    """Return a program whose gradients are summed, not averaged."""

    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = regression(features, labels)
        reduction = v1.losses.Reduction.SUM
        computes, applies = (CrossShardOptimizer(custom.OPTIMIZERS[name](), reduction) for _ in range(2))
        pairs = computes.compute_gradients(loss, own_variables())
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        train_op = applies.apply_gradients([(gradient / replicas, variable) for gradient, variable in pairs])
        return loss, tf.group(train_op, steps.assign(steps + 1))

    return program


def of_keras(make: Callable[[Any], Any], library: str) -> Program:
    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        loss = regression(features, labels)
        optimizer = CrossShardOptimizer(make(pytest.importorskip(library).optimizers))
        return loss, optimizer.minimize(loss, global_step=steps, var_list=own_variables())

    return program


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
# The same optimizer of the other library, and another of the same library, cover these.
MATRIX = {("plain steps", "keras"), ("clipped", "keras"), ("weight decay", "tf_keras")}


def of_rows(make: Callable[[], Any]) -> Program:
    """Gradients of some rows of a table."""

    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        table = v1.get_variable("table", [5, 3], initializer=v1.ones_initializer())
        rows = tf.gather(table, tf.cast(tf.abs(features["x"][:, 0]) * 2.0, tf.int32) % 5)
        loss = tf.reduce_mean((tf.reduce_sum(rows * features["x"], axis=1) - labels) ** 2)
        return loss, CrossShardOptimizer(make()).minimize(loss, global_step=steps, var_list=own_variables())

    return program


def scaled_loss(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
    """TensorFlow's own wrapper for mixed precision, which runs the inner optimizer on replicas that it starts itself."""
    loss = regression(features, labels)
    scaled = v1.mixed_precision.MixedPrecisionLossScaleOptimizer(v1.train.MomentumOptimizer(0.05, 0.9), 128.0)
    return loss, CrossShardOptimizer(scaled).minimize(loss, global_step=steps, var_list=own_variables())


PROGRAMS: dict[str, Program] = {
    **{name: minimized(name) for name in custom.OPTIMIZERS},
    **{f"{how} assigned": assigned(how) for how in ("of the variable", "of the weights")},
    "clipped between": by_steps(custom.WeightDecayAdam, 1e6),
    **{f"{name} summed": summed(name) for name in ("by hand", "decayed")},
    "by hand of rows": of_rows(custom.OPTIMIZERS["by hand"]),
    "adam of rows": of_rows(lambda: v1.train.AdamOptimizer(0.05)),
    "scaled loss": scaled_loss,
    **{f"{library} {name}": of_keras(KERAS[name], library) for name in KERAS for library in ("tf_keras", "keras")},
}
# Programs that other tests cover, or that resemble another.
LIKE_OTHERS = {"layerwise", "decayed", "clipped by hand", *(f"{library} {name}" for name, library in MATRIX)}


@pytest.mark.matrix
@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in PROGRAMS if name not in LIKE_OTHERS], id="most"),
        pytest.param(sorted(LIKE_OTHERS), id="like others", marks=pytest.mark.matrix),
    ],
)
def test_several_replicas_train_as_one(names: list[str], tmp_path: Path) -> None:
    model_fn = side_by_side({name: PROGRAMS[name] for name in names})
    one = trained(tmp_path, model_fn, 1, steps=STEPS)
    assert_equal_runs(one, trained(tmp_path, model_fn, 2, steps=STEPS))
    for name in names:
        scope = name.replace(" ", "_")
        assert one[1][f"{scope}/steps"] == STEPS
        weights = one[1].get(f"{scope}/linear/w")
        assert not np.allclose(
            one[1][f"{scope}/table"] if weights is None else weights, 1.0 if weights is None else programs.W0
        )


def test_four_replicas_equal_optimizers_written_by_hand(tmp_path: Path) -> None:
    """Compare with NumPy, on the gradients of the whole batch or of each replica's rows.

    The original, too, clips before it reduces: each replica's share of the gradient has a norm of at most 0.2.
    """
    clipping = by_steps(lambda: v1.train.GradientDescentOptimizer(0.1), 0.2)
    model_fn = side_by_side({"decay": minimized("weight decay"), "clips": clipping})
    estimator = make_estimator(tmp_path, model_fn, iterations=5, tpu_config={"num_replicas": 4})
    estimator.train(train_input_fn, max_steps=STEPS)
    w, b = programs.W0.astype(np.float64), np.zeros(1)
    moments = [[np.zeros_like(item), np.zeros_like(item)] for item in (w, b)]
    clipped = np.append(programs.W0[:, 0].astype(np.float64), 0.0)
    for step in range(STEPS):
        rows = np.arange(step * 8, step * 8 + 8) % len(programs.X)
        x, y = programs.X[rows], programs.Y[rows]
        error = (x @ w)[:, 0] + b - y
        for item, gradient, moment in zip((w, b), (x.T @ error[:, None] / 4, [2 * error.mean()]), moments, strict=True):
            moment[0] = 0.9 * moment[0] + 0.1 * np.asarray(gradient)
            moment[1] = 0.99 * moment[1] + 0.01 * np.asarray(gradient) ** 2
            update = moment[0] / (np.sqrt(moment[1]) + 1e-6) + (0.1 * item if item.ndim == 2 else 0)
            item -= 0.02 * update
        total = np.zeros(4)
        for part, wanted in zip(np.split(x, 4), np.split(y, 4), strict=True):
            error = part @ clipped[:3] + clipped[3] - wanted
            gradient = np.append(2 * part.T @ error / 2, 2 * error.mean()) / 4
            total += gradient * min(1.0, float(0.2 / np.linalg.norm(gradient)))
        clipped -= 0.1 * total
    found = programs.variables(estimator)
    np.testing.assert_allclose(found["decay/linear/w"], w, rtol=1e-4)
    np.testing.assert_allclose(found["decay/linear/b"], b, rtol=1e-4)
    np.testing.assert_allclose(np.append(found["clips/linear/w"], found["clips/linear/b"]), clipped, rtol=1e-4)
