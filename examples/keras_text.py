"""A Keras LSTM that learns a text character by character and then generates text; fed by as_keras.

tpudata convert text --input TEXT --output DATA --form paragraphs --tokenizer chars --sequence-length 128
python examples/keras_text.py --data DATA --prompt 'ROMEO:'

It runs on this machine's CPU, or on all of its GPUs. For a TPU, put the layers into a model_fn of TPUEstimator.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

import tpudata
from tpudata.console.process import run_command
from tpudata.format import open_dataset
from tpudata.tokenizers import dataset_tokenizer


def lstm(tokens: int, units: int) -> Any:
    """From ids, int [B, L], to the logits of the id after each, [B, L, tokens]."""
    layers = [
        keras.layers.Embedding(tokens, 64),
        keras.layers.LSTM(units, return_sequences=True),
        keras.layers.Dense(tokens),
    ]
    return keras.Sequential(layers)


def write(model: Any, prompt: list[int], length: int, count: int, temperature: float) -> list[int]:
    """Return the prompt and `count` more ids, each drawn from the model's output for the last `length` ids."""
    rng = np.random.default_rng(1)
    ids = list(prompt)
    # One shape for all calls: ids after the last one do not change its prediction.
    predict = tf.function(lambda window: model(window, training=False))
    for _ in range(count):
        last = ids[-length:]
        window = np.zeros((1, length), np.int32)
        window[0, : len(last)] = last
        logits = predict(tf.constant(window))[0, len(last) - 1].numpy().astype(np.float64) / temperature
        shares = np.exp(logits - logits.max())
        ids.append(int(rng.choice(len(shares), p=shares / shares.sum())))
    return ids


def main(argv: Sequence[str]) -> int:
    """Trains and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the dataset's folder, made with --tokenizer chars")
    parser.add_argument("--batch-size", type=int, default=32, help="of each device")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--units", type=int, default=256)
    parser.add_argument("--prompt", default="\n", help="what it goes on from")
    parser.add_argument("--count", type=int, default=300, help="characters to write")
    parser.add_argument("--temperature", type=float, default=0.7)
    flags = parser.parse_args(argv)
    manifest = open_dataset(flags.data).manifest
    tokenizer = dataset_tokenizer(flags.data)
    tokens: Any = manifest.options["tokenizer"]
    length = manifest.feature("input_ids").shape[0] or 0
    try:
        prompt = tokenizer.encode_batch([flags.prompt])[0].tolist()
    except ValueError as error:
        parser.error(f"--prompt: {error}")
    if not prompt:
        parser.error("--prompt is empty. Pass at least one character")
    keras.utils.set_random_seed(1)
    input_fn = tpudata.make_input_fn(flags.data, "train", training=True, seed=1)

    def batches(context: Any) -> Any:
        # Labels are the next ids; the last id of a row has none, and weight 0.
        dataset = tpudata.as_keras(input_fn, flags.batch_size, context)
        return dataset.map(lambda features, labels, weights: (features["input_ids"], labels, weights))

    strategy = (
        tf.distribute.MirroredStrategy() if tf.config.list_physical_devices("GPU") else tf.distribute.get_strategy()
    )
    with strategy.scope():
        model = lstm(tokens["vocab_size"], flags.units)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # The loss divides by all places of a row; a weighted metric only by the tokens that have a next one.
        per_token = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="loss_per_token")
        model.compile(keras.optimizers.Adam(4e-3, clipnorm=1.0), loss, weighted_metrics=[per_token])
    train = strategy.distribute_datasets_from_function(batches)
    model.fit(train, steps_per_epoch=flags.steps, epochs=1, verbose=2)
    ids = write(model, prompt, length, flags.count, flags.temperature)
    print(tokenizer.decode(ids))
    return 0


if __name__ == "__main__":
    # A usage error, such as a folder without a dataset, is reported in one line.
    sys.exit(run_command(main))
