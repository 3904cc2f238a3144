# ruff: noqa: ARG001, ARG002  (TPUEstimator looks at the names of a model_fn's arguments; hooks get all of theirs)
"""Programs for TPUEstimator, run with the original or with ours: `STAGE FOLDER [PROGRAM ...]`.

It needs TensorFlow alone, or TensorFlow and tpudata; both sides run the same lines. A program's files lie in FOLDER/SIDE/PROGRAM,
the record of what it saw in FOLDER/SIDE/PROGRAM.json. Ours runs after the original, from whose first checkpoint it takes the
initial values: what random ops give is no part of the comparison. In AFTER_OURS it is the other way round. So there are three
stages: "original", "ours" and "again", which is the original's once more.
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
    base,
    batch_norm,
    checkpoints,
    cnn,
    dense,
    estimator,
    events,
    finite,
    input_fn,
    keras_layers,
    metric_fn,
    model,
    momentum,
    named,
    note,
    predictions,
    scalars,
    take_start,
    tpu,
    variables,
    with_dropout,
)
from optimizers import COUNT_NO_STEPS, OPTIMIZERS


def train_evaluate_predict(folder, model_fn, steps=20):
    take_start(folder)
    built = estimator(folder, model_fn)
    built.train(input_fn, max_steps=steps)
    metrics = built.evaluate(input_fn)
    rows = built.predict(finite(BATCH * 2 + 5))
    return {**predictions(rows), **named("metrics", metrics), **note(folder)}


def layers_cnn(folder):
    return train_evaluate_predict(folder, model(cnn, momentum))


def get_variable_adam(folder):
    return train_evaluate_predict(folder, model(dense, as_dict=True))


def batch_norm_update_ops(folder):
    return train_evaluate_predict(folder, model(batch_norm))


def keras_in_model_fn(folder):
    return train_evaluate_predict(folder, model(keras_layers))


def dropout(folder):
    return train_evaluate_predict(folder, model(with_dropout))


def optimizers(folder):
    found = {}
    for name, optimizer in {
        "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
        "nesterov": lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
        "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
        "rmsprop": lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5),
        "ftrl": lambda: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001),
    }.items():
        take_start(folder / name)
        estimator(folder / name, model(optimizer=optimizer)).train(input_fn, steps=30)
        found |= {f"losses/{name}": events(folder / name)[1], **variables(folder / name, f"variables/{name}")}
    return found


def custom_optimizers(folder):
    """Optimizers of the program: the original on one device, ours on one and on four replicas."""

    def model_of(name):
        def model_fn(features, labels, mode, params):
            loss = tf.losses.sparse_softmax_cross_entropy(labels, dense(features, True))
            optimizer, step = OPTIMIZERS[name](), tf.train.get_global_step()
            if SIDE == "ours":  # The original's sums over cores have no kernel for the CPU.
                optimizer = tpu.CrossShardOptimizer(optimizer)
            train_op = optimizer.minimize(loss, global_step=step)
            if name in COUNT_NO_STEPS:
                train_op = tf.group(train_op, step.assign(step + 1))
            return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

        return model_fn

    found = {}
    for name in OPTIMIZERS:
        for replicas in (1, 4):
            place = folder / f"{name.replace(' ', '_')}_{replicas}"
            take_start(place)
            estimator(place, model_of(name), num_replicas=replicas if SIDE == "ours" else None).train(
                input_fn, steps=10
            )
            what = f"{name} on {replicas}"
            found |= {f"losses/{what}": events(place)[1], **variables(place, f"variables/{what}")}
    return found


def summaries(folder):
    """Train a model_fn that writes its own summaries."""

    def logits_fn(features, training):
        logits = dense(features, training)
        tf.summary.scalar("mean_logit", tf.reduce_mean(logits))
        tf.summary.histogram("logits", logits)
        return logits

    return train_evaluate_predict(folder, model(logits_fn), steps=8)


def summaries_of_variables(folder):
    """Summarise variables, the global step, and an assignment that only a summary runs, in loops of several steps."""

    def logits_fn(features, training):
        logits = dense(features, training)
        if training:
            tf.summary.scalar("kernel_sum", tf.reduce_sum(tf.trainable_variables()[0]))
            tf.summary.scalar("at_step", tf.train.get_global_step())
            count = tf.get_variable("written_times", [], initializer=tf.zeros_initializer(), trainable=False)
            tf.summary.scalar("written", count.assign_add(1.0))
        return logits

    take_start(folder)
    estimator(folder, model(logits_fn), iterations=4, save_summary_steps=4).train(input_fn, steps=10)
    return {**note(folder), **named("values", scalars(folder, ("kernel_sum", "at_step", "written")))}


class Recorder(tf.train.SessionRunHook):
    """Notes its calls, and what it fetches: named tensors of the step, variables, and operations that it adds."""

    def __init__(self, who, calls, values, stop_at=None):
        self.who, self.calls, self.values, self.stop_at = who, calls, values, stop_at

    def begin(self):
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
    def model_fn(features, labels, mode, params):
        logits = dense(features, False)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        loss = tf.identity(loss, name="the_loss")
        own = [Recorder("spec", calls, values)]
        step = tf.train.get_global_step()
        train_op = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, training_hooks=own, evaluation_hooks=own)

    return model_fn


def hooks(folder):
    """Hooks of the call and of the spec, listeners, and TensorFlow's own hooks."""
    found = {}
    for name, data, stop_at in (
        ("steps", input_fn, None),
        ("stopped", input_fn, 4),
        ("ended", finite(BATCH * 3), None),
    ):
        calls, values, lines = [], [], []

        def line(tensors, lines=lines):
            lines.append([round(float(tensors["the_loss:0"]), 4)])
            return ""

        place = folder / name
        take_start(place)
        built = estimator(place, model_with_hooks(calls, values), save_checkpoints_steps=3)
        own = [
            Recorder("call", calls, values, stop_at),
            tf.train.LoggingTensorHook(["the_loss:0"], every_n_iter=2, formatter=line),
            tf.train.StepCounterHook(every_n_steps=2, output_dir=str(place / "counter")),
            tf.train.StopAtStepHook(num_steps=7),
        ]
        built.train(data, hooks=own, steps=50, saving_listeners=[Listener(calls)])
        tf.summary.FileWriterCache.clear()
        built.evaluate(finite(BATCH * 2), hooks=[Recorder("evaluation", calls, values)])
        found |= {f"calls/{name}": calls, f"values/{name}": values, f"logged/{name}": lines}
        found |= {f"counted/{name}": sorted(events(place / "counter")[0].get("global_step/sec", []))}
        found |= {f"checkpoints/{name}": checkpoints(place), **variables(place, f"variables/{name}")}
    return found


