# ruff: noqa: ARG001, ARG002  (TPUEstimator looks at the names of a model_fn's arguments; hooks get all of theirs)
"""Programs of scripts/oracle_tf215 with what public programs do in addition to training: results they read, iterators that hooks
initialize, sparse features, steps that do not count, and checkpoints with partitioned variables."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf
from model import (
    BATCH,
    FLAT,
    LABELS,
    ROWS,
    SIDE,
    add_prefix,
    base,
    copy_start,
    dense,
    input_fn,
    list_checkpoint_steps,
    make_estimator,
    make_finite_input_fn,
    make_model_fn,
    read_events,
    read_losses,
    read_variables,
    record_folder,
    tpu,
)


def results(folder):
    """Record the types of the metrics that evaluate returns, and the summaries of vectors and images in the event file."""

    def model_fn(features, labels, mode, params):
        logits = dense(features, training=False)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        first_probabilities = tf.nn.softmax(logits)[:, 0]
        metrics = {
            "accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1)),
            "precision_at": tf.metrics.precision_at_thresholds(
                tf.equal(labels, 0), first_probabilities, [0.2, 0.3, 0.5]
            ),
            "precision_at_k": tf.metrics.precision_at_k(tf.cast(labels, tf.int64), logits, 2),
            "pictures": (tf.summary.image("seen", tf.zeros([1, 2, 2, 1])), tf.no_op()),
        }
        return base.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)

    copy_start(folder)
    estimator = make_estimator(folder, model_fn)
    estimator.train(input_fn, steps=4)
    metrics = estimator.evaluate(make_finite_input_fn(40))
    scalar_values = {
        name: value.item() for name, value in metrics.items() if np.ndim(value) == 0 and hasattr(value, "item")
    }
    summaries = {}
    for path in folder.glob("eval/*tfevents*"):
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                # `evaluate` writes vectors of metrics with a node's name. They are compared by value, all else by its kind.
                is_vector = kind == "tensor" and value.node_name
                summaries[value.tag] = [kind, tf.make_ndarray(value.tensor) if is_vector else 0]
    types = {name: type(value).__name__ for name, value in metrics.items()}
    return {**add_prefix("types", types), **add_prefix("items", scalar_values), **add_prefix("summaries", summaries)}


class InitializingHook(tf.train.SessionRunHook):
    """Runs the initializer of the iterator of its input_fn, and feeds the arrays to it."""

    def after_create_session(self, session, coord):
        self.initialize(session)

    def input_fn(self, params):
        """Return the tensors of a batch, which exist once `initialize` is called with a session."""
        flat, labels = tf.placeholder(tf.float32, FLAT.shape), tf.placeholder(tf.int32, LABELS.shape)
        data = tf.data.Dataset.from_tensor_slices(({"flat": flat}, labels)).repeat().batch(params["batch_size"], True)
        iterator = tf.data.make_initializable_iterator(data)
        self.initialize = lambda session: session.run(iterator.initializer, {flat: FLAT, labels: LABELS})
        return iterator.get_next()


def initialized_iterator(folder):
    """Train and evaluate with an iterator that a hook initializes."""
    copy_start(folder)
    hook = InitializingHook()
    estimator = make_estimator(folder, make_model_fn())
    estimator.train(hook.input_fn, hooks=[hook], steps=7)
    metrics = estimator.evaluate(hook.input_fn, hooks=[hook], steps=3)
    return {**add_prefix("metrics", metrics), **record_folder(folder)}


def sparse_features(folder):
    """Train a wide and deep model: sparse ids, dense features."""
    # Zero, one or two of 12 ids in each row.
    ids_of_rows = [[row % 7, row % 5 + 7][: row % 3] for row in range(ROWS)]
    spec = {"ids": tf.io.VarLenFeature(tf.int64), "flat": tf.io.FixedLenFeature([16], tf.float32)}

    def make_example(row):
        example_proto = tf.train.Example()
        example_proto.features.feature["ids"].int64_list.value.extend(ids_of_rows[row])
        example_proto.features.feature["flat"].float_list.value.extend(FLAT[row])
        return example_proto.SerializeToString()

    examples = [make_example(row) for row in range(ROWS)]

    def sparse_input_fn(params, rows=ROWS):
        data = tf.data.Dataset.from_tensor_slices((examples[:rows], LABELS[:rows]))
        return data.batch(params["batch_size"]).map(lambda row, label: (tf.io.parse_example(row, spec), label))

    def model_fn(features, labels, mode, params):
        wide = tf.get_variable("wide", [12, 4], initializer=tf.zeros_initializer())
        # `embedding_lookup_sparse` has no result for a row without ids: these get the id 0.
        filled, _ = tf.sparse.fill_empty_rows(features["ids"], 0)
        logits = dense(features, training=False) + tf.nn.embedding_lookup_sparse(wide, filled, None, combiner="sum")
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

    copy_start(folder)
    estimator = make_estimator(folder, model_fn)
    estimator.train(lambda params: sparse_input_fn(params).repeat(), steps=10)
    rows = list(estimator.predict(lambda params: sparse_input_fn(params, 21)))
    metrics = estimator.evaluate(lambda params: sparse_input_fn(params, 40))
    record = {f"predictions/{name}": [row[name] for row in rows] for name in rows[0]}
    return {**add_prefix("metrics", metrics), **record, **record_folder(folder)}


def skipped_steps(folder):
    """Train with steps that do not count, like steps that a loss scale skips, at several intervals of summaries."""

    def make_spec(features, labels, mode, every):
        loss = tf.losses.sparse_softmax_cross_entropy(labels, dense(features, training=False))
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

    record = {}
    for every in (2, 3, 4):
        for interval in (1, 2, 3):
            subfolder = folder / f"{every}_{interval}"
            copy_start(subfolder)

            def model_fn(features, labels, mode, params):
                return make_spec(features, labels, mode, params["every"])

            estimator = make_estimator(
                subfolder,
                model_fn,
                params={"every": every},
                iterations=4,
                save_summary_steps=interval,
                save_checkpoints_steps=4,
            )
            estimator.train(input_fn, max_steps=9)
            # At longer intervals, the original's steps of events vary: it reads the step while it is updated.
            subfolder_record = (
                record_folder(subfolder)
                if interval == 1
                else {"checkpoints": list_checkpoint_steps(subfolder), **read_variables(subfolder)}
            )
            record |= add_prefix(f"every {every}, interval {interval}", subfolder_record)
    return record


class CountingHook(tf.train.SessionRunHook):
    """Counts the global step, which the train_op leaves alone."""

    def begin(self):
        self.count = tf.train.get_global_step().assign_add(1)

    def after_run(self, run_context, run_values):
        run_context.session.run(self.count)


def counting_hook(folder):
    """Train with a hook that counts steps, and a train_op that does not."""

    def model_fn(features, labels, mode, params):
        loss = tf.losses.sparse_softmax_cross_entropy(labels, dense(features, training=False))
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=tf.train.GradientDescentOptimizer(0.1).minimize(loss))

    copy_start(folder)
    make_estimator(folder, model_fn).train(input_fn, hooks=[CountingHook()], max_steps=3)
    return read_variables(folder)


def infinite_loss(folder):
    """Train with a loss that is infinite in some steps, while the gradients are finite."""

    def model_fn(features, labels, mode, params):
        loss = tf.losses.sparse_softmax_cross_entropy(labels, dense(features, training=False))
        step = tf.train.get_global_step()
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
        scale = tf.where(tf.equal(features["scale"][0], 2.0), np.inf, 1.0)
        return tpu.TPUEstimatorSpec(mode, loss=loss * scale, train_op=train_op)

    # The scale is the number of the batch in a pass over the data.
    def scaled(params):
        scale = (np.arange(ROWS) // BATCH).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices(({"flat": FLAT, "scale": scale}, LABELS)).repeat().batch(BATCH, True)

    copy_start(folder)
    make_estimator(folder, model_fn, iterations=4).train(scaled, steps=10)
    steps, losses = read_events(folder)
    losses = {step: loss if np.isfinite(loss) else "infinite" for step, loss in losses.items()}
    return {"losses": losses, **add_prefix("event steps", steps), **read_variables(folder)}


class EndHook(tf.train.SessionRunHook):
    """Records the end of the training."""

    def __init__(self, calls):
        self.calls = calls

    def end(self, session):
        self.calls.append("end")


class RecordingExporter(base.FinalExporter):
    """Records each evaluation."""

    def __init__(self, calls):
        self.calls = calls

    @property
    def name(self):
        return "notes"

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
        self.calls.append(f"evaluated {eval_result['global_step']}")


def last_evaluation(folder):
    """Record the order of the last evaluation, throttled or not, and the end of the training's hooks."""
    record = {}
    for throttle in (0, 600):
        for by_hook in (False, True):
            calls, subfolder = [], folder / f"{throttle}_{by_hook}"
            copy_start(subfolder)
            hooks = [tf.train.CheckpointSaverHook(str(subfolder), save_steps=2)] if by_hook else []
            base.train_and_evaluate(
                make_estimator(subfolder, make_model_fn(), save_checkpoints_steps=2),
                base.TrainSpec(input_fn, max_steps=6, hooks=[*hooks, EndHook(calls)]),
                base.EvalSpec(
                    make_finite_input_fn(BATCH), exporters=[RecordingExporter(calls)], throttle_secs=throttle
                ),
            )
            record[f"calls/throttle {throttle}, saver by hook {by_hook}"] = calls
    return record


def partitioned(folder):
    """Continue from the original's checkpoint of 4 steps, which has partitioned variables as whole ones, to 8 steps."""

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
        make_estimator(folder, model_fn).train(input_fn, steps=4)
    else:
        copy_start(folder, 4)
    estimator = make_estimator(folder, model_fn)
    metrics = estimator.evaluate(input_fn, steps=3)
    estimator.train(input_fn, max_steps=8)
    losses = {step: loss for step, loss in read_losses(folder).items() if step > 4}
    rows = [row["logits"] for row in estimator.predict(make_finite_input_fn(10))]
    return {**add_prefix("metrics", metrics), "losses": losses, "predictions/logits": rows}


CARRIED = (
    results,
    initialized_iterator,
    sparse_features,
    skipped_steps,
    counting_hook,
    infinite_loss,
    last_evaluation,
    partitioned,
)
