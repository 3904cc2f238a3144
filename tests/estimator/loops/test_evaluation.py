from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import X, Y, finite_input_fn, make_estimator, make_model_fn, train_input_fn, v1
from tpudata.errors import UsageError
from tpudata.estimator import EstimatorSpec, ModeKeys, TPUEstimatorSpec


def padded_input_fn(rows: int, extra_batches: int = 0) -> Callable[..., Any]:
    """The first rows, the last batch padded with garbage of weight 0."""

    def input_fn(params: dict[str, Any]) -> Any:
        size = params["batch_size"]
        padding = -rows % size + extra_batches * size
        x = np.concatenate([X[:rows], np.full((padding, 3), 1e3, np.float32)])
        y = np.concatenate([Y[:rows], np.full(padding, -1e3, np.float32)])
        weights = np.concatenate([np.ones(rows, np.float32), np.zeros(padding, np.float32)])
        dataset = tf.data.Dataset.from_tensor_slices(({"x": x, "weights": weights}, y))
        return dataset.batch(size, drop_remainder=True)

    return input_fn


def outputs_of(estimator: Any, rows: int) -> Any:
    w, b = estimator.get_variable_value("linear/w"), estimator.get_variable_value("linear/b")
    return (X[:rows].astype(np.float64) @ w)[:, 0] + b


@pytest.mark.parametrize(
    ("input_of", "rows", "batch"), [(finite_input_fn, 37, 8), (padded_input_fn, 37, 8), (padded_input_fn, 5, 16)]
)
def test_evaluation_equals_a_plain_loop(input_of: Callable[..., Any], rows: int, batch: int, tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, batch_size=batch)
    estimator.train(train_input_fn, steps=3)
    result = estimator.evaluate(input_of(rows))
    errors = (outputs_of(estimator, rows) - Y[:rows]) ** 2
    # Without weights, a short batch counts as much as a whole one, as in the original.
    batches = [np.mean(errors[i : i + batch]) for i in range(0, rows, batch)]
    loss = np.mean(errors) if input_of is padded_input_fn else np.mean(batches)
    assert set(result) == {"mae", "loss", "global_step"}
    assert result["mae"] == pytest.approx(np.mean(np.sqrt(errors)), rel=1e-5)
    assert result["loss"] == pytest.approx(loss, rel=1e-5)
    assert result["global_step"] == 3


def test_batches_of_padding_do_not_count(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)  # its loss of no rows is 0 / 0
    assert estimator.evaluate(padded_input_fn(13, extra_batches=2)) == estimator.evaluate(padded_input_fn(13))
    assert estimator.evaluate(padded_input_fn(0, extra_batches=1))["loss"] == 0


