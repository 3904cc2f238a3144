"""A Keras CNN on a dataset of pictures of one size, fed by make_input_fn.

tpudata convert images --input PICTURES --output DATA --split train=0.8,validation=0.2
python scripts/examples/keras_images.py --data DATA [--tpu grpc://HOST:8470]
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

import tpudata
from tpudata.format import open_dataset
from tpudata.process import run_command


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
    parser.add_argument(
        "--tpu", help="a TPU's name or address, or local; without it this machine's other devices are used"
    )
    parser.add_argument("--batch-size", type=int, default=64, help="of each core")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps-per-epoch", type=int, default=100)
    flags = parser.parse_args(argv)
    classes = max(feature.num_classes or 0 for feature in open_dataset(flags.data).manifest.features)
    keras.utils.set_random_seed(1)

    def batches(strategy: Any, split: str, training: bool) -> Any:
        # weights="sample_weight": the rows that pad the last batch of an evaluation weigh nothing.
        input_fn = tpudata.make_input_fn(
            flags.data,
            split,
            training=training,
            features="image",
            dtype="float32",
            weights="sample_weight",
            cache="auto",
            seed=1,
        )
        return strategy.distribute_datasets_from_function(
            lambda context: input_fn({"batch_size": flags.batch_size}, context)
        )

    here = contextlib.nullcontext(tf.distribute.get_strategy())
    with tpudata.tpu_system(flags.tpu) if flags.tpu else here as strategy:
        with strategy.scope():
            model = cnn(classes)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
            model.compile(keras.optimizers.Adam(1e-3), loss, weighted_metrics=[accuracy])
        train = batches(strategy, "train", training=True)
        model.fit(train, steps_per_epoch=flags.steps_per_epoch, epochs=flags.epochs, verbose=2)
        found = model.evaluate(batches(strategy, "validation", training=False), verbose=0, return_dict=True)
        print(f"held-out accuracy {found['accuracy']:.2%}")
    return 0


if __name__ == "__main__":
    # A mistake of a person, such as a folder that is no dataset, is told in a line.
    sys.exit(run_command(main))
