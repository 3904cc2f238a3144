"""Batches as Keras takes them: (x, y, sample_weight), without the rows that pad an evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.input.dataset_ops import PARALLEL, without_autograph
from tpudata.input.elements import join_element, name_leaves
from tpudata.input.graph.pipelines.pipeline import BATCHES_AHEAD
from tpudata.input.graph.steps.weights import WEIGHTS
from tpudata.input.input_fn import InputFn
from tpudata.input.text.sequence import TOKEN_WEIGHTS
from tpudata.tensor_types import Element, Tensors


def as_keras(
    input_fn: InputFn,
    batch_size: int,
    input_context: tf.distribute.InputContext | None = None,
    *,
    start_step: int = 0,
    pad: bool = False,
) -> tf.data.Dataset:
    """Return the dataset of an input_fn in the form that Keras' fit, evaluate and predict take.

    Elements are (x, y), or x if there are no labels. With next tokens as targets they are (x, y, sample_weight), with
    sample_weight float32 [B, L]; with `weight=` of make_input_fn and other labels, it is float32 [B]. x is `features` without its
    weights. Evaluation and prediction see every record once and nothing else: the last batch may have fewer rows. Several hosts
    have equally many batches; the last one may be smaller.

    With one label a record, Keras' `loss`, `metrics` and `weighted_metrics` are exact. With next tokens, only `weighted_metrics`
    are: they divide by the tokens. `loss` divides by all positions [B, L], and `metrics` count them all. In Keras 3 a loss with
    `reduction="mean_with_sample_weight"` divides by the tokens of its batch.

    Args:
        input_fn: the function that `make_input_fn` returned.
        batch_size: rows of a batch; with an `input_context`, of one replica.
        input_context: the `tf.distribute.InputContext` of `distribute_datasets_from_function`.
        start_step: number of global batches to skip.
        pad: whether to keep static shapes, as a TPU needs them: the last batch is padded, and elements of an evaluation are
            (x, y, sample_weight) with sample_weight 0 for padding. `weighted_metrics` stay exact; `loss` and `metrics` count
            the padding, and `predict` returns rows for it, after the rows of the records.

    Raises:
        UsageError: an argument does not fit, or the first axis of a tensor is not the batch (`transpose`).

    `fit` and `evaluate` raise TensorFlow's errors about records, which `make_input_fn` names.
    """
    if not callable(input_fn):
        raise UsageError(f"as_keras: not an input_fn (got {input_fn!r}). Pass the result of make_input_fn.")
    dataset = input_fn({"batch_size": batch_size}, input_context=input_context, start_step=start_step)
    is_endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    # Any other function of params is also called: it feeds training if its dataset has no end.
    is_training = input_fn.training if isinstance(input_fn, InputFn) else is_endless
    if isinstance(input_fn, InputFn) and input_fn.weighs_records:
        split = _KerasBatch.split_weighed
    elif is_training:
        split = _KerasBatch.split_training
    else:
        split = _KerasBatch.split_evaluation
    if is_training:
        return _map_batches(dataset, lambda element: split(element).join())
    # The spec of an element splits like the element.
    row_weights = split(dataset.element_spec).row_weights
    if row_weights is None:
        return dataset  # A bare tensor takes no weights, and needs none: the records fill whole batches.
    if row_weights.shape.rank != 1:
        raise UsageError(
            'as_keras: weights="sample_weight" holds the weights of tokens, which do not mark padding rows. Omit it in'
            " make_input_fn: as_keras yields (x, y, sample_weight) without it."
        )
    if pad:
        return _map_batches(dataset, lambda element: split(element).weigh_rows().join())
    return _map_batches(dataset, lambda element: split(element).strip_padding())


@dataclasses.dataclass(frozen=True)
class _KerasBatch:
    """Parts of a batch; None for what it does not have.

    Attributes:
        x: features without weights.
        y: labels.
        sample_weight: weights of tokens or, with `includes_row_weights`, of records; or the third part that the user's `parse`
            returns.
        row_weights: float32 [B], 1 or the record's weight, and 0 for padding.
        includes_row_weights: whether `sample_weight` already has the weights of the rows as a factor.
    """

    x: Tensors
    y: Tensors
    sample_weight: tf.Tensor | None
    row_weights: tf.Tensor | None
    includes_row_weights: bool = False

    @classmethod
    def split_training(cls, element: Element) -> _KerasBatch:
        """Return the parts of an unpadded batch, x, (x, y) or (x, y, sample_weight); token weights leave x for sample_weight."""
        x, y, weights = element, None, None
        if isinstance(element, tuple):
            x, y = element[:2]
            weights = element[2] if len(element) > 2 else None
        # Keras takes no weights without labels; a third part already holds the weights.
        if isinstance(x, dict) and TOKEN_WEIGHTS in x and y is not None and weights is None:
            x = dict(x)
            weights = x.pop(TOKEN_WEIGHTS)
        return cls(x, y, weights, None)

    @classmethod
    def split_evaluation(cls, element: Element) -> _KerasBatch:
        """Return the parts of a batch that may have padding; `row_weights` come from the features, or from the third part."""
        batch = cls.split_training(element)
        if isinstance(batch.x, dict) and WEIGHTS in batch.x:
            x = dict(batch.x)
            row_weights = x.pop(WEIGHTS)
            return cls(x, batch.y, batch.sample_weight, row_weights)
        # The third part, if any, holds the weights of rows.
        return cls(batch.x, batch.y, None, batch.sample_weight)

    @classmethod
    def split_weighed(cls, element: Element) -> _KerasBatch:
        """Return the parts of a batch whose records have weights, by which the reader has multiplied the weights of tokens.

        Raises:
            UsageError: the batch has no labels.
        """
        batch = cls.split_evaluation(element)
        if batch.y is None:
            raise UsageError("as_keras: weight= needs labels, as Keras takes (x, y, sample_weight). Omit it.")
        weights = batch.row_weights if batch.sample_weight is None else batch.sample_weight
        return dataclasses.replace(batch, sample_weight=weights, includes_row_weights=True)

    def join(self) -> Element:
        """Return x, (x, y) or (x, y, sample_weight), as far as the batch has these parts."""
        if self.y is None:
            return self.x
        return (self.x, self.y) if self.sample_weight is None else (self.x, self.y, self.sample_weight)

    def weigh_rows(self) -> _KerasBatch:
        """Return the batch with sample_weight 0 for padding, which `row_weights` marks."""
        # The weights of records are 0 for padding already.
        if self.includes_row_weights:
            return self
        weights = self.row_weights
        if self.sample_weight is not None:
            # Weights of tokens, [B, L] for example: the weights of padding rows become 0 as well.
            weights = self.sample_weight * tf.reshape(weights, [-1] + [1] * (self.sample_weight.shape.rank - 1))
        return dataclasses.replace(self, sample_weight=weights)

    def strip_padding(self) -> Element:
        """Return the element without the rows that are padding, which `row_weights` marks.

        Raises:
            UsageError: the first axis of a tensor is not the batch.
        """
        assert self.row_weights is not None
        element = self.join()
        is_record = self.row_weights > 0
        for name, leaf in name_leaves(element, "the batch"):
            if leaf.shape[0] != self.row_weights.shape[0]:
                raise UsageError(
                    f"as_keras: the first axis of {name} is not the batch (got shape {leaf.shape}). Omit transpose."
                )
        # Only the last batches have padding; the others pass without a copy.
        return tf.cond(
            tf.reduce_all(is_record),
            lambda: element,
            lambda: tf.nest.map_structure(lambda tensor: tf.boolean_mask(tensor, is_record), element),
        )


def _map_batches(dataset: tf.data.Dataset, function: Callable[[Element], Element]) -> tf.data.Dataset:
    """Return the dataset of `function(element)` for each element, prefetched; AutoGraph does not convert the function."""

    def convert(*parts: Tensors) -> Element:
        return function(join_element(parts))

    return dataset.map(without_autograph(convert), **PARALLEL).prefetch(BATCHES_AHEAD)