@pytest.mark.parametrize("weights", [[b"heavy"] * 20, np.zeros(20, np.int32), np.zeros([20, 2], np.float32)])
def test_a_weights_feature_of_another_kind_is_not_padding(weights: Any, tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensor_slices(({"x": X[:20], "weights": weights}, Y[:20])).batch(8)

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        if mode == ModeKeys.PREDICT:
            return TPUEstimatorSpec(mode, predictions={"x": features["x"]})
        return TPUEstimatorSpec(mode, loss=tf.reduce_mean(labels))

    batches = [np.mean(Y[:20][i : i + 8]) for i in (0, 8, 16)]
    estimator = make_estimator(tmp_path, model_fn)
    assert estimator.evaluate(input_fn)["loss"] == pytest.approx(np.mean(batches), rel=1e-5)
    assert len(list(estimator.predict(input_fn))) == 20


@pytest.mark.parametrize("use", ["nothing", "loss", "metrics", "eval_metric_ops"])
def test_warns_once_of_a_model_that_counts_padding(use: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        errors = (programs.linear(features["x"]) - labels) ** 2
        weights = features["weights"]
        loss = tf.reduce_sum(errors * weights) if use == "loss" else tf.reduce_mean(errors)
        if use == "eval_metric_ops":
            return EstimatorSpec(mode, loss=loss, eval_metric_ops={"mse": v1.metrics.mean(errors, weights=weights)})
        metric = {"mse": lambda errors, *rest: v1.metrics.mean(errors, *rest)}
        tensors = [errors, weights] if use == "metrics" else [errors]
        return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(lambda *t: {"mse": metric["mse"](*t)}, tensors))

    estimator = make_estimator(tmp_path, model_fn)
    estimator.evaluate(padded_input_fn(16))
    assert "rows of a batch" not in caplog.text
    for _ in range(2):
        estimator.evaluate(padded_input_fn(13))
    warnings = [record for record in caplog.records if "rows of a batch" in record.getMessage()]
    assert len(warnings) == (use == "nothing")
    assert all(record.levelname == "WARNING" and "3 of the 8 rows" in record.getMessage() for record in warnings)


def test_logs_the_number_of_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator = make_estimator(tmp_path)
    with caplog.at_level("INFO", logger="tpudata"):
        estimator.evaluate(finite_input_fn(8))
        estimator.evaluate(finite_input_fn(9))
    assert "Evaluated 1 batch: " in caplog.text
    assert "Evaluated 2 batches: " in caplog.text


def test_each_evaluation_resets_metrics_and_rebuilds_nothing(tmp_path: Path) -> None:
    calls: list[str] = []
    estimator = make_estimator(tmp_path, make_model_fn(calls=calls))
    estimator.train(train_input_fn, steps=2)
    first = estimator.evaluate(padded_input_fn(20))
    ragged = estimator.evaluate(finite_input_fn(20))
    built = len(calls)
    for rows in (37, 3, 8):
        estimator.evaluate(finite_input_fn(rows))
    assert estimator.evaluate(finite_input_fn(20)) == ragged
    assert estimator.evaluate(padded_input_fn(20)) == first
    assert estimator.evaluate(padded_input_fn(37)) != first
    estimator.train(train_input_fn, steps=2)
    later = estimator.evaluate(padded_input_fn(20))
    assert later["global_step"] == 4
    assert later["loss"] != first["loss"]
    assert len(calls) == built


def test_steps_limit_the_pass_and_can_exceed_it(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    estimator.train(train_input_fn, steps=2)
    assert estimator.evaluate(train_input_fn, steps=3) == estimator.evaluate(finite_input_fn(24))
    assert estimator.evaluate(finite_input_fn(24), steps=99) == estimator.evaluate(finite_input_fn(24))


def test_evaluation_steps_do_not_depend_on_iterations_per_loop(tmp_path: Path) -> None:
    results = [
        make_estimator(tmp_path / name, iterations=iterations, tpu_config={"num_replicas": shards}).evaluate(
            train_input_fn, steps=3
        )
        for name, iterations, shards in (("a", 1, 2), ("b", 100, 2), ("c", 1, 1))
    ]
    assert results[0] == results[1] == pytest.approx(results[2], rel=1e-5)


@pytest.mark.parametrize("how", ["hook", "threads"])
def test_concurrent_evaluations_do_not_affect_each_other(how: str, tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path).train(train_input_fn, steps=3)
    expected = {rows: estimator.evaluate(finite_input_fn(rows)) for rows in (40, 24)}
    if how == "threads":
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda rows: estimator.evaluate(finite_input_fn(rows)), [40, 24] * 2))
        assert found == [expected[40], expected[24]] * 2
        return
    old = str(tmp_path / "model.ckpt-0")

    class Hook(v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context, run_values
            assert estimator.evaluate(finite_input_fn(24)) == expected[24]
            assert len(list(estimator.predict(finite_input_fn(24), checkpoint_path=old))) == 24
            with pytest.raises(UsageError, match="is already training or evaluating"):
                estimator.train(train_input_fn, steps=1)

    assert estimator.evaluate(finite_input_fn(40), hooks=[Hook()]) == expected[40]


def test_warns_of_an_input_without_a_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator = make_estimator(tmp_path)
    with caplog.at_level("WARNING", logger="tpudata"):
        estimator.train(train_input_fn, steps=1)
        estimator.evaluate(finite_input_fn(8))
        assert len(list(estimator.predict(finite_input_fn(8)))) == 8
        assert [record for record in caplog.records if record.name == "tpudata"] == []
        assert estimator.evaluate(finite_input_fn(0))["loss"] == 0
        assert estimator.evaluate(padded_input_fn(0, extra_batches=1))["loss"] == 0
        assert list(estimator.predict(finite_input_fn(0))) == []
        estimator.train(finite_input_fn(0), steps=2)
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-1")
    assert [record.getMessage() for record in caplog.records if record.name == "tpudata"] == [
        "evaluate: the input has no batch, so the loss is 0 and the metrics count no rows. Check input_fn.",
        "evaluate: the input has only rows of weight 0, so the loss is 0 and the metrics count no rows. Check input_fn.",
        "predict: the input has no batch: there are no predictions. Check input_fn.",
        "train: the input has no batch after step 1: nothing is trained. Check input_fn.",
    ]


def test_evaluates_untrained_models_and_empty_data(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    result = estimator.evaluate(finite_input_fn(40))
    assert result["global_step"] == 0
    assert result["mae"] == pytest.approx(np.mean(np.abs(X @ programs.W0[:, 0] - Y)), rel=1e-5)
    empty = estimator.evaluate(finite_input_fn(0))
    assert (empty["loss"], empty["mae"]) == (0, 0)


def test_evaluates_a_given_checkpoint(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, save_checkpoints_steps=4)
    estimator.train(train_input_fn, steps=4)
    at_four = estimator.evaluate(finite_input_fn(40))
    estimator.train(train_input_fn, steps=4)
    at_eight = estimator.evaluate(finite_input_fn(40))
    assert estimator.evaluate(finite_input_fn(40), checkpoint_path=str(tmp_path / "model.ckpt-4")) == at_four
    assert estimator.evaluate(finite_input_fn(40)) == at_eight
    # Training continues from the newest checkpoint with its slots, whichever was evaluated in between.
    estimator.evaluate(finite_input_fn(40), checkpoint_path=str(tmp_path / "model.ckpt-4"))
    estimator.train(train_input_fn, steps=1)
    assert estimator.get_variable_value("global_step") == 9


def test_evaluating_an_old_checkpoint_does_not_disturb_slots(tmp_path: Path) -> None:
    def momentum() -> Any:
        return v1.train.MomentumOptimizer(0.05, 0.9)

    estimator = make_estimator(tmp_path / "a", make_model_fn(momentum), save_checkpoints_steps=4)
    estimator.train(train_input_fn, max_steps=4)
    estimator.train(train_input_fn, max_steps=8)
    estimator.evaluate(finite_input_fn(40), checkpoint_path=str(tmp_path / "a" / "model.ckpt-4"))
    estimator.train(train_input_fn, max_steps=12)
    other = make_estimator(tmp_path / "b", make_model_fn(momentum))
    for limit in (4, 8, 12):
        other.train(train_input_fn, max_steps=limit)
    for key, value in programs.variables(other).items():
        np.testing.assert_array_equal(estimator.get_variable_value(key), value, err_msg=key)


def test_reads_a_checkpoint_rewritten_under_its_name(tmp_path: Path) -> None:
    """Another process may have trained into the folder."""
    reader = make_estimator(tmp_path)
    make_estimator(tmp_path).train(train_input_fn, steps=3)
    first = reader.evaluate(finite_input_fn(40))
    for path in tmp_path.glob("*"):
        if path.is_file():
            path.unlink()
    other = make_model_fn(lambda: v1.train.GradientDescentOptimizer(0.01))
    make_estimator(tmp_path, other).train(train_input_fn, steps=3)
    assert reader.evaluate(finite_input_fn(40)) != first


def test_rejects_a_missing_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no checkpoint at .*model\.ckpt-7"):
        make_estimator(tmp_path).evaluate(finite_input_fn(8), checkpoint_path=str(tmp_path / "model.ckpt-7"))


def test_rejects_endless_data_without_steps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps"):
        make_estimator(tmp_path).evaluate(train_input_fn)


@pytest.mark.parametrize(("steps", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError)])
def test_rejects_wrong_steps(steps: Any, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match="steps"):
        make_estimator(tmp_path).evaluate(finite_input_fn(8), steps=steps)


def test_writes_summaries_into_the_evaluation_folder(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    estimator.train(train_input_fn, steps=2)
    for name, rows in ((None, 40), ("held_out", 16)):
        result = estimator.evaluate(finite_input_fn(rows), name=name)
        folder = tmp_path / ("eval" if name is None else f"eval_{name}")
        assert estimator.eval_dir(name) == str(folder)
        ((step, values),) = programs.read_events(folder)
        assert step == 2
        assert values == pytest.approx({key: float(result[key]) for key in ("mae", "loss")})


def test_returns_numpy_scalars_for_every_name(tmp_path: Path) -> None:
    result = make_estimator(tmp_path).evaluate(finite_input_fn(8))
    assert {name: type(value) for name, value in result.items()} == {
        "mae": np.float32,
        "loss": np.float32,
        "global_step": np.int64,
    }
    assert result["global_step"].item() == 0


def test_writes_vectors_and_serialized_summaries_to_the_event_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def metrics(labels: Any, outputs: Any) -> dict[str, Any]:
        picture = v1.summary.image("seen", tf.zeros([1, 2, 2, 1]))
        return {
            "precision_at": v1.metrics.precision_at_thresholds(labels > 0, tf.sigmoid(outputs), [0.2, 0.5, 0.8]),
            "pictures": (picture, tf.no_op()),
            "name": (tf.constant("text"), tf.no_op()),
        }

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        outputs = programs.linear(features["x"])
        return EstimatorSpec(
            mode, loss=tf.reduce_mean((outputs - labels) ** 2), eval_metric_ops=metrics(labels, outputs)
        )

    with caplog.at_level("WARNING", "tpudata"):
        result = make_estimator(tmp_path, model_fn).evaluate(finite_input_fn(8))
    (path,) = (tmp_path / "eval").glob("events.out.tfevents.*")
    events = [v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(path))]
    values = {value.tag: value for event in events for value in event.summary.value}
    np.testing.assert_array_equal(tf.make_ndarray(values["precision_at"].tensor), result["precision_at"])
    assert result["precision_at"].shape == (3,)
    assert values["pictures/0"].image.height == 2
    assert values["loss"].simple_value == pytest.approx(result["loss"])
    assert "name" not in values
    assert [record.message for record in caplog.records if "summary" in record.message] == [
        "The metric 'name' is not a number, nor a serialized Summary: it gets no summary."
    ]


def eval_model_fn(metrics: Callable[..., Any], tensors: Callable[..., Any]) -> Callable[..., TPUEstimatorSpec]:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        outputs = programs.linear(features["x"])
        loss = tf.reduce_mean((outputs - labels) ** 2)
        return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metrics, tensors(labels, outputs)))

    return model_fn


