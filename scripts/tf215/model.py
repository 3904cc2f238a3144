# ruff: noqa: ARG001  (TPUEstimator looks at the names of a model_fn's and an input_fn's arguments)
"""Common parts of the programs of scripts/oracle_tf215: data, models, the estimator, and records of a run.

`base` and `tpu` are the modules of the side that this process runs: the original's, or ours.
"""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

STAGE, ROOT = sys.argv[1], Path(sys.argv[2])
SIDE = "ours" if STAGE == "ours" else "original"
if SIDE == "original":
    base, tpu = tf.estimator, tf.estimator.tpu
    tf.logging.set_verbosity(tf.logging.ERROR)
else:
    import tpudata.estimator as tpu

    base = tpu
    logging.getLogger("tpudata").setLevel(logging.ERROR)
    # Some programs run on several replicas. The original, without a TPU, has one.
    _cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(_cpu, [tf.config.LogicalDeviceConfiguration()] * 4)

ROWS, CLASSES, BATCH = 96, 4, 16
_rng = np.random.RandomState(3)
LABELS = (np.arange(ROWS) % CLASSES).astype(np.int32)
IMAGES = (_rng.rand(CLASSES, 12, 12, 1)[LABELS] + 0.5 * _rng.rand(ROWS, 12, 12, 1)).astype(np.float32)
FLAT = IMAGES[:, ::3, ::3, 0].reshape(ROWS, 16)


def input_fn(params, mode=None, rows=ROWS):
    """Return batches of the first rows: repeated and without a smaller last one in training, else one pass."""
    data = tf.data.Dataset.from_tensor_slices(({"image": IMAGES[:rows], "flat": FLAT[:rows]}, LABELS[:rows]))
    return (data.repeat() if mode == "train" else data).batch(params["batch_size"], drop_remainder=mode == "train")


def make_finite_input_fn(rows):
    """Return an input_fn of the first rows, once."""
    return lambda params: input_fn(params, rows=rows)


def cnn(features, training):
    """Return the logits of a convolution, a pooling and a dense layer; they do not depend on `training`."""
    net = tf.layers.conv2d(features["image"], 4, 3, activation=tf.nn.relu)
    net = tf.layers.max_pooling2d(net, 2, 2)
    return tf.layers.dense(tf.layers.flatten(net), CLASSES)


def dense(features, training):
    """Return the logits of a linear layer with the variables w and b; they do not depend on `training`."""
    w = tf.get_variable("w", [16, CLASSES], initializer=tf.glorot_uniform_initializer())
    return tf.matmul(features["flat"], w) + tf.get_variable("b", [CLASSES], initializer=tf.zeros_initializer())


def batch_norm(features, training):
    """Return the logits of two dense layers with a batch normalization between them."""
    net = tf.layers.dense(features["flat"], 8)
    net = tf.nn.relu(tf.layers.batch_normalization(net, training=training, momentum=0.9))
    return tf.layers.dense(net, CLASSES)


def keras_layers(features, training):
    """Return the logits of two dense layers of Keras; they do not depend on `training`."""
    return tf.keras.layers.Dense(CLASSES)(tf.keras.layers.Dense(8, activation="relu")(features["flat"]))


def with_dropout(features, training):
    """Return the logits of a dense layer after a dropout, which only training applies."""
    return tf.layers.dense(tf.layers.dropout(features["flat"], 0.5, training=training), CLASSES)


def momentum():
    """Return a momentum optimizer whose learning rate decays with the global step."""
    rate = tf.train.exponential_decay(0.05, tf.train.get_global_step(), 5, 0.8)
    return tf.train.MomentumOptimizer(rate, 0.9)


def metric_fn(labels, logits):
    """Return the metrics of eval_metrics, by name."""
    return {
        "accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1)),
        "mean_logit": tf.metrics.mean(logits),
    }


def make_model_fn(logits_fn=dense, optimizer=lambda: tf.train.AdamOptimizer(0.01), as_dict=False, outputs=None):
    """Return a model_fn of a classifier.

    Args:
        logits_fn: function from the features and whether the mode is training to the logits.
        optimizer: function that makes the optimizer.
        as_dict: whether the tensors of eval_metrics are a dict instead of a list.
        outputs: function from the logits to export_outputs, or None.
    """

    def model_fn(features, labels, mode, params):
        logits = logits_fn(features, mode == "train")
        predictions = {"class": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}
        if mode == "infer":
            exports = None if outputs is None else outputs(logits)
            return tpu.TPUEstimatorSpec(mode, predictions=predictions, export_outputs=exports)
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
        if mode == "train":
            built_optimizer = optimizer()
            if params["use_tpu"]:
                built_optimizer = tpu.CrossShardOptimizer(built_optimizer)
            with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
                train_op = built_optimizer.minimize(loss, global_step=tf.train.get_global_step())
            return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
        tensors = {"labels": labels, "logits": logits} if as_dict else [labels, logits]
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, tensors))

    return model_fn


