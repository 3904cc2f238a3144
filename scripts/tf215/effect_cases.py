# ruff: noqa: ARG001, ARG002  (TPUEstimator looks at the names of a model_fn's arguments; hooks get all of theirs)
"""Cases of model functions that leave operations with an effect in the graph, for scripts/oracle_tf215 and for the tests.

The model is one variable `w` that starts at 10 (in a checkpoint) or 3, and the loss is its square: with a learning rate of 0.1 each
step multiplies it by 0.8. Each case adds one kind of operation, which the train_op, the loss or a hook runs, or nothing. A summand
`0.0 * x` makes a result depend on `x` without changing its value.

A case is a function whose first argument is `m`, a Model; it returns the spec.
"""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf


def layers():
    return tf.layers


def keras():
    return tf.keras


class Model:
    """A call of model_fn, with the parts that its case completes.

    Args:
        tpu: the module with TPUEstimatorSpec.
        mode: mode of the call.
        features: features of the call.
        checkpoint: path of the checkpoint of `write_checkpoint`.
        calls: list to which Python functions in the graph append.

    Attributes:
        trains: whether the mode is training.
        w: the variable.
        loss: its square.
    """

    def __init__(self, tpu, mode, features, checkpoint, calls):
        self.tpu, self.mode, self.features, self.checkpoint, self.calls = tpu, mode, features, checkpoint, calls
        self.trains = mode == "train"
        self.w = tf.get_variable("w", [], initializer=tf.constant_initializer(3.0))
        self.loss = self.w * self.w + 0.0 * tf.reduce_sum(features["x"])

    def counter(self, name="counter", **options):
        """Return a new variable that is not trained and starts at 0."""
        return tf.get_variable(name, [], initializer=tf.zeros_initializer(), trainable=False, **options)

    def wrapped(self, optimizer):
        """Return the optimizer for several replicas; the original has none without a TPU."""
        return getattr(self.tpu, "CrossShardOptimizer", lambda inner: inner)(optimizer)

    def minimize(self, loss=None):
        """Return the operation of a step that minimizes a loss, by default the square of w, and counts the global step."""
        optimizer = self.wrapped(tf.train.GradientDescentOptimizer(0.1))
        loss = self.loss if loss is None else loss
        return optimizer.minimize(loss, global_step=tf.train.get_global_step(), var_list=[self.w])

    def spec(self, loss=None, train_op=None, after=None, value=None, **fields):
        """Return a spec whose train_op also runs `after` and whose predictions are `value`."""
        loss = self.loss if loss is None else loss
        if self.mode == "infer":
            value = self.w if value is None else value
            # The zeros from the features give each example a row.
            return self.tpu.TPUEstimatorSpec(self.mode, predictions={"w": value + 0.0 * self.features["x"][:, 0]})
        if not self.trains:
            return self.tpu.TPUEstimatorSpec(self.mode, loss=loss)
        train_op = self.minimize(loss) if train_op is None else train_op
        train_op = train_op if after is None else tf.group(train_op, after)
        return self.tpu.TPUEstimatorSpec(self.mode, loss=loss, train_op=train_op, **fields)

    def note(self, value):
        """Return an operation that appends to `calls`."""
        return tf.py_func(lambda: self.calls.append(value) or np.float32(0.0), [], tf.float32)


def write_checkpoint(folder):
    """Write a checkpoint with w = 10, scope/w = 20 and p = [1, 2, 3, 4] as the original's Saver does; return its path."""
    with tf.Graph().as_default(), tf.Session() as session:
        for name, value in (("w", 10.0), ("scope/w", 20.0), ("p", [1.0, 2.0, 3.0, 4.0])):
            tf.get_variable(name, initializer=tf.constant(value), use_resource=True)
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(folder / "first.ckpt"))


# --- First values.


