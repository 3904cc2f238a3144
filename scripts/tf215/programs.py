# ruff: noqa: ARG001, ARG002  (TPUEstimator looks at the names of a model_fn's arguments; hooks get all of theirs)
"""Programs for TPUEstimator, run with the original or with ours: `programs.py STAGE FOLDER [PROGRAM ...]`.

The original's side needs only TensorFlow 2.15, ours TensorFlow and tpudata; both run the same lines. A program gets the folder
FOLDER/SIDE/PROGRAM for its files, and returns a record, which is written to FOLDER/SIDE/PROGRAM.json.

Ours starts from the original's first checkpoint, since random initial values are not compared; so the stage "original" runs before
the stage "ours". The programs in AFTER_OURS start from a checkpoint of ours; the original runs them in the third stage, "again".
"""

from __future__ import annotations

import json
import logging
import shutil
import sys

import numpy as np
import tensorflow.compat.v1 as tf
from carried import CARRIED
from effects import effects, first_values
from errors import errors
from export import export
from model import (
    BATCH,
    ROOT,
    SIDE,
    STAGE,
    add_prefix,
    base,
    batch_norm,
    cnn,
    copy_start,
    dense,
    input_fn,
    keras_layers,
    list_checkpoint_steps,
    make_estimator,
    make_finite_input_fn,
    make_model_fn,
    metric_fn,
    momentum,
    read_events,
    read_losses,
    read_scalars,
    read_variables,
    record_folder,
    stack_predictions,
    tpu,
    with_dropout,
)
from optimizers import COUNT_NO_STEPS, OPTIMIZERS


def train_evaluate_predict(folder, model_fn, steps=20):
    """Train a model, evaluate it and predict with it, and record all results."""
    copy_start(folder)
    estimator = make_estimator(folder, model_fn)
    estimator.train(input_fn, max_steps=steps)
    metrics = estimator.evaluate(input_fn)
    rows = estimator.predict(make_finite_input_fn(BATCH * 2 + 5))
    return {**stack_predictions(rows), **add_prefix("metrics", metrics), **record_folder(folder)}


def layers_cnn(folder):
    return train_evaluate_predict(folder, make_model_fn(cnn, momentum))


def get_variable_adam(folder):
    return train_evaluate_predict(folder, make_model_fn(dense, as_dict=True))


def batch_norm_update_ops(folder):
    return train_evaluate_predict(folder, make_model_fn(batch_norm))


def keras_in_model_fn(folder):
    return train_evaluate_predict(folder, make_model_fn(keras_layers))


def dropout(folder):
    return train_evaluate_predict(folder, make_model_fn(with_dropout))


def optimizers(folder):
    """Record the losses and variables after 30 steps of each of TensorFlow's optimizers."""
    record = {}
    for name, optimizer in {
        "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
        "nesterov": lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
        "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
        "rmsprop": lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5),
        "ftrl": lambda: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001),
    }.items():
        copy_start(folder / name)
        make_estimator(folder / name, make_model_fn(optimizer=optimizer)).train(input_fn, steps=30)
        record |= {
            f"losses/{name}": read_losses(folder / name),
            **read_variables(folder / name, f"variables/{name}"),
        }
    return record


def custom_optimizers(folder):
    """Train with optimizers that programs define: the original on one device, ours on one and on four replicas."""

    def make_model_fn_with(name):
        def model_fn(features, labels, mode, params):
            loss = tf.losses.sparse_softmax_cross_entropy(labels, dense(features, training=True))
            optimizer, step = OPTIMIZERS[name](), tf.train.get_global_step()
            if SIDE == "ours":  # The original's CrossShardOptimizer has no kernel for the CPU.
                optimizer = tpu.CrossShardOptimizer(optimizer)
            train_op = optimizer.minimize(loss, global_step=step)
            if name in COUNT_NO_STEPS:
                train_op = tf.group(train_op, step.assign(step + 1))
            return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

        return model_fn

    record = {}
    for name in OPTIMIZERS:
        for replicas in (1, 4):
            subfolder = folder / f"{name.replace(' ', '_')}_{replicas}"
            copy_start(subfolder)
            num_replicas = replicas if SIDE == "ours" else None
            make_estimator(subfolder, make_model_fn_with(name), num_replicas=num_replicas).train(input_fn, steps=10)
            title = f"{name} on {replicas}"
            record |= {f"losses/{title}": read_losses(subfolder), **read_variables(subfolder, f"variables/{title}")}
    return record


