"""tf.distribute as a model_fn sees it on one of several replicas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.training.moving_averages import assign_moving_average

from tests.devices.graphs.test_collectives import PARTS, REPLICAS, X, fetching
from tests.estimator.programs import v1
from tests.helpers.replicas import run_replicas, trace
from tpudata.devices.graphs.replica_context import count_replicas, hide_replicas
from tpudata.estimator import CrossShardOptimizer, ModelFnError, TPUEstimatorSpec

MEAN = tf.VariableAggregation.MEAN
Y = np.random.default_rng(1).normal(size=8).astype(np.float32)


def outputs_of(compute: Callable[[Any, Any], dict[str, Any]]) -> dict[str, np.ndarray]:
    """The outputs of a function of the context and a replica's rows of X, on four replicas."""
    run = run_replicas(lambda x: fetching(**compute(tf.distribute.get_replica_context(), x)), [[X]], REPLICAS)
    return run.outputs


def on_all(value: Any) -> Any:
    return np.broadcast_to(value, [REPLICAS, *np.shape(value)])


def test_all_reduce_handles_nested_values_and_gradients() -> None:
    def compute(context: Any, x: Any) -> dict[str, Any]:
        reduced = context.all_reduce("SUM", {"x": x, "counts": [tf.shape(x)[0], tf.constant(2, tf.int64)]})
        mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, x)
        rows = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.IndexedSlices(x[:1], tf.constant([1]), tf.shape(x)))
        gradients = tf.gradients([tf.reduce_sum(x * mean)], [x])
        rows_mean = context.all_reduce("mean", 3 + 2 * context.replica_id_in_sync_group)
        return {
            "sum": reduced["x"],
            "count": reduced["counts"][0],
            "long": reduced["counts"][1],
            "mean": mean,
            "rows": rows,
            "gradient": gradients[0],
            "integer mean": rows_mean,
        }

    found = outputs_of(compute)
    np.testing.assert_allclose(found["sum"], on_all(PARTS.sum(0)), rtol=1e-5)
    np.testing.assert_allclose(found["mean"], on_all(PARTS.mean(0)), rtol=1e-5)
    assert found["count"].tolist() == [8] * REPLICAS
    assert found["long"].tolist() == [8] * REPLICAS
    assert found["integer mean"].tolist() == [6] * REPLICAS
    np.testing.assert_allclose(found["rows"], on_all([np.zeros(3), PARTS[:, 0].sum(0)]), rtol=1e-5)
    # Of x * mean, and the mean of the replicas' gradients of the mean.
    np.testing.assert_allclose(found["gradient"], on_all(2 * PARTS.mean(0)), rtol=1e-5)


def test_all_gather_concatenates_in_replica_order() -> None:
    def compute(context: Any, x: Any) -> dict[str, Any]:
        gathered = context.all_gather([x, x > 0, tf.cast(x * 10, tf.int64)], axis=0)
        last = context.all_gather(x, axis=-1)
        weights = tf.range(8.0)[:, tf.newaxis]
        gradients = tf.gradients(tf.reduce_sum(context.all_gather(x, axis=0) * weights), x)
        names = ("floats", "truths", "integers")
        return {**dict(zip(names, gathered, strict=True)), "last": last, "gradient": gradients[0]}

    found = outputs_of(compute)
    np.testing.assert_array_equal(found["floats"], on_all(X))
    np.testing.assert_array_equal(found["truths"], on_all(X > 0))
    np.testing.assert_array_equal(found["integers"], on_all((X * 10).astype(np.int64)))
    np.testing.assert_array_equal(found["last"], on_all(np.concatenate(PARTS, axis=-1)))
    # All replicas compute the same sum, so each row gets a gradient from each replica.
    expected = REPLICAS * np.repeat(np.arange(8.0), 3).reshape(PARTS.shape)
    np.testing.assert_array_equal(found["gradient"], expected)


