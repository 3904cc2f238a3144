from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.estimator import programs
from tests.estimator.programs import X, Y, finite_input_fn, make_estimator, make_model_fn, train_input_fn
from tpudata.errors import UsageError
from tpudata.estimator import CrossShardOptimizer, InputPipelineConfig, ModeKeys, TPUEstimator, TPUEstimatorSpec


def features_only(rows: int) -> Callable[..., Any]:
    return lambda params: tf.data.Dataset.from_tensor_slices({"x": X[:rows]}).batch(params["batch_size"])


def bare(rows: int) -> Callable[..., Any]:
    return lambda params: tf.data.Dataset.from_tensor_slices(X[:rows]).batch(params["batch_size"])


@settings(max_examples=6)
@given(rows=st.integers(0, 40), batch=st.integers(1, 17))
def test_returns_one_prediction_per_row(tmp_path_factory: pytest.TempPathFactory, rows: int, batch: int) -> None:
    estimator = make_estimator(tmp_path_factory.mktemp("m"), batch_size=batch)
    found = list(estimator.predict(finite_input_fn(rows)))
    assert len(found) == rows
    if rows:
        np.testing.assert_array_equal([row["inputs"] for row in found], X[:rows])
        np.testing.assert_allclose([row["outputs"] for row in found], (X[:rows] @ programs.W0)[:, 0], rtol=1e-5)


@pytest.mark.parametrize("input_of", [finite_input_fn, features_only, bare])
def test_predicts_with_and_without_labels(input_of: Callable[..., Any], tmp_path: Path) -> None:
    found = list(make_estimator(tmp_path).predict(input_of(19)))
    np.testing.assert_array_equal([row["inputs"] for row in found], X[:19])


def test_the_model_gets_static_shapes(tmp_path: Path) -> None:
    shapes = []

    def model_fn(features: Any, mode: str) -> TPUEstimatorSpec:
        shapes.append(tuple(features["x"].shape))
        return TPUEstimatorSpec(mode, predictions={"outputs": programs.linear(features["x"])})

    list(make_estimator(tmp_path, model_fn).predict(features_only(19)))
    assert set(shapes) == {(8, 3)}


