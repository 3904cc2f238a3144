"""Options for tokens, and their result for a dataset."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any

from tpudata.checks import check, check_argument, check_flag, check_integer, convert_integers, is_integer
from tpudata.errors import FeatureError, UsageError
from tpudata.format import Manifest
from tpudata.input.dataset.fields import Fields
from tpudata.input.text.sequence import INPUT_IDS, LOSS_WEIGHTS, SEGMENT_IDS, TOKEN_ROWS, TOKEN_WEIGHTS, Sequences
from tpudata.input.text.token_names import TokenNames


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Options of `make_input_fn` for sequences of tokens.

    Attributes:
        sequence_length: length to pad every record's token ids (layout tokens) to, int32 [B, sequence_length], or a mapping with
            the length of each feature, such as {"inputs": 512, "targets": 128}. Each has a mask,
            int32 of 1 for tokens and 0 for padding: `features["attention_mask"]` for `input_ids`, otherwise "NAME_mask" for
            "NAME_ids"; a stored mask is kept. Masks, token_type_ids, segment_ids and positions have 0 for padding. A longer
            record is an error.
        buckets: several lengths, ascending, such as (64, 128, 256). All records of a batch are of one bucket, the smallest
            that holds them. A batch of the longest bucket has B rows; one of L tokens has B times longest // L. The shapes in
            `element_spec` are None where batches differ. The first call of input_fn reads all records once, to learn their lengths.
        truncate: truncate longer records instead of raising an error.
        pad_id: id in padding; None takes the tokenizer's from the manifest or, if it has none, 0.
        targets: labels are the token after each one of `input_ids`, int32 [B, L], and `features["token_weights"]`, float32
            [B, L], is 1 if there is one; 0 at the end of a row, a packed document or the text, in padding, and in
            evaluation's padded rows. None: yes for the layouts sequences and packed, and with `loss_weights`, unless there is
            a label or one feature is asked for.
        names: "maxtext", "t5x" or "transformers" yields one dict without labels, under the names and conventions of that
            project's trainer, such as `inputs`, `inputs_segmentation` and `targets`: docs/feed/text.md lists them all.

    Raises:
        UsageError: an option is out of range or of the wrong type, or does not fit another one.
    """

    sequence_length: int | Mapping[str, int] | None = None
    buckets: tuple[int, ...] | None = None
    truncate: bool = False
    pad_id: int | None = None
    targets: bool | None = None
    names: TokenNames | None = None

    def __post_init__(self) -> None:
        lengths = self.sequence_length
        if isinstance(lengths, Mapping):
            are_names = len(lengths) > 0 and all(isinstance(name, str) for name in lengths)
            is_valid = are_names and all(map(_is_length, lengths.values()))
        else:
            is_valid = lengths is None or _is_length(lengths)
        expected = "None, an integer of 1 or more, or a mapping of the names of features to such"
        check("sequence_length", lengths, is_valid, expected)
        if self.buckets is not None:
            self._check_buckets(self.buckets)
        check_flag("truncate", self.truncate)
        if self.truncate and self.length is None:
            raise UsageError("truncate: it cuts to a length. Pass sequence_length=N or buckets=(...) with it.")
        check_integer("pad_id", self.pad_id, 0, 2**31 - 1, or_none=True)
        convert_integers(self, "buckets", "pad_id")
        check_flag("targets", self.targets, or_none=True)

    def _check_buckets(self, buckets: tuple[int, ...]) -> None:
        """Check that buckets are ascending lengths, and that `sequence_length` is not also passed; UsageError if not."""
        are_lengths = isinstance(buckets, tuple) and len(buckets) > 0 and all(map(_is_length, buckets))
        check_argument("buckets", buckets, are_lengths, "a tuple of lengths, such as (64, 128, 256)")
        if list(buckets) != sorted(set(buckets)):
            raise UsageError(f"buckets={buckets!r}: the lengths ascend, such as {tuple(sorted(set(buckets)))}.")
        if self.sequence_length is not None:
            raise UsageError(
                f"sequence_length={self.sequence_length}: the longest of buckets={buckets} is the length. Omit one."
            )

    @property
    def length(self) -> int | Mapping[str, int] | None:
        """Length that records are padded to, or a length for each feature; the longest of `buckets`; None without padding."""
        length = self.sequence_length if self.buckets is None else self.buckets[-1]
        if isinstance(length, Mapping):
            return {name: operator.index(feature_length) for name, feature_length in length.items()}
        return None if length is None else operator.index(length)

    @property
    def selection(self) -> dict[str, object]:
        """The options that affect what is read of a record and are switched on, by name."""
        # None and False switch nothing on. `names` only renames.
        options = dataclasses.asdict(self).items()
        return {name: value for name, value in options if value is not None and value is not False and name != "names"}

    def plan_sequences(self, manifest: Manifest, fields: Fields, *, is_bare: bool) -> Sequences:
        """Return how a dataset's sequences are padded, and how their next tokens become targets.

        Args:
            manifest: manifest of the dataset.
            fields: fields that are read of each record.
            is_bare: whether features are one tensor instead of a dict.

        Raises:
            UsageError: targets without `input_ids`, with labels or with a bare tensor, or a pad_id without padding.
            FeatureError: a feature has the name of the tokens' weights, or `segment_ids` and `input_ids` differ in shape.
        """
        sequences = self._choose_sequences(manifest, fields, is_bare=is_bare)
        # Either trailing ids `pad_id` mark stored padding, or the reader pads with it.
        uses_pad_id = sequences.marks_padding_by_id or any(field.is_padded_sequence for field in fields.inputs)
        if self.pad_id is not None and not uses_pad_id:
            raise UsageError(
                f"pad_id={self.pad_id}: nothing is padded with it. Omit it, or pass sequence_length=N or buckets=(...)."
            )
        return sequences

    def _choose_sequences(self, manifest: Manifest, fields: Fields, *, is_bare: bool) -> Sequences:
        """Return the treatment of sequences: the id for padding and, if there are targets, how padding is recognized.

        `plan_sequences` checks the option `pad_id`.

        Args:
            manifest: manifest of the dataset.
            fields: fields that are read of each record.
            is_bare: whether features are one tensor instead of a dict.

        Raises:
            UsageError: targets without `input_ids`, with labels, or with a bare tensor.
            FeatureError: a feature has the name of the tokens' weights, or `segment_ids` and `input_ids` differ in shape.
        """
        # Conversion records the tokenizer in the manifest.
        recorded = manifest.options.get("tokenizer")
        # Other programs may have written a different value.
        tokenizer: Mapping[str, Any] = recorded if isinstance(recorded, Mapping) else {}
        pad_id = tokenizer.get("pad_id", 0) if self.pad_id is None else self.pad_id
        inputs = {field.name: field for field in fields.inputs}
        has_targets = self.targets
        # By default, rows for language models have targets.
        if has_targets is None:
            has_rows = manifest.layout in TOKEN_ROWS or LOSS_WEIGHTS in inputs
            has_targets = has_rows and INPUT_IDS in inputs and fields.label is None and not is_bare
        if not has_targets:
            return Sequences(pad_id, padding_mark=None)
        if is_bare:
            raise UsageError("targets: a bare tensor has no place for their weights. Omit features=.")
        if INPUT_IDS not in inputs or len(inputs[INPUT_IDS].shape) != 1:
            raise UsageError(
                f"targets: they are the next tokens of {INPUT_IDS!r}, and the features are {', '.join(inputs)}. Omit it."
            )
        if TOKEN_WEIGHTS in inputs:
            raise FeatureError(
                f"Feature {TOKEN_WEIGHTS!r}: targets put the weights of tokens there. Omit it, or targets."
            )
        if fields.label is not None:
            raise UsageError(
                f"targets: they are in the place of labels, and the dataset has labels, {fields.label.name!r}. Omit targets, or"
                " convert the text again without that field."
            )
        # For a sequence that the reader pads, `fill_padding` makes a mask.
        if inputs[INPUT_IDS].is_padded_sequence:
            return Sequences(pad_id, padding_mark="mask")
        if SEGMENT_IDS in inputs:
            segments_shape, ids_shape = inputs[SEGMENT_IDS].shape, inputs[INPUT_IDS].shape
            if segments_shape != ids_shape:
                raise FeatureError(
                    f"targets: {SEGMENT_IDS!r} has the shape {segments_shape}, and {INPUT_IDS!r} {ids_shape}; it numbers the"
                    " document of each token. Write them with one length, or pass targets=False."
                )
            return Sequences(pad_id, padding_mark="segments")
        # If the tokenizer pads with the id of the end of text, the first of the trailing ids ends the text, and is a target.
        return Sequences(pad_id, padding_mark="eos" if tokenizer.get("eos_id") == pad_id else "pad")


def _is_length(length: object) -> bool:
    return is_integer(length, 1, 2**31 - 1)
