"""The recurrence of an LSTM, and its gradient.

TensorFlow's gradient of a loop adds up the gradient of the weights step by step, with a small matrix product and a pass over the
whole kernel in each step. Here the backward loop only collects the gradients of the gates, and one large product after it gives
the gradient of the weights, in half the time on a CPU. Both loops have a fixed length, and XLA compiles them.
"""

from collections.abc import Callable

import tensorflow as tf


def lstm_cell(gates: tf.Tensor, cell: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Compute one step of an LSTM.

    Args:
        gates: floats [batch, 4 * units] before their activations: input, forget, candidate, output.
        cell: floats [batch, units], the cell's state.

    Returns:
        The output [batch, units], the cell's new state, and the gates after their activations.
    """
    i, f, g, o = tf.split(gates, 4, axis=1)
    i, f, g, o = tf.sigmoid(i), tf.sigmoid(f), tf.tanh(g), tf.sigmoid(o)
    new_cell = f * cell + i * g
    return o * tf.tanh(new_cell), new_cell, tf.concat([i, f, g, o], axis=1)


def lstm_recurrence(inputs: tf.Tensor, recurrent_kernel: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Run an LSTM over sequences, from a state of zeros.

    Args:
        inputs: float32 [steps, batch, 4 * units], the inputs times the kernel plus the bias; only the batch may be unknown.
        recurrent_kernel: float32 [units, 4 * units].

    Returns:
        The outputs and the cell's states, float32 [steps, batch, units]. Only the outputs have a gradient.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(
        inputs: tf.Tensor, kernel: tf.Tensor
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable[..., tuple[tf.Tensor, tf.Tensor]]]:
        """Return the outputs and the states, and the function that computes the gradients of `inputs` and `kernel`."""
        outputs, cells, gates = _run_forward(inputs, kernel)

        # TensorFlow also passes the gradients of the cells, which count as constants.
        def gradient(output_gradients: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            gate_gradients = _run_backward(output_gradients, cells, gates, kernel)
            num_units = kernel.shape[0]
            # The kernel multiplies the output of a step in the next step.
            multiplied_outputs = tf.reshape(outputs[:-1], [-1, num_units])
            product_gradients = tf.reshape(gate_gradients[1:], [-1, 4 * num_units])
            return gate_gradients, tf.matmul(multiplied_outputs, product_gradients, transpose_a=True)

        return (outputs, cells), gradient

    outputs_and_cells: tuple[tf.Tensor, tf.Tensor] = run(inputs, tf.convert_to_tensor(recurrent_kernel))
    return outputs_and_cells


def _run_forward(inputs: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the outputs, the cell's states, and the gates after their activations, each [steps, batch, ...].

    Args:
        inputs: float32 [steps, batch, 4 * units], the inputs times the kernel plus the bias.
        kernel: the recurrent kernel, [units, 4 * units].
    """
    steps, batch_size, num_units = inputs.shape[0], inputs.shape[1], kernel.shape[0]
    zeros = tf.zeros_like(inputs[0, :, :num_units])
    input_array = tf.TensorArray(tf.float32, steps).unstack(inputs)
    sizes = (num_units, num_units, 4 * num_units)
    arrays = [tf.TensorArray(tf.float32, steps, element_shape=[batch_size, size]) for size in sizes]

    def step(
        t: tf.Tensor, output: tf.Tensor, cell: tf.Tensor, *arrays: tf.TensorArray
    ) -> tuple[tf.Tensor | tf.TensorArray, ...]:
        output, cell, gates = lstm_cell(input_array.read(t) + tf.matmul(output, kernel), cell)
        tensors = (output, cell, gates)
        return t + 1, output, cell, *(array.write(t, tensor) for array, tensor in zip(arrays, tensors, strict=True))

    _, _, _, *filled_arrays = tf.while_loop(
        lambda t, *_: t < steps, step, (tf.constant(0), zeros, zeros, *arrays), maximum_iterations=steps
    )
    outputs, cells, gates = (array.stack() for array in filled_arrays)
    return outputs, cells, gates


def _run_backward(output_gradients: tf.Tensor, cells: tf.Tensor, gates: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Return the gradients of the gates before their activations, [steps, batch, 4 * units].

    Args:
        output_gradients: gradients of the outputs, [steps, batch, units].
        cells: the cell's states, [steps, batch, units].
        gates: the gates after their activations, [steps, batch, 4 * units], in the order of `lstm_cell`.
        kernel: the recurrent kernel, [units, 4 * units].
    """
    steps, num_units = cells.shape[0], kernel.shape[0]
    zeros = tf.zeros_like(cells[0])
    output_gradient_array, cell_array, gate_array = (
        tf.TensorArray(tf.float32, steps).unstack(tensor) for tensor in (output_gradients, cells, gates)
    )
    previous_cell_array = tf.TensorArray(tf.float32, steps).unstack(tf.concat([zeros[None], cells[:-1]], axis=0))
    gradients = tf.TensorArray(tf.float32, steps, element_shape=[cells.shape[1], 4 * num_units])
    # Transposed once: in each step, the transposition would take longer than the product.
    transposed_kernel = tf.transpose(kernel)

    def step(
        steps_done: tf.Tensor, later_d_output: tf.Tensor, later_d_cell: tf.Tensor, gradients: tf.TensorArray
    ) -> tuple[tf.Tensor | tf.TensorArray, ...]:
        """Write the gradients of one step's gates, and return the loop's variables for the step before it."""
        # The steps are run from the last to the first; d_x is the gradient of the loss with respect to x.
        t = steps - 1 - steps_done
        i, f, g, o = tf.split(gate_array.read(t), 4, axis=1)
        tanh_cell = tf.tanh(cell_array.read(t))
        # The later steps also depend on this step's output and cell.
        d_output = later_d_output + output_gradient_array.read(t)
        d_cell = later_d_cell + d_output * o * (1 - tanh_cell * tanh_cell)
        d_gates = tf.concat(
            [
                d_cell * g * i * (1 - i),
                d_cell * previous_cell_array.read(t) * f * (1 - f),
                d_cell * i * (1 - g * g),
                d_output * tanh_cell * o * (1 - o),
            ],
            axis=1,
        )
        return steps_done + 1, tf.matmul(d_gates, transposed_kernel), d_cell * f, gradients.write(t, d_gates)

    *_, gradients = tf.while_loop(
        lambda steps_done, *_: steps_done < steps,
        step,
        (tf.constant(0), zeros, zeros, gradients),
        maximum_iterations=steps,
    )
    return gradients.stack()
