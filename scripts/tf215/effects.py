# ruff: noqa: ARG001  (TPUEstimator looks at the names of a model_fn's and an input_fn's arguments)
"""Programs of scripts/oracle_tf215 for operations that a model_fn leaves in its graph: which of them run in a step.

Every model has one weight, which a step multiplies by 0.8; the loss is its square.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf
from effect_cases import CASES, ONE_REPLICA, run, values_by_step, write_checkpoint
from effect_cases import model_fn as case_model_fn
from model import SIDE, add_prefix, make_estimator, tpu

STEPS = 5


def input_fn(params):
    return tf.data.Dataset.from_tensors({"x": [[1.0]]}).repeat()


def make_spec(features, mode, w, scaffold_fn=None):
    """Return the spec of a model with the weight w, for training or evaluation."""
    # The original reads no batch if the loss does not depend on the features.
    loss = tf.reduce_sum(w**2) + 0 * tf.reduce_sum(features["x"])
    if mode == "eval":
        return tpu.TPUEstimatorSpec(mode, loss=loss)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, scaffold_fn=scaffold_fn)


def write_values(folder, values):
    """Write a checkpoint of variables with values by name, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(name, initializer=tf.constant(value)) for name, value in values.items()]
        session.run(tf.global_variables_initializer())
        return tf.train.Saver(variables).save(session, str(folder / "given"))


def record_weights(folder, model_fn, steps=STEPS):
    """Return the values of each variable at the start, after one and two steps, at the end, and after a restart."""
    estimator = make_estimator(folder, model_fn, save_checkpoints_steps=1)
    estimator.train(input_fn, max_steps=steps)
    estimator.train(input_fn, max_steps=steps + 2)
    recorded_steps = 0, 1, 2, steps, steps + 2
    return {
        name: [tf.train.load_variable(str(folder / f"model.ckpt-{step}"), name) for step in recorded_steps]
        for name in estimator.get_variable_names()
    }


def make_restoring_model_fn(checkpoint, make_variable, mapping, location):
    """Return a model_fn whose weight gets its first value from a checkpoint.

    Args:
        checkpoint: path of the checkpoint.
        make_variable: function that makes the weight.
        mapping: argument of init_from_checkpoint; functions in it map the weight to a value of the argument.
        location: where init_from_checkpoint is called, "model_fn" or "scaffold_fn".
    """

    def model_fn(features, labels, mode, params):
        w = make_variable()
        mapped = {key: value(w) if callable(value) else value for key, value in mapping.items()}

        def scaffold_fn():
            tf.train.init_from_checkpoint(checkpoint, mapped)
            return tf.train.Scaffold()

        if location == "model_fn":
            tf.train.init_from_checkpoint(checkpoint, mapped)
        return make_spec(
            features, mode, tf.convert_to_tensor(w), scaffold_fn=scaffold_fn if location == "scaffold_fn" else None
        )

    return model_fn


def first_values(folder):
    """Record the effect of tf.train.init_from_checkpoint with all kinds of arguments, and of first values that depend on others."""
    checkpoint = write_values(folder / "given", {"w": [10.0], "old/w": [20.0]})

    def scoped():
        with tf.variable_scope("new"):
            return tf.get_variable("w", [1], initializer=tf.zeros_initializer())

    def plain():
        return tf.get_variable("w", [1], initializer=tf.zeros_initializer())

    def partitioned():
        with tf.variable_scope("parts", partitioner=tf.fixed_size_partitioner(1)):
            return tf.get_variable("w", [1], initializer=tf.zeros_initializer())

    # The function that makes the weight, and the map; a function in it is called with the weight.
    maps = {
        "names": (plain, {"w": "w"}),
        "prefixes": (scoped, {"old/": "new/"}),
        "variable": (scoped, {"w": lambda w: w}),
        "list": (partitioned, {"old/w": list}),
        "partitioned": (partitioned, {"w": "parts/w"}),
    }
    record = {}
    for name, (make_variable, mapping) in maps.items():
        for location in ("model_fn", "scaffold_fn"):
            model_fn = make_restoring_model_fn(checkpoint, make_variable, mapping, location)
            record |= add_prefix(f"{name} in {location}", record_weights(folder / name / location, model_fn))

    def dependent(features, labels, mode, params):
        w = tf.get_variable("w", initializer=[3.0])
        doubled = tf.get_variable("doubled", initializer=2 * w.initial_value, trainable=False)
        return make_spec(features, mode, w + 0 * doubled)

    return {**record, **add_prefix("dependent", record_weights(folder / "dependent", dependent))}


def effects(folder):
    """Record the effect of each kind of operation: the original on one device, ours on one and on two replicas."""
    folder.mkdir(parents=True)
    checkpoint = write_checkpoint(folder)
    record = {}
    for name in CASES:
        for replicas in (1, 2):
            subfolder, calls = folder / f"{name}_{replicas}", []
            if replicas == 1:
                case_record = run_case(subfolder, name, checkpoint, calls)
            elif name in ONE_REPLICA:
                continue
            elif SIDE == "ours":
                case_record = run_case(subfolder, name, checkpoint, calls, num_replicas=replicas)
            # The original's record of one device stands for two replicas as well.
            record |= add_prefix(f"{name} on {replicas}", case_record)
    return record


def run_case(folder, name, checkpoint, calls, num_replicas=None):
    """Run a case of effect_cases.py, and return its results and the values of its variables by name."""
    estimator = make_estimator(
        folder, case_model_fn(tpu, name, checkpoint, calls), size=4, num_replicas=num_replicas, save_checkpoints_steps=1
    )
    results = run(estimator, calls)
    return {**results, **values_by_step(folder)}
