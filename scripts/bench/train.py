"""Speed of the estimator's training loop: steps per second next to a bare tf.function loop of the same model.

    python scripts/bench/train.py [--channels N] [--steps N] [--rounds N] [--num-replicas N] [--original PYTHON]

The model is a small CNN for 28x28 digits (random ones in memory), batch 64, Momentum: convolutions of N and 2 N channels, a dense
layer of 8 N. Both loops run 100 steps in a call, in this process, in turn. Printed are the medians of several rounds, and of the
ratios within each round, since a machine is never quite idle. Also measured are the first step, from making the estimator to its
end, and ten evaluations and predictions of one batch after the first ones, which build them. With `--original`, the Python of an
environment with TensorFlow 2.15, the original TPUEstimator trains the same model in a separate process, in turn with the others
(use_tpu=False). "With hooks" is with LoggingTensorHook and StopAtStepHook, which see every step. On a machine with a GPU, all sides
use it. Never fails on time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # tf.compat.v1.layers needs it

import numpy as np
import tensorflow as tf

from tpudata.estimator import CrossShardOptimizer, ModeKeys, RunConfig, TPUConfig, TPUEstimator, TPUEstimatorSpec

v1 = tf.compat.v1
_BATCH = 64
_LOOP = 100
_BARE = "bare tf.function loop"
_OURS = "estimator.train"


def main() -> None:
    """Measure all sides and print a table."""
    parser = argparse.ArgumentParser(description="Measures the estimator's training loop next to a bare one.")
    parser.add_argument("--channels", type=int, default=16, help="of the first convolution (default: 16)")
    parser.add_argument("--steps", type=int, default=300, help="per round; a multiple of 100")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num-replicas", type=int, default=1)
    parser.add_argument("--original", metavar="PYTHON", help="of an environment with TensorFlow 2.15")
    flags = parser.parse_args()
    random = np.random.default_rng(0)
    images = random.normal(size=(2048, 28, 28, 1)).astype(np.float32)
    labels = random.integers(0, 10, 2048).astype(np.int32)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        estimator = make_estimator(folder, num_replicas=flags.num_replicas, channels=flags.channels)
        train_input = make_input_fn(images, labels, repeats=True)
        estimator.train(train_input, steps=1)
        first_step_seconds = time.monotonic() - begin
        run_bare_loop = _make_bare_loop(images, labels, flags.channels)
        run_bare_loop(_LOOP)
        # By name: functions that train and return the steps per second.
        sides: dict[str, Callable[[], float]] = {
            _BARE: lambda: flags.steps / _measure(lambda: run_bare_loop(flags.steps)),
            _OURS: lambda: _measure_speed(estimator, train_input, flags.steps),
            f"{_OURS} with hooks": lambda: _measure_speed(estimator, train_input, flags.steps, _make_hooks),
        }
        if flags.original:
            original = _Original(flags.original, folder, flags.channels)
            sides["original"] = lambda: original.measure_speed(flags.steps, has_hooks=False)
            sides["original with hooks"] = lambda: original.measure_speed(flags.steps, has_hooks=True)
        speeds = {name: [side()] for name, side in sides.items()}  # The first round warms up.
        for _ in range(flags.rounds):
            for name, side in sides.items():
                speeds[name].append(side())
        if flags.original:
            original.close()
        one_batch = make_input_fn(images[:_BATCH], labels[:_BATCH], repeats=False)
        calls = {
            "evaluate": lambda: estimator.evaluate(one_batch),
            "predict": lambda: list(estimator.predict(one_batch)),
        }
        # The first call, which traces, and ten more.
        call_seconds = {name: [_measure(call) for _ in range(11)] for name, call in calls.items()}
    _print_results(flags, speeds, first_step_seconds, call_seconds)


def _print_results(
    flags: argparse.Namespace,
    speeds: dict[str, list[float]],
    first_step_seconds: float,
    call_seconds: dict[str, list[float]],
) -> None:
    """Print all measurements.

    Args:
        flags: the command's flags.
        speeds: steps per second by side, for each round; the first round is a warm-up.
        first_step_seconds: seconds until the estimator has trained a step.
        call_seconds: seconds of each call of evaluate and of predict, the first one included.
    """
    device = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    print(
        f"{device}, {flags.num_replicas} replicas, batch {_BATCH}, {flags.channels} channels, {_LOOP} steps per loop, "
        f"medians of {flags.rounds} rounds"
    )
    for name, (_, *round_speeds) in speeds.items():
        speeds_text = " ".join(f"{speed:.0f}" for speed in round_speeds)
        print(f"{name:<26} {statistics.median(round_speeds):8,.1f} steps/s  ({speeds_text})")
    print(f"the estimator's loop takes {_compute_ratio(speeds, _BARE, _OURS):.3f} times the bare one's time")
    if flags.original:
        for name in (_BARE, _OURS):
            ratio = _compute_ratio(speeds, name, "original")
            best_ratio = max(speeds[name][1:]) / max(speeds["original"][1:])
            print(f"{name}: {ratio:.2f} times the original's steps/s, in the best rounds {best_ratio:.2f}")
        ratio = _compute_ratio(speeds, f"{_OURS} with hooks", "original with hooks")
        print(f"{_OURS} with hooks: {ratio:.2f} times the original's with hooks")
    print(f"first step after {first_step_seconds:.1f} s")
    for name, (first, *later) in call_seconds.items():
        print(
            f"{name}: first call {first:.2f} s, next ten {sum(later):.2f} s, {sum(later) / first:.2f} times the first"
        )


def _compute_ratio(speeds: dict[str, list[float]], side: str, base: str) -> float:
    """Return the median of the ratios of two sides' speeds within each round but the first."""
    return statistics.median(a / b for a, b in zip(speeds[side][1:], speeds[base][1:], strict=True))


