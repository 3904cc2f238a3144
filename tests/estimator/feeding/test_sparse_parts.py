"""Sparse features and labels, as in wide and deep models, compared with a v1 session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import make_estimator, v1
from tpudata.estimator import CrossShardOptimizer, ModeKeys, TPUEstimatorSpec
from tpudata.estimator.export import build_parsing_serving_input_receiver_fn

ROWS, WORDS = 20, 6
_rng = np.random.default_rng(4)
IDS = [sorted(_rng.choice(WORDS, size=count, replace=False).tolist()) for count in _rng.integers(0, 4, ROWS)]
LABELS = np.array([sum(ids) for ids in IDS], np.float32)
FEATURES = {"ids": tf.io.VarLenFeature(tf.int64), "bias": tf.io.FixedLenFeature([], tf.float32)}


def examples() -> list[bytes]:
    def example(ids: list[int]) -> bytes:
        feature = {
            "ids": tf.train.Feature(int64_list=tf.train.Int64List(value=ids)),
            "bias": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0])),
        }
        return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

    return [example(ids) for ids in IDS]


def input_fn(params: dict[str, Any]) -> Any:
    rows = tf.data.Dataset.from_tensor_slices((examples(), LABELS))
    return rows.batch(params["batch_size"]).map(lambda row, label: (tf.io.parse_example(row, FEATURES), label))


def tensors_of_an_iterator(params: dict[str, Any]) -> Any:
    return v1.data.make_one_shot_iterator(input_fn(params)).get_next()


def only_sparse(params: dict[str, Any]) -> Any:
    return input_fn(params).map(lambda features, label: (features["ids"], label))


def outputs(ids: Any) -> Any:
    assert isinstance(ids, tf.SparseTensor)
    assert ids.shape.rank == 2
    wide = v1.get_variable("wide", [WORDS, 1], initializer=v1.zeros_initializer())
    return tf.reshape(v1.nn.embedding_lookup_sparse(wide, ids, None, combiner="sum"), [-1])


def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
    ids = features["ids"] if isinstance(features, dict) else features
    found = outputs(tf.sparse.fill_empty_rows(ids, 0)[0])
    if mode == ModeKeys.PREDICT:
        return TPUEstimatorSpec(
            mode,
            predictions={"sum": found, "count": tf.sparse.reduce_sum(tf.sparse.map_values(tf.ones_like, ids), axis=1)},
        )
    loss = tf.reduce_mean((found - labels) ** 2)
    optimizer = CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.2))
    train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    metrics = (lambda labels, found: {"mse": v1.metrics.mean_squared_error(labels, found)}, [labels, found])
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op, eval_metrics=metrics)


def session_weights() -> Any:
    """The weights after one pass, by a v1 session."""
    with tf.Graph().as_default(), v1.Session() as session:
        features, labels = v1.data.make_one_shot_iterator(input_fn({"batch_size": 8})).get_next()
        loss = tf.reduce_mean((outputs(tf.sparse.fill_empty_rows(features["ids"], 0)[0]) - labels) ** 2)
        step = v1.train.GradientDescentOptimizer(0.2).minimize(loss)
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(step)
        return session.run(v1.global_variables()[0])


@pytest.mark.filterwarnings("ignore:.*tf.data.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize(
    "data",
    [
        input_fn,
        pytest.param(tensors_of_an_iterator, marks=pytest.mark.matrix),
        pytest.param(only_sparse, marks=pytest.mark.matrix),
    ],
)
def test_sparse_features_train_evaluate_and_predict_as_in_a_session(data: Callable[..., Any], tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, model_fn, save_summary_steps=1)
    estimator.train(data)
    weights = estimator.get_variable_value("wide")
    np.testing.assert_allclose(weights, session_weights(), rtol=1e-5)
    expected = np.array([weights[ids or [0]].sum() for ids in IDS])
    assert estimator.evaluate(data)["mse"] == pytest.approx(np.mean((expected - LABELS) ** 2), rel=1e-5)
    # The last batch has 4 of 8 rows: the added rows are empty, and are dropped.
    rows = list(estimator.predict(data))
    np.testing.assert_allclose([row["sum"] for row in rows], expected, rtol=1e-5)
    assert [row["count"] for row in rows] == [len(ids) for ids in IDS]
    if data is input_fn:
        path = estimator.export_saved_model(str(tmp_path / "export"), build_parsing_serving_input_receiver_fn(FEATURES))
        served = tf.saved_model.load(path.decode()).signatures["serving_default"](examples=tf.constant(examples()))
        np.testing.assert_allclose(served["sum"], expected, rtol=1e-5)


def test_sparse_labels_reach_the_model(tmp_path: Path) -> None:
    def swapped(params: dict[str, Any]) -> Any:
        return input_fn(params).map(lambda features, label: ({"x": label}, features["ids"]))

    def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
        return TPUEstimatorSpec(
            mode, loss=tf.reduce_sum(features["x"]) - tf.cast(tf.sparse.reduce_sum(labels), tf.float32)
        )

    assert make_estimator(tmp_path, model_fn).evaluate(swapped)["loss"] == 0.0


@pytest.mark.parametrize("replicas", [1, 2])
def test_replicas_and_tpus_reject_sparse_features_by_name(replicas: int, tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, model_fn, tpu_config={"num_replicas": replicas})
    if replicas == 1:
        findings = estimator.rehearse({ModeKeys.TRAIN: input_fn})
        assert ["features['ids'] as a SparseTensor" in finding.what for finding in findings] == [True]
        return
    with pytest.raises(TypeError, match=r"got features\['ids'\] as a SparseTensor, .*tf\.sparse\.to_dense"):
        estimator.train(input_fn, steps=1)