def init_by_name(m):
    """Take the first value of w from the variable of the same name in the checkpoint."""
    tf.train.init_from_checkpoint(m.checkpoint, {"w": "w"})
    return m.spec()


def init_by_prefix(m):
    """Take the first value of mine/w from scope/w, by the prefixes of both."""
    with tf.variable_scope("mine"):
        tf.get_variable("w", [], initializer=tf.zeros_initializer())
    tf.train.init_from_checkpoint(m.checkpoint, {"scope/": "mine/"})
    return m.spec()


def init_by_variable(m):
    """Take the first value of w from scope/w; the map contains the variable itself."""
    tf.train.init_from_checkpoint(m.checkpoint, {"scope/w": m.w})
    return m.spec()


def init_by_list(m):
    """Take the first value of a variable in two parts; the map contains the list of the parts."""
    p = tf.get_variable("p", [4], initializer=tf.zeros_initializer(), partitioner=tf.fixed_size_partitioner(2))
    tf.train.init_from_checkpoint(m.checkpoint, {"p": list(p)})
    return m.spec(loss=m.loss + 0.0 * tf.reduce_sum(tf.convert_to_tensor(p)))


def init_of_partitions_by_name(m):
    """Take the first value of a variable in two parts; the map contains its name."""
    p = tf.get_variable("p", [4], initializer=tf.zeros_initializer(), partitioner=tf.fixed_size_partitioner(2))
    tf.train.init_from_checkpoint(m.checkpoint, {"p": "p"})
    return m.spec(loss=m.loss + 0.0 * tf.reduce_sum(tf.convert_to_tensor(p)))


def init_twice(m):
    """Take the first value of w twice: the second call decides."""
    tf.train.init_from_checkpoint(m.checkpoint, {"w": "w"})
    tf.train.init_from_checkpoint(m.checkpoint, {"scope/w": "w"})
    return m.spec()


def init_in_every_mode_but_of_no_use(m):
    """Keep trained values when an evaluation or a prediction builds the same graph."""
    tf.train.init_from_checkpoint(m.checkpoint, {"w": "w"})
    return m.spec(after=m.counter().assign_add(1.0))


def init_in_scaffold_fn(m):
    """Call init_from_checkpoint in scaffold_fn."""

    def scaffold_fn():
        tf.train.init_from_checkpoint(m.checkpoint, {"w": "w"})
        return tf.train.Scaffold()

    return m.spec(scaffold_fn=scaffold_fn)


def init_in_scaffold_fn_over_model_fn(m):
    """Call init_from_checkpoint in model_fn and then in scaffold_fn, with different values."""

    def scaffold_fn():
        tf.train.init_from_checkpoint(m.checkpoint, {"scope/w": m.w})
        return tf.train.Scaffold()

    tf.train.init_from_checkpoint(m.checkpoint, {"w": "w"})
    return m.spec(scaffold_fn=scaffold_fn)


def init_op_of_scaffold_fn(m):
    """Pass an init_op in the Scaffold."""

    def scaffold_fn():
        return tf.train.Scaffold(init_op=tf.group(tf.global_variables_initializer(), tf.no_op()))

    return m.spec(scaffold_fn=scaffold_fn)


# --- Operations that nothing runs, and the same ones in the train_op.


def counter_unused(m):
    """Count in an operation that nothing runs."""
    m.counter().assign_add(1.0)
    return m.spec()


def counter_in_train_op(m):
    """Count in an operation that the train_op runs."""
    return m.spec(after=m.counter().assign_add(1.0))


def counter_before_loss(m):
    """Count in an operation on which the loss depends."""
    with tf.control_dependencies([m.counter().assign_add(1.0)]):
        return m.spec(loss=tf.identity(m.loss))


def update_ops_unused(m):
    """Add an operation to the collection of updates, from which the train_op takes none."""
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, m.counter().assign_add(1.0))
    return m.spec()


