"""A model_fn like BERT's: v1 layers, attention, layer norm, masked words, and an optimizer that overrides apply_gradients."""

import warnings
from typing import Any

import numpy as np
import tensorflow as tf
from tf_keras.src.legacy_tf_layers import core

from tpudata.estimator import CrossShardOptimizer, ModeKeys, TPUEstimatorSpec
from tpudata.estimator.contrib import layer_norm

v1 = tf.compat.v1
VOCABULARY, LENGTH, MASKED, HIDDEN, HEADS, LAYERS = 512, 32, 4, 64, 4, 2


class AdamWeightDecay(tf.compat.v1.train.Optimizer):  # type: ignore[misc]  # TensorFlow is untyped
    """Adam without bias correction, with decay of weights, as in BERT."""

    def __init__(self, rate: Any) -> None:
        super().__init__(False, "AdamWeightDecay")
        self.rate = rate

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
        del global_step  # The program adds to it, as BERT's does.
        updates = []
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            base = variable.op.name
            m, v = (
                v1.get_variable(f"{base}/{slot}", variable.shape, trainable=False, initializer=v1.zeros_initializer())
                for slot in ("adam_m", "adam_v")
            )
            next_m, next_v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * tf.square(gradient)
            step = next_m / (tf.sqrt(next_v) + 1e-6) + 0.01 * variable
            updates += [variable.assign(variable - self.rate * step), m.assign(next_m), v.assign(next_v)]
        return tf.group(*updates, name=name)


def dense(x: Any, units: int, activation: Any = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of its age.
        initializer = v1.truncated_normal_initializer(stddev=0.02)
        return core.dense(x, units, activation, kernel_initializer=initializer)


def attend(x: Any, mask: Any) -> Any:
    size = HIDDEN // HEADS

    def split(y: Any) -> Any:
        return tf.transpose(tf.reshape(y, [-1, LENGTH, HEADS, size]), [0, 2, 1, 3])

    query, key, value = (split(dense(x, HIDDEN)) for _ in range(3))
    scores = tf.matmul(query, key, transpose_b=True) * size**-0.5 + (1 - mask[:, None, None, :]) * -10000.0
    weights = tf.nn.dropout(tf.nn.softmax(scores), rate=0.1)
    joined = tf.reshape(tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3]), [-1, LENGTH, HIDDEN])
    return layer_norm(x + dense(joined, HIDDEN))


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> TPUEstimatorSpec:
    table = v1.get_variable("embeddings/words", [VOCABULARY, HIDDEN])
    places = v1.get_variable("embeddings/positions", [LENGTH, HIDDEN])
    x = layer_norm(tf.nn.embedding_lookup(table, features["input_ids"]) + places)
    for number in range(LAYERS):
        with v1.variable_scope(f"layer_{number}"):
            x = attend(x, tf.cast(features["input_mask"], tf.float32))
            x = layer_norm(x + dense(dense(x, 4 * HIDDEN, tf.nn.gelu), HIDDEN))
    chosen = tf.gather(x, features["masked_positions"], batch_dims=1)
    logits = tf.matmul(tf.reshape(chosen, [-1, HIDDEN]), table, transpose_b=True)
    log_probabilities = tf.nn.log_softmax(logits)
    one_hot = tf.one_hot(tf.reshape(features["masked_ids"], [-1]), VOCABULARY)
    loss = -tf.reduce_mean(tf.reduce_sum(log_probabilities * one_hot, -1))
    pair = tf.nn.log_softmax(dense(tf.tanh(dense(x[:, 0], HIDDEN)), 2))
    loss += -tf.reduce_mean(tf.reduce_sum(pair * tf.one_hot(labels, 2), -1))
    if mode == ModeKeys.EVAL:

        def metric_fn(logits: Any, ids: Any) -> Any:
            return {"accuracy": v1.metrics.accuracy(ids, tf.argmax(logits, -1))}

        rows = [tf.reshape(logits, [-1, MASKED, VOCABULARY]), features["masked_ids"]]
        return TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, rows))
    step = v1.train.get_or_create_global_step()
    rate = v1.train.polynomial_decay(1e-4, step, 1000, 0.0)
    optimizer = CrossShardOptimizer(AdamWeightDecay(rate))
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
    train_op = optimizer.apply_gradients(zip(clipped, variables, strict=True), global_step=step)
    train_op = tf.group(train_op, step.assign_add(1))
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def make_rows(count: int) -> tuple[dict[str, Any], Any]:
    """Return features and labels."""
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (count, LENGTH)).astype(np.int32)
    positions = np.tile(np.arange(MASKED, dtype=np.int32), (count, 1))
    features = {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "masked_positions": positions,
        "masked_ids": ids[:, :MASKED],
    }
    return features, ids[:, 0] % 2
