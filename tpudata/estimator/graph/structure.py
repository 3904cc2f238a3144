"""Conversion between nested structures and the flat lists of tensors that tf.functions take."""

from collections.abc import Callable, Iterable

import tensorflow as tf

from tpudata.tensor_types import Specs, Tensors


class Structure:
    """The nesting of a function's arguments.

    Attributes:
        specs: specs of the flat list of tensors, without absent arguments.

    Args:
        arguments: nested structures of tensors or of their specs; None for an absent argument.
    """

    def __init__(self, arguments: tuple[Tensors, ...]) -> None:
        self._arguments = arguments
        self._flat = tf.nest.flatten(arguments)
        self.specs = [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in self._flat if leaf is not None]

    def flatten(self, arguments: tuple[Tensors, ...]) -> list[tf.Tensor]:
        """Return the tensors of `arguments`, which have this nesting, without the Nones."""
        tf.nest.assert_same_structure(self._arguments, arguments)
        return [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(arguments) if leaf is not None]

    def pack(self, tensors: Iterable[tf.Tensor]) -> Tensors:
        """Return the nested arguments with these tensors in place of the specs."""
        remaining = iter(tensors)
        return tf.nest.pack_sequence_as(
            self._arguments, [None if leaf is None else next(remaining) for leaf in self._flat]
        )


def make_batch_function(function: Callable[..., Tensors], specs: tuple[Specs, ...]) -> Callable[..., Tensors]:
    """Make a tf.function with one trace for all batches that fit `specs`.

    Args:
        function: function with an argument for each entry of `specs`.
        specs: nested structures of `tf.TensorSpec`, which a short last batch also fits if the number of rows is None; an entry
            that is None stays None.
    """
    structure = Structure(specs)

    def call_packed(*tensors: tf.Tensor) -> Tensors:
        return function(*structure.pack(tensors))

    compiled = tf.function(call_packed, input_signature=structure.specs, autograph=False)
    return lambda *arguments: compiled(*structure.flatten(arguments))
