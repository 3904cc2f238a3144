"""The side of train.py that runs the original TPUEstimator, with a TensorFlow 2.15: it is told by lines of stdin what to time.

    PYTHON scripts/bench/_train_original.py FOLDER

A line holds a number of steps and whether there are hooks; the answer is a line with the steps per second.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
tpu = v1.estimator.tpu
_BATCH = 64


def _model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    del params
    layers = v1.layers
    net = layers.conv2d(features, 16, 5, padding="same", activation=tf.nn.relu)
    net = layers.max_pooling2d(net, 2, 2)
    net = layers.conv2d(net, 32, 5, padding="same", activation=tf.nn.relu)
    net = layers.max_pooling2d(net, 2, 2)
    net = layers.dense(tf.reshape(net, [-1, 7 * 7 * 32]), 128, activation=tf.nn.relu)
    logits = layers.dense(layers.dropout(net, 0.4, training=True), 10)
    loss = tf.identity(v1.losses.sparse_softmax_cross_entropy(labels, logits), name="the_loss")
    optimizer = v1.train.MomentumOptimizer(0.01, 0.9)
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))


def _input_fn(params: dict[str, Any]) -> Any:
    random = np.random.default_rng(0)
    images = random.normal(size=(2048, 28, 28, 1)).astype(np.float32)
    labels = random.integers(0, 10, 2048).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True).prefetch(2)


def _seconds(estimator: Any, steps: int, hooks: bool) -> float:
    made = [v1.train.LoggingTensorHook({"loss": "the_loss"}, 100), v1.train.StopAtStepHook(10**9)] if hooks else None
    begin = time.monotonic()
    estimator.train(_input_fn, hooks=made, steps=steps)
    return time.monotonic() - begin


def main(folder: str) -> None:
    """Measures as train.py does: the difference of a long and a short call."""
    config = tpu.RunConfig(tpu_config=tpu.TPUConfig(100), model_dir=folder, save_checkpoints_secs=None)
    estimator = tpu.TPUEstimator(_model_fn, config=config, use_tpu=False, train_batch_size=_BATCH)
    for line in sys.stdin:
        steps, hooks = (int(word) for word in line.split())
        short = _seconds(estimator, 100, bool(hooks))
        print(steps / (_seconds(estimator, 100 + steps, bool(hooks)) - short), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
