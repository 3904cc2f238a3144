"""Sequences of tokens: padded to one length or to bucket lengths, and next tokens as targets."""

from __future__ import annotations

import dataclasses
from typing import Literal

import tensorflow as tf

from tpudata.errors import FeatureError
from tpudata.input.dataset.fields import PADDING, Fields
from tpudata.input.elements import get_features, replace_features
from tpudata.tensor_types import Element

INPUT_IDS, SEGMENT_IDS = "input_ids", "segment_ids"
TOKEN_WEIGHTS = "token_weights"
# Stored weights of tokens as targets, 0 or 1: only answers are learned.
LOSS_WEIGHTS = "loss_weights"
# Features with a number for each token, which are 0 in padding for any pad_id. So are masks.
_TOKEN_PROPERTIES = (SEGMENT_IDS, LOSS_WEIGHTS, "positions", "token_type_ids", "position_ids")
# Layouts of rows that are nearly all real tokens, for language models.
TOKEN_ROWS = ("sequences", "packed")


@dataclasses.dataclass(frozen=True)
class Sequences:
    """Treatment of a dataset's sequences.

    Attributes:
        pad_id: token that fills up a row after its last token.
        padding_mark: how padding, which is never a target, is recognized: "mask" if the reader pads, and makes a mask; "segments"
            if `segment_ids` is 0 for padding; "pad" if all trailing ids `pad_id` are padding; "eos" if the first of these ids ends
            the text, and only the others are padding. None without targets.
    """

    pad_id: int = 0
    padding_mark: Literal["mask", "segments", "pad", "eos"] | None = None

    @property
    def has_targets(self) -> bool:
        """Whether the next tokens are targets."""
        return self.padding_mark is not None

    @property
    def marks_padding_by_id(self) -> bool:
        """Whether there are targets, and only the trailing ids `pad_id` show what is padding."""
        return self.padding_mark in ("pad", "eos")

    def fill_padding(self, features: dict[str, tf.Tensor], fields: Fields) -> dict[str, tf.Tensor]:
        """Return the features of a record or a batch with padding filled in, and a mask for each padded feature of tokens.

        Padding, which is `PADDING` after parsing, becomes `pad_id` for tokens, and 0 for masks and other properties of tokens.
        """
        names = {field.name for field in fields.inputs}
        filled = {}
        for field in fields.inputs:
            numbers = features[field.name]
            if field.is_padded_sequence:
                is_real = tf.not_equal(numbers, PADDING)
                is_token = _is_token(field.name)
                # A stored mask is more precise, and so stays.
                if is_token and make_mask_name(field.name) not in names:
                    filled[make_mask_name(field.name)] = tf.cast(is_real, tf.int32)
                numbers = tf.where(is_real, numbers, self.pad_id if is_token else 0)
            filled[field.name] = numbers
        return filled

    def add_targets(self, features: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Return the features with `token_weights`, 1 if a target counts, and the targets: each id's next token, or 0 without one.

        With `loss_weights`, which do not show padding, the features also have a mask if trailing ids mark padding.
        """
        ids = features[INPUT_IDS]
        has_next = self._has_next(features)
        next_ids = tf.where(has_next, ids[..., 1:], 0)
        # The last token of a row has no next one, so its target and its weight are 0.
        last_zero = tf.zeros_like(ids[..., :1])
        is_learned = has_next
        if LOSS_WEIGHTS in features:
            # A target has the weight that is stored for it.
            is_learned = tf.logical_and(has_next, features[LOSS_WEIGHTS][..., 1:] > 0)
            if self.marks_padding_by_id:
                # These weights do not show padding, so a mask does: a token is real if it has or is a next token.
                inner_is_real = tf.logical_or(has_next[..., 1:], has_next[..., :-1])
                mask = tf.concat([has_next[..., :1], inner_is_real, has_next[..., -1:]], -1)
                features = {**features, make_mask_name(INPUT_IDS): tf.cast(mask, tf.int32)}
        weights = tf.concat([tf.cast(is_learned, tf.float32), tf.cast(last_zero, tf.float32)], -1)
        return {**features, TOKEN_WEIGHTS: weights}, tf.concat([next_ids, last_zero], -1)

    def _has_next(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """Return for each token but the last whether the next token continues its document: bool [..., L - 1].

        Padding is recognized as `padding_mark` sets: by a mask, by `segment_ids`, or as trailing ids `pad_id`.
        """
        if self.padding_mark == "mask":
            return tf.cast(features[make_mask_name(INPUT_IDS)][..., 1:], tf.bool)
        if self.padding_mark == "segments":
            segments = features[SEGMENT_IDS]
            return tf.logical_and(tf.equal(segments[..., 1:], segments[..., :-1]), segments[..., :-1] > 0)
        is_pad = tf.equal(features[INPUT_IDS], self.pad_id)
        # 1 if a token and all after it are `pad_id`, otherwise 0: a product from the end on.
        is_trailing = tf.math.cumprod(tf.cast(is_pad, tf.int32), axis=-1, reverse=True)
        # With "eos", the first trailing id ends the text and is a target: its predecessor, which is not padding, has a next token.
        return tf.equal(is_trailing[..., :-1] if self.padding_mark == "eos" else is_trailing[..., 1:], 0)


def _is_token(name: str) -> bool:
    """Return whether a feature's integers are tokens, rather than a property of another feature's tokens."""
    return name not in _TOKEN_PROPERTIES and not name.endswith("_mask")


def make_mask_name(name: str) -> str:
    """Return the name of the mask of a padded feature: `attention_mask` for `input_ids`, `source_mask` for `source_ids`."""
    return "attention_mask" if name == INPUT_IDS else f"{name.removesuffix('_ids')}_mask"


def multiply_token_weights(element: Element, row_weights: tf.Tensor) -> Element:
    """Return an element with its token weights multiplied by the weights of the rows, [B]; unchanged without token weights."""
    features = get_features(element)
    if not isinstance(features, dict) or TOKEN_WEIGHTS not in features:
        return element
    token_weights = features[TOKEN_WEIGHTS]
    factors = tf.reshape(row_weights, [-1] + [1] * (token_weights.shape.rank - 1))
    features = {**features, TOKEN_WEIGHTS: token_weights * tf.cast(factors, token_weights.dtype)}
    return replace_features(element, features)


def split_token_weights(element: Element) -> Element:
    """Return (features, labels, token weights), as Keras takes them, from (features with token weights, labels).

    Raises:
        FeatureError: transform dropped the token weights.
    """
    features = get_features(element)
    if not isinstance(features, dict) or TOKEN_WEIGHTS not in features:
        raise FeatureError(
            f'Feature {TOKEN_WEIGHTS!r}: weights="sample_weight" takes the weights of targets from there, and transform'
            " dropped it. Let it return them among the features."
        )
    others = {name: value for name, value in features.items() if name != TOKEN_WEIGHTS}
    return others, element[1], features[TOKEN_WEIGHTS]