def test_merge_call_passes_a_strategy() -> None:
    def merge(strategy: Any, x: Any) -> dict[str, Any]:
        assert tf.distribute.in_cross_replica_context()
        assert strategy.experimental_local_results(x) == (x,)
        return {
            "merged": strategy.extended.reduce_to("SUM", x, x),
            "reduced": strategy.reduce("MEAN", x, axis=None),
            "gathered": strategy.gather(x, axis=0),
        }

    def compute(context: Any, x: Any) -> dict[str, Any]:
        assert tf.distribute.has_strategy()
        assert (
            context.num_replicas_in_sync == tf.distribute.get_strategy().num_replicas_in_sync == count_replicas() == 4
        )
        return {"number": context.replica_id_in_sync_group, **context.merge_call(merge, args=(x,))}

    found = outputs_of(compute)
    assert found["number"].tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(found["merged"], on_all(PARTS.sum(0)), rtol=1e-5)
    np.testing.assert_allclose(found["reduced"], on_all(PARTS.mean(0)), rtol=1e-5)
    np.testing.assert_array_equal(found["gathered"], on_all(X))


def test_merge_call_accepts_variables_of_keras_3() -> None:
    class KerasVariable:
        aggregation = "mean"

    def compute(context: Any, x: Any) -> dict[str, Any]:
        return {"sum": context.merge_call(lambda strategy, _: strategy.reduce("SUM", x, axis=None), (KerasVariable(),))}

    np.testing.assert_allclose(outputs_of(compute)["sum"], on_all(PARTS.sum(0)), rtol=1e-5)


def test_one_replica_has_no_strategy() -> None:
    def model(x: Any) -> TPUEstimatorSpec:
        assert not tf.distribute.has_strategy()
        assert count_replicas() == 1
        return fetching(x=tf.distribute.get_replica_context().all_reduce("SUM", x))

    graph = trace(model, [tf.TensorSpec([2])], 1).graph
    assert "CrossReplicaSum" not in {operation.type for operation in graph.get_operations()}


def test_as_single_replica_hides_the_other_replicas() -> None:
    def model(x: Any) -> TPUEstimatorSpec:
        outside = tf.distribute.get_strategy()
        with hide_replicas(), hide_replicas():
            assert not tf.distribute.has_strategy()
            assert count_replicas() == 1
            total = tf.distribute.get_replica_context().all_reduce("SUM", x)
        assert tf.distribute.get_strategy() is outside
        return fetching(x=total)

    graph = trace(model, [tf.TensorSpec([2])], 2).graph
    assert "CrossReplicaSum" not in {operation.type for operation in graph.get_operations()}
    assert not tf.distribute.has_strategy()


STARTS = {
    "run": lambda strategy: strategy.run(lambda: 1),
    "scope": lambda strategy: strategy.scope(),
    "experimental_distribute_dataset": lambda strategy: strategy.experimental_distribute_dataset([]),
    "distribute_datasets_from_function": lambda strategy: strategy.distribute_datasets_from_function(lambda: 1),
}


@pytest.mark.parametrize("method", STARTS)
def test_rejects_starting_replicas_inside_a_replica(method: str) -> None:
    def model(x: Any) -> TPUEstimatorSpec:
        STARTS[method](tf.distribute.get_strategy())
        return fetching(x=x)

    with pytest.raises(ModelFnError, match=rf"got tf.distribute.get_strategy\(\).{method}\(\) in one of 2 replicas"):
        trace(model, [tf.TensorSpec([2])], 2)


def trained(net: Callable[[Any], tuple[Any, Any]]) -> Callable[[Any, Any], TPUEstimatorSpec]:
    """A linear regression on the result of a function that also returns its updates."""

    def model(x: Any, y: Any) -> TPUEstimatorSpec:
        hidden, updates = net(x)
        weights = v1.get_variable("w", [3], initializer=v1.zeros_initializer())
        loss = tf.reduce_mean((tf.linalg.matvec(hidden, weights) - y) ** 2)
        train_op = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1)).minimize(loss)
        return TPUEstimatorSpec("train", loss=loss, train_op=tf.group(train_op, updates(loss)))

    return model


