"""Findings of a rehearsal about what input_fn yields."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.programs import finite_input_fn, train_input_fn
from tests.estimator.tpu_check.rehearsals import make_estimator, steps_input_fn
from tpudata.estimator import InputPipelineConfig, ModeKeys, RunConfig, TPUConfig, check_tpu_compatibility


@pytest.mark.parametrize("axis", [3, -1])
def test_finds_a_batch_axis_that_a_tensor_lacks(axis: int, tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path, batch_axis=(axis, 0))
    (finding, *_) = check_tpu_compatibility(estimator, {ModeKeys.TRAIN: train_input_fn})
    assert str(finding) == (
        f"train: features['x']: it has the shape (16, 3), and batch_axis names its axis {axis}."
        " Fix: name the axis of the rows, counted from 0."
    )


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        (lambda f, _: {**f, "name": tf.as_string(f["x"])}, "features['name']", "dtype is string"),
        (
            lambda f, n: {**f, "v": tf.zeros([n, tf.random.uniform([], 1, 3, tf.int32)])},
            "features['v']",
            "along axis 1 changes",
        ),
        (lambda f, _: {**f, "one": tf.constant(1.0)}, "features['one']", "without rows"),
        (lambda f, _: {**f, "half": f["x"][::2]}, "features['half']", "with 8 rows instead of params['batch_size']=16"),
        (lambda f, _: {**f, "ragged": tf.RaggedTensor.from_tensor(f["x"])}, "input_fn", "RaggedTensorSpec"),
    ],
)
def test_finds_features_that_a_tpu_rejects(change: Any, where: str, what: str, tmp_path: Path) -> None:
    def input_fn(params: dict[str, Any]) -> Any:
        return train_input_fn(params).map(lambda f, y: (change(f, params["batch_size"]), y))

    findings = make_estimator(tmp_path).rehearse({ModeKeys.TRAIN: input_fn})
    assert [item.where for item in findings] == [where]
    assert what in findings[0].what


def test_only_prediction_accepts_partial_batches(tmp_path: Path) -> None:
    estimator = make_estimator(tmp_path)
    assert estimator.rehearse({ModeKeys.PREDICT: finite_input_fn(10)}) == ()
    findings = estimator.rehearse({ModeKeys.EVAL: finite_input_fn(10)})
    assert [item.where for item in findings] == ["features['x']", "labels"]
    assert "drop_remainder=True" in findings[0].fix


def test_finds_batch_sizes_that_the_cores_cannot_split(tmp_path: Path) -> None:
    for size in (12, None):
        findings = make_estimator(tmp_path, size=size).rehearse({ModeKeys.EVAL: steps_input_fn})
        assert [item.where for item in findings] == ["batch size"]
        assert "multiple of 8" in findings[0].what
    config = TPUConfig(per_host_input_for_training=InputPipelineConfig.BROADCAST)
    broadcast = make_estimator(tmp_path, size=12, tpu_config=config)
    assert broadcast.rehearse({ModeKeys.TRAIN: train_input_fn}) == ()
    assert make_estimator(tmp_path, size=12, tpu_config=TPUConfig(4, 4)).rehearse({ModeKeys.EVAL: steps_input_fn}) == ()


def through_python(params: dict[str, Any]) -> Any:
    def same(features: Any, labels: Any) -> Any:
        return {
            "x": tf.ensure_shape(tf.numpy_function(np.copy, [features["x"]], tf.float32), features["x"].shape)
        }, labels

    return train_input_fn(params).map(same)


def test_accepts_an_input_fn_that_runs_python(tmp_path: Path) -> None:
    """Each host of a pod runs the whole program."""
    estimator = make_estimator(tmp_path, config=RunConfig(TPUConfig(num_shards=16)))
    assert check_tpu_compatibility(estimator, {ModeKeys.TRAIN: through_python}) == []
