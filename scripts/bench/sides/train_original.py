"""The side of train.py that runs the original TPUEstimator, with TensorFlow 2.15. Lines of stdin request measurements.

    PYTHON scripts/bench/sides/train_original.py FOLDER CHANNELS

A line contains a number of steps, and 1 for a training with hooks or 0; the answer is a line with the steps per second.
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
    """Build the model of train.py, for training only."""
    channels = params["channels"]
    layers = v1.layers
    net = layers.conv2d(features, channels, 5, padding="same", activation=tf.nn.relu)
    net = layers.max_pooling2d(net, 2, 2)
    net = layers.conv2d(net, 2 * channels, 5, padding="same", activation=tf.nn.relu)
    net = layers.max_pooling2d(net, 2, 2)
    net = layers.dense(tf.reshape(net, [-1, 7 * 7 * 2 * channels]), 8 * channels, activation=tf.nn.relu)
    logits = layers.dense(layers.dropout(net, 0.4, training=True), 10)
    loss = tf.identity(v1.losses.sparse_softmax_cross_entropy(labels, logits), name="the_loss")
    optimizer = v1.train.MomentumOptimizer(0.01, 0.9)
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))


def _input_fn(params: dict[str, Any]) -> Any:
    """Return endless batches of random images with labels."""
    random = np.random.default_rng(0)
    images = random.normal(size=(2048, 28, 28, 1)).astype(np.float32)
    labels = random.integers(0, 10, 2048).astype(np.int32)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True).prefetch(2)


class _Clock(v1.train.SessionRunHook):  # type: ignore[misc, name-defined]  # TensorFlow is untyped
    """A hook that records the time of each step. It fetches nothing, and so takes little time itself."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_context, run_values
        self.times.append(time.monotonic())


def _measure(estimator: Any, steps: int, *, has_hooks: bool) -> float:
    """Return the time of `steps` steps in seconds, after 100 others of the same call, without the start and the end of the call."""
    hooks = [v1.train.LoggingTensorHook({"loss": "the_loss"}, 100), v1.train.StopAtStepHook(10**9)] if has_hooks else []
    clock = _Clock()
    estimator.train(_input_fn, hooks=[*hooks, clock], steps=100 + steps)
    return clock.times[-1] - clock.times[99]


def main(folder: str, channels: str) -> None:
    """Answer lines of stdin until its end."""
    config = tpu.RunConfig(tpu_config=tpu.TPUConfig(100), model_dir=folder, save_checkpoints_secs=None)
    params = {"channels": int(channels)}
    estimator = tpu.TPUEstimator(_model_fn, config=config, params=params, use_tpu=False, train_batch_size=_BATCH)
    for line in sys.stdin:
        steps, has_hooks = (int(word) for word in line.split())
        print(steps / _measure(estimator, steps, has_hooks=bool(has_hooks)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
