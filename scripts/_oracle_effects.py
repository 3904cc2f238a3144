# ruff: noqa: ARG001  (TPUEstimator looks at the names of a model_fn's and an input_fn's arguments)
"""Programs of scripts/oracle_tf215: what a model_fn leaves in its graph, and what of it runs in a step.

Every model is one weight that a step multiplies by 0.8, with a loss of its square.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf
from _oracle_model import estimator, named, tpu

STEPS = 5


def input_fn(params):
    return tf.data.Dataset.from_tensors({"x": [[1.0]]}).repeat()


def two_batches(params):
    return input_fn(params).take(2)


def spec(features, mode, w, train=(), loss_waits_for=(), scaffold_fn=None):
    with tf.control_dependencies(list(loss_waits_for)):
        # The original takes no batch from the data if nothing needs one.
        loss = tf.reduce_sum(w**2) + 0 * tf.reduce_sum(features["x"])
    if mode == "eval":
        return tpu.TPUEstimatorSpec(mode, loss=loss)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(train_op, *train), scaffold_fn=scaffold_fn)


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
    """A model_fn whose weight comes from a checkpoint."""

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


def leaving(leave):
    def model_fn(features, labels, mode, params):
        w = tf.get_variable("w", initializer=[1.0])
        return spec(features, mode, w, **leave(w))

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
    """Operations that change something, and that train_op waits for or not."""
    calls = []

    def counter(name="counter", **options):
        return tf.get_variable(name, [], initializer=tf.zeros_initializer(), trainable=False, **options)

    def left(w):
        counter().assign_add(1.0)
        return {}

    def run(w):
        return {"train": [counter().assign_add(1.0)]}

    def waited_for(w):
        return {"loss_waits_for": [counter().assign_add(1.0)]}

    def initializer_kept(w):
        tf.add_to_collection("mine", tf.assign(w, [7.0]))
        tf.add_to_collection("mine", w.initializer)
        return {}

    def normalization(w, run_updates=False):
        net = tf.layers.batch_normalization(w[None] + 1, training=True, momentum=0.5)
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        return {"train": updates if run_updates else [], "loss_waits_for": [net]}

    def averages(w):
        tf.train.ExponentialMovingAverage(0.5).apply([w])
        return {}

    def assertion(w):
        tf.debugging.Assert(tf.constant(False), ["left"])
        return {}

    def python(w):
        tf.py_function(lambda: calls.append(1) or 0, [], tf.int32)
        return {}

    def python_run(w):
        return {"loss_waits_for": [tf.py_function(lambda: calls.append(1) or 0, [], tf.int32)]}

    def local(w):
        seen = counter("seen", collections=[tf.GraphKeys.LOCAL_VARIABLES])
        total = counter()
        return {"train": [total.assign(seen.assign_add(1.0))]}

    def table(w):
        keys, values = tf.constant(["a", "b"]), tf.constant([1.0, 2.0])
        words = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1.0)
        return {"train": [counter().assign_add(tf.reduce_sum(words.lookup(tf.constant(["a", "b", "c"]))))]}

    found = {}
    for name, leave in {
        "left": left,
        "run": run,
        "waited for": waited_for,
        "initializer kept": initializer_kept,
        "update_ops left": normalization,
        "update_ops run": lambda w: normalization(w, run_updates=True),
        "averages left": averages,
        "assertion left": assertion,
        "py_function left": python,
        "py_function run": python_run,
        "local variable": local,
        "table": table,
    }.items():
        del calls[:]
        found |= named(name, weights_by_step(folder / name, leaving(leave)))
        found |= {f"{name}/calls": len(calls)}
        trained = estimator(folder / name, leaving(leave))
        found |= named(f"{name}/evaluation", trained.evaluate(two_batches))
        found |= named(
            f"{name}/after it", {item: trained.get_variable_value(item) for item in trained.get_variable_names()}
        )
    return found
