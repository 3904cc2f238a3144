"""The plain Estimator, and programs of `tf.compat.v1.estimator` with their import line changed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator import programs
from tests.estimator.programs import X, Y, make_estimator, v1
from tpudata import UsageError
from tpudata import estimator as tf_estimator


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    assert "use_tpu" not in params
    assert "context" not in params
    outputs = programs.linear(features["x"])
    if mode == tf_estimator.ModeKeys.PREDICT:
        return tf_estimator.EstimatorSpec(mode, predictions={"outputs": outputs})
    loss = tf.reduce_mean((outputs - labels) ** 2)
    if mode == tf_estimator.ModeKeys.EVAL:
        metrics = {"mae": v1.metrics.mean_absolute_error(labels, outputs)}
        return tf_estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = v1.train.GradientDescentOptimizer(params["learning_rate"])
    return tf_estimator.EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))


def estimator_of(folder: Path, **config: Any) -> tf_estimator.Estimator:
    run_config = tf_estimator.RunConfig(tf_random_seed=1, **config)
    # The program may have a param named batch_size.
    return tf_estimator.Estimator(model_fn, str(folder), run_config, {"learning_rate": 0.1, "batch_size": 8})


def input_fn() -> Any:
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat().batch(8)


def finite_input_fn(params: dict[str, Any]) -> Any:
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(params["batch_size"])


def test_trains_evaluates_and_predicts_as_a_tpu_estimator_does(tmp_path: Path) -> None:
    plain = estimator_of(tmp_path / "plain", save_summary_steps=1).train(input_fn, max_steps=7)
    other = make_estimator(tmp_path / "tpu", save_summary_steps=1).train(programs.train_input_fn, max_steps=7)
    assert programs.losses(tmp_path / "plain") == programs.losses(tmp_path / "tpu")
    found, expected = plain.evaluate(finite_input_fn), other.evaluate(programs.finite_input_fn(40))
    assert found == pytest.approx(expected)
    rows = [row["outputs"] for row in plain.predict(finite_input_fn)]
    np.testing.assert_array_equal(rows, [row["outputs"] for row in other.predict(programs.finite_input_fn(40))])
    assert plain.params == {"learning_rate": 0.1, "batch_size": 8}
    spec = tf_estimator.EvalSpec(finite_input_fn, steps=None, throttle_secs=0)
    tf_estimator.train_and_evaluate(plain, tf_estimator.TrainSpec(input_fn, max_steps=9), spec)
    assert tf_estimator._load_global_step_from_checkpoint_dir(str(tmp_path / "plain")) == 9


def test_the_global_step_of_a_folder_without_checkpoint_is_0(tmp_path: Path) -> None:
    assert tf_estimator._load_global_step_from_checkpoint_dir(str(tmp_path)) == 0
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"')
    assert tf_estimator._load_global_step_from_checkpoint_dir(str(tmp_path)) == 0


def test_rejects_tpu_settings_wrong_params_and_v1_behaviour() -> None:
    for config in (
        tf_estimator.RunConfig(master="grpc://10.0.0.2:8470"),
        tf_estimator.RunConfig(tf_estimator.tpu.TPUConfig(num_replicas=2)),
    ):
        with pytest.raises(ValueError, match=r"^Estimator runs on one device"):
            tf_estimator.Estimator(model_fn, config=config)
    with pytest.raises(TypeError, match=r"^Estimator\(params=...\)"):
        tf_estimator.Estimator(model_fn, params=[1])  # type: ignore[arg-type]
    with tf.Graph().as_default(), pytest.raises(UsageError, match=r"^Estimator needs TensorFlow 2 behaviour"):
        tf_estimator.Estimator(model_fn)
    tf.compat.v1.disable_control_flow_v2()
    try:
        with pytest.raises(UsageError, match=r"^Estimator needs the control flow of TensorFlow 2"):
            tf_estimator.Estimator(model_fn)
    finally:
        tf.compat.v1.enable_control_flow_v2()


def test_the_only_trainer_of_a_cluster_trains_and_an_evaluator_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = {"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}
    evaluator = {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "evaluator", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(evaluator))
    plain, tpu = estimator_of(tmp_path), make_estimator(tmp_path)
    for train in (lambda: plain.train(input_fn, steps=1), lambda: tpu.train(programs.train_input_fn, steps=1)):
        with pytest.raises(UsageError, match=r"^TF_CONFIG: this process is evaluator 0"):
            train()
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("TF_CONFIG", json.dumps(single))
    estimator_of(tmp_path).train(input_fn, steps=1)


def test_the_model_fn_property_can_be_called(tmp_path: Path) -> None:
    plain = estimator_of(tmp_path)
    with tf.Graph().as_default():
        v1.train.create_global_step()
        spec = plain.model_fn({"x": tf.constant(X)}, tf.constant(Y), tf_estimator.ModeKeys.EVAL, plain.config)
        assert set(spec.eval_metric_ops) == {"mae"}


def test_a_tpu_spec_works_in_a_plain_estimator(tmp_path: Path) -> None:
    """host_call writes its summaries, and the metrics equal the TPUEstimator's."""

    def host_fn(loss: Any) -> Any:
        with tf.summary.create_file_writer(str(tmp_path / "host")).as_default():
            return tf.summary.scalar("host_loss", loss[0], step=v1.train.get_global_step())

    def tpu_model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        outputs = programs.linear(features["x"])
        loss = tf.reduce_mean((outputs - labels) ** 2)
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return tf_estimator.tpu.TPUEstimatorSpec(
            mode,
            predictions={"outputs": outputs},
            loss=loss,
            train_op=train_op,
            eval_metrics=(lambda a, b: {"mae": v1.metrics.mean_absolute_error(a, b)}, [labels, outputs]),
            scaffold_fn=lambda: v1.train.Scaffold(),
        ).as_estimator_spec()

    one = tf_estimator.Estimator(tpu_model_fn, str(tmp_path / "one"), tf_estimator.RunConfig(tf_random_seed=1))
    one.train(input_fn, max_steps=3)
    other = make_estimator(tmp_path / "two").train(programs.train_input_fn, max_steps=3)
    assert one.evaluate(finite_8) == pytest.approx(other.evaluate(programs.finite_input_fn(40)))


