# ruff: noqa: ARG001  (TPUEstimator looks at the names of a model_fn's and an input_fn's arguments)
"""Programs of scripts/oracle_tf215 for operations that a model_fn leaves in its graph: the ones that run in a step.

Every model has one weight, which a step multiplies by 0.8; the loss is its square.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf
from effect_cases import CASES, ONE_REPLICA, run, values_by_step, write_checkpoint
from effect_cases import model_fn as case_model_fn
from model import SIDE, estimator, named, tpu

STEPS = 5


def input_fn(params):
    return tf.data.Dataset.from_tensors({"x": [[1.0]]}).repeat()


def spec(features, mode, w, scaffold_fn=None):
    # The original takes no batch from the data if nothing needs one.
    loss = tf.reduce_sum(w**2) + 0 * tf.reduce_sum(features["x"])
    if mode == "eval":
        return tpu.TPUEstimatorSpec(mode, loss=loss)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, scaffold_fn=scaffold_fn)


def checkpoint_of(folder, values):
    folder.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), tf.Session() as session:
        saved = [tf.get_variable(name, initializer=tf.constant(value)) for name, value in values.items()]
        session.run(tf.global_variables_initializer())
        return tf.train.Saver(saved).save(session, str(folder / "given"))


def weights_by_step(folder, model_fn, steps=STEPS):
    """All variables at the start, after the first step, at the end, and after a restart."""
    built = estimator(folder, model_fn, save_checkpoints_steps=1)
    built.train(input_fn, max_steps=steps)
    built.train(input_fn, max_steps=steps + 2)
    kept = 0, 1, 2, steps, steps + 2
    return {
        name: [tf.train.load_variable(str(folder / f"model.ckpt-{step}"), name) for step in kept]
        for name in built.get_variable_names()
    }


def restoring(given, make, mapping, place):
    """Return a model_fn whose weight comes from a checkpoint."""

    def model_fn(features, labels, mode, params):
        w = make()
        mapped = {key: value(w) if callable(value) else value for key, value in mapping.items()}

        def scaffold_fn():
            tf.train.init_from_checkpoint(given, mapped)
            return tf.train.Scaffold()

        if place == "model_fn":
            tf.train.init_from_checkpoint(given, mapped)
        return spec(
            features, mode, tf.convert_to_tensor(w), scaffold_fn=scaffold_fn if place == "scaffold_fn" else None
        )

    return model_fn


def first_values(folder):
    """tf.train.init_from_checkpoint, wherever and however programs call it, and first values that depend on others."""
    given = checkpoint_of(folder / "given", {"w": [10.0], "old/w": [20.0]})

    def scoped():
        with tf.variable_scope("new"):
            return tf.get_variable("w", [1], initializer=tf.zeros_initializer())

    def plain():
        return tf.get_variable("w", [1], initializer=tf.zeros_initializer())

    def partitioned():
        with tf.variable_scope("parts", partitioner=tf.fixed_size_partitioner(1)):
            return tf.get_variable("w", [1], initializer=tf.zeros_initializer())

    maps = {
        "names": (plain, {"w": "w"}),
        "prefixes": (scoped, {"old/": "new/"}),
        "variable": (scoped, {"w": lambda w: w}),
        "list": (partitioned, {"old/w": list}),
        "partitioned": (partitioned, {"w": "parts/w"}),
    }
    found = {}
    for name, (make, mapping) in maps.items():
        for place in ("model_fn", "scaffold_fn"):
            model_fn = restoring(given, make, mapping, place)
            found |= named(f"{name} in {place}", weights_by_step(folder / name / place, model_fn))

    def dependent(features, labels, mode, params):
        w = tf.get_variable("w", initializer=[3.0])
        doubled = tf.get_variable("doubled", initializer=2 * w.initial_value, trainable=False)
        return spec(features, mode, w + 0 * doubled)

    return {**found, **named("dependent", weights_by_step(folder / "dependent", dependent))}


def effects(folder):
    """Record the effect of each kind of operation: the original on one device, ours on one and on two replicas."""
    folder.mkdir(parents=True)
    checkpoint = write_checkpoint(folder)
    found = {}
    for name in CASES:
        for replicas in (1, 2):
            place, calls = folder / f"{name}_{replicas}", []
            if replicas == 1:
                seen = run_case(place, name, checkpoint, calls)
            elif name in ONE_REPLICA:
                continue
            elif SIDE == "ours":
                seen = run_case(place, name, checkpoint, calls, num_replicas=replicas)
            found |= named(f"{name} on {replicas}", seen)
    return found


def run_case(folder, name, checkpoint, calls, num_replicas=None):
    built = estimator(
        folder, case_model_fn(tpu, name, checkpoint, calls), size=4, num_replicas=num_replicas, save_checkpoints_steps=1
    )
    seen = run(built, calls)
    return {**seen, **values_by_step(folder)}
