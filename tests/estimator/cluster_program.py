"""A program that each process of a TF_CONFIG cluster runs: `python -m tests.estimator.cluster_program JSON...`.

A small model, on a dataset that make_input_fn feeds or on random pixels; each JSON object gives what differs between runs, which
follow each other (see `main`).
"""

import functools
import json
import logging
import os
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator.programs import v1
from tpudata import make_input_fn
from tpudata.estimator import (
    CrossShardOptimizer,
    Estimator,
    EstimatorSpec,
    EvalSpec,
    FinalExporter,
    RunConfig,
    TPUConfig,
    TPUEstimator,
    TPUEstimatorSpec,
    TrainSpec,
    export,
    train_and_evaluate,
)

BATCH = 12


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """A linear model of the pixels with batch norm's kind of averages, Adam, and dropout if asked for."""
    images = features["image"] if isinstance(features, dict) else features
    pixels = tf.reshape(tf.cast(images, tf.float32) / 255, [-1, 64])
    kernel = v1.get_variable("kernel", [64, 10], initializer=v1.glorot_uniform_initializer())
    average = v1.get_variable("average", [64], initializer=v1.zeros_initializer(), trainable=False)
    drops = mode == "train" and params.get("rate")
    logits = tf.matmul(v1.nn.dropout(pixels, rate=params["rate"]) if drops else pixels, kernel)
    spec = EstimatorSpec if params.get("plain") else TPUEstimatorSpec
    if mode == "infer":
        return spec(mode, predictions={"digit": tf.argmax(logits, 1)})
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    loss = tf.identity(loss, name="the_loss")
    if mode == "eval":
        return spec(mode, loss=loss)
    v1.summary.scalar("of_the_model", loss)
    if params.get("tf_summary"):
        tf.summary.scalar("of_tf_summary", loss)
    with tf.control_dependencies([average.assign_sub(0.1 * (average - tf.reduce_mean(pixels, axis=0)))]):
        optimizer = CrossShardOptimizer(v1.train.AdamOptimizer(0.01))
        train_op = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return spec(mode, loss=loss, train_op=train_op)


class Steps(v1.train.SessionRunHook):  # type: ignore[misc]
    """Records the steps that it sees, and can request the end at one."""

    def __init__(self, stop: int | None) -> None:
        self.seen: list[int] = []
        self._stop = stop

    def before_run(self, run_context: Any) -> Any:
        del run_context
        return v1.train.SessionRunArgs(["the_loss:0", "global_step:0"])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_values
        self.seen.append(int(run_context.session.run("global_step:0")))
        if self.seen[-1] == self._stop:
            run_context.request_stop()


class Saves(v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Records the steps whose checkpoints were saved."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def after_save(self, session: Any, global_step_value: int) -> None:
        del session
        self.steps.append(global_step_value)


def slowed(dataset: Any, seconds: float) -> Any:
    """The dataset, with a pause before each batch."""

    def wait(*element: Any) -> Any:
        with tf.control_dependencies([tf.numpy_function(lambda: time.sleep(seconds), [], [])]):
            return tf.nest.map_structure(tf.identity, element)

    return dataset.map(wait)


def random_digits(
    params: dict[str, Any], input_context: Any = None, start_step: int = 0, *, repeat: bool = True
) -> Any:
    """Return the batches of a host: random pixels, which take a third of the time that the reader's graph takes to trace."""
    random = np.random.default_rng(5)
    images, labels = random.integers(0, 256, [60, 8, 8, 1], np.uint8), random.integers(0, 10, 60, np.int32)
    dataset = tf.data.Dataset.from_tensor_slices(({"image": images}, labels))
    if input_context is not None:
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    if repeat:
        dataset = dataset.repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True).skip(start_step)


def main(options: dict[str, Any]) -> None:
    """Train, or train and evaluate.

    Args:
        options: model_dir and steps; and any of data (a dataset; random pixels without it), rate, pause (seconds per batch),
            iterations, saves (steps), hook (whether there is one), stop (the step at which the hook of a worker ends training),
            listener (whether there is one of checkpoints), rows (batches of the chief's data, which end, and of which others have
            one less), plain (an Estimator), tf_summary, workers_dir (the model_dir of workers), spec (train_and_evaluate).
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("type")
    folder = options["workers_dir"] if task == "worker" and "workers_dir" in options else options["model_dir"]
    config = RunConfig(
        TPUConfig(iterations_per_loop=options.get("iterations", 5)),
        model_dir=folder,
        tf_random_seed=3,
        save_checkpoints_steps=options.get("saves", 10),
        save_summary_steps=1,
    )
    params: dict[str, Any] = {key: options[key] for key in ("rate", "plain", "tf_summary") if key in options}

    def make() -> Any:
        if options.get("plain"):
            return Estimator(model_fn, config=config, params=params)
        return TPUEstimator(
            model_fn, config=config, params=params, use_tpu=False, train_batch_size=BATCH, eval_batch_size=BATCH
        )

    estimator = make()
    reads: Any = random_digits
    if "data" in options:
        reads = make_input_fn(options["data"], "train", training=True, seed=5)

    def input_fn(params: dict[str, Any], input_context: Any, start_step: int = 0) -> Any:
        given = {"batch_size": params.get("batch_size", BATCH // input_context.num_input_pipelines)}
        dataset = reads(given, input_context, start_step=start_step)
        if "rows" in options:
            dataset = dataset.take(options["rows"] - (input_context.input_pipeline_id > 0))
        return slowed(dataset, options["pause"]) if options.get("pause") else dataset

    hooks = []
    if options.get("hook"):
        stop = options.get("stop") if config.task_type == "worker" else None
        hooks = [Steps(stop), v1.train.StepCounterHook(every_n_steps=5, output_dir=folder)]
    if options.get("spec"):
        receiver = export.build_raw_serving_input_receiver_fn({"image": tf.TensorSpec([None, 8, 8, 1], tf.uint8)})
        result = train_and_evaluate(
            estimator,
            TrainSpec(input_fn, max_steps=options["steps"], hooks=hooks),
            EvalSpec(
                functools.partial(random_digits, repeat=False),
                steps=None,
                exporters=FinalExporter("last", receiver),
                start_delay_secs=0,
                throttle_secs=0,
            ),
        )
        print("evaluated", result[0] and {name: float(value) for name, value in result[0].items()})
    else:
        first, *others = options["steps"] if isinstance(options["steps"], list) else [options["steps"]]
        listeners = [Saves()] if options.get("listener") else []
        estimator.train(input_fn, hooks=hooks, max_steps=first, saving_listeners=listeners)
        for listener in listeners:
            print("saved", json.dumps(listener.steps))
        for steps in others:
            estimator.train(input_fn, max_steps=steps)
            estimator = make()
    for hook in hooks[:1]:
        print("hook", json.dumps(hook.seen))


if __name__ == "__main__":
    for text in sys.argv[1:]:
        main(json.loads(text))