def make_estimator(
    folder, model_fn, warm_start_from=None, iterations=1, num_replicas=None, size=BATCH, params=None, **config
):
    """Return an estimator of this side, by default with checkpoints every 5 steps and summaries in every step.

    `iterations` are the steps of a loop, `size` is the batch size of each mode, `config` has further arguments of RunConfig; only
    ours has the argument `num_replicas`.
    """
    options = {
        "save_checkpoints_steps": 5,
        "save_summary_steps": 1,
        "log_step_count_steps": None,
        "keep_checkpoint_max": 0,
    }
    run_config = tpu.RunConfig(
        # Without a TPU, num_shards is ignored.
        tpu_config=tpu.TPUConfig(
            iterations, num_shards=8, **({} if num_replicas is None else {"num_replicas": num_replicas})
        ),
        model_dir=str(folder),
        tf_random_seed=1,
        **{**options, **config},
    )
    # The original also writes a second graph, for TPUs.
    only_cpu = {"export_to_tpu": False} if SIDE == "original" else {}
    return tpu.TPUEstimator(
        model_fn=model_fn,
        config=run_config,
        params=params,
        use_tpu=False,
        train_batch_size=size,
        eval_batch_size=size,
        predict_batch_size=size,
        warm_start_from=warm_start_from,
        **only_cpu,
    )


def copy_start(folder, step=0, giver="original"):
    """Copy the checkpoint of a step from the same folder of the side `giver`, unless this side is the giver."""
    if giver == SIDE:
        return
    source = ROOT / giver / folder.relative_to(ROOT / SIDE)
    folder.mkdir(parents=True)
    for path in source.glob(f"model.ckpt-{step}.*"):
        shutil.copy(path, folder)
    # The file by which TensorFlow finds the newest checkpoint.
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')


def read_variables(folder, prefix="variables"):
    """Return the values of the newest checkpoint, by name with a prefix."""
    reader = tf.train.load_checkpoint(str(folder))
    return {f"{prefix}/{name}": reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def list_checkpoint_steps(folder):
    """Return the steps of the checkpoints, whose files are model.ckpt-STEP.index."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("model.ckpt-*.index"))


def read_events(folder):
    """Return, by tag, the steps at which summaries were written, and the losses by step."""
    steps, losses = {}, {}
    for path in sorted(folder.glob("*tfevents*")):
        for event in tf.train.summary_iterator(str(path)):
            for value in event.summary.value:
                steps.setdefault(value.tag, set()).add(event.step)
                if value.tag == "loss":
                    losses[event.step] = value.simple_value
    return {tag: sorted(tag_steps) for tag, tag_steps in steps.items()}, losses


def read_losses(folder):
    """Return the losses in a folder's summaries, by step."""
    _, losses = read_events(folder)
    return losses


def read_scalars(folder, tags):
    """Return the values of scalar summaries by tag and step."""
    values = {tag: {} for tag in tags}
    for path in sorted(folder.glob("*tfevents*")):
        for event in tf.train.summary_iterator(str(path)):
            for summary_value in event.summary.value:
                if summary_value.tag in values:
                    values[summary_value.tag][event.step] = summary_value.simple_value
    return values


def record_folder(folder):
    """Return the record of a model folder: losses, steps of checkpoints, steps of events, and variables."""
    steps, losses = read_events(folder)
    record = {
        "losses": losses,
        "checkpoints": list_checkpoint_steps(folder),
        **add_prefix("event steps", steps),
        **read_variables(folder),
    }
    for path in sorted(folder.glob("eval*")):
        evaluation_steps, _ = read_events(path)
        record |= add_prefix(f"event steps of {path.name}", evaluation_steps)
    return record


def add_prefix(prefix, values):
    """Return values by name with `prefix/` before each name: the field's kind in the comparison."""
    return {f"{prefix}/{name}": value for name, value in values.items()}


def stack_predictions(rows):
    """Return the values of all predicted rows as arrays, by name."""
    rows = list(rows)
    return {f"predictions/{name}": np.stack([row[name] for row in rows]) for name in rows[0]}