def summaries(folder):
    """Train a model_fn that writes its own summaries."""

    def logits_fn(features, training):
        logits = dense(features, training)
        tf.summary.scalar("mean_logit", tf.reduce_mean(logits))
        tf.summary.histogram("logits", logits)
        return logits

    return train_evaluate_predict(folder, make_model_fn(logits_fn), steps=8)


def summaries_of_variables(folder):
    """Summarize variables, the global step, and an assignment that only a summary runs, in loops of several steps."""

    def logits_fn(features, training):
        logits = dense(features, training)
        if training:
            tf.summary.scalar("kernel_sum", tf.reduce_sum(tf.trainable_variables()[0]))
            tf.summary.scalar("at_step", tf.train.get_global_step())
            count = tf.get_variable("written_times", [], initializer=tf.zeros_initializer(), trainable=False)
            tf.summary.scalar("written", count.assign_add(1.0))
        return logits

    copy_start(folder)
    make_estimator(folder, make_model_fn(logits_fn), iterations=4, save_summary_steps=4).train(input_fn, steps=10)
    return {**record_folder(folder), **add_prefix("values", read_scalars(folder, ("kernel_sum", "at_step", "written")))}


class Recorder(tf.train.SessionRunHook):
    """Records its calls, and the values that it fetches: tensors of the step by name, variables, and operations that it adds."""

    def __init__(self, who, calls, values, stop_at=None):
        self.who, self.calls, self.values, self.stop_at = who, calls, values, stop_at

    def begin(self):
        """Add operations to the graph: a string of the loss for `before_run`, and a norm for `after_run`."""
        graph = tf.get_default_graph()
        self.step = tf.train.get_global_step()
        loss = graph.get_tensor_by_name("the_loss:0")
        self.text = tf.strings.join(["twice ", tf.strings.as_string(tf.cast(2 * loss, tf.int32))])
        self.norm = tf.norm(tf.trainable_variables()[0])
        self.calls.append(f"{self.who} begin")

    def after_create_session(self, session, coord):
        self.calls.append(f"{self.who} created at {session.run(self.step)}")

    def before_run(self, run_context):
        return tf.train.SessionRunArgs({"loss": "the_loss:0", "text": self.text})

    def after_run(self, run_context, run_values):
        step, norm = run_context.session.run([self.step, self.norm])
        results = run_values.results
        self.values.append([int(step), float(norm), float(results["loss"]), results["text"].decode()])
        self.calls.append(f"{self.who} run {step}")
        if step == self.stop_at:
            run_context.request_stop()

    def end(self, session):
        self.calls.append(f"{self.who} end at {session.run(self.step)}")


class Listener(tf.train.CheckpointSaverListener):
    """Records its calls."""

    def __init__(self, calls):
        self.calls = calls

    def begin(self):
        self.calls.append("listener begin")

    def before_save(self, session, global_step_value):
        self.calls.append(f"before save {global_step_value}")

    def after_save(self, session, global_step_value):
        self.calls.append(f"after save {global_step_value}")

    def end(self, session, global_step_value):
        self.calls.append(f"listener end {global_step_value}")


def model_with_hooks(calls, values):
    """Return a model_fn whose spec has a hook that records into `calls` and `values`."""

    def model_fn(features, labels, mode, params):
        logits = dense(features, training=False)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        loss = tf.identity(loss, name="the_loss")
        spec_hooks = [Recorder("spec", calls, values)]
        step = tf.train.get_global_step()
        train_op = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=train_op, training_hooks=spec_hooks, evaluation_hooks=spec_hooks
        )

    return model_fn


