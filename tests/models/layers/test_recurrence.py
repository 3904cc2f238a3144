"""The recurrence and its gradient, compared with Keras' LSTM and TensorFlow's gradient of it.

A model shows neither the states nor the gradient alone, so tests call the layer.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tpudata.models.layers.recurrence import lstm_recurrence

RNG = np.random.default_rng(2)


def drawn(*shape: int) -> Any:
    return tf.constant(RNG.normal(scale=0.7, size=shape).astype(np.float32))


@pytest.mark.parametrize(("batch", "steps", "size", "units"), [(3, 7, 4, 5), (1, 1, 2, 3), (2, 2, 1, 1)])
def test_outputs_and_gradients_equal_keras(batch: int, steps: int, size: int, units: int) -> None:
    layer = tf_keras.layers.LSTM(units, return_sequences=True)
    inputs, weigh = drawn(batch, steps, size), drawn(batch, steps, units)
    layer.build(inputs.shape)
    layer.set_weights([drawn(size, 4 * units), drawn(units, 4 * units), drawn(4 * units)])
    kernel, recurrent, bias = layer.trainable_variables
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        expected = layer(inputs)
        loss = tf.reduce_sum(expected * weigh)
    expected_gradients = tape.gradient(loss, [inputs, kernel, recurrent, bias])

    @tf.function  # type: ignore[untyped-decorator]
    def ours(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            gates = tf.transpose(tf.tensordot(inputs, kernel, 1) + bias, [1, 0, 2])
            outputs, cells = lstm_recurrence(gates, recurrent)
            outputs = tf.transpose(outputs, [1, 0, 2])
            loss = tf.reduce_sum(outputs * weigh)
        return outputs, cells, tape.gradient(loss, [inputs, kernel, recurrent, bias])

    outputs, cells, gradients = ours(inputs)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    state = tf_keras.layers.LSTM(units, return_state=True)
    state.build(inputs.shape)
    state.set_weights(layer.get_weights())
    np.testing.assert_allclose(cells[-1], state(inputs)[2], rtol=1e-5, atol=1e-6)


def test_xla_computes_the_same_gradient() -> None:
    gates, recurrent = drawn(6, 2, 12), drawn(3, 12)

    def gradient(gates: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(gates)
            loss = tf.reduce_sum(lstm_recurrence(gates, recurrent)[0] ** 2)
        return tape.gradient(loss, gates)

    compiled = tf.function(gradient, jit_compile=True)(gates)
    np.testing.assert_allclose(compiled, gradient(gates), rtol=1e-4, atol=1e-6)
