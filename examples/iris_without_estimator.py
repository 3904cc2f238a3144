"""Training on the irises without an estimator: variables, gradients and a custom loop, on a TPU's chips or on this machine.

python examples/iris_without_estimator.py                      # one CPU device
python examples/iris_without_estimator.py --num-replicas 4     # four CPU devices, as on four chips
python examples/iris_without_estimator.py --use-tpu            # on a TPU VM; on a pod, the same command on all hosts
"""

import argparse
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


def learn(system: Any, epochs: int, batch_size: int, rate: float) -> tuple[float, float]:
    """Train on all chips of the system; return the accuracies on the training and on the test data."""
    train_x, train_y, test_x, test_y = iris_data()
    tf.random.set_seed(SEED)
    w_1 = tf.Variable(tf.random.normal([5, HIDDEN], stddev=0.1))
    w_2 = tf.Variable(tf.random.normal([HIDDEN, 3], stddev=0.1))

    def update(features: Any, labels: Any) -> None:
        # Each chip has its rows; the gradients are of the mean over all of them.
        with tf.GradientTape() as tape:
            losses = tf.nn.softmax_cross_entropy_with_logits(labels, forward(features, w_1, w_2))
            loss = tf.reduce_sum(losses) / batch_size
        gradients = tape.gradient(loss, [w_1, w_2])
        context = tf.distribute.get_replica_context()
        for weights, gradient in zip([w_1, w_2], context.all_reduce("SUM", gradients), strict=True):
            weights.assign_sub(rate * gradient)

    def predict(features: Any) -> Any:
        return tf.argmax(forward(features, w_1, w_2), axis=1)

    def accuracy(features: Any, labels: Any) -> float:
        # One chip is enough, and any number of rows.
        predicted = system.run(predict, features, device=0)
        return float(np.mean(predicted == labels.argmax(axis=1)))

    dataset = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_x), seed=SEED)
    dataset = dataset.batch(batch_size, drop_remainder=True)
    # On a pod, each host takes its part of the rows of a batch.
    share = batch_size // system.num_hosts
    rows = slice(system.host * share, (system.host + 1) * share)
    found = (0.0, 0.0)
    for epoch in range(1, epochs + 1):
        for features, labels in dataset.as_numpy_iterator():
            system.run(update, features[rows], labels[rows])
        if epoch % 10 == 0 or epoch == epochs:
            found = (accuracy(train_x, train_y), accuracy(test_x, test_y))
            print(f"epoch {epoch}, train accuracy {found[0]:.2%}, test accuracy {found[1]:.2%}", flush=True)
    # The weights are on the chips until here.
    system.sync()
    print(f"largest weight {np.abs(w_1.numpy()).max():.2f}")
    return found


def main(argv: Sequence[str]) -> int:
    """Connect to the chips, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--use-tpu", action="store_true", help="use the TPU of this machine")
    parser.add_argument("--num-replicas", type=int, default=1, help="without a TPU: number of CPU devices")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=8, help="of all chips together")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    flags = parser.parse_args(argv)
    with tpudata.tpu_system(num_replicas=None if flags.use_tpu else flags.num_replicas) as system:
        print(f"replicas: {system.num_replicas}")
        learn(system, flags.epochs, flags.batch_size, flags.learning_rate)
    return 0


if __name__ == "__main__":
    # A usage error, such as a machine without a TPU, is reported in one line.
    sys.exit(run_command(main))
