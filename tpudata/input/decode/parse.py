"""Parsing of serialised Examples to tensors, a whole batch at a time: one op for the batch, not one per record."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tpudata.format import Feature
from tpudata.input.dataset.fields import CONVERT_AGAIN, PADDING, Field
from tpudata.input.dataset_ops import checked
from tpudata.input.decode.image import decode_images
from tpudata.input.decode.label_map import decode_label_maps

_STORED = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}


def parse_batch(serialized: tf.Tensor, fields: Sequence[Field], hint: str = CONVERT_AGAIN) -> dict[str, tf.Tensor]:
    """Parse and decode a batch of records.

    Args:
        serialized: string [n], each a serialised `tf.train.Example`.
        fields: fields to read.
        hint: fix for a record that differs from them; ends the error message.

    Returns:
        By feature name as stored, a tensor [n, *field.shape]; int64 as int32.
    """
    if all(field.is_whole for field in fields):
        return {field.feature.name: serialized for field in fields}
    return decode_columns(stored_columns(serialized, fields), fields, hint)


def stored_columns(serialized: tf.Tensor, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the stored values of a batch of records, by feature name: tensors, or ragged ones, with a row for each record.

    Args:
        serialized: string [n], each a serialised `tf.train.Example`.
        fields: fields to read.
    """
    spec = {field.feature.name: _spec(field) for field in fields}
    stored: dict[str, Any] = tf.io.parse_example(serialized, spec)
    return stored


def decode_columns(stored: dict[str, Any], fields: Sequence[Field], hint: str = CONVERT_AGAIN) -> dict[str, tf.Tensor]:
    """Decode the stored values of a batch of records; the result is that of `parse_batch`."""
    return {field.feature.name: _decode(stored[field.feature.name], field, hint) for field in fields}


def parse_stored(serialized: tf.Tensor, features: Sequence[Feature]) -> dict[str, Any]:
    """Parse a batch of records without decoding what is in them.

    Args:
        serialized: string [n], each a serialised `tf.train.Example`.
        features: features to read.

    Returns:
        By feature name a tensor [n, *shape]; string [n] for images and raw bytes, ragged [n, None] for shapes that vary.
    """
    spec: dict[str, Any] = {}
    for feature in features:
        dtype = _STORED[feature.kind]
        shape = () if feature.encoding is not None else feature.shape
        spec[feature.name] = tf.io.RaggedFeature(dtype) if None in shape else tf.io.FixedLenFeature(shape, dtype)
    found: dict[str, Any] = tf.io.parse_example(serialized, spec)
    return found


def sequence_lengths(serialized: tf.Tensor, fields: Sequence[Field]) -> tf.Tensor:
    """Return the length of the longest sequence of each record, int64 [n].

    Args:
        serialized: string [n], each a serialised `tf.train.Example`.
        fields: sequences that are padded.
    """
    stored = tf.io.parse_example(serialized, {field.feature.name: _spec(field) for field in fields})
    lengths = []
    for field in fields:
        value = stored[field.feature.name]
        if isinstance(value, tf.RaggedTensor):
            lengths.append(value.row_lengths())
        else:
            lengths.append(tf.cast(tf.strings.length(value), tf.int64) // tf.as_dtype(field.feature.dtype).size)
    return functools.reduce(tf.maximum, lengths)


def to_int32(name: str, value: tf.Tensor) -> tf.Tensor:
    """Return an int64 tensor as int32, which a TPU needs; return other tensors unchanged.

    A value that does not fit fails at run time with `tf.errors.InvalidArgumentError`, which names the feature.
    """
    if not isinstance(value, tf.Tensor) or value.dtype != tf.int64:
        return value
    narrow = tf.cast(value, tf.int32)
    # Without quotes: TensorFlow would print them with backslashes.
    message = (
        f"Feature {name}: a value does not fit int32, which is what a TPU takes. Omit the feature, or store"
        " smaller numbers."
    )
    return checked(narrow, tf.reduce_all(tf.equal(tf.cast(narrow, tf.int64), value)), message)


def _spec(field: Field) -> Any:
    feature, dtype = field.feature, _STORED[field.feature.kind]
    if field.pads and feature.encoding is None:
        return tf.io.RaggedFeature(dtype)
    return tf.io.FixedLenFeature(() if feature.is_one_value else field.shape, dtype)


def _decode(stored: tf.Tensor, field: Field, hint: str) -> tf.Tensor:
    if field.is_encoded:
        return stored
    if field.feature.encoding == "image":
        return decode_images(stored, field)
    if field.feature.is_label_map:
        return decode_label_maps(stored, field)
    if field.pads:
        return _padded(stored, field)
    if field.feature.encoding == "raw":
        stored = _decode_raw(stored, field, hint)
    return to_int32(field.feature.name, stored)


def _padded(stored: tf.Tensor | tf.RaggedTensor, field: Field) -> tf.Tensor:
    """Return lists of any length, or their bytes, as one padded matrix."""
    length = field.shape[0]
    if field.feature.encoding == "raw":
        dtype = tf.as_dtype(field.feature.dtype)
        counts = tf.strings.length(stored) // dtype.size
        # All bytes in one row, to be split into records again.
        values = tf.reshape(tf.io.decode_raw(tf.strings.reduce_join(stored), dtype), [-1])
        stored = tf.RaggedTensor.from_row_lengths(values, counts)
    values = stored.values
    if not field.cuts:
        message = (
            f"Feature {field.feature.name}: a record is longer than sequence_length, {length}. Pass a larger one, or"
            " truncate=True to cut; to a command, --sequence-length or --truncate."
        )
        lengths = stored.row_lengths()
        values = checked(values, tf.reduce_all(lengths <= tf.cast(length, lengths.dtype)), message)
    narrow = stored.with_values(to_int32(field.feature.name, values))
    return tf.cast(narrow, tf.int32).to_tensor(PADDING, shape=(None, length))


def _decode_raw(stored: tf.Tensor, field: Field, hint: str) -> tf.Tensor:
    dtype = tf.as_dtype(field.feature.dtype)
    size = math.prod(field.shape) * dtype.size
    message = f"Feature {field.feature.name}: a record does not have the {size} bytes of {field.shape} {dtype.name} values. {hint}"
    stored = checked(stored, tf.reduce_all(tf.equal(tf.strings.length(stored), size)), message)
    values = tf.io.decode_raw(stored, dtype)
    return tf.reshape(values, (-1, *field.shape))