def hooks(folder):
    """Train and evaluate with hooks of the call and of the spec, listeners, and hooks of TensorFlow."""
    record = {}
    for name, data, stop_at in (
        ("steps", input_fn, None),
        ("stopped", input_fn, 4),
        ("ended", make_finite_input_fn(BATCH * 3), None),
    ):
        calls, values, lines = [], [], []

        def log_loss(tensors, lines=lines):
            lines.append([round(float(tensors["the_loss:0"]), 4)])
            # A formatter returns the text to log.
            return ""

        subfolder = folder / name
        copy_start(subfolder)
        estimator = make_estimator(subfolder, model_with_hooks(calls, values), save_checkpoints_steps=3)
        all_hooks = [
            Recorder("call", calls, values, stop_at),
            tf.train.LoggingTensorHook(["the_loss:0"], every_n_iter=2, formatter=log_loss),
            tf.train.StepCounterHook(every_n_steps=2, output_dir=str(subfolder / "counter")),
            tf.train.StopAtStepHook(num_steps=7),
        ]
        estimator.train(data, hooks=all_hooks, steps=50, saving_listeners=[Listener(calls)])
        # Closes the writers, so that the file that is read below has the step counts.
        tf.summary.FileWriterCache.clear()
        estimator.evaluate(make_finite_input_fn(BATCH * 2), hooks=[Recorder("evaluation", calls, values)])
        record |= {f"calls/{name}": calls, f"values/{name}": values, f"logged/{name}": lines}
        counter_steps, _ = read_events(subfolder / "counter")
        record |= {f"counted/{name}": sorted(counter_steps.get("global_step/sec", []))}
        record |= {
            f"checkpoints/{name}": list_checkpoint_steps(subfolder),
            **read_variables(subfolder, f"variables/{name}"),
        }
    return record


def averages(folder):
    """Evaluate and predict with moving averages of the variables, and initial values from a scaffold."""

    def model_fn(features, labels, mode, params):
        logits = dense(features, training=False)
        average = tf.train.ExponentialMovingAverage(0.8)

        def restore_averages():
            return tf.train.Scaffold(saver=tf.train.Saver(average.variables_to_restore()))

        def initialize_b():
            _, b = tf.trainable_variables()
            return tf.train.Scaffold(init_fn=lambda _, session: b.load(np.full(4, 0.5, np.float32), session))

        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"logits": logits}, scaffold_fn=restore_averages)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        if mode == "eval":
            return tpu.TPUEstimatorSpec(
                mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]), scaffold_fn=restore_averages
            )
        train_op = tf.train.GradientDescentOptimizer(0.5).minimize(loss, global_step=tf.train.get_global_step())
        with tf.control_dependencies([train_op]):
            train_op = average.apply(tf.trainable_variables())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, scaffold_fn=initialize_b)

    cold = folder / "cold"
    make_estimator(cold, model_fn).train(input_fn, steps=1)
    first = tf.train.load_checkpoint(str(cold / "model.ckpt-0"))
    record = {"first/b": first.get_tensor("b")}
    subfolder = folder / "warm"
    copy_start(subfolder)
    estimator = make_estimator(subfolder, model_fn)
    evaluation = base.EvalSpec(input_fn, steps=None, throttle_secs=0)
    metrics, _ = base.train_and_evaluate(estimator, base.TrainSpec(input_fn, max_steps=12), evaluation)
    return {
        **record,
        **add_prefix("metrics", metrics),
        **stack_predictions(estimator.predict(make_finite_input_fn(20))),
        **record_folder(subfolder),
    }


def host_calls(folder):
    """Train with summaries that host_call writes, in every step and in every third."""

    def host_fn(step, loss, scaled):
        writer = tf.compat.v2.summary.create_file_writer(str(folder / "host"))
        with writer.as_default():
            with tf.compat.v2.summary.record_if(True):
                tf.compat.v2.summary.scalar("every", loss[0], step=step[0])
            with tf.compat.v2.summary.record_if(tf.equal(step[0] % 3, 0)):
                tf.compat.v2.summary.scalar("third", tf.reduce_mean(scaled), step=step[0])
        return tf.summary.all_v2_summary_ops()

    def model_fn(features, labels, mode, params):
        logits = dense(features, training=False)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        step = tf.train.get_global_step()
        train_op = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        # Otherwise the original reads the global step before or after it is counted, by chance.
        with tf.control_dependencies([train_op]):
            next_step = tf.reshape(step.read_value(), [1])
        tensors = [next_step, tf.reshape(loss, [1]), logits * 2]
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=(host_fn, tensors))

    copy_start(folder)
    make_estimator(folder, model_fn).train(input_fn, steps=8)
    steps, _ = read_events(folder / "host")
    return {**add_prefix("host steps", steps), **record_folder(folder)}


def plain_estimator_spec(folder):
    """Use the EstimatorSpec of programs without a TPU, with a tensor instead of a dict of predictions."""

    def model_fn(features, labels, mode, params):
        logits = dense(features, training=False)
        if mode == "infer":
            return base.EstimatorSpec(mode, predictions=logits)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        return base.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metric_fn(labels, logits))

    copy_start(folder)
    estimator = make_estimator(folder, model_fn)
    estimator.train(input_fn, steps=8)
    rows = np.stack(list(estimator.predict(make_finite_input_fn(21))))
    return {
        **add_prefix("metrics", estimator.evaluate(make_finite_input_fn(40))),
        "predictions/bare": rows,
        **record_folder(folder),
    }


