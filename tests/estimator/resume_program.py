"""A program that is killed while it trains: `python -m tests.estimator.resume_program MODEL_DIR DATA REPLICAS ITERATIONS HOOKS`.

A small model with dropout, on a dataset fed by make_input_fn; each batch takes 10 ms, so that there is time to kill it.
"""

import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.estimator.programs import make_estimator, v1
from tpudata import make_input_fn
from tpudata.estimator import CrossShardOptimizer, TPUEstimatorSpec

STEPS = 30


class Half(v1.train.SessionRunHook):  # type: ignore[misc]
    """Halves a variable before every tenth step, and reads the result."""

    def begin(self) -> None:
        self._half = v1.trainable_variables()[0].assign(0.5 * v1.trainable_variables()[0].read_value())

    def before_run(self, run_context: Any) -> Any:
        # Not in after_run, which is called after the checkpoint of that step is written.
        if run_context.session.run("global_step:0") % 10 == 3:
            run_context.session.run(self._half)
        return v1.train.SessionRunArgs(["the_loss:0"])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_context
        assert run_values.results[0] > 0


def model_fn(features: Any, labels: Any, mode: str) -> TPUEstimatorSpec:
    """A linear model of the pixels, with dropout, batch norm's kind of average, and Adam."""
    pixels = tf.reshape(tf.cast(features["image"], tf.float32) / 255, [-1, 64])
    kernel = v1.get_variable("kernel", [64, 10], initializer=v1.glorot_uniform_initializer())
    average = v1.get_variable("average", [64], initializer=v1.zeros_initializer(), trainable=False)
    update = average.assign_sub(0.1 * (average - tf.reduce_mean(pixels, axis=0)))
    logits = tf.matmul(v1.nn.dropout(pixels - average, rate=0.3), kernel)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    loss = tf.identity(loss, name="the_loss")
    with tf.control_dependencies([update]):
        optimizer = CrossShardOptimizer(v1.train.AdamOptimizer(0.01))
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def estimator(folder: Path, replicas: int, iterations: int) -> Any:
    """The program's estimator: it saves every 7 steps, or at the end of the loop after that."""
    settings: dict[str, Any] = {"tpu_config": {"num_replicas": replicas}, "save_summary_steps": 1}
    return make_estimator(folder, model_fn, 16, iterations, save_checkpoints_steps=7, **settings)


def train(folder: Path, data: Path, replicas: int, iterations: int, hooks: bool, pause: float = 0.0) -> Any:
    """Trains to the end, from the newest checkpoint; returns the estimator."""
    made = make_input_fn(str(data), "train", training=True, seed=5)

    def input_fn(params: dict[str, Any], input_context: Any, start_step: int) -> Any:
        dataset = made(params, input_context, start_step=start_step)
        if not pause:
            return dataset

        def wait(features: Any, labels: Any) -> Any:
            with tf.control_dependencies([tf.numpy_function(lambda: time.sleep(pause), [], [])]):
                return tf.nest.map_structure(tf.identity, (features, labels))

        return dataset.map(wait)

    return estimator(folder, replicas, iterations).train(input_fn, hooks=[Half()] if hooks else None, max_steps=STEPS)


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "True", pause=0.01)