def test_predicts_without_a_batch_size(tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        assert "batch_size" not in params
        return features_only(19)({"batch_size": 5})

    estimator = TPUEstimator(make_model_fn(), model_dir=str(tmp_path), use_tpu=False)
    found = list(estimator.predict(input_fn))
    np.testing.assert_array_equal([row["inputs"] for row in found], X[:19])


def test_drops_rows_of_weight_zero(tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        weights = (np.arange(40) % 5 != 1).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices({"x": X, "weights": weights}).batch(8, drop_remainder=True)

    estimator = make_estimator(tmp_path)
    found = [row["inputs"] for row in estimator.predict(input_fn)]
    np.testing.assert_array_equal(found, X[np.arange(40) % 5 != 1])
    batches = list(estimator.predict(input_fn, yield_single_examples=False))
    assert sum(len(batch["inputs"]) for batch in batches) == 32


def test_yields_whole_batches(tmp_path: Path) -> None:
    batches = list(make_estimator(tmp_path).predict(finite_input_fn(19), yield_single_examples=False))
    assert [len(batch["outputs"]) for batch in batches] == [8, 8, 3]
    np.testing.assert_array_equal(np.concatenate([batch["inputs"] for batch in batches]), X[:19])


def test_predict_keys_select_the_predictions(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    assert set(next(estimator.predict(finite_input_fn(8)))) == {"outputs", "inputs"}
    for keys in (["outputs"], "outputs", ["outputs", "no_such"]):
        assert set(next(estimator.predict(finite_input_fn(8), predict_keys=keys))) == {"outputs"}
    with pytest.raises(ValueError, match="selects nothing"):
        next(estimator.predict(finite_input_fn(8), predict_keys=["no_such"]))


def test_later_calls_do_not_rebuild_the_model(tmp_path: Path) -> None:
    calls: list[str] = []
    estimator = make_estimator(tmp_path, make_model_fn(calls=calls))
    list(estimator.predict(finite_input_fn(19)))
    built = len(calls)
    for rows in (40, 3, 19):
        assert len(list(estimator.predict(finite_input_fn(rows)))) == rows
    assert len(calls) == built == 1


def test_traces_once_without_a_batch_size(tmp_path: Path) -> None:
    calls: list[str] = []
    estimator = TPUEstimator(make_model_fn(calls=calls), model_dir=str(tmp_path), use_tpu=False)
    for rows in (19, 7, 40):
        assert len(list(estimator.predict(lambda params, rows=rows: bare(rows)({"batch_size": 6, **params})))) == rows
    assert len(calls) == 1


def test_uses_the_newest_or_the_given_checkpoint(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, save_checkpoints_steps=4)
    for _ in range(2):
        estimator.train(train_input_fn, steps=4)
        w, b = estimator.get_variable_value("linear/w"), estimator.get_variable_value("linear/b")
        found = [row["outputs"] for row in estimator.predict(finite_input_fn(19))]
        np.testing.assert_allclose(found, (X[:19] @ w)[:, 0] + b, rtol=1e-4, atol=1e-5)
    old = str(tmp_path / "model.ckpt-4")
    w, b = tf.train.load_variable(old, "linear/w"), tf.train.load_variable(old, "linear/b")
    found = [row["outputs"] for row in estimator.predict(finite_input_fn(19), checkpoint_path=old)]
    np.testing.assert_allclose(found, (X[:19] @ w)[:, 0] + b, rtol=1e-4, atol=1e-5)


def test_training_does_not_change_predictions_under_way(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    estimator.train(train_input_fn, steps=2)
    expected = [row["outputs"] for row in estimator.predict(finite_input_fn(40))]
    under_way = estimator.predict(finite_input_fn(40))
    first = next(under_way)
    estimator.train(train_input_fn, steps=6)
    found = [first["outputs"], *(row["outputs"] for row in under_way)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_threads_get_the_same_predictions(replicas: int, tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, tpu_config={"num_replicas": replicas}).train(train_input_fn, steps=3)
    expected = [row["outputs"] for row in estimator.predict(finite_input_fn(40))]
    fresh = make_estimator(tmp_path, tpu_config={"num_replicas": replicas})
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: [row["outputs"] for row in fresh.predict(finite_input_fn(40))], range(4)))
    for rows in found:
        np.testing.assert_allclose(rows, expected, rtol=1e-5)


def test_training_rejects_predictions_begun_before_it(tmp_path: Path) -> None:
    """Predictions begun earlier would need the variables that are being trained."""
    estimator = make_estimator(tmp_path).train(train_input_fn, steps=3)
    expected = [row["outputs"] for row in estimator.predict(finite_input_fn(40))]
    rows = estimator.predict(finite_input_fn(40))
    next(rows)

    class Hook(programs.v1.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            del run_context, run_values
            begun = [row["outputs"] for row in estimator.predict(finite_input_fn(40))]
            np.testing.assert_array_equal(begun, expected)
            with ThreadPoolExecutor(1) as pool:  # As when tf.data reads them from a generator.
                pool.submit(list, rows).result()

    with pytest.raises(UsageError, match=r"is training, and these predictions began before that"):
        estimator.train(train_input_fn, hooks=[Hook()], steps=1)


def test_predicts_strings_integers_and_bools(tmp_path: Path) -> None:
    def model_fn(features: Any, mode: str) -> TPUEstimatorSpec:
        predictions = {"key": features["key"], "count": features["count"] + 1, "flag": features["flag"]}
        return TPUEstimatorSpec(mode, predictions=predictions)

    def input_fn(params: dict[str, Any]) -> Any:
        rows = {"key": [b"a", b"bb", b""], "count": np.arange(3), "flag": [True, False, True]}
        return tf.data.Dataset.from_tensor_slices(rows).batch(2)

    found = list(make_estimator(tmp_path, model_fn, batch_size=2).predict(input_fn))
    assert [row["key"] for row in found] == [b"a", b"bb", b""]
    assert [row["count"] for row in found] == [1, 2, 3]
    assert [row["flag"] for row in found] == [True, False, True]


def test_rejects_a_prediction_without_one_value_per_row(tmp_path: Path) -> None:
    def model_fn(features: Any, mode: str) -> TPUEstimatorSpec:
        return TPUEstimatorSpec(mode, predictions={"mean": tf.reduce_mean(features["x"]), "x": features["x"]})

    with pytest.raises(ValueError, match=r"predictions\['mean'\] has shape \(\)"):
        next(make_estimator(tmp_path, model_fn).predict(features_only(8)))


def test_rejects_batches_larger_than_predict_batch_size(tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(16)

    with pytest.raises(tf.errors.InvalidArgumentError, match="predict_batch_size=8"):
        list(make_estimator(tmp_path).predict(input_fn))


def test_rejects_an_unbatched_dataset(tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        return tf.data.Dataset.from_tensor_slices(np.arange(3.0))

    def model_fn(features: Any, mode: str) -> TPUEstimatorSpec:
        return TPUEstimatorSpec(ModeKeys.PREDICT, predictions={"x": features})

    with pytest.raises(ValueError, match="batch"):
        list(make_estimator(tmp_path, model_fn).predict(input_fn))


@pytest.mark.parametrize(
    "mode",
    [
        # They are fed alike; tests/estimator/feeding/test_feed.py predicts in each of them.
        pytest.param(mode, marks=pytest.mark.matrix)
        if mode in (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.BROADCAST)
        else mode
        for mode in InputPipelineConfig
    ],
)
def test_replicas_return_one_prediction_per_row(mode: InputPipelineConfig, tmp_path: Path) -> None:
    tpu_config = {"num_replicas": 4, "per_host_input_for_training": mode}
    estimator = make_estimator(tmp_path, tpu_config=tpu_config)
    for rows in (19, 0, 24) if mode is InputPipelineConfig.PER_HOST_V2 else (19,):
        found = list(estimator.predict(finite_input_fn(rows)))
        assert len(found) == rows
        if rows:
            np.testing.assert_array_equal([row["inputs"] for row in found], X[:rows])
            np.testing.assert_allclose([row["outputs"] for row in found], (X[:rows] @ programs.W0)[:, 0], rtol=1e-5)


def test_replicas_yield_whole_batches_without_rows_of_weight_zero(tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        weights = (np.arange(40) % 5 != 1).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices({"x": X, "weights": weights}).batch(16)

    estimator = make_estimator(tmp_path, batch_size=16, tpu_config={"num_replicas": 4})
    batches = list(estimator.predict(input_fn, yield_single_examples=False))
    assert [len(batch["inputs"]) for batch in batches] == [13, 12, 7]
    np.testing.assert_array_equal(np.concatenate([batch["inputs"] for batch in batches]), X[np.arange(40) % 5 != 1])


def test_accepts_a_train_op_in_every_mode(tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        outputs = programs.linear(features["x"])
        targets = tf.zeros_like(outputs) if labels is None else labels
        loss = tf.reduce_mean((outputs - targets) ** 2)
        optimizer = CrossShardOptimizer(programs.v1.train.AdamOptimizer(0.1))
        train_op = optimizer.minimize(loss, global_step=programs.v1.train.get_global_step())
        return TPUEstimatorSpec(mode, predictions={"outputs": outputs}, loss=loss, train_op=train_op)

    estimator = make_estimator(tmp_path, model_fn, tpu_config={"num_replicas": 2})
    estimator.train(programs.train_input_fn, steps=2)
    before = programs.variables(estimator)
    expected = (X @ before["linear/w"])[:, 0] + before["linear/b"]
    for _ in range(2):
        found = [row["outputs"] for row in estimator.predict(finite_input_fn(40))]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert estimator.evaluate(lambda params: finite_input_fn(40)(params).map(full_batch))["global_step"] == 2


def full_batch(features: Any, labels: Any) -> Any:
    return {"x": tf.ensure_shape(features["x"], [8, 3])}, tf.ensure_shape(labels, [8])


def test_random_predictions_differ_between_replicas(tmp_path: Path) -> None:
    def model_fn(features: Any, mode: str) -> TPUEstimatorSpec:
        return TPUEstimatorSpec(mode, predictions={"noise": tf.random.uniform(tf.shape(features["x"])[:1])})

    estimator = make_estimator(tmp_path, model_fn, tpu_config={"num_replicas": 4})
    noise = [float(row["noise"]) for row in estimator.predict(features_only(8))]
    assert len(set(noise)) == 8