def resume(folder):
    """Train in three calls, by two estimators; the input starts from the beginning in each."""
    copy_start(folder)
    estimator = make_estimator(folder, make_model_fn(), save_checkpoints_steps=4)
    estimator.train(input_fn, steps=7)
    estimator.train(input_fn, steps=5)
    make_estimator(folder, make_model_fn(), save_checkpoints_steps=4).train(input_fn, max_steps=15)
    return record_folder(folder)


def limits(folder):
    """Train to the end of the data and to a max_steps that is reached; evaluate and predict on few, ending and no batches."""
    copy_start(folder)
    estimator = make_estimator(folder, make_model_fn())
    estimator.train(make_finite_input_fn(BATCH * 3), steps=100)
    record = {"steps/data ended": list_checkpoint_steps(folder)[-1]}
    estimator.train(input_fn, max_steps=2)
    record["steps/max_steps was reached"] = list_checkpoint_steps(folder)[-1]
    record |= add_prefix("metrics of 2 steps", estimator.evaluate(input_fn, steps=2))
    record |= add_prefix("metrics past the end", estimator.evaluate(make_finite_input_fn(BATCH), steps=50))
    record |= add_prefix("metrics of no data", estimator.evaluate(make_finite_input_fn(0), name="none"))
    record |= add_prefix(
        "metrics at step 0", estimator.evaluate(input_fn, checkpoint_path=str(folder / "model.ckpt-0"))
    )
    record["rows of no data"] = len(list(estimator.predict(make_finite_input_fn(0))))
    return {**record, **record_folder(folder)}


def predict_options(folder):
    """Predict in batches, with some of the keys, and from an older checkpoint."""
    copy_start(folder)
    estimator = make_estimator(folder, make_model_fn())
    estimator.train(input_fn, steps=5)
    batches = list(estimator.predict(make_finite_input_fn(21), yield_single_examples=False))
    record = {f"batches/{name}": [batch[name] for batch in batches] for name in batches[0]}
    record["keys"] = [
        sorted(row) for row in estimator.predict(make_finite_input_fn(3), predict_keys=["class", "unknown"])
    ]
    first = estimator.predict(make_finite_input_fn(3), checkpoint_path=str(folder / "model.ckpt-0"))
    return {**record, "first values": [row["probabilities"] for row in first]}


def checkpoint_intervals(folder):
    """Record the steps of the checkpoints that remain after 10 steps, by the options of saving."""
    record = {}
    for name, config in {
        "every 3": {"save_checkpoints_steps": 3},
        "every 3 in loops of 4": {"save_checkpoints_steps": 3, "iterations": 4},
        "never": {"save_checkpoints_steps": None, "save_checkpoints_secs": None},
        "keep 2": {"save_checkpoints_steps": 2, "keep_checkpoint_max": 2},
    }.items():
        subfolder = folder / name.replace(" ", "_")
        make_estimator(subfolder, make_model_fn(), **config).train(input_fn, steps=10)
        record[f"checkpoints/{name}"] = list_checkpoint_steps(subfolder)
    return record


def warm_start(folder):
    """Record the names of the variables that training with each kind of warm start takes from the original's checkpoint."""
    copy_start(folder / "first")
    make_estimator(folder / "first", make_model_fn(batch_norm)).train(input_fn, steps=10)
    first = str(ROOT / "original" / folder.name / "first")
    record = {}
    for name, settings in {
        "path": first,
        "pattern": base.WarmStartSettings(first, "dense_1/"),
        "list": base.WarmStartSettings(first, ["dense/kernel", "batch_normalization/moving_mean", "dense/bias/Adam"]),
        "renamed": base.WarmStartSettings(
            first, ["dense_1/bias:"], var_name_to_prev_var_name={"dense_1/bias": "dense_1/bias/Adam"}
        ),
        "none": base.WarmStartSettings(first, None),
    }.items():
        make_estimator(folder / f"cold_{name}", make_model_fn(batch_norm), settings).train(input_fn, steps=1)
        reader = tf.train.load_checkpoint(str(folder / f"cold_{name}" / "model.ckpt-0"))
        source = tf.train.load_checkpoint(first)
        renames = {"dense_1/bias": "dense_1/bias/Adam"} if name == "renamed" else {}
        # A variable of zeros is skipped: it equals the checkpoint's even if it is not taken from there.
        record[f"warm variables/{name}"] = sorted(
            key
            for key in reader.get_variable_to_shape_map()
            if np.any(source.get_tensor(renames.get(key, key)) != 0)
            and np.array_equal(reader.get_tensor(key), source.get_tensor(renames.get(key, key)))
        )
    return record


