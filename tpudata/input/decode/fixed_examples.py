"""Examples that are all laid out as one of them is: taken apart by their bytes, in a fifth of the time of parsing."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tpudata.format.example_places import Place, value_places
from tpudata.input.dataset.fields import Field
from tpudata.input.decode.parse import parse_batch, to_int32

# Of a varint: the bits of a byte that hold the number, and the one that says that a byte follows.
_NUMBER, _FOLLOWS = 127, 128


@dataclasses.dataclass(frozen=True)
class FixedExamples:
    """Examples in which the values of each feature stand at the same place.

    Attributes:
        template: one of them.
        fields: what is read.
        places: of all features in the template, also those that are not read, by name.
    """

    template: bytes
    fields: tuple[Field, ...]
    places: dict[str, Place]

    @classmethod
    def of(cls, template: bytes, fields: Sequence[Field]) -> FixedExamples | None:
        """Return how Examples like one are taken apart, or None if they cannot be so."""
        places = value_places(template)
        if places is None or not all(_fits(field, places) for field in fields):
            return None
        return cls(template, tuple(fields), places)

    def parse(self, serialized: tf.Tensor, mend: str) -> dict[str, tf.Tensor]:
        """Do what `parse_batch` does; batches that have a record of another layout are parsed by it."""
        matrix, fits = self._matrix(serialized)
        found: dict[str, tf.Tensor] = tf.cond(
            fits, lambda: self._values(matrix), lambda: parse_batch(serialized, self.fields, mend)
        )
        return {
            field.feature.name: tf.ensure_shape(found[field.feature.name], (None, *field.shape))
            for field in self.fields
        }

    def _matrix(self, serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the records' bytes, uint8 [n, size of the template], and whether all are laid out as the template is.

        Args:
            serialized: string [n].
        """
        size = len(self.template)
        matrix = tf.ensure_shape(tf.io.decode_raw(serialized, tf.uint8, fixed_length=size), [None, size])
        fits = [tf.reduce_all(tf.equal(tf.strings.length(serialized), size))]
        end = 0
        for place in sorted((*self.places.values(), Place("", size, size)), key=lambda place: place.begin):
            if end < place.begin:
                between = np.frombuffer(self.template[end : place.begin], np.uint8)
                fits.append(tf.reduce_all(tf.equal(matrix[:, end : place.begin], between)))
            end = place.end
        for field in self.fields:
            place = self.places[field.feature.name]
            if place.kind == "int64":
                follows = [_FOLLOWS] * (place.end - place.begin - 1) + [0]
                bits = tf.bitwise.bitwise_and(matrix[:, place.begin : place.end], tf.constant(_FOLLOWS, tf.uint8))
                fits.append(tf.reduce_all(tf.equal(bits, tf.constant(follows, tf.uint8))))
        return matrix, functools.reduce(tf.logical_and, fits)

    def _values(self, matrix: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return by feature name a tensor [n, *field.shape], of records whose layout fits; int64 as int32."""
        return {field.feature.name: self._value(matrix, field) for field in self.fields}

    def _value(self, matrix: tf.Tensor, field: Field) -> tf.Tensor:
        kind, begin, end = self.places[field.feature.name]
        data, name = matrix[:, begin:end], field.feature.name
        if kind == "int64":
            numbers = tf.cast(tf.bitwise.bitwise_and(data, tf.constant(_NUMBER, tf.uint8)), tf.int64)
            shifts = tf.range(0, 7 * (end - begin), 7, dtype=tf.int64)
            return to_int32(name, tf.reduce_sum(tf.bitwise.left_shift(numbers, shifts), axis=1))
        dtype = tf.float32 if kind == "float" else tf.as_dtype(field.feature.dtype)
        if dtype != tf.uint8:
            data = tf.reshape(data, [-1, (end - begin) // dtype.size, *([dtype.size] if dtype.size > 1 else [])])
            data = tf.bitcast(data, dtype)
        return to_int32(name, tf.reshape(data, (-1, *field.shape)))


def _fits(field: Field, places: dict[str, Place]) -> bool:
    """Return whether a field is one value that has its size."""
    feature, place = field.feature, places.get(field.feature.name)
    if place is None or place.kind != feature.kind or field.bytes is None or field.pads or field.is_encoded:
        return False
    size, count = place.end - place.begin, math.prod(field.shape)
    if feature.kind == "int64":
        # Lists of varints have no places for each.
        return field.shape == () and size < 10
    if feature.kind == "float":
        return size == 4 * count
    dtype = tf.as_dtype(feature.dtype)
    return feature.encoding == "raw" and dtype != tf.bool and size == count * dtype.size
