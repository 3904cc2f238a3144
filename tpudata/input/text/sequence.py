"""What is done with sequences of tokens: padded to one length, or to those of buckets, and next tokens as targets."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, Literal

import tensorflow as tf

from tpudata.errors import FeatureError, UsageError
from tpudata.format import Manifest
from tpudata.input.dataset.fields import PADDING, Fields

INPUT_IDS, SEGMENT_IDS = "input_ids", "segment_ids"
TOKEN_WEIGHTS = "token_weights"
# What stands beside the tokens of a record, and is 0 in padding, whatever stands for a token there. So are masks.
_BESIDE_TOKENS = (SEGMENT_IDS, "positions", "token_type_ids", "position_ids")
# Layouts of rows that are all real tokens, but for a little padding: they are made for language models.
TOKEN_ROWS = ("sequences", "packed")


@dataclasses.dataclass(frozen=True)
class SequenceOptions:
    """What is done with sequences; the attributes are the arguments of `make_input_fn`.

    Raises:
        UsageError: an option is out of range or of another type, or does not fit another one.
    """

    sequence_length: int | None = None
    buckets: tuple[int, ...] | None = None
    truncate: bool = False
    pad_id: int | None = None
    targets: bool | None = None

    def __post_init__(self) -> None:
        if self.sequence_length is not None and not _is_integer(self.sequence_length, 1):
            raise UsageError(
                f"sequence_length={self.sequence_length!r}: allowed is None or a number of tokens, an integer of 1 or more."
            )
        if self.buckets is not None:
            self._check_buckets(self.buckets)
        if not isinstance(self.truncate, bool):
            raise UsageError(f"truncate={self.truncate!r}: allowed are True and False.")
        if self.truncate and self.length is None:
            raise UsageError("truncate: it cuts to a length. Pass sequence_length=N or buckets=(...) with it.")
        if self.pad_id is not None and not _is_integer(self.pad_id, 0):
            raise UsageError(f"pad_id={self.pad_id!r}: allowed is None or an id, an integer from 0 to 2**31 - 1.")
        if self.targets is not None and not isinstance(self.targets, bool):
            raise UsageError(f"targets={self.targets!r}: allowed are None, True and False.")

    def _check_buckets(self, buckets: Any) -> None:
        if not isinstance(buckets, tuple) or not buckets or not all(_is_integer(length, 1) for length in buckets):
            raise UsageError(f"buckets={buckets!r}: pass a tuple of lengths, such as (64, 128, 256).")
        if list(buckets) != sorted(set(buckets)):
            raise UsageError(f"buckets={buckets!r}: the lengths ascend, such as {tuple(sorted(set(buckets)))}.")
        if self.sequence_length is not None:
            raise UsageError(
                f"sequence_length={self.sequence_length}: the longest of buckets={buckets} is the length. Leave one out."
            )

    @property
    def length(self) -> int | None:
        """What records are padded to, at most; None where they are not."""
        longest = self.sequence_length if self.buckets is None else self.buckets[-1]
        return None if longest is None else operator.index(longest)

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments that were given, by name."""
        given = dataclasses.asdict(self).items()
        return {name: value for name, value in given if value is not None and value is not False}

    def sequences(self, manifest: Manifest, fields: Fields, bare: bool) -> Sequences:
        """What that means for a dataset.

        Args:
            manifest: the dataset's.
            fields: what is read of each record.
            bare: whether features are one tensor, and no dict.

        Raises:
            UsageError: targets without `input_ids` or beside labels, or a pad_id where nothing is padding.
            FeatureError: a feature has the name of the tokens' weights.
        """
        found = self._sequences(manifest, fields, bare)
        if self.pad_id is not None and found.targets not in ("pad", "eos") and not any(f.pads for f in fields.inputs):
            raise UsageError(
                f"pad_id={self.pad_id}: nothing is padded with it. Leave it out, or pass sequence_length=N or buckets=(...)."
            )
        return found

    def _sequences(self, manifest: Manifest, fields: Fields, bare: bool) -> Sequences:
        named = manifest.options.get("tokenizer")
        tokenizer: Mapping[str, Any] = named if isinstance(named, Mapping) else {}
        pad_id = tokenizer.get("pad_id", 0) if self.pad_id is None else operator.index(self.pad_id)
        inputs = {field.name: field for field in fields.inputs}
        targets = self.targets
        if targets is None:
            targets = manifest.layout in TOKEN_ROWS and INPUT_IDS in inputs and fields.label is None and not bare
        if not targets:
            return Sequences(pad_id, None)
        if bare:
            raise UsageError("targets: a bare tensor has no place for their weights. Leave out features=.")
        if INPUT_IDS not in inputs or len(inputs[INPUT_IDS].shape) != 1:
            raise UsageError(
                f"targets: they are the next tokens of {INPUT_IDS!r}, and the features are {', '.join(inputs)}. Leave it out."
            )
        if TOKEN_WEIGHTS in inputs:
            raise FeatureError(
                f"Feature {TOKEN_WEIGHTS!r}: targets put the weights of tokens there. Leave it out, or targets."
            )
        if fields.label is not None:
            raise UsageError(f"targets: the dataset has labels of its own, {fields.label.name!r}. Leave it out.")
        if inputs[INPUT_IDS].pads:
            return Sequences(pad_id, "mask")
        if SEGMENT_IDS in inputs:
            shape, expected = inputs[SEGMENT_IDS].shape, inputs[INPUT_IDS].shape
            if shape != expected:
                raise FeatureError(
                    f"targets: {SEGMENT_IDS!r} has the shape {shape}, and {INPUT_IDS!r} {expected}; it says of each token which"
                    " document it is of. Write them with one length, or pass targets=False."
                )
            return Sequences(pad_id, "segments")
        return Sequences(pad_id, "eos" if tokenizer.get("eos_id") == pad_id else "pad")