EXPECTED = float(np.mean(np.abs(X[:37] @ programs.W0[:, 0] - Y[:37])))


def test_passes_eval_metrics_by_keyword(tmp_path: Path) -> None:
    model_fn = eval_model_fn(
        lambda *, outputs, labels: {"mae": v1.metrics.mean_absolute_error(labels, outputs)},
        lambda labels, outputs: {"labels": labels, "outputs": outputs},
    )
    assert make_estimator(tmp_path, model_fn).evaluate(finite_input_fn(37))["mae"] == pytest.approx(EXPECTED, rel=1e-5)


def test_v1_metrics_with_many_variables_are_exact(tmp_path: Path) -> None:
    def metrics(labels: Any, outputs: Any) -> dict[str, Any]:
        probabilities = tf.sigmoid(outputs)
        with tf.name_scope("auc"):  # a scope that the metric itself uses, too
            return {
                "auc": v1.metrics.auc(labels > 0, probabilities),
                "precision": v1.metrics.precision(labels > 0, outputs > 0),
                "recall": v1.metrics.recall(labels > 0, outputs > 0),
            }

    estimator = make_estimator(tmp_path, eval_model_fn(metrics, lambda *tensors: list(tensors)))
    result = estimator.evaluate(finite_input_fn(37))
    positive, found = Y[:37] > 0, (X[:37] @ programs.W0)[:, 0] > 0
    assert result["precision"] == pytest.approx((positive & found).sum() / found.sum())
    assert result["recall"] == pytest.approx((positive & found).sum() / positive.sum())
    outputs = (X[:37] @ programs.W0)[:, 0]
    pairs = outputs[positive][:, None] - outputs[~positive][None]
    assert result["auc"] == pytest.approx((pairs > 0).mean(), abs=0.02)