def batch_norm_unused(m):
    """Normalize the features, and leave the updates of the moving averages to nobody."""
    out = layers().batch_normalization(m.features["x"], training=m.trains, momentum=0.5)
    return m.spec(loss=m.loss + 0.0 * tf.reduce_sum(out))


def batch_norm_in_train_op(m):
    """Normalize the features, and update the moving averages in the train_op."""
    out = layers().batch_normalization(m.features["x"], training=m.trains, momentum=0.5)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    return m.spec(loss=m.loss + 0.0 * tf.reduce_sum(out), after=tf.group(updates))


def keras_batch_norm_unused(m):
    """Normalize the features with Keras's layer, and leave the updates of the moving averages to nobody."""
    out = keras().layers.BatchNormalization(momentum=0.5)(m.features["x"], training=m.trains)
    return m.spec(loss=m.loss + 0.0 * tf.reduce_sum(out))


def keras_batch_norm_in_train_op(m):
    """Normalize the features with Keras's layer, and update the moving averages in the train_op."""
    layer = keras().layers.BatchNormalization(momentum=0.5)
    out = layer(m.features["x"], training=m.trains)
    return m.spec(loss=m.loss + 0.0 * tf.reduce_sum(out), after=tf.group(layer.updates))


def average_unused(m):
    """Make a moving average of w that nothing updates."""
    tf.train.ExponentialMovingAverage(0.5).apply([m.w])
    return m.spec()


def average_in_train_op(m):
    """Update a moving average of w in the train_op, after w."""
    train_op = m.minimize() if m.trains else tf.no_op()
    with tf.control_dependencies([train_op]):
        return m.spec(train_op=tf.group(tf.train.ExponentialMovingAverage(0.5).apply([m.w])))


def global_step_counted_twice(m):
    """Count the global step in an operation that nothing runs, and in the train_op."""
    tf.train.get_global_step().assign_add(1)
    return m.spec()


def second_optimizer_unused(m):
    """Minimize another variable with a second optimizer, whose operation nothing runs."""
    other = tf.get_variable("other", [], initializer=tf.ones_initializer())
    if m.trains:
        m.wrapped(tf.train.MomentumOptimizer(0.1, 0.9)).minimize(other * other, var_list=[other])
    return m.spec()


def assign_unused(m):
    """Assign 100 to w in an operation that nothing runs."""
    m.w.assign(100.0)
    return m.spec()


def initializer_unused(m):
    """Group the initializers of all variables and tables in an operation that nothing runs."""
    tf.group(tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer())
    return m.spec()


def python_function_unused(m):
    """Call a Python function in an operation that nothing runs."""
    m.note("unused")
    return m.spec()


def python_function_in_train_op(m):
    """Call a Python function in an operation that the train_op runs."""
    return m.spec(after=m.note("train_op") if m.trains else None)


def assertion_unused(m):
    """Assert something false in an operation that nothing runs."""
    tf.debugging.assert_equal(tf.reduce_sum(m.features["x"]), -1.0)
    return m.spec()


def assertion_before_loss(m):
    """Assert something false before the loss: training fails."""
    with tf.control_dependencies([tf.debugging.assert_equal(tf.reduce_sum(m.features["x"]), -1.0)]):
        return m.spec(loss=tf.identity(m.loss))


def condition_unused(m):
    """Count in the branch of a tf.cond that nothing runs."""
    counter = m.counter()
    tf.cond(m.w > 0.0, lambda: counter.assign_add(1.0).op, tf.no_op)
    return m.spec()


def condition_in_train_op(m):
    """Count in the branch of a tf.cond that the train_op runs."""
    counter = m.counter()
    return m.spec(after=tf.cond(m.w > 0.0, lambda: tf.identity(counter.assign_add(1.0)), lambda: 0.0))


