"""Training on the irises without an estimator: variables, gradients and a custom loop, on a TPU or on this machine.

python scripts/examples/iris_without_estimator.py                      # this machine's CPU or GPU
python scripts/examples/iris_without_estimator.py --tpu grpc://HOST:8470
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split

import tpudata
from tpudata.console.process import run_command

SEED = 42
HIDDEN = 256


def iris_data() -> list[Any]:
    """Features with a column of ones for the bias, float32 [N, 5], and one-hot labels, float32 [N, 3]: of training, of test."""
    flowers, kinds = load_iris(return_X_y=True)
    features = np.concatenate([np.ones((len(flowers), 1)), flowers], axis=1).astype(np.float32)
    parts = train_test_split(features, np.eye(3, dtype=np.float32)[kinds], test_size=0.33, random_state=SEED)
    return [parts[0], parts[2], parts[1], parts[3]]


def forward(features: Any, w_1: Any, w_2: Any) -> Any:
    """Return the logits after a hidden layer of sigmoids."""
    return tf.matmul(tf.sigmoid(tf.matmul(features, w_1)), w_2)


def learn(strategy: Any, epochs: int, batch_size: int, rate: float) -> tuple[float, float]:
    """Trains on all cores of the strategy; returns the accuracies on what was learned and on what was held out."""
    train_x, train_y, test_x, test_y = iris_data()
    tf.random.set_seed(SEED)
    with strategy.scope():
        w_1 = tf.Variable(tf.random.normal([5, HIDDEN], stddev=0.1))
        w_2 = tf.Variable(tf.random.normal([HIDDEN, 3], stddev=0.1))

    def update(features: Any, labels: Any) -> None:
        # Every core has its rows; the gradients are of the mean over all of them.
        with tf.GradientTape() as tape:
            losses = tf.nn.softmax_cross_entropy_with_logits(labels, forward(features, w_1, w_2))
            loss = tf.reduce_sum(losses) / batch_size
        gradients = tape.gradient(loss, [w_1, w_2])
        context = tf.distribute.get_replica_context()
        for weights, gradient in zip([w_1, w_2], context.all_reduce("SUM", gradients), strict=True):
            weights.assign_sub(rate * gradient)

    @tf.function  # type: ignore[untyped-decorator]
    def step(features: Any, labels: Any) -> None:
        strategy.run(update, (features, labels))

    dataset = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_x), seed=SEED)
    batches = strategy.experimental_distribute_dataset(dataset.batch(batch_size, drop_remainder=True))
    found = (0.0, 0.0)
    for epoch in range(1, epochs + 1):
        for features, labels in batches:
            step(features, labels)
        found = (accuracy(train_x, train_y, w_1, w_2), accuracy(test_x, test_y, w_1, w_2))
        if epoch % 10 == 0 or epoch == epochs:
            print(f"epoch {epoch}, train accuracy {found[0]:.2%}, test accuracy {found[1]:.2%}", flush=True)
    return found


def accuracy(features: Any, labels: Any, w_1: Any, w_2: Any) -> float:
    """Return the share of rows whose largest logit is the label's."""
    predicted = tf.argmax(forward(features, w_1, w_2), axis=1).numpy()
    return float(np.mean(predicted == labels.argmax(axis=1)))


def main(argv: Sequence[str]) -> int:
    """Connect to the TPU, if one is named, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tpu", help="name or address of a TPU, or local (default: this machine's other devices)")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=8, help="of all cores together")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    flags = parser.parse_args(argv)
    here = contextlib.nullcontext(tf.distribute.get_strategy())
    with tpudata.tpu_system(flags.tpu) if flags.tpu else here as strategy:
        print(f"replicas: {strategy.num_replicas_in_sync}")
        learn(strategy, flags.epochs, flags.batch_size, flags.learning_rate)
    return 0


if __name__ == "__main__":
    # A usage error, such as a folder without a dataset, is reported in one line.
    sys.exit(run_command(main))
