"""Batches as Keras takes them: (x, y, sample_weight), without the rows that pad an evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tpudata.errors import UsageError
from tpudata.input.dataset_ops import PARALLEL, without_autograph
from tpudata.input.elements import named_leaves
from tpudata.input.graph.steps.weights import WEIGHTS
from tpudata.input.input_fn import InputFn
from tpudata.input.text.sequence import TOKEN_WEIGHTS


def as_keras(
    input_fn: InputFn, batch_size: int, input_context: Any = None, *, start_step: int = 0, pad: bool = False
) -> tf.data.Dataset:
    """Return the dataset of an input_fn in the form that Keras' fit, evaluate and predict take.

    Elements are (x, y), or x if there are no labels; with next tokens as targets (x, y, sample_weight), float32 [B, L], and with
    `weight=` of make_input_fn float32 [B]. x is `features` without its weights. Evaluation and prediction see every record once
    and nothing else: the last batch has fewer rows, and so do those of several hosts, whose numbers of batches stay equal.

    With one label a record, Keras' `loss`, `metrics` and `weighted_metrics` are exact. With next tokens, only `weighted_metrics`
    are: they divide by the tokens. `loss` divides by all places [B, L], and `metrics` count them all. In Keras 3 a loss with
    `reduction="mean_with_sample_weight"` divides by the tokens of its batch.

    Args:
        input_fn: the function that `make_input_fn` returned.
        batch_size: rows of a batch; with an `input_context`, of one replica.
        input_context: the `tf.distribute.InputContext` of `distribute_datasets_from_function`.
        start_step: number of global batches to skip.
        pad: keep static shapes, as a TPU needs them: the last batch is padded, and elements of an evaluation are
            (x, y, sample_weight) with sample_weight 0 for padding. `weighted_metrics` stay exact; `loss` and `metrics` count
            the padding, and `predict` returns rows for it, after those of the records.

    Raises:
        UsageError: an argument does not fit, or tensors whose first axis is not the batch (`transpose`).

    `fit` and `evaluate` raise TensorFlow's errors about records, which `make_input_fn` names.
    """
    if not callable(input_fn):
        raise UsageError(f"as_keras: not an input_fn (got {input_fn!r}). Pass the result of make_input_fn.")
    dataset = input_fn({"batch_size": batch_size}, input_context=input_context, start_step=start_step)
    is_endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    split_training, split_evaluation = _KerasBatch.split_training, _KerasBatch.split_evaluation
    if isinstance(input_fn, InputFn) and input_fn.weighs_records:
        split_training = split_evaluation = _KerasBatch.split_weighed
    if input_fn.training if isinstance(input_fn, InputFn) else is_endless:
        return _map_batches(dataset, lambda element: split_training(element).element())
    rows = split_evaluation(dataset.element_spec).row_weights
    if rows is None:
        return dataset  # The batch size divides the records, and a bare tensor has no place for weights.
    if rows.shape.rank != 1:
        raise UsageError(
            'as_keras: weights="sample_weight" holds the weights of tokens, which do not mark padding rows. Omit it in'
            " make_input_fn: as_keras yields (x, y, sample_weight) without it."
        )
    if pad:
        return _map_batches(dataset, lambda element: split_evaluation(element).weigh_rows().element())
    return _map_batches(dataset, lambda element: split_evaluation(element).strip_padding())


@dataclasses.dataclass(frozen=True)
class _KerasBatch:
    """Parts of a batch; None for what it does not have.

    Attributes:
        x: features without weights.
        y: labels.
        sample_weight: weights of tokens, or the third part that the user's `parse` returns.
        row_weights: float32 [B], 1 or the record's weight, and 0 for padding.
        are_weighed: whether `sample_weight` has the weights of the rows.
    """

    x: Any
    y: Any
    sample_weight: Any
    row_weights: Any
    are_weighed: bool = False

    @classmethod
    def split_training(cls, element: Any) -> _KerasBatch:
        """Return the parts of a batch that has no padding."""
        x, y, weights = (*element, None)[:3] if isinstance(element, tuple) else (element, None, None)
        if isinstance(x, dict) and TOKEN_WEIGHTS in x and y is not None and weights is None:
            x = dict(x)
            weights = x.pop(TOKEN_WEIGHTS)
        return cls(x, y, weights, None)

    @classmethod
    def split_evaluation(cls, element: Any) -> _KerasBatch:
        """Return the parts of a batch that may have padding."""
        batch = cls.split_training(element)
        if isinstance(batch.x, dict) and WEIGHTS in batch.x:
            x = dict(batch.x)
            rows = x.pop(WEIGHTS)
            return cls(x, batch.y, batch.sample_weight, rows)
        return cls(batch.x, batch.y, None, batch.sample_weight)

    @classmethod
    def split_weighed(cls, element: Any) -> _KerasBatch:
        """Return the parts of a batch whose records have weights; those of tokens are multiplied by these."""
        batch = cls.split_evaluation(element)
        if batch.y is None:
            raise UsageError("as_keras: weight= needs labels, as Keras takes (x, y, sample_weight). Omit it.")
        weights = batch.row_weights if batch.sample_weight is None else batch.sample_weight
        return dataclasses.replace(batch, sample_weight=weights, are_weighed=True)

    def element(self) -> Any:
        """Return x, (x, y) or (x, y, sample_weight)."""
        if self.y is None:
            return self.x
        return (self.x, self.y) if self.sample_weight is None else (self.x, self.y, self.sample_weight)

    def weigh_rows(self) -> _KerasBatch:
        """Return the batch with sample_weight 0 for padding."""
        if self.are_weighed:
            return self
        weights = self.row_weights
        if self.sample_weight is not None:
            # Weights of tokens, [B, L]: those of padding rows become 0 as well.
            weights = self.sample_weight * tf.reshape(weights, [-1] + [1] * (self.sample_weight.shape.rank - 1))
        return dataclasses.replace(self, sample_weight=weights)

    def strip_padding(self) -> Any:
        """Return the element without the rows that are padding."""
        element, is_record = self.element(), self.row_weights > 0
        for name, leaf in named_leaves(element, "the batch"):
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


def _map_batches(dataset: tf.data.Dataset, function: Callable[[Any], Any]) -> tf.data.Dataset:
    def convert(*parts: Any) -> Any:
        return function(parts if len(parts) > 1 else parts[0])

    return dataset.map(without_autograph(convert), **PARALLEL).prefetch(2)