def normalization(library: str, **options: Any) -> Callable[[Any], tuple[Any, Any]]:
    def net(x: Any) -> tuple[Any, Any]:
        layer = pytest.importorskip(library).layers.BatchNormalization(momentum=0.5, **options)
        return layer(x, training=True), lambda _: getattr(layer, "updates", [])

    return net


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.filterwarnings("ignore:`layer.updates` will be removed:UserWarning")
def test_batch_normalization_uses_each_replicas_rows(library: str) -> None:
    run = run_replicas(trained(normalization(library)), [[X, Y]] * 3, REPLICAS)
    for replica, rows in enumerate(PARTS):
        mean, variance = np.zeros(3), np.ones(3)
        for _ in range(3):
            mean, variance = 0.5 * mean + 0.5 * rows.mean(0), 0.5 * variance + 0.5 * rows.var(0)
        np.testing.assert_allclose(run.variables["batch_normalization/moving_mean"][replica], mean, rtol=1e-5)
        np.testing.assert_allclose(run.variables["batch_normalization/moving_variance"][replica], variance, rtol=1e-5)
    assert np.ptp(run.variables["w"], axis=0).max() == 0


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.filterwarnings("ignore:`layer.updates` will be removed:UserWarning")
def test_synchronized_batch_normalization_uses_all_rows(library: str) -> None:
    run = run_replicas(trained(normalization(library, synchronized=True)), [[X, Y]], REPLICAS)
    mean, variance = 0.5 * X.mean(0), 0.5 + 0.5 * X.var(0)
    np.testing.assert_allclose(run.variables["batch_normalization/moving_mean"], on_all(mean), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(run.variables["batch_normalization/moving_variance"], on_all(variance), rtol=1e-4)


def test_moving_averages_of_a_loss_are_per_replica() -> None:
    average = tf.train.ExponentialMovingAverage(0.5)
    run = run_replicas(trained(lambda x: (x, lambda loss: average.apply([loss]))), [[X, Y]], REPLICAS)
    (name,) = (name for name in run.variables if name.endswith("ExponentialMovingAverage"))
    np.testing.assert_allclose(run.variables[name], run.losses[0] * 0.5, rtol=1e-5)
    assert np.ptp(run.losses[0]) > 0.01


def test_moving_averages_of_variables_agree_on_all_replicas() -> None:
    def model(x: Any, y: Any) -> TPUEstimatorSpec:
        spec = trained(lambda x: (x, lambda _: []))(x, y)
        with tf.control_dependencies([spec.train_op]):
            averages = tf.train.ExponentialMovingAverage(0.5).apply(v1.trainable_variables())
        return spec._replace(train_op=averages)

    run = run_replicas(model, [[X, Y]], REPLICAS)
    np.testing.assert_allclose(run.variables["w/ExponentialMovingAverage"], run.variables["w"] / 2, rtol=1e-6)


AGGREGATIONS = {
    tf.VariableAggregation.NONE: lambda values: values,
    tf.VariableAggregation.ONLY_FIRST_REPLICA: lambda values: values,
    tf.VariableAggregation.MEAN: lambda values: on_all(values.mean(0)),
    tf.VariableAggregation.SUM: lambda values: on_all(values.sum(0)),
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_assignments_are_reduced_by_the_variables_aggregation(aggregation: Any) -> None:
    def model(x: Any) -> TPUEstimatorSpec:
        def made(name: str) -> Any:
            ones = v1.ones_initializer()
            return v1.get_variable(name, [3], initializer=ones, trainable=False, aggregation=aggregation)

        in_function, in_branch = made("in_function"), made("in_branch")
        changes = [
            v1.assign(made("assign"), x[0]),
            made("assign_add").assign_add(x[0]),
            made("assign_sub").assign_sub(x[0]),
            tf.function(lambda value: in_function.assign(value), autograph=False)(x[0]),
            tf.cond(tf.size(x) > 0, lambda: in_branch.assign(x[0]), lambda: in_branch.assign(x[1])),
        ]
        return TPUEstimatorSpec("train", loss=tf.reduce_sum(x), train_op=tf.group(*changes))

    run = run_replicas(model, [[X]], REPLICAS)
    reduced = AGGREGATIONS[aggregation](PARTS[:, 0])
    for name in ("assign", "in_function", "in_branch"):
        np.testing.assert_allclose(run.variables[name], reduced, rtol=1e-5)
    np.testing.assert_allclose(run.variables["assign_add"], 1 + reduced, rtol=1e-5)
    np.testing.assert_allclose(run.variables["assign_sub"], 1 - reduced, rtol=1e-5)


def test_moving_averages_are_reduced_by_their_variables_aggregation() -> None:
    def updates(x: Any) -> Any:
        mean = v1.get_variable("average", [], trainable=False, initializer=v1.zeros_initializer(), aggregation=MEAN)
        return [assign_moving_average(mean, tf.reduce_mean(x), 0.5, zero_debias=False)]

    run = run_replicas(trained(lambda x: (x, lambda _: updates(x))), [[X, Y]], REPLICAS)
    np.testing.assert_allclose(run.variables["average"], on_all(X.mean() / 2), rtol=1e-4, atol=1e-6)


def test_optimizer_updates_are_not_reduced_twice() -> None:
    def model(x: Any) -> TPUEstimatorSpec:
        ones = v1.ones_initializer()
        weights = v1.get_variable("w", [3], initializer=ones, aggregation=tf.VariableAggregation.SUM)
        loss = tf.reduce_mean(tf.linalg.matvec(x, weights))
        optimizer = pytest.importorskip("keras").optimizers.SGD(0.1)
        return TPUEstimatorSpec("train", loss=loss, train_op=CrossShardOptimizer(optimizer).minimize(loss))

    run = run_replicas(model, [[X]], REPLICAS)
    np.testing.assert_allclose(run.variables["w"], on_all(1 - 0.1 * X.mean(0)), rtol=1e-5)


def test_keras_metrics_count_the_rows_of_their_replica() -> None:
    keras = pytest.importorskip("keras")

    def updates(x: Any) -> Any:
        metric = keras.metrics.Mean(name="values")
        metric.update_state(x[:, 0])
        return []

    run = run_replicas(trained(lambda x: (x, lambda _: updates(x))), [[X, Y]], REPLICAS)
    np.testing.assert_allclose(run.variables["values/total"], PARTS[:, :, 0].sum(1), rtol=1e-5)


def test_rejects_a_mean_of_integers() -> None:
    def model(x: Any) -> TPUEstimatorSpec:
        count = v1.get_variable("count", [], tf.int32, initializer=v1.zeros_initializer(), aggregation=MEAN)
        return TPUEstimatorSpec("train", loss=tf.reduce_sum(x), train_op=count.assign_add(1))

    with pytest.raises(ModelFnError, match=r"'count:0'.*MEAN.*int32"):
        trace(model, [tf.TensorSpec([2, 3])], REPLICAS)


def test_v1_metrics_count_the_rows_of_their_replica() -> None:
    def updates(x: Any) -> Any:
        metrics = [
            v1.metrics.mean(x, name="values"),
            v1.metrics.accuracy(x > 0, x > 0.5),
            v1.metrics.mean_iou(x > 0, x > 0.5, 2),
        ]
        return [update for _, update in metrics]

    run = run_replicas(trained(lambda x: (x, lambda _: updates(x))), [[X, Y]], REPLICAS)
    np.testing.assert_allclose(run.variables["values/total"], PARTS.sum((1, 2)), rtol=1e-5)
    assert run.variables["values/count"].tolist() == [6.0] * REPLICAS
    right = ((PARTS > 0) == (PARTS > 0.5)).sum((1, 2))
    assert run.variables["accuracy/total"].tolist() == right.tolist()
    assert run.variables["mean_iou/total_confusion_matrix"].sum() == X.size


def test_init_from_checkpoint_sets_variables_on_all_replicas(tmp_path: Path) -> None:
    path = str(tmp_path / "model.ckpt")
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("before", initializer=tf.constant([7.0, 8.0, 9.0]))
        session.run(weights.initializer)
        v1.train.Saver().save(session, path)

    def net(x: Any) -> tuple[Any, Any]:
        with v1.variable_scope("", reuse=tf.compat.v1.AUTO_REUSE):
            v1.get_variable("w", [3], initializer=v1.zeros_initializer())
        v1.train.init_from_checkpoint(path, {"before": "w"})
        return x, lambda _: []

    def model(x: Any, y: Any) -> TPUEstimatorSpec:
        with v1.variable_scope("", reuse=tf.compat.v1.AUTO_REUSE):
            return trained(net)(0 * x, y)

    run = run_replicas(model, [[X, Y]], REPLICAS)
    np.testing.assert_array_equal(run.variables["w"], on_all([7.0, 8.0, 9.0]))