def averages(folder):
    """Evaluate and predict with moving averages of the variables, and initial values from a scaffold."""

    def model_fn(features, labels, mode, params):
        logits = dense(features, False)
        average = tf.train.ExponentialMovingAverage(0.8)

        def swapped():
            return tf.train.Scaffold(saver=tf.train.Saver(average.variables_to_restore()))

        def own_values():
            _, b = tf.trainable_variables()
            return tf.train.Scaffold(init_fn=lambda _, session: b.load(np.full(4, 0.5, np.float32), session))

        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"logits": logits}, scaffold_fn=swapped)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        if mode == "eval":
            return tpu.TPUEstimatorSpec(
                mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]), scaffold_fn=swapped
            )
        train_op = tf.train.GradientDescentOptimizer(0.5).minimize(loss, global_step=tf.train.get_global_step())
        with tf.control_dependencies([train_op]):
            train_op = average.apply(tf.trainable_variables())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, scaffold_fn=own_values)

    cold = folder / "cold"
    estimator(cold, model_fn).train(input_fn, steps=1)
    first = tf.train.load_checkpoint(str(cold / "model.ckpt-0"))
    found = {"first/b": first.get_tensor("b")}
    place = folder / "warm"
    take_start(place)
    built = estimator(place, model_fn)
    evaluation = base.EvalSpec(input_fn, steps=None, throttle_secs=0)
    metrics, _ = base.train_and_evaluate(built, base.TrainSpec(input_fn, max_steps=12), evaluation)
    return {**found, **named("metrics", metrics), **predictions(built.predict(finite(20))), **note(place)}


