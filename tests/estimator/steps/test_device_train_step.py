"""Training on several devices through the estimator: the results of its loops, and their ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import Program, X, Y, make_estimator, make_model_fn, own_variables, side_by_side, v1
from tpudata.estimator import CrossShardOptimizer, EstimatorSpec, ModeKeys, NonFiniteError, TPUEstimatorSpec


def trained(folder: Path, model_fn: Any, replicas: int, input_fn: Any, steps: int, **config: Any) -> Any:
    settings = {"tpu_config": {"num_replicas": replicas}, "save_summary_steps": 1, **config}
    return make_estimator(folder, model_fn, **settings).train(input_fn, max_steps=steps)


def same_rows(params: dict[str, Any]) -> Any:
    """Repeat one batch."""
    return tf.data.Dataset.from_tensors(({"x": X[:8]}, Y[:8])).unbatch().repeat().batch(params["batch_size"], True)


def minimized(net: Callable[[Any], Any]) -> Program:
    def program(features: Any, labels: Any, steps: Any) -> tuple[Any, Any]:
        weights = v1.get_variable("w", [3], initializer=v1.ones_initializer())
        loss = tf.reduce_mean((tf.linalg.matvec(net(features["x"]), weights) - labels) ** 2)
        optimizer = CrossShardOptimizer(v1.train.AdamOptimizer(0.05))
        return loss, optimizer.minimize(loss, global_step=steps, var_list=own_variables())

    return program


def recurrent(rate: float) -> Callable[[Any], Any]:
    """Return a net of a v1 cell in a while loop, with dropout between its steps."""

    class Cell:
        state_size = output_size = 3

        def zero_state(self, rows: Any, dtype: Any) -> Any:
            return tf.zeros([rows, 3], dtype)

        def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:  # noqa: ARG002
            kernel = v1.get_variable("kernel", [3, 3], initializer=v1.constant_initializer(0.2))
            state = tf.tanh(inputs + v1.nn.dropout(state, rate=rate) @ kernel)
            return state, state

    def net(x: Any) -> Any:
        rows = tf.stack([x, 2 * x, -x, 3 * x], axis=1)
        return v1.nn.dynamic_rnn(Cell(), rows, dtype=tf.float32)[1]

    return net


def test_a_recurrent_net_trains_as_on_plain_tensorflow(tmp_path: Path) -> None:
    model_fn = side_by_side({"it": minimized(recurrent(0.0))})
    one, four = (
        programs.variables(trained(tmp_path / str(count), model_fn, count, programs.train_input_fn, 8))
        for count in (1, 4)
    )
    assert not np.allclose(one["it/rnn/kernel"], 0.2)
    for name, value in one.items():
        np.testing.assert_allclose(four[name], value, 1e-4, 1e-6, err_msg=name)


DROPOUTS: dict[str, Callable[[Any], Any]] = {
    "seeded": lambda x: v1.nn.dropout(x, rate=0.5, seed=3),
    "recurrent": recurrent(0.5),
    "keras": lambda x: pytest.importorskip("keras").layers.Dropout(0.5)(x, training=True),
}


def test_resumed_training_with_draws_equals_uninterrupted_training(tmp_path: Path) -> None:
    """A new estimator stands for a new process, as draws depend only on seed, step and replica."""
    model_fn = side_by_side({name: minimized(net) for name, net in DROPOUTS.items()})
    whole = trained(tmp_path / "whole", model_fn, 2, same_rows, 7, iterations=7)
    for limit in (3, 7):
        cut = trained(tmp_path / "cut", model_fn, 2, same_rows, limit, iterations=2)
    found, expected = programs.variables(cut), programs.variables(whole)
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    losses = programs.losses(tmp_path / "whole")
    assert programs.losses(tmp_path / "cut") == losses


def test_keras_layers_draw_differently_per_replica_and_step(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        mask = keras.layers.Dropout(0.5, seed=3)(tf.ones([1, 40]), training=True)
        masks = tf.distribute.get_replica_context().all_gather(mask, 0)
        drawn = v1.get_variable("drawn", [3, 2, 40], initializer=v1.zeros_initializer(), trainable=False)
        step = v1.train.get_global_step()
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        kept = drawn.assign(tf.tensor_scatter_nd_update(drawn, [[tf.cast(step, tf.int32)]], masks[tf.newaxis]))
        with tf.control_dependencies([kept]):
            train_op = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1)).minimize(loss, step)
        return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = trained(tmp_path, model_fn, 2, same_rows, 3)
    drawn = estimator.get_variable_value("drawn").reshape(6, 40)
    assert len({mask.tobytes() for mask in drawn}) == 6
    assert estimator.get_variable_value("seed_generator/seed_generator_state").tolist() == [3, 3]


def test_features_of_all_dtypes_and_constants_keep_their_values(tmp_path: Path) -> None:
    big = np.arange(8, dtype=np.int64) * 2**40 + 1
    flags = np.array([True, False, True, True, False, False, True, True])

    def input_fn(params: dict[str, Any]) -> Any:
        features = {"x": tf.constant(X[:8], tf.bfloat16), "big": big, "flags": flags}
        return tf.data.Dataset.from_tensor_slices((features, Y[:8])).repeat().batch(params["batch_size"], True)

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        assert features["x"].dtype == tf.bfloat16
        context = tf.distribute.get_replica_context()
        count = v1.get_variable("count", [], tf.int64, v1.zeros_initializer(), trainable=False)
        chosen = v1.get_variable("chosen", [], tf.int32, v1.zeros_initializer(), trainable=False)
        last = v1.get_variable("last", [], tf.bool, v1.zeros_initializer(), trainable=False)
        scale = v1.get_variable("scale", [3], tf.bfloat16, v1.constant_initializer(0.5), trainable=False)
        outputs = programs.linear(tf.cast(features["x"] * scale, tf.float32))
        loss = tf.reduce_mean(tf.where(features["flags"], (outputs - labels) ** 2, 0.0))
        updates = [
            count.assign_add(context.all_reduce("SUM", tf.reduce_sum(features["big"]))),
            chosen.assign_add(context.all_reduce("SUM", tf.reduce_sum(tf.cast(features["flags"], tf.int32)))),
            last.assign(features["flags"][0]),
        ]
        optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(train_op, *updates))

    found = {
        count: programs.variables(trained(tmp_path / str(count), model_fn, count, input_fn, 5)) for count in (1, 4)
    }
    for values in found.values():
        assert values["count"] == 5 * big.sum()
        assert values["chosen"] == 5 * flags.sum()
        assert values["last"]
        assert values["scale"].tolist() == [0.5] * 3
    np.testing.assert_allclose(found[4]["linear/w"], found[1]["linear/w"], 1e-4, 1e-6)


@pytest.mark.parametrize("iterations", [1, 10])
def test_a_nan_loss_ends_training_at_its_step(iterations: int, tmp_path: Path) -> None:
    labels = np.tile(Y, 2)
    labels[8 * 4 + 7] = np.nan  # the last row of the fifth batch, of the last replica

    def input_fn(params: dict[str, Any]) -> Any:
        rows = ({"x": np.tile(X, (2, 1))}, labels)
        return tf.data.Dataset.from_tensor_slices(rows).batch(params["batch_size"], True)

    with pytest.raises(NonFiniteError, match=r"stopped at step 5: the loss is nan"):
        trained(tmp_path, None, 4, input_fn, 9, iterations=iterations)
    assert programs.saved_steps(tmp_path) == [0]


def test_a_loop_can_be_longer_than_a_stack(tmp_path: Path) -> None:
    """A replica has 16 MiB in a batch, and a stack at most 64 MiB: 4 steps of a loop of 10."""

    def input_fn(params: dict[str, Any]) -> Any:
        size = params["batch_size"]
        return tf.data.Dataset.range(1, 100).map(lambda number: tf.fill([size, 2**24], tf.cast(number, tf.uint8)))

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        del labels
        total = v1.get_variable("total", [], initializer=v1.zeros_initializer(), trainable=False)
        loss = tf.reduce_mean(tf.cast(features[:, -1], tf.float32))
        step = v1.train.get_global_step().assign_add(1)
        return TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(step, total.assign_add(loss)))

    estimator = trained(tmp_path, model_fn, 2, input_fn, 11, batch_size=2, iterations=10)
    assert programs.losses(tmp_path) == [float(step) for step in range(1, 12)]
    assert estimator.get_variable_value("total") == 66


def test_a_loop_compiles_once_wherever_it_ends_in_a_stack(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with jax.log_compiles():
        trained(tmp_path, None, 2, programs.train_input_fn, 12, iterations=5, save_checkpoints_steps=3)
    assert programs.saved_steps(tmp_path) == [0, 3, 6, 9, 12]
    assert sum("Finished XLA compilation of jit(run)" in message for message in caplog.messages) == 1


def test_steps_use_values_that_a_hook_assigns_in_a_condition(tmp_path: Path) -> None:
    class Reset(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            variable = next(item for item in v1.trainable_variables() if item.op.name == "linear/b")
            step = v1.train.get_global_step()
            self.reset = tf.cond(step > 0, lambda: variable.assign([100.0]), lambda: variable.assign([0.0]))

        def after_run(self, context: Any, values: Any) -> None:
            del values
            context.session.run(self.reset)

    one, two = (
        make_estimator(tmp_path / str(count), tpu_config={"num_replicas": count})
        .train(programs.train_input_fn, max_steps=2, hooks=[Reset()])
        .get_variable_value("linear/w")
        for count in (1, 2)
    )
    assert np.abs(one).max() > 1
    np.testing.assert_allclose(two, one, 1e-5)


def test_host_call_gets_the_rows_of_all_replicas_at_each_step(tmp_path: Path) -> None:
    def seen_with(replicas: int) -> list[list[float]]:
        seen: list[list[float]] = []

        def note(rows: Any) -> None:
            seen.append(rows.numpy().tolist())

        def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
            spec = make_model_fn()(features, labels, mode, {})
            rows = tf.stack([tf.cast(v1.train.get_global_step(), tf.float32) + 0 * labels, labels], axis=1)
            return spec._replace(host_call=(lambda rows: tf.py_function(note, [rows], []), [rows]))

        trained(tmp_path / str(replicas), model_fn, replicas, programs.train_input_fn, 6)
        return seen

    one = seen_with(1)
    assert len(one) == 6
    assert np.array(one).shape == (6, 8, 2)
    assert seen_with(4) == one


def test_evaluation_on_devices_equals_plain_tensorflow(tmp_path: Path) -> None:
    """eval_metrics run on the host; the sums of eval_metric_ops are each replica's, and count together."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        spec: Any = make_model_fn()(features, labels, mode, {})
        if mode != ModeKeys.EVAL:
            return spec
        assert spec.eval_metrics is not None
        outputs: Any = list(spec.eval_metrics[1])[1]
        metrics = {
            "mean": v1.metrics.mean(outputs),
            "accuracy": v1.metrics.accuracy(labels > 0, outputs > 0),
            "iou": v1.metrics.mean_iou(labels > 0, outputs > 0, 2),
            "rmse": v1.metrics.root_mean_squared_error(labels, outputs),
        }
        return EstimatorSpec(mode, loss=spec.loss, eval_metric_ops=metrics)

    make_estimator(tmp_path, model_fn).train(programs.train_input_fn, max_steps=3)
    for kind in (model_fn, None):
        one, four = (
            make_estimator(tmp_path, kind, tpu_config={"num_replicas": count}).evaluate(
                programs.train_input_fn, steps=4
            )
            for count in (1, 4)
        )
        assert sorted(one) == sorted(four)
        assert len(one) == (6 if kind else 3)
        for name, value in one.items():
            np.testing.assert_allclose(four[name], value, 1e-5, err_msg=name)


def test_evaluations_and_predictions_with_hooks_compile_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Fetch(v1.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, context: Any) -> Any:
            return v1.train.SessionRunArgs(context.session.graph.get_tensor_by_name("linear/w/Read/ReadVariableOp:0"))

    def whole_batches(params: dict[str, Any]) -> Any:
        return programs.train_input_fn(params).take(2)

    estimator = make_estimator(tmp_path, tpu_config={"num_replicas": 2})
    runs: list[Callable[[], Any]] = [
        lambda: estimator.evaluate(whole_batches, hooks=[Fetch()]),
        lambda: [row["outputs"] for row in estimator.predict(whole_batches, hooks=[Fetch()])],
    ]
    for run in runs:
        with jax.log_compiles():
            assert run() == run()
        compiled = [message for message in caplog.messages if "Finished XLA compilation of jit(run)" in message]
        assert len(compiled) == 1
        caplog.clear()
