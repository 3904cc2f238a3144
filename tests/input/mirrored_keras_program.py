"""Results of tf_keras on two mirrored replicas, as one JSON object; a separate process, as logical devices come first.

python -m tests.input.mirrored_keras_program DIR
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

import tpudata
from tpudata import as_keras, make_input_fn

# 101 records end in a batch of 5, which leaves nothing for the second replica.
BATCH = 16


def main(path: str) -> dict[str, Any]:
    (device,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    input_fn = make_input_fn(path, "test", training=False, images=tpudata.Images(dtype="float32"))
    with strategy.scope():
        image = keras.Input((8, 8, 1), name="image")
        model = keras.Model({"image": image}, keras.layers.Dense(10)(keras.layers.Flatten()(image)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")])

    def results(dataset: Any, steps: int | None) -> tuple[float, float, int]:
        found = model.evaluate(dataset, steps=steps, verbose=0, return_dict=True)
        return found["loss"], found["accuracy"], len(model.predict(dataset, steps=steps, verbose=0))

    plain = list(as_keras(input_fn, BATCH).as_numpy_iterator())
    labels = np.concatenate([y for _, y in plain])
    logits = np.concatenate([model(x).numpy() for x, _ in plain]).astype(np.float64)
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
    by_caller = strategy.distribute_datasets_from_function(lambda context: as_keras(input_fn, BATCH, context))
    return {
        "replicas": strategy.num_replicas_in_sync,
        "loss": float(losses.mean()),
        "accuracy": float((logits.argmax(1) == labels).mean()),
        "distributed by Keras": results(as_keras(input_fn, 2 * BATCH), None),
        # Keras wants to know the number of steps.
        "distributed by the caller": results(by_caller, -(-len(labels) // (2 * BATCH))),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