def unused_in_condition(m):
    """Count in the branch of a tf.cond that the train_op runs, where the branch's result does not depend on the counting."""
    counter = m.counter()

    def chosen():
        counter.assign_add(1.0)
        return tf.constant(1.0)

    return m.spec(after=tf.cond(m.w > 0.0, chosen, lambda: 0.0))


def unused_in_loop(m):
    """Count in the body of a tf.while_loop that the train_op runs, where the body's result does not depend on the counting."""
    counter = m.counter()

    def body(i):
        counter.assign_add(1.0)
        return i + 1

    return m.spec(after=tf.while_loop(lambda i: i < 2, body, [0]))


def function_unused(m):
    """Count in a tf.function that nothing runs."""
    counter = m.counter()
    tf.function(lambda: counter.assign_add(1.0), autograph=False)()
    return m.spec()


def function_in_train_op(m):
    """Count in a tf.function that the train_op runs."""
    counter = m.counter()
    return m.spec(after=tf.function(lambda: tf.identity(counter.assign_add(1.0)), autograph=False)())


# --- Local variables, tables, summaries, host_call.


def metric_unused(m):
    """Make a metric whose update nothing runs."""
    tf.metrics.mean(m.w)
    return m.spec()


def metric_in_train_op(m):
    """Update a metric, whose state is local variables, in the train_op, and assign it to a variable of the checkpoint."""
    _, update = tf.metrics.mean(m.features["x"])
    return m.spec(after=m.counter().assign(update))


def local_variable_in_train_op(m):
    """Count in a local variable, and assign it to a variable of the checkpoint."""
    local = m.counter("local", collections=[tf.GraphKeys.LOCAL_VARIABLES])
    with tf.control_dependencies([local.assign_add(1.0)]):
        return m.spec(after=m.counter().assign(local.read_value()))


def static_table(m):
    """Look up 2.0 in a table that its initializer fills, in the train_op, the loss and the predictions."""
    rows = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([1.0, 2.0]))
    table_value = tf.lookup.StaticHashTable(rows, -1.0).lookup(tf.constant("b"))
    return m.spec(loss=m.loss + table_value, after=m.counter().assign_add(table_value), value=table_value)


def mutable_table(m):
    """Count in a mutable table, and assign its value to a variable of the checkpoint."""
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, default_value=0.0)
    key = tf.constant("a")
    with tf.control_dependencies([table.insert(key, table.lookup(key) + 1.0)]):
        table_value = table.lookup(key)
    return m.spec(after=m.counter().assign(table_value))


def mutable_table_unused(m):
    """Look a key up in a mutable table, where nothing runs the insertion."""
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, default_value=0.0)
    key = tf.constant("a")
    table.insert(key, tf.constant(1.0))
    return m.spec(after=m.counter().assign_add(table.lookup(key)))


def summary_with_effect(m):
    """Count in an operation that only a summary runs."""
    tf.summary.scalar("counted", m.counter().assign_add(1.0))
    return m.spec()


def host_call_with_effect(m):
    """Count in an operation that only host_call runs."""
    tensor = tf.reshape(m.counter().assign_add(1.0), [1])
    return m.spec(host_call=(lambda counted: tf.identity(counted), [tensor]))


# --- Hooks.


class FetchingHook(tf.train.SessionRunHook):
    """Fetches an element of the graph in every second step."""

    def __init__(self, element):
        self.element, self.step = element, 0

    def before_run(self, run_context):
        self.step += 1
        return tf.train.SessionRunArgs(self.element) if self.step % 2 else None


def hook_runs_operation(m):
    """Count in an operation that a hook runs in every second step."""
    update = m.counter().assign_add(1.0)
    return m.spec(training_hooks=[FetchingHook(update.op)])


def hook_runs_group(m):
    """Count in a group of operations that a hook runs in every second step."""
    update = tf.group(m.counter().assign_add(1.0), m.counter("other").assign_add(2.0))
    return m.spec(training_hooks=[FetchingHook(update)])