@dataclasses.dataclass(frozen=True)
class Sequences:
    """What is done with the sequences of a dataset.

    Attributes:
        pad_id: stands behind the last token.
        targets: None for no targets; otherwise what says which tokens are real: "mask" where the reader pads; "segments" where
            `segment_ids` is 0 for padding; "pad" where the ids at the end that are `pad_id` are padding, and "eos" where the
            first of these ends the text.
    """

    pad_id: int = 0
    targets: Literal["mask", "segments", "pad", "eos"] | None = None

    def fed(self, features: dict[str, tf.Tensor], fields: Fields) -> dict[str, tf.Tensor]:
        """Features of a record or of a batch of them, with `pad_id` for padding, and masks that say where that is."""
        out, names = {}, {field.name for field in fields.inputs}
        for field in fields.inputs:
            value = features[field.name]
            if field.pads:
                is_real, is_token = tf.not_equal(value, PADDING), _is_token(field.name)
                # A mask that the records have themselves says more.
                if is_token and mask_name(field.name) not in names:
                    out[mask_name(field.name)] = tf.cast(is_real, tf.int32)
                value = tf.where(is_real, value, self.pad_id if is_token else 0)
            out[field.name] = value
        return out

    def with_targets(self, features: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """(features with the weight of each token, the token behind each)."""
        ids = features[INPUT_IDS]
        has_next = self._has_next(features)
        following = tf.where(has_next, ids[..., 1:], 0)
        # Behind the last token of a row stands nothing.
        end = tf.zeros_like(ids[..., :1])
        weights = tf.concat([tf.cast(has_next, tf.float32), tf.cast(end, tf.float32)], -1)
        return {**features, TOKEN_WEIGHTS: weights}, tf.concat([following, end], -1)

    def _has_next(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """For each token but the last whether the one behind it is its next."""
        if self.targets == "mask":
            return tf.cast(features[mask_name(INPUT_IDS)][..., 1:], tf.bool)
        if self.targets == "segments":
            segments = features[SEGMENT_IDS]
            return tf.logical_and(tf.equal(segments[..., 1:], segments[..., :-1]), segments[..., :-1] > 0)
        is_pad = tf.equal(features[INPUT_IDS], self.pad_id)
        # Whether all behind a token, and it, are padding: a product from the end on.
        trailing = tf.math.cumprod(tf.cast(is_pad, tf.int32), axis=-1, reverse=True)
        return tf.equal(trailing[..., :-1] if self.targets == "eos" else trailing[..., 1:], 0)


def _is_token(name: str) -> bool:
    """Whether a feature's integers are tokens, and nothing that is said about those of another feature."""
    return name not in _BESIDE_TOKENS and not name.endswith("_mask")


def mask_name(name: str) -> str:
    """Name of the mask of a padded feature: `attention_mask` for `input_ids`, `source_mask` for `source_ids`."""
    return "attention_mask" if name == INPUT_IDS else f"{name.removesuffix('_ids')}_mask"


def with_row_weights(element: Any, weights: tf.Tensor) -> Any:
    """(features, labels) with the weights of tokens set to 0 in rows of weight 0; without such weights as it is."""
    features = element[0] if isinstance(element, tuple) else element
    if not isinstance(features, dict) or TOKEN_WEIGHTS not in features:
        return element
    tokens = features[TOKEN_WEIGHTS]
    rows = tf.reshape(weights, [-1] + [1] * (tokens.shape.rank - 1))
    features = {**features, TOKEN_WEIGHTS: tokens * tf.cast(rows, tokens.dtype)}
    return (features, *element[1:]) if isinstance(element, tuple) else features


def split_token_weights(element: Any) -> Any:
    """(features, labels, weights of tokens), as Keras takes them.

    Raises:
        FeatureError: transform left them out.
    """
    features = element[0] if isinstance(element, tuple) else element
    if not isinstance(features, dict) or TOKEN_WEIGHTS not in features:
        raise FeatureError(
            f'Feature {TOKEN_WEIGHTS!r}: weights="sample_weight" takes the weights of targets from there, and transform left it'
            " out. Let it return them among the features."
        )
    others = {name: value for name, value in features.items() if name != TOKEN_WEIGHTS}
    return others, element[1], features[TOKEN_WEIGHTS]


def _is_integer(value: Any, least: int) -> bool:
    """Whether a value is a whole number, Python's or numpy's, of int32 and not below the least."""
    return not isinstance(value, bool) and hasattr(value, "__index__") and least <= operator.index(value) < 2**31
