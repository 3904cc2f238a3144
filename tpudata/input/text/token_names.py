"""Batches of tokens under the names and conventions of other projects' trainers, see docs/feed/text.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import tensorflow as tf

from tpudata.error_text.values import format_value
from tpudata.errors import FeatureError, UsageError
from tpudata.input.dataset.fields import Fields
from tpudata.input.text.sequence import (
    INPUT_IDS,
    LOSS_WEIGHTS,
    SEGMENT_IDS,
    TOKEN_WEIGHTS,
    Sequences,
    make_mask_name,
)
from tpudata.tensor_types import Tensors

TokenNames = Literal["maxtext", "t5x", "transformers"]
# The label of tokens that the loss of Hugging Face's models ignores.
_IGNORED = -100
_POSITIONS, _ROW_WEIGHTS = "positions", "weights"
# The features of layout packed_pairs.
_PAIR_FEATURES = frozenset(
    f"{side}{end}" for side in ("inputs", "targets") for end in ("", "_segment_ids", "_positions")
)
# Tensors that the other project's names replace; other tensors of a batch keep their names.
_REPLACED = {INPUT_IDS, SEGMENT_IDS, LOSS_WEIGHTS, TOKEN_WEIGHTS, _POSITIONS, _ROW_WEIGHTS, make_mask_name(INPUT_IDS)}


def check_token_names(names: TokenNames | None, sequences: Sequences, weights: str, fields: Fields) -> None:
    """Check that batches can have the names that `Tokens.names` asks for.

    Args:
        names: the option `Tokens.names`.
        sequences: treatment of the dataset's sequences.
        weights: the option `weights` of `make_input_fn`.
        fields: fields that are read of each record.

    Raises:
        UsageError: `names` is unknown, or does not fit the features or `weights`.
    """
    if names is None:
        return
    if names not in _RENAMERS:
        raise UsageError(
            f"names: invalid value (got {format_value(names)}, expected None, {' or '.join(map(repr, _RENAMERS))})."
        )
    inputs = {field.name for field in fields.inputs}
    # Packed pairs have their targets among the features.
    if names == "t5x" and inputs >= _PAIR_FEATURES and weights == "feature":
        return
    if not sequences.has_targets and INPUT_IDS in inputs and fields.label is not None:
        raise UsageError(
            f"names={names!r}: its batches have next tokens and no labels, and the dataset has labels, {fields.label.name!r}. Omit"
            " names, or convert the text again without that field."
        )
    if not sequences.has_targets:
        raise UsageError(
            f"names={names!r}: needs the next tokens of {INPUT_IDS!r} as targets. Pass a dataset that has them, with targets=True"
            " for the layout tokens."
        )
    if weights != "feature":
        raise UsageError(f"names={names!r}: has its own weights of tokens (got weights={weights!r}). Omit weights.")


def rename_batch(features: Tensors, targets: tf.Tensor | None = None, *, names: TokenNames) -> dict[str, tf.Tensor]:
    """Return a batch as one dict, under another project's names.

    Args:
        features: dict with `input_ids` and `token_weights` [B, L], and perhaps `segment_ids`, `positions`, `attention_mask` and, in
            evaluation, `weights` [B].
        targets: int32 [B, L], the next tokens; None for packed pairs, whose targets are among the features.
        names: the other project, as in `Tokens.names`.

    Raises:
        FeatureError: a transform dropped the tokens or their weights.
    """
    if targets is None and isinstance(features, dict) and features.keys() >= _PAIR_FEATURES:
        return _rename_pairs(features)
    if targets is None or not isinstance(features, dict) or not {INPUT_IDS, TOKEN_WEIGHTS} <= features.keys():
        raise FeatureError(
            f"names={names!r}: reads {INPUT_IDS!r} and {TOKEN_WEIGHTS!r}, and transform dropped them. Let it return them."
        )
    others = {name: value for name, value in features.items() if name not in _REPLACED}
    segments = _number_segments(features)
    positions = features.get(_POSITIONS)
    # Without stored positions, tokens are counted from the beginning of the row, even if it has several documents.
    if positions is None:
        ids = features[INPUT_IDS]
        positions = tf.where(segments > 0, tf.range(tf.shape(ids)[-1])[None, :], 0)
    return {**others, **_RENAMERS[names](features, targets, segments, positions)}


def _rename_pairs(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Return a batch of packed pairs under T5X's names for models with an encoder and a decoder."""
    others = {name: tensor for name, tensor in features.items() if name not in {*_PAIR_FEATURES, _ROW_WEIGHTS}}
    segments, targets = features["inputs_segment_ids"], features["targets"]
    # From `input_ids`, `_rename_for_t5x` makes the inputs and the targets of the decoder: here they are the ids of the targets.
    decoder_features = {INPUT_IDS: targets}
    if _ROW_WEIGHTS in features:
        decoder_features[_ROW_WEIGHTS] = features[_ROW_WEIGHTS]
    return {
        **others,
        "encoder_input_tokens": tf.where(segments > 0, features["inputs"], 0),
        "encoder_segment_ids": segments,
        "encoder_positions": features["inputs_positions"],
        **_rename_for_t5x(decoder_features, targets, features["targets_segment_ids"], features["targets_positions"]),
    }