def host_calls(folder):
    """Summaries that host_call writes, at every step and at every third."""

    def host_fn(step, loss, scaled):
        writer = tf.compat.v2.summary.create_file_writer(str(folder / "host"))
        with writer.as_default():
            with tf.compat.v2.summary.record_if(True):
                tf.compat.v2.summary.scalar("every", loss[0], step=step[0])
            with tf.compat.v2.summary.record_if(tf.equal(step[0] % 3, 0)):
                tf.compat.v2.summary.scalar("third", tf.reduce_mean(scaled), step=step[0])
        return tf.summary.all_v2_summary_ops()

    def model_fn(features, labels, mode, params):
        logits = dense(features, False)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        step = tf.train.get_global_step()
        train_op = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        with tf.control_dependencies([train_op]):  # else the original reads it now before the step, now after it
            after = tf.reshape(step.read_value(), [1])
        tensors = [after, tf.reshape(loss, [1]), logits * 2]
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=(host_fn, tensors))

    take_start(folder)
    estimator(folder, model_fn).train(input_fn, steps=8)
    steps, _ = events(folder / "host")
    return {**named("host steps", steps), **note(folder)}


def plain_estimator_spec(folder):
    """Use the spec of the Estimator without TPU, with a bare tensor of predictions."""

    def model_fn(features, labels, mode, params):
        logits = dense(features, False)
        if mode == "infer":
            return base.EstimatorSpec(mode, predictions=logits)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        return base.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metric_fn(labels, logits))

    take_start(folder)
    built = estimator(folder, model_fn)
    built.train(input_fn, steps=8)
    rows = np.stack(list(built.predict(finite(21))))
    return {**named("metrics", built.evaluate(finite(40))), "predictions/bare": rows, **note(folder)}


def resume(folder):
    """Trained in three goes, by two estimators; the input starts anew each time."""
    take_start(folder)
    built = estimator(folder, model(), save_checkpoints_steps=4)
    built.train(input_fn, steps=7)
    built.train(input_fn, steps=5)
    estimator(folder, model(), save_checkpoints_steps=4).train(input_fn, max_steps=15)
    return note(folder)


def limits(folder):
    """max_steps that is reached, data that ends, a few batches of an evaluation, and data that is empty."""
    take_start(folder)
    built = estimator(folder, model())
    built.train(finite(BATCH * 3), steps=100)
    found = {"steps/data ended": checkpoints(folder)[-1]}
    built.train(input_fn, max_steps=2)
    found["steps/max_steps was reached"] = checkpoints(folder)[-1]
    found |= named("metrics of 2 steps", built.evaluate(input_fn, steps=2))
    found |= named("metrics past the end", built.evaluate(finite(BATCH), steps=50))
    found |= named("metrics of no data", built.evaluate(finite(0), name="none"))
    found |= named("metrics at step 0", built.evaluate(input_fn, checkpoint_path=str(folder / "model.ckpt-0")))
    found["rows of no data"] = len(list(built.predict(finite(0))))
    return {**found, **note(folder)}


def predict_options(folder):
    take_start(folder)
    built = estimator(folder, model())
    built.train(input_fn, steps=5)
    batches = list(built.predict(finite(21), yield_single_examples=False))
    found = {f"batches/{name}": [batch[name] for batch in batches] for name in batches[0]}
    found["keys"] = [sorted(row) for row in built.predict(finite(3), predict_keys=["class", "unknown"])]
    first = built.predict(finite(3), checkpoint_path=str(folder / "model.ckpt-0"))
    return {**found, "first values": [row["probabilities"] for row in first]}


def checkpoint_intervals(folder):
    found = {}
    for name, config in {
        "every 3": {"save_checkpoints_steps": 3},
        "every 3 in loops of 4": {"save_checkpoints_steps": 3, "iterations": 4},
        "never": {"save_checkpoints_steps": None, "save_checkpoints_secs": None},
        "keep 2": {"save_checkpoints_steps": 2, "keep_checkpoint_max": 2},
    }.items():
        place = folder / name.replace(" ", "_")
        estimator(place, model(), **config).train(input_fn, steps=10)
        found[f"checkpoints/{name}"] = checkpoints(place)
    return found


