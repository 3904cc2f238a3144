"""Scaffolds: averages in place of variables, initial values, savers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import X, Y, finite_input_fn, make_estimator, train_input_fn, v1
from tpudata.estimator import (
    CheckpointError,
    CrossShardOptimizer,
    EstimatorSpec,
    EvalSpec,
    ModeKeys,
    TPUEstimatorSpec,
    TrainSpec,
    export,
    train_and_evaluate,
)

REPLICAS = pytest.mark.parametrize("replicas", [1, 2])


def ema_model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
    """Trains the variables, and evaluates their moving averages."""
    outputs = programs.linear(features["x"])
    average = v1.train.ExponentialMovingAverage(0.5)

    def scaffold_fn() -> Any:
        return v1.train.Scaffold(saver=v1.train.Saver(average.variables_to_restore()))

    if mode == ModeKeys.PREDICT:
        return TPUEstimatorSpec(mode, {"outputs": outputs}, scaffold_fn=scaffold_fn)
    loss = tf.reduce_mean((outputs - labels) ** 2)
    if mode == ModeKeys.EVAL:
        return TPUEstimatorSpec(mode, loss=loss, scaffold_fn=scaffold_fn)
    optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
    with tf.control_dependencies([optimizer.minimize(loss, v1.train.get_global_step())]):
        train_op = average.apply(v1.trainable_variables())
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def averaged(steps: int) -> tuple[Any, Any]:
    """The oracle: the weights (with the bias last) after the steps, and their average, in NumPy."""
    weights = np.append(programs.W0[:, 0].astype(np.float64), 0.0)
    average = weights.copy()
    for step in range(steps):
        rows = np.arange(step * 8, step * 8 + 8) % 40
        x = np.column_stack([X[rows], np.ones(8)])
        weights = weights - 0.1 * 2 * x.T @ (x @ weights - Y[rows]) / 8
        average = 0.5 * average + 0.5 * weights
    return weights, average


@REPLICAS
def test_evaluation_and_prediction_use_averages_and_training_does_not(replicas: int, tmp_path: Path) -> None:
    estimator = make_estimator(
        tmp_path, ema_model_fn, tpu_config={"num_replicas": replicas}, save_checkpoints_steps=4, iterations=4
    )

    def whole(params: dict[str, Any]) -> Any:
        return train_input_fn(params).take(5)

    spec = EvalSpec(whole, throttle_secs=0)
    result, _ = train_and_evaluate(estimator, TrainSpec(train_input_fn, max_steps=8), spec)
    assert result is not None
    weights, average = averaged(8)
    expected = X @ average[:3] + average[3]
    assert result["loss"] == pytest.approx(np.mean((expected - Y) ** 2), rel=1e-4)
    found = [row["outputs"] for row in estimator.predict(whole)]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    # Training goes on from the variables, not from their averages.
    np.testing.assert_allclose(estimator.get_variable_value("linear/w")[:, 0], weights[:3], rtol=1e-4, atol=1e-6)
    estimator.train(train_input_fn, steps=1)
    rows = np.arange(8)
    x = np.column_stack([X[rows], np.ones(8)])
    weights = weights - 0.1 * 2 * x.T @ (x @ weights - Y[rows]) / 8
    np.testing.assert_allclose(estimator.get_variable_value("linear/w")[:, 0], weights[:3], rtol=1e-4, atol=1e-6)


def test_an_export_uses_the_averages(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path / "model", ema_model_fn)
    estimator.train(train_input_fn, steps=3)
    receiver = export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 3])})
    path = estimator.export_saved_model(str(tmp_path / "export"), receiver)
    served = tf.saved_model.load(path.decode()).signatures["serving_default"](x=tf.constant(X))
    _, average = averaged(3)
    np.testing.assert_allclose(served["outputs"], X @ average[:3] + average[3], rtol=1e-4, atol=1e-5)


def with_scaffold(calls: list[str] | None = None, **pieces: Any) -> Any:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        outputs = programs.linear(features["x"])

        def scaffold_fn() -> Any:
            if calls is not None:
                calls.append(mode)
            made = {name: piece() if name != "init_fn" else piece for name, piece in pieces.items()}
            return v1.train.Scaffold(**made)

        if mode == ModeKeys.PREDICT:
            return TPUEstimatorSpec(mode, {"outputs": outputs}, scaffold_fn=scaffold_fn)
        loss = tf.reduce_mean((outputs - labels) ** 2)
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.0))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, scaffold_fn=scaffold_fn)

    return model_fn


def test_scaffold_fn_runs_once_in_each_call(tmp_path: Path) -> None:
    calls: list[str] = []
    estimator = make_estimator(tmp_path, with_scaffold(calls))
    for _ in range(2):
        estimator.train(train_input_fn, steps=2)
        estimator.evaluate(finite_input_fn(16))
        list(estimator.predict(finite_input_fn(16)))
    assert calls == ["train", "eval", "infer"] * 2


@REPLICAS
def test_init_op_and_init_fn_set_initial_values_once(replicas: int, tmp_path: Path) -> None:
    told: list[Any] = []

    def init_fn(scaffold: Any, session: Any) -> None:
        w, b = v1.trainable_variables()
        told.append(session.run(w))
        b.load(np.array([5.0], np.float32), session)

    def init_op() -> Any:
        return v1.trainable_variables()[0].assign(np.full([3, 1], 2.0, np.float32))

    model_fn = with_scaffold(init_op=init_op, init_fn=init_fn)
    estimator = make_estimator(tmp_path, model_fn, tpu_config={"num_replicas": replicas})
    for _ in range(2):
        estimator.train(train_input_fn, steps=1)
        np.testing.assert_array_equal(estimator.get_variable_value("linear/w"), np.full([3, 1], 2.0))
        assert estimator.get_variable_value("linear/b") == 5.0
    assert len(told) == 1  # only without a checkpoint
    np.testing.assert_array_equal(told[0], np.full([3, 1], 2.0))


def test_local_init_op_runs_each_time(tmp_path: Path) -> None:
    def local_init_op() -> Any:
        return v1.trainable_variables()[1].assign_add([1.0])

    estimator = make_estimator(tmp_path, with_scaffold(local_init_op=local_init_op))
    for calls in (1, 2):
        estimator.train(train_input_fn, steps=1)
        assert estimator.get_variable_value("linear/b") == calls
    assert next(row["outputs"] for row in estimator.predict(finite_input_fn(1))) == pytest.approx(
        (X[0] @ programs.W0)[0] + 3, rel=1e-5
    )


def test_a_scaffolds_saver_writes_the_checkpoints(tmp_path: Path) -> None:
    def saver() -> Any:
        return v1.train.Saver(max_to_keep=2)

    estimator = make_estimator(
        tmp_path, with_scaffold(saver=saver), save_checkpoints_steps=1, keep_checkpoint_max=9, iterations=1
    )
    for _ in range(2):
        estimator.train(train_input_fn, steps=3)
    assert sorted(path.name for path in tmp_path.glob("*.index")) == ["model.ckpt-5.index", "model.ckpt-6.index"]
    assert estimator.get_variable_names() == ["global_step", "linear/b", "linear/w"]
    assert estimator.evaluate(finite_input_fn(8))["global_step"] == 6


def test_rejects_a_saver_whose_variables_are_missing(tmp_path: Path) -> None:
    def saver() -> Any:
        return v1.train.Saver({"other": v1.trainable_variables()[0]})

    make_estimator(tmp_path).train(train_input_fn, steps=1)
    with pytest.raises(CheckpointError, match=r"saver.*model\.ckpt-1.*other"):
        make_estimator(tmp_path, with_scaffold(saver=saver)).evaluate(finite_input_fn(8))


def test_estimator_spec_accepts_a_scaffold(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        outputs = programs.linear(features["x"])
        loss = tf.reduce_mean((outputs - labels) ** 2)
        op = v1.trainable_variables()[1].assign([7.0])
        train_op = v1.train.GradientDescentOptimizer(0.0).minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op, scaffold=v1.train.Scaffold(init_op=op))

    estimator = make_estimator(tmp_path, model_fn)
    estimator.evaluate(finite_input_fn(8))


def test_rejects_a_scaffold_fn_that_returns_no_scaffold(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        return TPUEstimatorSpec(mode, loss=loss, scaffold_fn=lambda: 3)

    with pytest.raises(TypeError, match=r"Scaffold, got int"):
        make_estimator(tmp_path, model_fn).evaluate(finite_input_fn(8))


@pytest.mark.parametrize("result", [None, v1.train.Scaffold])
def test_scaffold_fn_can_return_none_or_an_empty_scaffold(result: Any, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, scaffold_fn=lambda: result and result())

    assert make_estimator(tmp_path, model_fn).train(train_input_fn, steps=2).get_variable_value("global_step") == 2