def _number_segments(features: dict[str, tf.Tensor]) -> tf.Tensor:
    """Return the number of each token's document in its row, from 1, int32 [B, L]; 0 for padding."""
    # A mask numbers the only document of a row.
    for name in (SEGMENT_IDS, make_mask_name(INPUT_IDS)):
        if name in features:
            return features[name]
    # The row is one document: a token is real, not padding, if it has or is a next token. The first token is always real.
    has_next = features[TOKEN_WEIGHTS] > 0
    is_next = tf.concat([tf.ones_like(has_next[:, :1]), has_next[:, :-1]], axis=1)
    return tf.cast(tf.logical_or(has_next, is_next), tf.int32)


def _rename_for_maxtext(
    features: dict[str, tf.Tensor], targets: tf.Tensor, segments: tf.Tensor, positions: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Return a batch under MaxText's names.

    Args:
        features: features of the batch, by our names.
        targets: the next token of each token, int32 [B, L].
        segments: the number of each token's document in its row, from 1, int32 [B, L]; 0 for padding.
        positions: the position of each token in its document, or without stored ones in its row, int32 [B, L].
    """
    return {
        "inputs": features[INPUT_IDS],
        "inputs_position": positions,
        "inputs_segmentation": segments,
        "targets": targets,
        "targets_position": positions,
        # MaxText's loss counts where this is not 0.
        "targets_segmentation": tf.where(features[TOKEN_WEIGHTS] > 0, segments, 0),
    }


def _rename_for_t5x(
    features: dict[str, tf.Tensor], targets: tf.Tensor, segments: tf.Tensor, positions: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Return a batch under T5X's names for decoder-only models.

    T5X's reader, SeqIO, predicts every token of a document, the first one from the id 0; padding is the id 0.

    Args:
        features: features of the batch, by our names.
        targets: the next token of each token, int32 [B, L]; not used.
        segments: the number of each token's document in its row, from 1, int32 [B, L]; 0 for padding.
        positions: the position of each token in its document, or without stored ones in its row, int32 [B, L].
    """
    # So the targets are the tokens themselves, the inputs are the previous tokens, and the next tokens are unused.
    del targets
    is_real = segments > 0
    ids = tf.where(is_real, features[INPUT_IDS], 0)
    has_previous = tf.logical_and(tf.equal(segments[:, 1:], segments[:, :-1]), is_real[:, 1:])
    previous_ids = tf.concat([tf.zeros_like(ids[:, :1]), tf.where(has_previous, ids[:, :-1], 0)], axis=1)
    loss_weights = tf.cast(is_real, tf.int32)
    if LOSS_WEIGHTS in features:
        loss_weights *= features[LOSS_WEIGHTS]
    if _ROW_WEIGHTS in features:
        loss_weights *= tf.cast(features[_ROW_WEIGHTS], tf.int32)[:, None]
    return {
        "decoder_input_tokens": previous_ids,
        "decoder_target_tokens": ids,
        "decoder_loss_weights": loss_weights,
        "decoder_segment_ids": segments,
        "decoder_positions": positions,
    }


def _rename_for_transformers(
    features: dict[str, tf.Tensor], targets: tf.Tensor, segments: tf.Tensor, positions: tf.Tensor
) -> dict[str, tf.Tensor]:
    """Return a batch under the names of Hugging Face's models.

    Args:
        features: features of the batch, by our names.
        targets: the next token of each token, int32 [B, L].
        segments: the number of each token's document in its row, from 1, int32 [B, L]; 0 for padding.
        positions: the position of each token in its document, or without stored ones in its row, int32 [B, L].
    """
    # The models compare the prediction at each position with the label at the next one, so target t becomes label t + 1.
    # The first label of each row has no prediction: a column of ignored labels, of the shape [B, 1] of `labels[:, :1]`.
    is_counted = features[TOKEN_WEIGHTS][:, :-1] > 0
    labels = tf.where(is_counted, targets[:, :-1], _IGNORED)
    batch = {
        INPUT_IDS: features[INPUT_IDS],
        make_mask_name(INPUT_IDS): tf.cast(segments > 0, tf.int32),
        "labels": tf.concat([tf.fill(tf.shape(labels[:, :1]), _IGNORED), labels], axis=1),
    }
    return {**batch, "position_ids": positions} if _POSITIONS in features else batch


# Functions that return the tensors of a batch under another project's names.
_RENAMERS: dict[str, Callable[..., dict[str, tf.Tensor]]] = {
    "maxtext": _rename_for_maxtext,
    "t5x": _rename_for_t5x,
    "transformers": _rename_for_transformers,
}
