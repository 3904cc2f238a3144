# ruff: noqa: ARG001, ARG005  (TPUEstimator looks at the names of a model_fn's and an input_fn's arguments)
"""The program of scripts/oracle_tf215 that makes mistakes, and records the errors."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf
from model import BATCH, FLAT, LABELS, base, dense, input_fn, make_finite_input_fn, make_model_fn, metric_fn, tpu


def name_error(call):
    """Return the name of the error that a call raises, "none" without one.

    For an error of ours, the names of its nearest base classes of Python or TensorFlow, joined by "and".
    """
    try:
        call()
    except Exception as error:
        kinds = [kind for kind in type(error).__mro__ if kind.__module__.split(".")[0] in ("builtins", "tensorflow")]
        nearest = [kind for kind in kinds if not any(issubclass(other, kind) and other is not kind for other in kinds)]
        return " and ".join(kind.__name__ for kind in nearest)
    return "none"


def errors(folder):
    """Return the name of the error that each mistake raises, by a description of the mistake."""
    good = make_model_fn()

    # An estimator without mistakes, except for these arguments.
    def make(**changes):
        options = {
            "model_fn": good,
            "model_dir": str(folder / "new"),
            "config": tpu.RunConfig(),
            "use_tpu": False,
            "train_batch_size": BATCH,
            "eval_batch_size": BATCH,
            "predict_batch_size": BATCH,
        }
        return tpu.TPUEstimator(**{**options, **changes})

    # A model_fn whose spec has these fields; a function is called with the logits.
    def spec(**changes):
        def model_fn(features, labels, mode, params):
            logits = dense(features, training=False)
            loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
            step = tf.train.get_global_step()
            options = {
                "loss": loss,
                "train_op": tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step),
            }
            options |= {key: value(logits) if callable(value) else value for key, value in changes.items()}
            return tpu.TPUEstimatorSpec(mode, **options)

        return model_fn

    def train(model_fn=good, input_fn=input_fn, **limits):
        return make(model_fn=model_fn, model_dir=str(folder / "train")).train(input_fn, **(limits or {"steps": 1}))

    def spec_of_mode(mode):
        return lambda features, labels, params: tpu.TPUEstimatorSpec(
            mode, predictions={"logits": dense(features, training=False)}
        )

    def evaluate(model_fn):
        return make(model_fn=model_fn, model_dir=str(folder / "eval")).evaluate(make_finite_input_fn(BATCH))

    def predict(model_fn, **options):
        return list(
            make(model_fn=model_fn, model_dir=str(folder / "predict")).predict(make_finite_input_fn(BATCH), **options)
        )

    def not_a_number(features, labels, mode, params):
        loss = tf.reduce_sum(dense(features, training=False)) * np.float32("nan")
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def without_labels(features, mode, params):
        return None

    cases = {
        "a config of another type": lambda: make(config=3),
        "batch_size in params": lambda: make(params={"batch_size": 3}),
        "context in params": lambda: make(params={"context": 3}),
        "no train_batch_size on a TPU": lambda: make(use_tpu=True, train_batch_size=None),
        "model_fn is no function": lambda: make(model_fn=3),
        "model_fn without features": lambda: make(model_fn=lambda labels, mode: None),
        "model_fn with another argument": lambda: make(model_fn=lambda features, other: None),
        "two model_dirs": lambda: make(config=tpu.RunConfig(model_dir="elsewhere")),
        "two checkpoint intervals": lambda: tpu.RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1),
        "iterations_per_loop 0": lambda: tpu.TPUConfig(iterations_per_loop=0),
        "iterations_per_loop '3x'": lambda: tpu.TPUConfig(iterations_per_loop="3x"),
        "num_shards 0": lambda: tpu.TPUConfig(num_shards=0),
        "num_cores_per_replica 3": lambda: tpu.TPUConfig(num_cores_per_replica=3),
        "input_partition_dims without cores": lambda: tpu.TPUConfig(input_partition_dims=[[1, 2]]),
        "an input mode that is not there": lambda: tpu.TPUConfig(per_host_input_for_training=7),
        "eval_training_input_configuration BROADCAST": lambda: tpu.TPUConfig(eval_training_input_configuration=4),
        "a negative initial_infeed_sleep_secs": lambda: tpu.TPUConfig(initial_infeed_sleep_secs=-1),
        "a tpu_config of another type": lambda: tpu.RunConfig(tpu_config=3),
        "a session_config of another type": lambda: make(config=tpu.RunConfig(session_config=3)),
        "an empty model_dir": lambda: tpu.RunConfig(model_dir=""),
        "save_checkpoints_steps -1": lambda: tpu.RunConfig(save_checkpoints_steps=-1),
        "save_checkpoints_secs -1": lambda: tpu.RunConfig(save_checkpoints_secs=-1),
        "save_summary_steps -1": lambda: tpu.RunConfig(save_summary_steps=-1),
        "keep_checkpoint_max -1": lambda: tpu.RunConfig(keep_checkpoint_max=-1),
        "keep_checkpoint_every_n_hours 0": lambda: tpu.RunConfig(keep_checkpoint_every_n_hours=0),
        "log_step_count_steps 0": lambda: tpu.RunConfig(log_step_count_steps=0),
        "tf_random_seed 1.5": lambda: tpu.RunConfig(tf_random_seed=1.5),
        "an unknown argument of RunConfig": lambda: tpu.RunConfig(other=1),
        "RunConfig.replace of an unknown field": lambda: tpu.RunConfig().replace(other=1),
        "_replace of an unknown field": lambda: tpu.TPUConfig()._replace(other=1),
        "device_fn with other arguments": lambda: tpu.RunConfig(device_fn=lambda other: None),
        "protocol of another kind": lambda: tpu.RunConfig(protocol="other"),
        "listeners and no checkpoints": lambda: make(
            model_dir=str(folder / "unsaved"), config=tpu.RunConfig(save_checkpoints_secs=None)
        ).train(input_fn, steps=1, saving_listeners=[tf.train.CheckpointSaverListener()]),
        "steps 1.5": lambda: train(steps=1.5),
        "steps and max_steps of a TrainSpec": lambda: base.TrainSpec(input_fn, max_steps=1.5),
        "evaluate steps 1.5": lambda: make().evaluate(input_fn, steps=1.5),
        "input_fn returns a number": lambda: train(input_fn=lambda params: 3),
        "input_fn returns three parts": lambda: train(
            input_fn=lambda params: input_fn(params).map(lambda x, y: (x, y, y))
        ),
        "a spec for another mode": lambda: train(spec_of_mode("infer")),
        "a mode that is not there": lambda: tpu.TPUEstimatorSpec("other"),
        "predictions of another size": lambda: predict(
            lambda features, mode, params: tpu.TPUEstimatorSpec(
                mode, predictions={"a": features["flat"][:3], "b": features["flat"]}
            )
        ),
        "export_outputs of another type": lambda: predict(
            lambda features, mode, params: tpu.TPUEstimatorSpec(
                mode, predictions={"a": features["flat"]}, export_outputs={"a": features["flat"]}
            )
        ),
        "get_variable_value of an unknown name": lambda: train().get_variable_value("other"),
        "get_variable_names without a checkpoint": lambda: make().get_variable_names(),
        "an evaluation hook of another type": lambda: make().evaluate(input_fn, steps=1, hooks=[3]),
        "a prediction hook of another type": lambda: predict(good, hooks=[3]),
        "predict at a checkpoint that is not there": lambda: predict(good, checkpoint_path="nowhere"),
        "predict without a checkpoint": lambda: predict(good),
        "steps and max_steps": lambda: train(steps=1, max_steps=1),
        "steps 0": lambda: train(steps=0),
        "max_steps -1": lambda: train(max_steps=-1),
        "evaluate steps 0": lambda: make().evaluate(input_fn, steps=0),
        "input_fn is no function": lambda: train(input_fn=3),
        "input_fn without params": lambda: train(input_fn=lambda: input_fn({"batch_size": 4})),
        "model_fn without params": lambda: train(
            lambda features, labels, mode: good(features, labels, mode, {"use_tpu": False})
        ),
        "input_fn returns tensors": lambda: train(
            input_fn=lambda params: ({"flat": tf.constant(FLAT[:BATCH])}, tf.constant(LABELS[:BATCH]))
        ),
        "labels for a model_fn without": lambda: train(without_labels),
        "model_fn returns None": lambda: train(lambda features, labels, mode, params: None),
        "no loss": lambda: train(spec(loss=None)),
        "no train_op": lambda: train(spec(train_op=None)),
        "a loss with a row for each example": lambda: train(spec(loss=lambda logits: logits[:, 0])),
        "a loss that is not a number": lambda: train(not_a_number),
        "eval_metrics is no pair": lambda: evaluate(spec(eval_metrics=[1, 2, 3])),
        "eval_metrics with no function": lambda: evaluate(spec(eval_metrics=(3, []))),
        "eval_metrics with too few tensors": lambda: evaluate(spec(eval_metrics=lambda logits: (metric_fn, [logits]))),
        "host_call is no pair": lambda: train(spec(host_call=[1, 2, 3])),
        "host_call with no function": lambda: train(spec(host_call=(3, []))),
        "host_call with too few tensors": lambda: train(spec(host_call=lambda logits: (metric_fn, [logits]))),
        "a hook of another type": lambda: train(hooks=[3], steps=1),
        "a listener of another type": lambda: train(saving_listeners=[3], steps=1),
        "training_hooks of another type": lambda: train(spec(training_hooks=[3])),
        "a Scaffold of another type": lambda: train(spec(scaffold_fn=lambda _: object)),
        "TrainSpec with a wrong hook": lambda: base.TrainSpec(input_fn, max_steps=1, hooks=[3]),
        "TrainSpec with a wrong listener": lambda: base.TrainSpec(input_fn, max_steps=1, saving_listeners=[3]),
        "EvalSpec with a wrong hook": lambda: base.EvalSpec(input_fn, hooks=[3]),
        "a metric named loss": lambda: evaluate(
            spec(eval_metrics=lambda logits: (lambda x: {"loss": tf.metrics.mean(x)}, [logits]))
        ),
        "predictions that are no dict": lambda: predict(
            lambda features, mode, params: tpu.TPUEstimatorSpec(mode, predictions=features["flat"])
        ),
        "predict_keys that select nothing": lambda: predict(good, predict_keys=["other"]),
        "evaluate at a checkpoint that is not there": lambda: make().evaluate(input_fn, checkpoint_path="nowhere"),
        "export without a checkpoint": lambda: make().export_saved_model(
            str(folder / "export"), base.export.build_raw_serving_input_receiver_fn({})
        ),
        "warm start from another type": lambda: make(warm_start_from=3),
        "warm start from nowhere": lambda: make(warm_start_from=str(folder / "none")).train(input_fn, steps=1),
        "warm start settings without a path": lambda: base.WarmStartSettings(""),
        "TrainSpec with max_steps 0": lambda: base.TrainSpec(input_fn, max_steps=0),
        "EvalSpec with steps 0": lambda: base.EvalSpec(input_fn, steps=0),
        "EvalSpec with a wrong exporter": lambda: base.EvalSpec(input_fn, exporters=[3]),
        "two exporters of one name": lambda: base.EvalSpec(
            input_fn, exporters=[base.FinalExporter("a", bool), base.FinalExporter("a", bool)]
        ),
        "LatestExporter that keeps 0": lambda: base.LatestExporter("a", bool, exports_to_keep=0),
        "BestExporter with a wrong compare_fn": lambda: base.BestExporter("a", bool, compare_fn=lambda a, b: True),
        "PredictOutput of a number": lambda: base.export.PredictOutput(3),
        "RegressionOutput of ints": lambda: base.export.RegressionOutput(tf.constant([1])),
        "ServingInputReceiver without features": lambda: base.export.ServingInputReceiver(None, None),
    }
    return {f"error/{name}": name_error(call) for name, call in cases.items()}
