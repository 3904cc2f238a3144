"""The batches of two mirrored replicas, as one JSON object; a separate process, as logical devices come before any operation.

python -m tests.input.mirrored_program DIR
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata import make_input_fn

TOTAL = 24
STEPS = 20


def distributed(strategy: Any, input_fn: Any) -> Any:
    return strategy.distribute_datasets_from_function(
        lambda context: input_fn({"batch_size": context.get_per_replica_batch_size(TOTAL)}, context)
    )


def batches(strategy: Any, dataset: Any) -> list[Any]:
    """The images and labels of each step, those of one replica after those of the other."""
    found = []
    for _, (features, labels) in zip(range(STEPS), dataset, strict=False):
        parts = [strategy.experimental_local_results(value) for value in (features["image"], labels)]
        found.append([np.concatenate([part.numpy() for part in values]) for values in parts])
    return found


def totals(strategy: Any, dataset: Any) -> tuple[float, float]:
    """The weighted sum of a metric, and that of the weights."""

    def step(features: Any, labels: Any) -> Any:
        brightest = tf.cast(tf.reduce_max(features["image"], [1, 2, 3]), tf.int32) % 10
        weights = features["weights"]
        return tf.reduce_sum(weights * tf.cast(brightest == labels, tf.float32)), tf.reduce_sum(weights)

    def run(dataset: Any) -> Any:
        right = count = tf.constant(0.0)
        for features, labels in dataset:
            sums = strategy.run(step, (features, labels))
            right += strategy.reduce("SUM", sums[0], axis=None)
            count += strategy.reduce("SUM", sums[1], axis=None)
        return right, count

    right, count = tf.function(run)(dataset)
    return float(right), float(count)


def main(path: str) -> dict[str, Any]:
    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    train = make_input_fn(path, "train", training=True, seed=3)
    plain = [(x["image"], y) for x, y in train({"batch_size": TOTAL}).take(STEPS).as_numpy_iterator()]
    found = batches(strategy, distributed(strategy, train))
    same = [np.array_equal(a, c) and np.array_equal(b, d) for (a, b), (c, d) in zip(found, plain, strict=True)]
    right, count = totals(strategy, distributed(strategy, make_input_fn(path, "test", training=False)))
    return {"replicas": strategy.num_replicas_in_sync, "same": sum(same), "right": right, "count": count}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