def hook_fetches_effect(m):
    """Count in an operation whose result a hook fetches in every second step."""
    update = m.counter().assign_add(1.0)
    return m.spec(training_hooks=[FetchingHook(tf.identity(update, name="updated"))])


# --- Evaluation and prediction: later calls do not see what they assign.


def assigned_in_evaluation(m):
    """Count by 1 in training, and by 100 in the loss of the evaluation."""
    counter = m.counter()
    if m.mode != "eval":
        return m.spec(after=counter.assign_add(1.0), value=counter)
    with tf.control_dependencies([counter.assign_add(100.0)]):
        return m.spec(loss=counter.read_value())


def unused_in_evaluation(m):
    """Count by 1 in training, and by 100 in an operation of the evaluation that nothing runs."""
    counter = m.counter()
    if m.mode != "eval":
        return m.spec(after=counter.assign_add(1.0), value=counter)
    counter.assign_add(100.0)
    return m.spec(loss=counter.read_value())


def assigned_in_prediction(m):
    """Count by 1 in training, and by 100 in the predictions."""
    counter = m.counter()
    if m.mode != "infer":
        return m.spec(after=counter.assign_add(1.0))
    with tf.control_dependencies([counter.assign_add(100.0)]):
        return m.spec(value=counter.read_value())


CASES = {
    name: value
    for name, value in list(globals().items())
    if getattr(value, "__code__", None) and value.__code__.co_varnames[:1] == ("m",)
}
# Cases with operations that XLA does not compile, so that several replicas reject them.
REJECTED = ("python_function_in_train_op", "static_table", "mutable_table", "mutable_table_unused")
# Cases whose values depend on the rows of a replica: all replicas take the values of the first.
OF_FIRST_REPLICA = ("batch_norm_in_train_op", "keras_batch_norm_in_train_op", "metric_in_train_op")
# Cases that are not compared on several replicas, where assertions are compiled away.
ONE_REPLICA = (*REJECTED, *OF_FIRST_REPLICA, "assertion_before_loss")


def model_fn(tpu, name, checkpoint, calls):
    """Return the model_fn of a case."""

    def call(features, labels, mode, params):
        return CASES[name](Model(tpu, mode, features, checkpoint, calls))

    return call


def input_fn(params):
    """Return endless batches of 4 rows, whose values have the mean 1.5 or 2."""
    x = np.array([[-1.0], [3.0], [1.0], [3.0], [0.0], [2.0], [4.0], [2.0]], np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, x[:, 0])).repeat().batch(4, drop_remainder=True)


def one_batch(params):
    """Return one batch for predictions."""
    return tf.data.Dataset.from_tensor_slices({"x": np.ones([4, 1], np.float32)}).batch(4, drop_remainder=True)


def run(estimator, calls, steps=6):
    """Train, evaluate, predict and train again.

    Returns:
        The `loss` of the evaluation, the value `predicted` for the first row (in a list), the number of `calls`, and the name of an
        `error`, if any.
    """
    results = {}
    try:
        estimator.train(input_fn, max_steps=steps)
        metrics = estimator.evaluate(input_fn, steps=2)
        results |= {"loss": metrics["loss"], "predicted": [row["w"] for row in estimator.predict(one_batch)][:1]}
        estimator.train(input_fn, max_steps=steps + 2)
    except Exception as problem:
        results["error"] = type(problem).__name__
    return {**results, "calls": len(calls)}


def values_by_step(folder):
    """Return the values of each variable at all steps that have a checkpoint, by its name."""
    values = {}
    # Named model.ckpt-STEP.index.
    for path in sorted(folder.glob("model.ckpt-*.index"), key=lambda path: int(path.stem.rpartition("-")[2])):
        reader = tf.train.load_checkpoint(str(path.with_suffix("")))
        for name in sorted(reader.get_variable_to_shape_map()):
            values.setdefault(name, []).append(reader.get_tensor(name).tolist())
    return values