def finite_8() -> Any:
    return finite_input_fn({"batch_size": 8})


def test_the_hook_of_a_host_call_runs_at_each_step(tmp_path: Path) -> None:
    def host_model_fn(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        seen = v1.get_variable("seen", [], initializer=v1.zeros_initializer(), trainable=False)
        spec = tf_estimator.tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, host_call=(lambda loss: seen.assign_add(loss[0] * 0 + 1), [loss[None]])
        )
        return spec.as_estimator_spec()

    one = tf_estimator.Estimator(host_model_fn, str(tmp_path)).train(input_fn, max_steps=5)
    assert one.get_variable_value("seen") == 5


def test_rejects_the_cross_shard_optimizer_of_tensorflow(tmp_path: Path) -> None:
    def foreign(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.reduce_mean((programs.linear(features["x"]) - labels) ** 2)
        optimizer = v1.tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        return tf_estimator.tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step())
        )

    with pytest.raises(tf_estimator.ModelFnError, match=r"^model_fn uses the CrossShardOptimizer of TensorFlow"):
        make_estimator(tmp_path, foreign).train(programs.train_input_fn, steps=1)


def test_has_the_names_of_the_original() -> None:
    """The names of tf.compat.v1.estimator in TensorFlow 2.15, without canned models, heads and parameter servers."""
    names = (
        "BestExporter CheckpointSaverHook CheckpointSaverListener Estimator EstimatorSpec EvalSpec Exporter FeedFnHook "
        "FinalExporter FinalOpsHook GlobalStepWaiterHook LatestExporter LoggingTensorHook ModeKeys NanLossDuringTrainingError "
        "NanTensorHook ProfilerHook RunConfig SecondOrStepTimer SessionRunArgs SessionRunContext SessionRunHook SessionRunValues "
        "StepCounterHook StopAtStepHook SummarySaverHook TrainSpec WarmStartSettings export inputs tpu train_and_evaluate"
    )
    assert set(names.split()) <= set(tf_estimator.__all__)
    tpu = "InputPipelineConfig RunConfig TPUConfig TPUEstimator TPUEstimatorSpec"
    assert set(tpu.split()) <= set(tf_estimator.tpu.__all__)
    for name in names.split():
        if name.endswith(("Hook", "Listener", "Args", "Context", "Values", "Timer")) and name != "ProfilerHook":
            assert getattr(tf_estimator, name) is getattr(v1.train, name)
