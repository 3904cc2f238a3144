# ruff: noqa: ARG001, ARG002  (TPUEstimator looks at the names of a model_fn's arguments; hooks get all of theirs)
"""Programs of scripts/oracle_tf215 with what public programs do besides training: results they read, iterators that hooks
initialise, sparse features, steps that do not count, and checkpoints with partitioned variables."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf
from model import (
    BATCH,
    FLAT,
    LABELS,
    ROWS,
    SIDE,
    base,
    checkpoints,
    dense,
    estimator,
    events,
    finite,
    input_fn,
    model,
    named,
    note,
    take_start,
    tpu,
    variables,
)


def results(folder):
    """Record the types of what evaluate returns, and what the event file has of vectors and serialised summaries."""

    def model_fn(features, labels, mode, params):
        logits = dense(features, False)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        found = tf.nn.softmax(logits)[:, 0]
        metrics = {
            "accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1)),
            "precision_at": tf.metrics.precision_at_thresholds(tf.equal(labels, 0), found, [0.2, 0.3, 0.5]),
            "precision_at_k": tf.metrics.precision_at_k(tf.cast(labels, tf.int64), logits, 2),
            "pictures": (tf.summary.image("seen", tf.zeros([1, 2, 2, 1])), tf.no_op()),
        }
        return base.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)

    take_start(folder)
    built = estimator(folder, model_fn)
    built.train(input_fn, steps=4)
    metrics = built.evaluate(finite(40))
    items = {name: value.item() for name, value in metrics.items() if np.ndim(value) == 0 and hasattr(value, "item")}
    seen = {}
    for path in folder.glob("eval/*tfevents*"):
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                seen[value.tag] = [kind, tf.make_ndarray(value.tensor) if kind == "tensor" and value.node_name else 0]
    types = {name: type(value).__name__ for name, value in metrics.items()}
    return {**named("types", types), **named("items", items), **named("summaries", seen)}


class Initializes(tf.train.SessionRunHook):
    """Feeds the arrays to the iterator's initializer, which input_fn hands over."""

    def after_create_session(self, session, coord):
        self.initialize(session)

    def input_fn(self, params):
        flat, labels = tf.placeholder(tf.float32, FLAT.shape), tf.placeholder(tf.int32, LABELS.shape)
        data = tf.data.Dataset.from_tensor_slices(({"flat": flat}, labels)).repeat().batch(params["batch_size"], True)
        iterator = tf.data.make_initializable_iterator(data)
        self.initialize = lambda session: session.run(iterator.initializer, {flat: FLAT, labels: LABELS})
        return iterator.get_next()


def initialised_iterator(folder):
    take_start(folder)
    hook = Initializes()
    built = estimator(folder, model())
    built.train(hook.input_fn, hooks=[hook], steps=7)
    metrics = built.evaluate(hook.input_fn, hooks=[hook], steps=3)
    return {**named("metrics", metrics), **note(folder)}


def sparse_features(folder):
    """Train a wide and deep model: sparse ids, dense features."""
    rows = [[row % 7, row % 5 + 7][: row % 3] for row in range(ROWS)]
    spec = {"ids": tf.io.VarLenFeature(tf.int64), "flat": tf.io.FixedLenFeature([16], tf.float32)}

    def example(row):
        found = tf.train.Example()
        found.features.feature["ids"].int64_list.value.extend(rows[row])
        found.features.feature["flat"].float_list.value.extend(FLAT[row])
        return found.SerializeToString()

    examples = [example(row) for row in range(ROWS)]

    def sparse_input_fn(params, rows=ROWS):
        data = tf.data.Dataset.from_tensor_slices((examples[:rows], LABELS[:rows]))
        return data.batch(params["batch_size"]).map(lambda row, label: (tf.io.parse_example(row, spec), label))

    def model_fn(features, labels, mode, params):
        wide = tf.get_variable("wide", [12, 4], initializer=tf.zeros_initializer())
        filled, _ = tf.sparse.fill_empty_rows(features["ids"], 0)
        logits = dense(features, False) + tf.nn.embedding_lookup_sparse(wide, filled, None, combiner="sum")
        if mode == "infer":
            ids = features["ids"]
            counts = tf.sparse.reduce_sum(
                tf.SparseTensor(ids.indices, tf.ones_like(ids.values), ids.dense_shape), axis=1
            )
            return tpu.TPUEstimatorSpec(mode, predictions={"class": tf.argmax(logits, 1), "count": counts})
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        step = tf.train.get_global_step()
        train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    take_start(folder)
    built = estimator(folder, model_fn)
    built.train(lambda params: sparse_input_fn(params).repeat(), steps=10)
    rows = list(built.predict(lambda params: sparse_input_fn(params, 21)))
    metrics = built.evaluate(lambda params: sparse_input_fn(params, 40))
    found = {f"predictions/{name}": [row[name] for row in rows] for name in rows[0]}
    return {**named("metrics", metrics), **found, **note(folder)}