def test_a_value_made_before_its_update_counts_the_last_batch(tmp_path: Path) -> None:
    def metrics(labels: Any, outputs: Any) -> dict[str, Any]:
        total = v1.get_variable("rows", [], initializer=v1.zeros_initializer(), collections=["local_variables"])
        value = tf.identity(total)
        return {"rows": (value, total.assign_add(tf.cast(tf.shape(labels)[0], tf.float32)))}

    estimator = make_estimator(tmp_path, eval_model_fn(metrics, lambda *tensors: tensors))
    assert estimator.evaluate(finite_input_fn(37))["rows"] == 37
    assert estimator.evaluate(finite_input_fn(20))["rows"] == 20


@pytest.mark.parametrize("library", ["tf_keras", "keras"])
def test_keras_metrics_are_exact(library: str, tmp_path: Path) -> None:
    metric_class = pytest.importorskip(library).metrics.Mean

    def metrics(labels: Any, outputs: Any) -> dict[str, Any]:
        mae = metric_class(name="mae")
        mae.update_state(tf.abs(labels - outputs))
        first = metric_class(name="first")
        first.update_state(labels)
        return {"mae": mae, "first": first}

    estimator = make_estimator(tmp_path, eval_model_fn(metrics, lambda *tensors: tensors))
    for _ in range(2):
        result = estimator.evaluate(finite_input_fn(37))
        assert result["mae"] == pytest.approx(EXPECTED, rel=1e-5)
        assert result["first"] == pytest.approx(np.mean(Y[:37]), rel=1e-5)


