"""A Keras CNN on a dataset of pictures of one size, fed by as_keras.

tpudata convert images --input PICTURES --output DATA --split train=0.8,validation=0.2
python examples/keras_images.py --data DATA

It runs on this machine's CPU, or on all of its GPUs. For a TPU, put the layers into a model_fn of TPUEstimator.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

import tpudata
from tpudata.console.process import run_command
from tpudata.format import open_dataset


def cnn(classes: int) -> Any:
    """Two convolutions and two dense layers, from pictures with values 0 to 1 to logits."""
    return keras.Sequential(
        [
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(classes),
        ]
    )


def main(argv: Sequence[str]) -> int:
    """Trains, and evaluates every held-out picture once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the dataset's folder")
    parser.add_argument("--batch-size", type=int, default=64, help="of each device")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps-per-epoch", type=int, default=100)
    flags = parser.parse_args(argv)
    manifest = open_dataset(flags.data).manifest
    classes = max(feature.num_classes or 0 for feature in manifest.features)
    keras.utils.set_random_seed(1)

    def batches(strategy: Any, split: str, training: bool) -> Any:
        input_fn = tpudata.make_input_fn(
            flags.data,
            split,
            training=training,
            features="image",
            images=tpudata.Images(dtype="float32"),
            weights="sample_weight",
            cache="auto",
            seed=1,
        )
        # Every record once.
        return strategy.distribute_datasets_from_function(
            lambda context: tpudata.as_keras(input_fn, flags.batch_size, context)
        )

    strategy = (
        tf.distribute.MirroredStrategy() if tf.config.list_physical_devices("GPU") else tf.distribute.get_strategy()
    )
    with strategy.scope():
        model = cnn(classes)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        model.compile(keras.optimizers.Adam(1e-3), loss, weighted_metrics=[accuracy])
    train = batches(strategy, "train", training=True)
    model.fit(train, steps_per_epoch=flags.steps_per_epoch, epochs=flags.epochs, verbose=2)
    records = manifest.split("validation").records
    # Keras wants to know the number of steps on several devices.
    steps = -(-records // (flags.batch_size * strategy.num_replicas_in_sync))
    held_out = batches(strategy, "validation", training=False)
    found = model.evaluate(held_out, steps=steps, verbose=0, return_dict=True)
    print(f"held-out accuracy {found['accuracy']:.2%} on {records:,} pictures")
    return 0


if __name__ == "__main__":
    # A usage error, such as a folder without a dataset, is reported in one line.
    sys.exit(run_command(main))