def skipped_steps(folder):
    """Train with steps that leave the global step alone, as a loss scale does, at several intervals."""

    def built(features, labels, mode, every):
        loss = tf.losses.sparse_softmax_cross_entropy(labels, dense(features, False))
        tries = tf.get_variable("tries", [], tf.int64, initializer=tf.zeros_initializer(), trainable=False)
        step = tf.train.get_global_step()
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        gradients = optimizer.compute_gradients(loss, tf.trainable_variables())
        with tf.control_dependencies([gradient for gradient, _ in gradients]):
            count = tries.assign_add(1)
        counts = tf.not_equal(count % every, 0)
        masked = [(tf.where(counts, value, tf.zeros_like(value)), variable) for value, variable in gradients]
        update = optimizer.apply_gradients(masked)
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=tf.group(update, step.assign_add(tf.cast(counts, tf.int64)))
        )

    found = {}
    for every in (2, 3, 4):
        for interval in (1, 2, 3):
            place = folder / f"{every}_{interval}"
            take_start(place)

            def model_fn(features, labels, mode, params):
                return built(features, labels, mode, params["every"])

            own = estimator(
                place,
                model_fn,
                params={"every": every},
                iterations=4,
                save_summary_steps=interval,
                save_checkpoints_steps=4,
            )
            own.train(input_fn, max_steps=9)
            # At longer intervals, the original reads the step while it is updated, before or after that.
            seen = note(place) if interval == 1 else {"checkpoints": checkpoints(place), **variables(place)}
            found |= named(f"every {every}, interval {interval}", seen)
    return found


class Counts(tf.train.SessionRunHook):
    def begin(self):
        self.count = tf.train.get_global_step().assign_add(1)

    def after_run(self, run_context, run_values):
        run_context.session.run(self.count)


def counting_hook(folder):
    def model_fn(features, labels, mode, params):
        loss = tf.losses.sparse_softmax_cross_entropy(labels, dense(features, False))
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=tf.train.GradientDescentOptimizer(0.1).minimize(loss))

    take_start(folder)
    estimator(folder, model_fn).train(input_fn, hooks=[Counts()], max_steps=3)
    return variables(folder)


def infinite_loss(folder):
    """Train with a loss that is infinite in some steps, while the gradients are finite."""

    def model_fn(features, labels, mode, params):
        loss = tf.losses.sparse_softmax_cross_entropy(labels, dense(features, False))
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        scale = tf.where(tf.equal(features["scale"][0], 2.0), np.inf, 1.0)
        return tpu.TPUEstimatorSpec(mode, loss=loss * scale, train_op=train_op)

    def scaled(params):
        scale = (np.arange(ROWS) // BATCH).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices(({"flat": FLAT, "scale": scale}, LABELS)).repeat().batch(BATCH, True)

    take_start(folder)
    estimator(folder, model_fn, iterations=4).train(scaled, steps=10)
    steps, losses = events(folder)
    losses = {step: loss if np.isfinite(loss) else "infinite" for step, loss in losses.items()}
    return {"losses": losses, **named("event steps", steps), **variables(folder)}


class Ends(tf.train.SessionRunHook):
    def __init__(self, calls):
        self.calls = calls

    def end(self, session):
        self.calls.append("end")


class Notes(base.FinalExporter):
    """Notes each evaluation."""

    def __init__(self, calls):
        self.calls = calls

    @property
    def name(self):
        return "notes"

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        self.calls.append(f"evaluated {eval_result['global_step']}")


def last_evaluation(folder):
    """Record the order of the last evaluation, throttled or not, and the end of the training's hooks."""
    found = {}
    for throttle in (0, 600):
        for by_hook in (False, True):
            calls, place = [], folder / f"{throttle}_{by_hook}"
            take_start(place)
            hooks = [tf.train.CheckpointSaverHook(str(place), save_steps=2)] if by_hook else []
            base.train_and_evaluate(
                estimator(place, model(), save_checkpoints_steps=2),
                base.TrainSpec(input_fn, max_steps=6, hooks=[*hooks, Ends(calls)]),
                base.EvalSpec(finite(BATCH), exporters=[Notes(calls)], throttle_secs=throttle),
            )
            found[f"calls/throttle {throttle}, saver by hook {by_hook}"] = calls
    return found


def partitioned(folder):
    """Begin with the original's checkpoint of 4 steps, which has the partitioned variables whole, and train 4 more."""

    def model_fn(features, labels, mode, params):
        parts = tf.fixed_size_partitioner(3)
        w = tf.get_variable("p", [16, 4], initializer=tf.zeros_initializer(), partitioner=parts)
        logits = tf.matmul(features["flat"], tf.convert_to_tensor(w))
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"logits": logits})
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        step = tf.train.get_global_step()
        train_op = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss, global_step=step)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    if SIDE == "original":
        estimator(folder, model_fn).train(input_fn, steps=4)
    else:
        take_start(folder, 4)
    built = estimator(folder, model_fn)
    metrics = built.evaluate(input_fn, steps=3)
    built.train(input_fn, max_steps=8)
    losses = {step: loss for step, loss in events(folder)[1].items() if step > 4}
    rows = [row["logits"] for row in built.predict(finite(10))]
    return {**named("metrics", metrics), "losses": losses, "predictions/logits": rows}


CARRIED = (
    results,
    initialised_iterator,
    sparse_features,
    skipped_steps,
    counting_hook,
    infinite_loss,
    last_evaluation,
    partitioned,
)