def test_estimator_spec_accepts_v1_and_keras_metrics(tmp_path: Path) -> None:
    """With metrics of TensorFlow 1 and of both Kerases."""

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        outputs = programs.linear(features["x"])
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions=outputs)
        loss = tf.reduce_mean((outputs - labels) ** 2)
        if mode == ModeKeys.TRAIN:
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))
        metrics: dict[str, Any] = {"v1": v1.metrics.mean_absolute_error(labels, outputs)}
        for library in ("tf_keras", "keras"):
            metrics[library] = pytest.importorskip(library).metrics.MeanAbsoluteError()
            metrics[library].update_state(labels[:, None], outputs[:, None])
        return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

    def errors(result: dict[str, Any]) -> list[float]:
        return [float(result[name]) for name in ("v1", "tf_keras", "keras")]

    estimator = make_estimator(tmp_path, model_fn)
    for _ in range(2):
        assert errors(estimator.evaluate(finite_input_fn(37))) == pytest.approx([EXPECTED] * 3, rel=1e-5)
    estimator.train(train_input_fn, steps=2)
    expected = np.mean(np.abs(outputs_of(estimator, 37) - Y[:37]))
    assert errors(estimator.evaluate(finite_input_fn(37))) == pytest.approx([expected] * 3, rel=1e-5)
    assert set(estimator.get_variable_names()) == {"global_step", "linear/w", "linear/b"}
    rows = list(estimator.predict(finite_input_fn(37)))
    np.testing.assert_allclose(rows, outputs_of(estimator, 37), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("metrics", "error"),
    [
        (lambda labels, _: {"loss": v1.metrics.mean(labels)}, ValueError),
        (lambda labels, _: {"global_step": v1.metrics.mean(labels)}, ValueError),
        (lambda labels, _: [v1.metrics.mean(labels)], TypeError),
        (lambda labels, _: {"mean": labels}, TypeError),
    ],
)
def test_rejects_wrong_metrics(metrics: Callable[..., Any], error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match="metric"):
        make_estimator(tmp_path, eval_model_fn(metrics, lambda *tensors: tensors)).evaluate(finite_input_fn(8))


