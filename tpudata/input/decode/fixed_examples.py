"""Decoding of Examples of one fixed byte layout by slicing, in a fifth of the time of parsing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tpudata.format.example.value_positions import ValuePosition, find_value_positions
from tpudata.input.dataset.fields import Field
from tpudata.input.dataset_ops import cast_to_int32
from tpudata.input.decode.parse import parse_batch

# Bits of a varint's byte: its digit's, and the flag that another byte follows.
_DIGIT_MASK, _CONTINUE_FLAG = 127, 128


@dataclasses.dataclass(frozen=True)
class FixedExamples:
    """Layout of Examples in which the values of each feature are at the same offset.

    Wide values are floats and strings of bytes, such as raw arrays. All other bytes are narrow: keys, lengths, and the varints
    of integers.

    Attributes:
        template: one of the Examples.
        fields: fields that are read.
        positions: byte positions of all features in the template, by name.
    """

    template: bytes
    fields: tuple[Field, ...]
    positions: dict[str, ValuePosition]

    @classmethod
    def detect(cls, template: bytes, fields: Sequence[Field]) -> FixedExamples | None:
        """Return the layout of Examples like `template`, or None if a field cannot be sliced from them."""
        positions = find_value_positions(template)
        if positions is None or not all(_can_be_sliced(field, positions) for field in fields):
            return None
        return cls(template, tuple(fields), positions)

    def parse(self, serialized: tf.Tensor, hint: str) -> dict[str, tf.Tensor]:
        """Parse a batch by slicing; with `parse_batch` if a record has a different layout."""
        matrix, narrow_bytes, is_fixed = self._split_bytes(serialized)
        columns: dict[str, tf.Tensor] = tf.cond(
            is_fixed,
            lambda: self._decode_columns(matrix, narrow_bytes),
            lambda: parse_batch(serialized, self.fields, hint),
        )
        return {
            field.feature.name: tf.ensure_shape(columns[field.feature.name], (None, *field.shape))
            for field in self.fields
        }

    @property
    def _narrow_ranges(self) -> list[tuple[int, int]]:
        """[begin, end) of each run of narrow bytes in the template."""
        size = len(self.template)
        wide_ranges = sorted(
            (position.begin, position.end) for position in self.positions.values() if position.kind != "int64"
        )
        begins, ends = [0, *(end for _, end in wide_ranges)], [*(begin for begin, _ in wide_ranges), size]
        return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]

    def _split_bytes(self, serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the records' bytes, their narrow bytes, and whether all have the template's layout.

        Args:
            serialized: string [n].

        Returns:
            All bytes, uint8 [n, size of the template]; the bytes in `_narrow_ranges`, uint8 [n, count]; bool scalar.
        """
        size = len(self.template)
        matrix = tf.ensure_shape(tf.io.decode_raw(serialized, tf.uint8, fixed_length=size), [None, size])
        narrow_bytes = tf.concat([matrix[:, begin:end] for begin, end in self._narrow_ranges], 1)
        # Compare all narrow bytes in one call: a few operations per feature take as long as reading the records. Values are not
        # compared, except for the flags of the varints that are read, so that these have the template's lengths.
        compared_bits = np.full(size, 0xFF, np.uint8)
        for position in self.positions.values():
            compared_bits[position.begin : position.end] = 0
        for field in self.fields:
            position = self.positions[field.feature.name]
            if position.kind == "int64":
                compared_bits[position.begin : position.end] = _CONTINUE_FLAG
        mask = np.concatenate([compared_bits[begin:end] for begin, end in self._narrow_ranges])
        template = np.frombuffer(self.template, np.uint8)
        expected = mask & np.concatenate([template[begin:end] for begin, end in self._narrow_ranges])
        is_same = tf.reduce_all(tf.equal(tf.bitwise.bitwise_and(narrow_bytes, mask), expected))
        has_size = tf.reduce_all(tf.equal(tf.strings.length(serialized), size))
        return matrix, narrow_bytes, tf.logical_and(is_same, has_size)

    def _decode_columns(self, matrix: tf.Tensor, narrow_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return columns [n, *field.shape] by feature name from records with the template's layout; int64 as int32.

        Args:
            matrix: all bytes of the records, uint8 [n, size].
            narrow_bytes: their bytes in `_narrow_ranges`, uint8 [n, count].
        """
        return {
            field.feature.name: self._decode_varints(narrow_bytes, field)
            if field.feature.kind == "int64"
            else self._decode_wide_column(matrix, field)
            for field in self.fields
        }

    def _decode_varints(self, narrow_bytes: tf.Tensor, field: Field) -> tf.Tensor:
        """Return integers, int32 [n], from their varints: digits of 7 bits, the lowest first, one a byte.

        Args:
            narrow_bytes: the bytes in `_narrow_ranges` of each record, uint8 [n, count].
            field: field of the numbers.
        """
        position = self.positions[field.feature.name]
        # The first byte of the feature's varint, counted among the narrow bytes: the number of narrow bytes before it.
        narrow_begin = sum(
            min(end, position.begin) - begin for begin, end in self._narrow_ranges if begin < position.begin
        )
        size = position.end - position.begin
        digits = tf.bitwise.bitwise_and(narrow_bytes[:, narrow_begin : narrow_begin + size], np.uint8(_DIGIT_MASK))
        # Four digits of 7 bits always fit int32.
        dtype = tf.int32 if size <= 4 else tf.int64
        shifts = tf.range(0, 7 * size, 7, dtype=dtype)
        numbers = tf.reduce_sum(tf.bitwise.left_shift(tf.cast(digits, dtype), shifts), axis=1)
        return cast_to_int32(field.feature.name, numbers)

    def _decode_wide_column(self, matrix: tf.Tensor, field: Field) -> tf.Tensor:
        """Return the values of a feature that is a block of bytes, [n, *field.shape]; int64 as int32.

        Args:
            matrix: all bytes of the records, uint8 [n, size].
            field: field of the values.
        """
        kind, begin, end = self.positions[field.feature.name]
        values = matrix[:, begin:end]
        dtype = tf.float32 if kind == "float" else tf.as_dtype(field.feature.dtype)
        if dtype != tf.uint8:
            # bitcast joins the bytes of the last axis to one value; int8 has no such axis.
            byte_axis = [dtype.size] if dtype.size > 1 else []
            values = tf.bitcast(tf.reshape(values, [-1, (end - begin) // dtype.size, *byte_axis]), dtype)
        return cast_to_int32(field.feature.name, tf.reshape(values, (-1, *field.shape)))


def _can_be_sliced(field: Field, positions: dict[str, ValuePosition]) -> bool:
    """Return whether a field can be sliced from Examples of the layout: its values have a fixed size, that of its shape.

    Args:
        field: field that is read of each Example.
        positions: positions of values in the layout, by feature name.
    """
    feature = field.feature
    position = positions.get(feature.name)
    if position is None or position.kind != feature.kind or field.bytes is None or field.is_list or field.is_encoded:
        return False
    size, count = position.end - position.begin, math.prod(field.shape)
    if feature.kind == "int64":
        # The values in a list of varints have no fixed offsets. A negative number has 10 bytes, which shifting would overflow.
        return field.shape == () and size < 10
    if feature.kind == "float":
        return size == 4 * count
    dtype = tf.as_dtype(feature.dtype)
    # `tf.bitcast` takes no bool.
    return feature.encoding == "raw" and dtype != tf.bool and size == count * dtype.size