def _measure(function: Callable[[], Any]) -> float:
    """Return the elapsed time of a call in seconds."""
    begin = time.monotonic()
    function()
    return time.monotonic() - begin


def _compute_logits(images: Any, channels: int, training: bool) -> Any:
    """Return the logits of two convolutions, each with a pooling, and two dense layers; only training applies the dropout."""
    layers = v1.layers
    net = layers.conv2d(images, channels, 5, padding="same", activation=tf.nn.relu)
    net = layers.max_pooling2d(net, 2, 2)
    net = layers.conv2d(net, 2 * channels, 5, padding="same", activation=tf.nn.relu)
    net = layers.max_pooling2d(net, 2, 2)
    net = layers.dense(tf.reshape(net, [-1, 7 * 7 * 2 * channels]), 8 * channels, activation=tf.nn.relu)
    return layers.dense(layers.dropout(net, 0.4, training=training), 10)


def _model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
    """Build the model; hooks log the tensor `the_loss`."""
    logits = _compute_logits(features, params["channels"], mode == ModeKeys.TRAIN)
    if mode == ModeKeys.PREDICT:
        return TPUEstimatorSpec(mode, predictions={"class": tf.argmax(logits, 1)})
    loss = tf.identity(v1.losses.sparse_softmax_cross_entropy(labels, logits), name="the_loss")
    if mode == ModeKeys.EVAL:
        metrics = (
            lambda labels, logits: {"accuracy": v1.metrics.accuracy(labels, tf.argmax(logits, 1))},
            [labels, logits],
        )
        return TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
    optimizer = CrossShardOptimizer(v1.train.MomentumOptimizer(0.01, 0.9))
    return TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))


def make_estimator(folder: str, *, num_replicas: int, channels: int) -> TPUEstimator:
    """Return an estimator of the model, which stores it in a folder."""
    config = RunConfig(
        TPUConfig(_LOOP, num_replicas=num_replicas), model_dir=folder, save_checkpoints_secs=None, tf_random_seed=1
    )
    return TPUEstimator(
        _model_fn,
        config=config,
        params={"channels": channels},
        use_tpu=False,
        train_batch_size=_BATCH,
        eval_batch_size=_BATCH,
        predict_batch_size=_BATCH,
    )