def test_returns_only_the_loss_without_metrics(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        return TPUEstimatorSpec(mode, loss=tf.reduce_mean(programs.linear(features["x"])))

    assert set(make_estimator(tmp_path, model_fn).evaluate(finite_input_fn(8))) == {"loss", "global_step"}


# Several replicas: the same results as one, whether or not the rows fill the last batch.


def test_evaluation_on_replicas_equals_a_plain_loop(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, batch_size=16, tpu_config={"num_replicas": 4})
    estimator.train(train_input_fn, steps=3)
    for rows in (37, 5, 37):
        result = estimator.evaluate(padded_input_fn(rows))
        errors = (outputs_of(estimator, rows) - Y[:rows]) ** 2
        assert result["mae"] == pytest.approx(np.mean(np.sqrt(errors)), rel=1e-5)
        assert result["loss"] == pytest.approx(np.mean(errors), rel=1e-5)
        assert result["global_step"] == 3


def all_metrics(labels: Any, outputs: Any, weights: Any) -> dict[str, Any]:
    found = {
        "mae": v1.metrics.mean_absolute_error(labels, outputs, weights=weights),
        "auc": v1.metrics.auc(labels > 0, tf.sigmoid(outputs), weights=weights),
        "precision": v1.metrics.precision(labels > 0, outputs > 0, weights=weights),
        "rows": v1.metrics.mean(tf.ones_like(labels), weights=weights),
    }
    for library in ("tf_keras", "keras"):
        metric = pytest.importorskip(library).metrics.MeanSquaredError(name=f"{library}_mse")
        metric.update_state(labels[:, None], outputs[:, None], sample_weight=weights)
        found[f"{library}_mse"] = metric
    return found


def with_all_metrics(kind: str) -> Callable[..., Any]:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        outputs, weights = programs.linear(features["x"]), features["weights"]
        loss = v1.losses.mean_squared_error(labels, outputs, weights)
        if kind == "EstimatorSpec":
            return EstimatorSpec(mode, loss=loss, eval_metric_ops=all_metrics(labels, outputs, weights))
        tensors: Any = [labels, outputs, weights]
        if kind == "dict":
            tensors = {"weights": weights, "outputs": outputs, "labels": labels}
        return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(all_metrics, tensors))

    return model_fn


# test_metric_fn_sees_the_rows_of_all_replicas tests a list.
@pytest.mark.parametrize("kind", [pytest.param("list", marks=pytest.mark.matrix), "dict", "EstimatorSpec"])
def test_metrics_on_replicas_equal_those_on_one(kind: str, tmp_path: Path) -> None:
    one = make_estimator(tmp_path, with_all_metrics(kind))
    several = make_estimator(tmp_path, with_all_metrics(kind), tpu_config={"num_replicas": 4})
    expected = one.evaluate(padded_input_fn(37))
    assert expected["rows"] == 1
    assert several.evaluate(padded_input_fn(37)) == pytest.approx(expected, rel=1e-5)


def test_metric_fn_sees_the_rows_of_all_replicas(tmp_path: Path) -> None:
    shapes: list[Any] = []

    def metrics(labels: Any, outputs: Any) -> dict[str, Any]:
        shapes.append(labels.shape)
        # The product pairs each row with the one before it only if rows are in order.
        return {"steps": v1.metrics.mean(labels[1:] * outputs[:-1])}

    model_fn = eval_model_fn(metrics, lambda *tensors: tensors)
    one = make_estimator(tmp_path, model_fn).evaluate(finite_input_fn(40))
    several = make_estimator(tmp_path, model_fn, tpu_config={"num_replicas": 4}).evaluate(padded_input_fn(40))
    assert several == pytest.approx(one, rel=1e-5)
    assert shapes == [(None,), (8,)]


def test_several_replicas_reject_scalar_metric_tensors(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(lambda loss: {"mse": v1.metrics.mean(loss)}, [loss]))

    with pytest.raises(ValueError, match=r"got the scalar.*Reshape it to \[1\]"):
        make_estimator(tmp_path, model_fn, tpu_config={"num_replicas": 2}).evaluate(padded_input_fn(8))


@pytest.mark.parametrize("shards", [1, 4])
def test_metrics_can_read_the_programs_local_variables(shards: int, tmp_path: Path) -> None:
    """It starts at 100, counts rows in the model, and is read together with a weight of the model."""

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        rows = v1.get_variable(
            "rows", [], initializer=v1.constant_initializer(100.0), collections=["local_variables"], trainable=False
        )
        update = rows.assign_add(tf.reduce_sum(features["weights"]))
        w = v1.trainable_variables()[0]
        return EstimatorSpec(mode, loss=loss, eval_metric_ops={"rows": (rows + w[0, 0], update)})

    estimator = make_estimator(tmp_path, model_fn, tpu_config={"num_replicas": shards})
    for rows in (37, 20):
        assert estimator.evaluate(padded_input_fn(rows))["rows"] == pytest.approx(100 + rows + programs.W0[0, 0])


def test_rejects_a_metric_value_that_needs_a_batch(tmp_path: Path) -> None:
    def metrics(labels: Any, outputs: Any) -> dict[str, Any]:
        return {"last": (tf.reduce_mean(labels), tf.no_op())}

    with pytest.raises(ValueError, match="only the metric's variables"):
        make_estimator(tmp_path, eval_model_fn(metrics, lambda *tensors: tensors)).evaluate(finite_input_fn(8))
