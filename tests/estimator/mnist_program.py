"""The MNIST program that TPUEstimator was introduced with: its calls one for one, on real digits.

What differs from how it was written are two imports: TensorFlow's, which is that of version 1 within today's, and the estimator's.
It trains, evaluates and predicts, and prints what came of it as JSON:

    TF_USE_LEGACY_KERAS=1 python -m tests.estimator.mnist_program TFRECORD_FILE MODEL_DIR NUM_SHARDS
"""

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import tensorflow.compat.v1 as tf

from tpudata import estimator as tpu

FLAGS = SimpleNamespace(
    batch_size=64,
    dataset_reader_buffer_size=256 * 1024,
    iterations=50,
    learning_rate=0.05,
    master="",
    train_steps=60,
    use_tpu=False,
)


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    del params
    net = tf.reshape(features, [-1, 28, 28, 1])
    for filters in (8, 16):
        net = tf.layers.conv2d(inputs=net, filters=filters, kernel_size=[5, 5], padding="same", activation=tf.nn.relu)
        net = tf.layers.max_pooling2d(inputs=net, pool_size=[2, 2], strides=2)
    net = tf.layers.dense(inputs=tf.reshape(net, [-1, 7 * 7 * 16]), units=64, activation=tf.nn.relu)
    net = tf.layers.dropout(inputs=net, rate=0.4, training=mode == tpu.ModeKeys.TRAIN)
    logits = tf.layers.dense(inputs=net, units=10)
    if mode == tpu.ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode=mode, predictions={"class": tf.argmax(logits, axis=1)})

    one_hot = tf.one_hot(indices=tf.cast(labels, tf.int32), depth=10)
    loss = tf.losses.softmax_cross_entropy(onehot_labels=one_hot, logits=logits)
    rate = tf.train.exponential_decay(FLAGS.learning_rate, tf.train.get_global_step(), 100000, 0.96)
    optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(learning_rate=rate))
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def get_input_fn(filename: str) -> Callable[..., Any]:
    def input_fn(params: dict[str, Any]) -> Any:
        batch_size = params["batch_size"]

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
            return tf.cast(image, tf.float32) * (1.0 / 255) - 0.5, tf.cast(features["label"], tf.int32)

        dataset = tf.data.TFRecordDataset(filename, buffer_size=FLAGS.dataset_reader_buffer_size)
        dataset = dataset.map(parser).cache().repeat().batch(batch_size)
        images, labels = tf.data.make_one_shot_iterator(dataset).get_next()
        images.set_shape([batch_size, 28 * 28])
        labels.set_shape([batch_size])
        return images, labels

    return input_fn


def make_estimator(model_dir: str, num_shards: int) -> Any:
    run_config = tpu.RunConfig(
        master=FLAGS.master,
        model_dir=model_dir,
        tf_random_seed=1,
        session_config=tf.ConfigProto(allow_soft_placement=True, log_device_placement=True),
        tpu_config=tpu.TPUConfig(FLAGS.iterations, num_shards),
    )
    return tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=FLAGS.batch_size,
        eval_batch_size=FLAGS.batch_size,
        predict_batch_size=FLAGS.batch_size,
        config=run_config,
    )


def main(filename: str, model_dir: str, num_shards: str) -> None:
    tf.logging.set_verbosity(tf.logging.INFO)
    estimator = make_estimator(model_dir, int(num_shards))
    estimator.train(input_fn=get_input_fn(filename), max_steps=FLAGS.train_steps)
    # The batches repeat the file: 28 of them hold all digits but five.
    result = estimator.evaluate(input_fn=get_input_fn(filename), steps=28)

    def predict_input_fn(params: dict[str, Any]) -> Any:
        images, _ = get_input_fn(filename)(params)
        return images

    rows = estimator.predict(predict_input_fn)
    classes = [int(next(rows)["class"]) for _ in range(28 * FLAGS.batch_size)]
    estimator.train(input_fn=get_input_fn(filename), max_steps=FLAGS.train_steps)  # reached: nothing is done
    step = int(estimator.get_variable_value("global_step"))
    print(json.dumps({"loss": float(result["loss"]), "step": step, "classes": classes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
