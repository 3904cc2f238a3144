"""Parsing of serialised Examples to tensors, a whole batch at a time: one op for the batch, not one per record."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from tpudata.format import Feature
from tpudata.input.dataset.fields import CONVERT_AGAIN, PADDING, Field
from tpudata.input.dataset_ops import cast_to_int32, ensure
from tpudata.input.decode.image import decode_images
from tpudata.input.decode.label_map import decode_label_maps
from tpudata.input.decode.masks import decode_masks
from tpudata.input.lists.ragged import list_spec, make_ragged, multi_hot, pad_columns

_STORED = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}


def parse_batch(serialized: tf.Tensor, fields: Sequence[Field], hint: str = CONVERT_AGAIN) -> dict[str, tf.Tensor]:
    """Parse and decode a batch of records.

    Args:
        serialized: string [n], each a serialised `tf.train.Example`.
        fields: fields to read.
        hint: advice for a record that does not match the fields; ends the error message.

    Returns:
        By feature name as stored, a tensor [n, *field.shape]; int64 as int32.
    """
    if all(field.is_whole for field in fields):
        return {field.feature.name: serialized for field in fields}
    return decode_columns(parse_columns(serialized, fields), fields, hint)


def parse_columns(serialized: tf.Tensor, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the stored values of a batch of records, by feature name: tensors, or ragged ones, with a row for each record.

    Args:
        serialized: string [n], each a serialised `tf.train.Example`.
        fields: fields to read.
    """
    spec = {field.feature.name: _make_spec(field) for field in fields if field.is_stored}
    stored: dict[str, Any] = tf.io.parse_example(serialized, spec)
    return stored


def decode_columns(stored: dict[str, Any], fields: Sequence[Field], hint: str = CONVERT_AGAIN) -> dict[str, tf.Tensor]:
    """Decode the stored values of a batch of records; the result is that of `parse_batch`."""
    unpadded = [field for field in fields if field.padding is None and field.is_stored]
    decoded = {field.feature.name: _decode(stored[field.feature.name], field, hint) for field in unpadded}
    masks = [field for field in fields if field.needs_masks]
    # Masks are padded as PNGs and decoded afterwards: padding has no pixels.
    fields = [
        dataclasses.replace(field, shape=field.shape[:1], is_encoded=True) if field.needs_masks else field
        for field in fields
    ]
    padded = pad_columns(stored, fields, hint)
    for field in masks:
        # The fed number of entries of the masks' key of `pad`.
        count_field = next(other for other in fields if field.padding and other.counts == field.padding.table)
        padded[field.feature.name] = decode_masks(padded[field.feature.name], padded[count_field.feature.name], field)
    return decoded | padded


def default_value(field: Field) -> Any:
    """Return the default of a feature in its stored form and shape; None if it is required."""
    if field.default is None:
        return None
    array = np.empty(len(field.default), object)
    array[:] = field.default
    return array.reshape(() if field.feature.is_one_value else field.shape).tolist()


def parse_stored(
    serialized: tf.Tensor, features: Sequence[Feature], defaults: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Parse a batch of records without decoding images and raw bytes.

    Args:
        serialized: string [n], each a serialised `tf.train.Example`.
        features: features to read.
        defaults: stored values for records that lack a feature, by its name.

    Returns:
        By feature name a tensor [n, *shape]; string [n] for images and raw bytes, ragged [n, None] for shapes that vary.
    """
    spec: dict[str, Any] = {}
    for feature in features:
        dtype = _STORED[feature.kind]
        shape = () if feature.is_one_value else feature.shape
        if None in shape:
            spec[feature.name] = tf.io.RaggedFeature(dtype)
        else:
            spec[feature.name] = tf.io.FixedLenFeature(shape, dtype, defaults.get(feature.name))
    columns: dict[str, Any] = tf.io.parse_example(serialized, spec)
    return columns


def sequence_lengths(serialized: tf.Tensor, fields: Sequence[Field]) -> tf.Tensor:
    """Return the length of the longest sequence of each record, int64 [n].

    Args:
        serialized: string [n], each a serialised `tf.train.Example`.
        fields: sequences that are padded.
    """
    stored = tf.io.parse_example(serialized, {field.feature.name: _make_spec(field) for field in fields})
    lengths = []
    for field in fields:
        column = stored[field.feature.name]
        if isinstance(column, tf.RaggedTensor):
            lengths.append(column.row_lengths())
        else:
            lengths.append(tf.cast(tf.strings.length(column), tf.int64) // tf.as_dtype(field.feature.dtype).size)
    return functools.reduce(tf.maximum, lengths)


def _make_spec(field: Field) -> Any:
    feature, dtype = field.feature, _STORED[field.feature.kind]
    if field.is_list:
        return list_spec(feature)
    return tf.io.FixedLenFeature(() if feature.is_one_value else field.shape, dtype, default_value(field))


def _decode(stored: tf.Tensor, field: Field, hint: str) -> tf.Tensor:
    """Return the values of a parsed feature of records as they are fed."""
    if field.is_encoded:
        return stored
    if field.feature.encoding == "image":
        return decode_images(stored, field)
    if field.feature.is_label_map:
        return decode_label_maps(stored, field)
    if field.is_multi_hot:
        return multi_hot(stored, field)
    if field.pads:
        return _pad(stored, field)
    if field.feature.encoding == "raw":
        stored = _decode_raw(stored, field, hint)
    return cast_to_int32(field.feature.name, stored)


def _pad(stored: tf.Tensor | tf.RaggedTensor, field: Field) -> tf.Tensor:
    """Return lists of any length, or their bytes, as one padded matrix."""
    length, rows = field.shape[0], make_ragged(stored, field.feature)
    values = rows.values
    if not field.cuts:
        message = (
            f"Feature {field.feature.name}: a record is longer than sequence_length, {length}. Pass a larger one, or"
            " truncate=True to cut; to a command, --sequence-length or --truncate."
        )
        lengths = rows.row_lengths()
        values = ensure(values, tf.reduce_all(lengths <= tf.cast(length, lengths.dtype)), message)
    return rows.with_values(tf.cast(values, tf.int32)).to_tensor(PADDING, shape=(None, length))


def _decode_raw(stored: tf.Tensor, field: Field, hint: str) -> tf.Tensor:
    dtype = tf.as_dtype(field.feature.dtype)
    size = math.prod(field.shape) * dtype.size
    message = f"Feature {field.feature.name}: a record does not have the {size} bytes of {field.shape} {dtype.name} values. {hint}"
    stored = ensure(stored, tf.reduce_all(tf.equal(tf.strings.length(stored), size)), message)
    values = tf.io.decode_raw(stored, dtype)
    return tf.reshape(values, (-1, *field.shape))