def make_input_fn(images: Any, labels: Any, *, repeats: bool) -> Callable[..., Any]:
    """Return an input_fn of arrays, which repeats them without end or gives them once."""

    def input_fn(params: dict[str, Any]) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels))
        dataset = dataset.repeat() if repeats else dataset
        return dataset.batch(params["batch_size"], drop_remainder=True).prefetch(2)

    return input_fn


def _make_hooks() -> list[Any]:
    return [v1.train.LoggingTensorHook({"loss": "the_loss"}, 100), v1.train.StopAtStepHook(10**9)]


def _measure_speed(
    estimator: TPUEstimator, input_fn: Any, steps: int, make_hooks: Callable[[], list[Any] | None] = lambda: None
) -> float:
    """Return the number of steps per second of an estimator.

    The time of the steps is the difference between a long and a short call, which does not include the cost of a call itself.
    """
    short = _measure(lambda: estimator.train(input_fn, hooks=make_hooks(), steps=_LOOP))
    long = _measure(lambda: estimator.train(input_fn, hooks=make_hooks(), steps=_LOOP + steps))
    return steps / (long - short)


class _Original:
    """The original TPUEstimator with the same model, in a separate process.

    Args:
        python: Python of an environment with TensorFlow 2.15.
        folder: folder for its model folder.
        channels: channels of the first convolution.
    """

    def __init__(self, python: str, folder: str, channels: int) -> None:
        program = Path(__file__).with_name("sides") / "train_original.py"
        words = [python, "-W", "ignore", str(program), str(Path(folder) / "original"), str(channels)]
        # tf.compat.v1.layers of TensorFlow 2.15 needs no other Keras.
        environment = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def measure_speed(self, steps: int, *, has_hooks: bool) -> float:
        """Train some steps in the process, and return the steps per second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(steps, int(has_hooks), file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _make_bare_loop(images: Any, labels: Any, channels: int) -> Callable[[int], None]:
    """Return a function that trains the same model for some steps in plain tf.function, with separate variables."""
    layers = [
        tf.keras.layers.Conv2D(channels, 5, padding="same", activation="relu"),
        tf.keras.layers.MaxPooling2D(2, 2),
        tf.keras.layers.Conv2D(2 * channels, 5, padding="same", activation="relu"),
        tf.keras.layers.MaxPooling2D(2, 2),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(8 * channels, activation="relu"),
        tf.keras.layers.Dropout(0.4),
        tf.keras.layers.Dense(10),
    ]
    model = tf.keras.Sequential(layers)
    model.build((None, 28, 28, 1))
    variables = model.trainable_variables
    slots = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
    dataset = make_input_fn(images, labels, repeats=True)({"batch_size": _BATCH})

    def loop(iterator: Any, steps: Any) -> None:
        # Trains `steps` batches of the iterator in one graph.
        def run_step(count: Any) -> Any:
            # `count` is the number of steps before this one.
            features, labels = next(iterator)
            with tf.GradientTape() as tape:
                logits = model(features, training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            for variable, slot, gradient in zip(variables, slots, tape.gradient(loss, variables), strict=True):
                tf.raw_ops.ResourceApplyMomentum(
                    var=variable.handle, accum=slot.handle, lr=0.01, grad=gradient, momentum=0.9
                )
            return (count + 1,)

        tf.while_loop(lambda count: count < steps, run_step, (tf.constant(0),))

    iterator = iter(dataset)
    compiled = tf.function(loop, autograph=False)

    def run(steps: int) -> None:
        for _ in range(steps // _LOOP):
            compiled(iterator, tf.constant(_LOOP))

    return run


if __name__ == "__main__":
    main()
