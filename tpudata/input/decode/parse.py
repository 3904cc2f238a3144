"""Parsing of serialized Examples to tensors, a whole batch at a time: one op for the batch, not one per record."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tpudata.format import Feature
from tpudata.input.dataset.fields import CONVERT_AGAIN, PADDING, Field
from tpudata.input.dataset_ops import cast_to_int32, ensure
from tpudata.input.decode.image import decode_images
from tpudata.input.decode.label_map import decode_label_maps
from tpudata.input.decode.masks import decode_masks
from tpudata.input.lists.ragged import encode_multi_hot, make_list_spec, make_ragged, pad_columns
from tpudata.tensor_types import Array

# dtype of a feature's values in an Example, by its kind.
_STORED_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}
# Columns as `tf.io.parse_example` returns them, by feature name: a row for each record.
Columns: TypeAlias = "dict[str, tf.Tensor | tf.RaggedTensor]"


def parse_batch(serialized: tf.Tensor, fields: Sequence[Field], hint: str = CONVERT_AGAIN) -> dict[str, tf.Tensor]:
    """Parse and decode a batch of records.

    Args:
        serialized: string [n], each a serialized `tf.train.Example`.
        fields: fields to read.
        hint: fix for a record that does not match the fields; ends the error message.

    Returns:
        By feature name as stored, a tensor [n, *field.shape]; int64 as int32.
    """
    if all(field.is_whole for field in fields):
        return {field.feature.name: serialized for field in fields}
    return decode_columns(parse_columns(serialized, fields), fields, hint)


def parse_columns(serialized: tf.Tensor, fields: Sequence[Field]) -> Columns:
    """Return the stored values of a batch of records, by feature name; lists of any length are ragged, or bytes.

    Args:
        serialized: string [n], each a serialized `tf.train.Example`.
        fields: fields to read.
    """
    spec = {field.feature.name: _make_spec(field) for field in fields if field.is_stored}
    stored: Columns = tf.io.parse_example(serialized, spec)
    return stored


def decode_columns(stored: Columns, fields: Sequence[Field], hint: str = CONVERT_AGAIN) -> dict[str, tf.Tensor]:
    """Return decoded columns, as `parse_batch` does, from the stored ones that `parse_columns` returned."""
    unpadded = [field for field in fields if field.padding is None and field.is_stored]
    decoded = {field.feature.name: _decode(stored[field.feature.name], field, hint) for field in unpadded}
    # Masks are padded as PNGs and decoded afterwards: padding has no pixels.
    fields_to_pad = [
        dataclasses.replace(field, shape=field.shape[:1], is_encoded=True) if field.decodes_masks else field
        for field in fields
    ]
    padded = pad_columns(stored, fields_to_pad, hint)
    for field in fields:
        if field.decodes_masks:
            assert field.padding is not None
            key = field.padding.key
            # The field that counts the entries of this key of `pad`: the other entries are padding.
            count_name = next(candidate.feature.name for candidate in fields if candidate.counted_key == key)
            padded[field.feature.name] = decode_masks(padded[field.feature.name], padded[count_name], field)
    return decoded | padded


def reshape_default(field: Field) -> Array | None:
    """Return the default of a field as nested lists of its stored shape, or one value; None if records must have the feature."""
    if field.default is None:
        return None
    # An array of objects: an array of bytes would drop zeros at the end of a value.
    array = np.empty(len(field.default), object)
    array[:] = field.default
    return array.reshape(() if field.feature.is_one_value else field.shape).tolist()


def parse_stored(
    serialized: tf.Tensor, features: Sequence[Feature], defaults: Mapping[str, Array | None] = MappingProxyType({})
) -> Columns:
    """Parse a batch of records without decoding images and raw bytes.

    Args:
        serialized: string [n], each a serialized `tf.train.Example`.
        features: features to read.
        defaults: stored values for records that lack a feature, by its name; None for features that are required.

    Returns:
        By feature name a tensor [n, *shape]; string [n] for images and raw bytes, ragged [n, None] for shapes that vary.
    """
    spec = {}
    for feature in features:
        dtype = _STORED_DTYPES[feature.kind]
        shape = () if feature.is_one_value else feature.shape
        if None in shape:
            spec[feature.name] = tf.io.RaggedFeature(dtype)
        else:
            spec[feature.name] = tf.io.FixedLenFeature(shape, dtype, defaults.get(feature.name))
    columns: Columns = tf.io.parse_example(serialized, spec)
    return columns


def measure_sequences(serialized: tf.Tensor, fields: Sequence[Field]) -> tf.Tensor:
    """Return the length of the longest sequence of each record, int64 [n].

    Args:
        serialized: string [n], each a serialized `tf.train.Example`.
        fields: sequences that are padded.
    """
    stored = tf.io.parse_example(serialized, {field.feature.name: _make_spec(field) for field in fields})
    lengths = []
    for field in fields:
        column = stored[field.feature.name]
        if isinstance(column, tf.RaggedTensor):
            lengths.append(column.row_lengths())
        else:
            # The column is strings, each the bytes of all integers of a record.
            lengths.append(tf.cast(tf.strings.length(column), tf.int64) // tf.as_dtype(field.feature.dtype).size)
    return functools.reduce(tf.maximum, lengths)


def _make_spec(field: Field) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    """Return the spec with which `tf.io.parse_example` reads a field."""
    feature = field.feature
    if field.is_list:
        return make_list_spec(feature)
    shape = () if feature.is_one_value else field.shape
    return tf.io.FixedLenFeature(shape, _STORED_DTYPES[feature.kind], reshape_default(field))


def _decode(stored: tf.Tensor | tf.RaggedTensor, field: Field, hint: str) -> tf.Tensor:
    """Return the decoded column of a parsed feature, [n, *field.shape]; int64 as int32; unchanged if it stays encoded."""
    if field.is_encoded:
        return stored
    if field.feature.encoding == "image":
        return decode_images(stored, field)
    if field.feature.is_label_map:
        return decode_label_maps(stored, field)
    if field.is_multi_hot:
        return encode_multi_hot(stored, field)
    if field.is_padded_sequence:
        return _pad_sequences(stored, field)
    if field.feature.encoding == "raw":
        stored = _decode_raw(stored, field, hint)
    return cast_to_int32(field.feature.name, stored)


def _pad_sequences(stored: tf.Tensor | tf.RaggedTensor, field: Field) -> tf.Tensor:
    """Return sequences of any length as int32 [n, length], filled up with `PADDING`; longer ones are cut or fail at run time."""
    length = field.shape[0]
    rows = make_ragged(stored, field.feature)
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
    """Return the values of raw bytes, string [n], as [n, *field.shape]; other sizes fail at run time with `hint`."""
    dtype = tf.as_dtype(field.feature.dtype)
    size = math.prod(field.shape) * dtype.size
    message = f"Feature {field.feature.name}: a record does not have the {size} bytes of {field.shape} {dtype.name} values. {hint}"
    stored = ensure(stored, tf.reduce_all(tf.equal(tf.strings.length(stored), size)), message)
    values = tf.io.decode_raw(stored, dtype)
    return tf.reshape(values, (-1, *field.shape))
