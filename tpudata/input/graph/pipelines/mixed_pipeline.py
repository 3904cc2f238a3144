"""Pipeline for a mixture of several inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.input.dataset_ops import PARALLEL, without_autograph
from tpudata.input.elements import join_element, name_leaves
from tpudata.input.graph.pipelines.pipeline import BATCHES_AHEAD
from tpudata.input.options.hosts import Rows
from tpudata.input.order.mixture import MixtureOrder
from tpudata.tensor_types import Element


class MixedPipeline:
    """A mixture of inputs, each of which keeps its order.

    Args:
        inputs: for each input, a function from rows and a step to its dataset.
        weights: weight of each input, above 0.
    """

    def __init__(self, inputs: Sequence[Callable[[Rows, int], tf.data.Dataset]], weights: Sequence[float]) -> None:
        self._inputs = inputs
        self._weights = weights

    def batches(self, rows: Rows, start_step: int) -> tf.data.Dataset:
        """Return the dataset of `input_fn`: some rows of each global batch, from a step on."""
        order = MixtureOrder.make(self._weights, rows.total)
        num_pieces = order.num_pieces
        # Row r of a batch is row r // num_pieces of a piece: these rows of all pieces cover the host's rows.
        first, stop = rows.first // num_pieces, -(-rows.stop // num_pieces)
        piece_rows = Rows(batch_size=stop - first, total=rows.total // num_pieces, first=first, stop=stop)
        datasets = [
            make_dataset(piece_rows, start)
            for make_dataset, start in zip(self._inputs, order.count_pieces_before(start_step), strict=True)
        ]
        _check_alike([dataset.element_spec for dataset in datasets], piece_rows.count)
        # The host's rows, counted among the rows that the pieces cover.
        host_first, host_stop = rows.first - first * num_pieces, rows.stop - first * num_pieces

        def join_pieces(*parts: Element) -> Element:
            return tf.nest.map_structure(lambda tensor: _take_rows(tensor, host_first, host_stop), join_element(parts))

        mixed = tf.data.Dataset.choose_from_datasets(
            datasets, order.list_inputs(start_step), stop_on_empty_dataset=True
        )
        mixed = mixed.batch(num_pieces, drop_remainder=True).map(without_autograph(join_pieces), **PARALLEL)
        if rows.count != rows.batch_size:
            mixed = mixed.rebatch(rows.batch_size, drop_remainder=True)
        # Options as in `Pipeline`: each worker takes its part of every batch, and iterators can be saved.
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        set_endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        return mixed.apply(set_endless).prefetch(BATCHES_AHEAD).with_options(options)


def _take_rows(pieces: tf.Tensor, first: int, stop: int) -> tf.Tensor:
    """Return the rows [first, stop) of pieces, [pieces, rows, ...], in the order of a batch: row 0 of each piece, then row 1."""
    permutation = [1, 0, *range(2, pieces.shape.rank)]
    return tf.reshape(tf.transpose(pieces, permutation), [-1, *pieces.shape[2:]])[first:stop]


def _check_alike(specs: Sequence[Element], num_rows: int) -> None:
    """Check that inputs have the same tensors, and that each tensor has `num_rows` rows.

    Args:
        specs: `element_spec` of each input.
        num_rows: number of rows in an element.

    Raises:
        UsageError: the tensors differ, or one does not have `num_rows` rows; the message names the first such tensor.
    """
    # Put a single part into a tuple, so that all elements have names of one form: element[0], element[1], ...
    specs_by_name = [dict(name_leaves(spec if isinstance(spec, tuple) else (spec,), "element")) for spec in specs]
    first_specs = specs_by_name[0]
    for index, tensor_specs in enumerate(specs_by_name):
        for name in sorted(first_specs.keys() | tensor_specs.keys()):
            if tensor_specs.get(name) != first_specs.get(name):
                raise UsageError(
                    f"Mixture: input {index} gives {_describe(tensor_specs.get(name))} as {name}, and input 0"
                    f" {_describe(first_specs.get(name))} (expected the same). Let transform or the options make them alike."
                )
    for name, spec in first_specs.items():
        if spec.shape.rank in (None, 0) or spec.shape[0] != num_rows:
            raise UsageError(
                f"Mixture: {name} is {_describe(spec)} (expected a first dimension of {num_rows}). Omit buckets and transpose"
                " in its inputs."
            )


def _describe(spec: tf.TensorSpec | None) -> str:
    return "nothing" if spec is None else f"{spec.dtype.name} {spec.shape}"
