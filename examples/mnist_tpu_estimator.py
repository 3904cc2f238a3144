"""MNIST by TPUEstimator, in the style of TensorFlow 1; only the imports are current.

Make the data with `tpudata convert images --input IDX_FOLDER --output DATA --layout raw`, and run

    python examples/mnist_tpu_estimator.py --train_file='DATA/train-*' --model_dir=MODEL --use_tpu=False --master=''

On a TPU VM: --use_tpu=True; on a pod, the same command on all its hosts, and gs:// for both folders.
"""

import os

# tf.layers needs it, before TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from tpudata import estimator as tpu

tf.flags.DEFINE_integer("batch_size", 128, "Rows of a step, of all shards together.")
tf.flags.DEFINE_string("train_file", "", "TFRecord files with image_raw and label; * stands for any characters.")
tf.flags.DEFINE_integer("train_steps", 1000, "The step at which training ends.")
tf.flags.DEFINE_integer("eval_steps", 10, "How many batches are evaluated afterwards.")
tf.flags.DEFINE_string("model_dir", None, "Checkpoints and summaries.")
tf.flags.DEFINE_integer("iterations", 50, "Training steps in one loop of the TPU.")
tf.flags.DEFINE_integer("num_shards", None, "Cores of the TPU; ignored without one.")
tf.flags.DEFINE_float("learning_rate", 0.05, "Of gradient descent.")
tf.flags.DEFINE_bool("use_tpu", False, "Run on a TPU.")
tf.flags.DEFINE_string("master", "", "As in old programs; the TPU is that of this machine.")
FLAGS = tf.flags.FLAGS


def inference(images: Any, training: bool) -> Any:
    """Pictures, float [B, 784], to logits [B, 10]."""
    net = tf.reshape(images, [-1, 28, 28, 1])
    for filters in (32, 64):
        net = tf.layers.conv2d(net, filters, kernel_size=[5, 5], padding="same", activation=tf.nn.relu)
        net = tf.layers.max_pooling2d(net, pool_size=[2, 2], strides=2)
    net = tf.layers.dense(tf.reshape(net, [-1, 7 * 7 * 64]), units=256, activation=tf.nn.relu)
    return tf.layers.dense(tf.layers.dropout(net, rate=0.4, training=training), units=10)


def metric_fn(labels: Any, logits: Any) -> dict[str, Any]:
    """Return the metrics of an evaluation; runs on the host."""
    return {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, axis=1))}


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """Inference, loss and training for the estimator."""
    del params
    logits = inference(features, mode == tpu.ModeKeys.TRAIN)
    if mode == tpu.ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode=mode, predictions={"class": tf.argmax(logits, axis=1)})
    loss = tf.losses.softmax_cross_entropy(onehot_labels=tf.one_hot(labels, depth=10), logits=logits)
    rate = tf.train.exponential_decay(FLAGS.learning_rate, tf.train.get_global_step(), 100000, 0.96)
    optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(learning_rate=rate))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op, eval_metrics=(metric_fn, [labels, logits]))


def get_input_fn(pattern: str) -> Callable[..., Any]:
    """Return an input_fn that repeats the files that match a pattern."""

    def input_fn(params: dict[str, Any]) -> Any:
        batch_size = params["batch_size"]  # a shard's part of FLAGS.batch_size

        def parser(serialized: Any) -> Any:
            features = tf.parse_single_example(
                serialized,
                features={
                    "image_raw": tf.FixedLenFeature([], tf.string),
                    "label": tf.FixedLenFeature([], tf.int64),
                },
            )
            image = tf.decode_raw(features["image_raw"], tf.uint8)
            image.set_shape([28 * 28])
            # A TPU takes no int64.
            return tf.cast(image, tf.float32) * (1.0 / 255) - 0.5, tf.cast(features["label"], tf.int32)

        files = tf.data.Dataset.list_files(pattern, shuffle=False)
        dataset = tf.data.TFRecordDataset(files, buffer_size=8 << 20)
        dataset = dataset.map(parser).cache().shuffle(10_000, seed=1).repeat().batch(batch_size)
        images, labels = tf.data.make_one_shot_iterator(dataset).get_next()
        images.set_shape([batch_size, 28 * 28])
        labels.set_shape([batch_size])
        return images, labels

    return input_fn


def main(_: Any) -> None:
    """Trains, and evaluates on the same files."""
    tf.logging.set_verbosity(tf.logging.INFO)
    run_config = tpu.RunConfig(
        master=FLAGS.master,
        model_dir=FLAGS.model_dir,
        session_config=tf.ConfigProto(allow_soft_placement=True),
        tpu_config=tpu.TPUConfig(FLAGS.iterations, FLAGS.num_shards),
    )
    estimator = tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=FLAGS.batch_size,
        eval_batch_size=FLAGS.batch_size,
        config=run_config,
    )
    estimator.train(input_fn=get_input_fn(FLAGS.train_file), max_steps=FLAGS.train_steps)
    result = estimator.evaluate(input_fn=get_input_fn(FLAGS.train_file), steps=FLAGS.eval_steps)
    print(f"step {result['global_step']}: loss {result['loss']:.4f}, accuracy {result['accuracy']:.2%}")


if __name__ == "__main__":
    tf.app.run(main)