def warm_start(folder):
    take_start(folder / "first")
    estimator(folder / "first", model(batch_norm)).train(input_fn, steps=10)
    first = str(ROOT / "original" / folder.name / "first")
    found = {}
    for name, settings in {
        "path": first,
        "pattern": base.WarmStartSettings(first, "dense_1/"),
        "list": base.WarmStartSettings(first, ["dense/kernel", "batch_normalization/moving_mean", "dense/bias/Adam"]),
        "renamed": base.WarmStartSettings(
            first, ["dense_1/bias:"], var_name_to_prev_var_name={"dense_1/bias": "dense_1/bias/Adam"}
        ),
        "none": base.WarmStartSettings(first, None),
    }.items():
        estimator(folder / f"cold_{name}", model(batch_norm), settings).train(input_fn, steps=1)
        reader = tf.train.load_checkpoint(str(folder / f"cold_{name}" / "model.ckpt-0"))
        source = tf.train.load_checkpoint(first)
        renames = {"dense_1/bias": "dense_1/bias/Adam"} if name == "renamed" else {}
        found[f"warm variables/{name}"] = sorted(
            key
            for key in reader.get_variable_to_shape_map()
            if np.any(source.get_tensor(renames.get(key, key)) != 0)
            and np.array_equal(reader.get_tensor(key), source.get_tensor(renames.get(key, key)))
        )
    return found


def train_and_evaluate(folder):
    take_start(folder)
    receiver = base.export.build_parsing_serving_input_receiver_fn({"flat": tf.io.FixedLenFeature([16], tf.float32)})
    built = estimator(folder, model())
    exporters = [
        base.LatestExporter("latest", receiver),
        base.FinalExporter("final", receiver),
        base.BestExporter("best", receiver),
    ]
    evaluation = base.EvalSpec(input_fn, steps=None, exporters=exporters, throttle_secs=0)
    metrics, exports = base.train_and_evaluate(built, base.TrainSpec(input_fn, max_steps=12), evaluation)
    again = base.train_and_evaluate(built, base.TrainSpec(input_fn, max_steps=12), evaluation)
    found = {f"exports/{item.name}": len(list((folder / "export" / item.name).iterdir())) for item in exporters}
    results = [type(result).__name__ for result in exports]
    return {**named("metrics", metrics), **found, "export results": results, "again": list(again), **note(folder)}


def continue_training(folder, giver):
    """10 steps by the giver; then 10 more, by either side."""
    if giver == SIDE:
        estimator(folder, model(cnn, momentum)).train(input_fn, max_steps=10)
    else:
        take_start(folder, 10, giver)
    estimator(folder, model(cnn, momentum)).train(input_fn, max_steps=20)
    losses = {step: loss for step, loss in events(folder)[1].items() if step > 10}
    return {"losses": losses, "checkpoints": checkpoints(folder)[-3:], **variables(folder)}


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

AFTER_OURS = ("taken_back",)


def plain(value):
    """Convert a value to what JSON can hold."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    return value.decode() if isinstance(value, bytes) else value


def main():
    unknown = sorted({*sys.argv[3:]} - {*PROGRAMS})
    if unknown:
        sys.exit(f"unknown program {unknown[0]!r}; known: {', '.join(PROGRAMS)}")
    stage = {"original": PROGRAMS.keys() - {*AFTER_OURS}, "ours": PROGRAMS.keys(), "again": {*AFTER_OURS}}[STAGE]
    for name, program in PROGRAMS.items():
        if name not in stage or name not in (sys.argv[3:] or stage):
            continue
        folder = ROOT / SIDE / name
        shutil.rmtree(folder, ignore_errors=True)
        try:
            record = program(folder)
        except Exception as problem:
            logging.exception("%s: %s", SIDE, name)
            record = {"the program": f"{SIDE} failed with {type(problem).__name__}: {problem}"}
        folder.parent.mkdir(parents=True, exist_ok=True)
        (ROOT / SIDE / f"{name}.json").write_text(json.dumps(plain(record)))
        print(f"{SIDE}: {name}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