def train_and_evaluate(folder):
    """Train and evaluate in turn with each kind of exporter; then again, when max_steps is reached already."""
    copy_start(folder)
    receiver = base.export.build_parsing_serving_input_receiver_fn({"flat": tf.io.FixedLenFeature([16], tf.float32)})
    estimator = make_estimator(folder, make_model_fn())
    exporters = [
        base.LatestExporter("latest", receiver),
        base.FinalExporter("final", receiver),
        base.BestExporter("best", receiver),
    ]
    evaluation = base.EvalSpec(input_fn, steps=None, exporters=exporters, throttle_secs=0)
    metrics, exports = base.train_and_evaluate(estimator, base.TrainSpec(input_fn, max_steps=12), evaluation)
    again = base.train_and_evaluate(estimator, base.TrainSpec(input_fn, max_steps=12), evaluation)
    export_counts = {
        f"exports/{exporter.name}": len(list((folder / "export" / exporter.name).iterdir())) for exporter in exporters
    }
    result_types = [type(result).__name__ for result in exports]
    return {
        **add_prefix("metrics", metrics),
        **export_counts,
        "export results": result_types,
        "again": list(again),
        **record_folder(folder),
    }


def continue_training(folder, giver):
    """Train 10 steps on the side `giver`, and from its checkpoint 10 more steps on each side."""
    if giver == SIDE:
        make_estimator(folder, make_model_fn(cnn, momentum)).train(input_fn, max_steps=10)
    else:
        copy_start(folder, step=10, giver=giver)
    make_estimator(folder, make_model_fn(cnn, momentum)).train(input_fn, max_steps=20)
    losses = {step: loss for step, loss in read_losses(folder).items() if step > 10}
    # The last three checkpoints: the side that did not train the first 10 steps lacks older ones.
    return {"losses": losses, "checkpoints": list_checkpoint_steps(folder)[-3:], **read_variables(folder)}


def continued(folder):
    return continue_training(folder, "original")


def taken_back(folder):
    return continue_training(folder, "ours")


PROGRAMS = {
    function.__name__: function
    for function in (
        layers_cnn,
        get_variable_adam,
        batch_norm_update_ops,
        keras_in_model_fn,
        dropout,
        optimizers,
        custom_optimizers,
        summaries,
        summaries_of_variables,
        hooks,
        averages,
        host_calls,
        plain_estimator_spec,
        resume,
        limits,
        predict_options,
        checkpoint_intervals,
        warm_start,
        export,
        train_and_evaluate,
        continued,
        taken_back,
        first_values,
        effects,
        errors,
        *CARRIED,
    )
}

# Programs that the original runs after ours.
AFTER_OURS = ("taken_back",)


def to_json(value):
    """Return a value as JSON represents it: lists for arrays and tuples, strings for bytes, and keys that are strings."""
    if isinstance(value, dict):
        return {str(key): to_json(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(element) for element in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return to_json(value.tolist())
    return value.decode() if isinstance(value, bytes) else value


def main():
    """Run the programs of the stage, and write their records."""
    unknown = sorted({*sys.argv[3:]} - {*PROGRAMS})
    if unknown:
        sys.exit(f"unknown program {unknown[0]!r}; known: {', '.join(PROGRAMS)}")
    stage_programs = {
        "original": PROGRAMS.keys() - {*AFTER_OURS},
        "ours": PROGRAMS.keys(),
        "again": {*AFTER_OURS},
    }[STAGE]
    for name, program in PROGRAMS.items():
        if name not in stage_programs or (sys.argv[3:] and name not in sys.argv[3:]):
            continue
        folder = ROOT / SIDE / name
        shutil.rmtree(folder, ignore_errors=True)
        try:
            record = program(folder)
        except Exception as problem:
            logging.exception("%s: %s", SIDE, name)
            record = {"the program": f"{SIDE} failed with {type(problem).__name__}: {problem}"}
        folder.parent.mkdir(parents=True, exist_ok=True)
        (ROOT / SIDE / f"{name}.json").write_text(json.dumps(to_json(record)))
        print(f"{SIDE}: {name}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
