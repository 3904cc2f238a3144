"""From the columns of decoded records to the features and labels that a model is fed."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tpudata.input.dataset.fields import Fields
from tpudata.input.dataset_ops import as_written
from tpudata.input.graph.steps.step import Extras, Step
from tpudata.input.text.sequence import Sequences


def feed_columns(fields: Fields, sequences: Sequences, *, is_bare: bool) -> Step:
    """Return the step from columns, by the names of features, to (features, labels), or features.

    Args:
        fields: fields that are read of each record.
        sequences: treatment of sequences of tokens.
        is_bare: whether features are one tensor instead of a dict.
    """

    @as_written
    def feed(columns: dict[str, tf.Tensor], extras: Extras) -> tuple[Any, Extras]:
        inputs = sequences.fed({field.name: columns[field.feature.name] for field in fields.inputs}, fields)
        if sequences.targets is not None:
            return sequences.with_targets(inputs), extras
        features = inputs[fields.inputs[0].name] if is_bare else inputs
        return (features if fields.label is None else (features, columns[fields.label.feature.name])), extras

    return feed
