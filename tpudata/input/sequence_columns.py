"""Records with sequences, taken apart for many records at once: lists of any length, padded to one.

`columns` takes apart records of a few sizes. Those of token ids have another size each time, since small ids take fewer bytes.
Their values are found by `spans`, and their integers decoded by `varints`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tpudata.errors import CorruptionError, FeatureError
from tpudata.format import decode_example, encode_example
from tpudata.format.tfrecord import FOOTER_BYTES, HEADER_BYTES
from tpudata.input.dataset.fields import CONVERT_AGAIN, PADDING, Field
from tpudata.input.source import Columns
from tpudata.input.spans import Spans, find_spans
from tpudata.input.varints import count_varints, decode_varints
from tpudata.tables import counted

# The column of `SequenceLengths`.
LENGTH = "length"
# Orders of features that are tried, before records are taken apart one by one.
_MAX_ORDERS = 4


def has_sequences(fields: Sequence[Field]) -> bool:
    """Whether records are worth reading so: there is a sequence of integers, and no encoded image."""
    if any(field.feature.encoding == "image" or field.is_whole for field in fields):
        return False
    return any(field.pads or (field.feature.kind == "int64" and len(field.shape) == 1) for field in fields)


class SequenceColumns:
    """Takes records apart into the values of some fields; see `Decoder`.

    Integers are int32 [records, *field.shape]; where a field pads, `PADDING` stands behind the last value.

    Args:
        fields: none of them an encoded image.
        mend: what to do where a record is not as they say.
    """

    def __init__(self, fields: Sequence[Field], mend: str = CONVERT_AGAIN) -> None:
        self._fields = fields
        self._mend = mend
        self._finder = _Finder(fields)

    def decode(self, data: bytes, bounds: npt.NDArray[np.int64], path: str, offset: int) -> Columns:
        """By feature, an array [n, *field.shape]; strings stand in an array of objects."""
        block = _Block(bounds, path, offset, self._mend)
        data, spans = self._finder.find(data, block)
        return {field.feature.name: _column(data, spans[field.feature.name], field, block) for field in self._fields}


class SequenceLengths:
    """How many values the longest padded field of each record has, in the column `LENGTH`; see `Decoder`.

    Args:
        fields: those that pad.
        mend: what to do where a record is not as they say.
    """

    def __init__(self, fields: Sequence[Field], mend: str = CONVERT_AGAIN) -> None:
        self._fields = fields
        self._mend = mend
        self._finder = _Finder(fields)

    def decode(self, data: bytes, bounds: npt.NDArray[np.int64], path: str, offset: int) -> Columns:
        """The one column, int64 [n]."""
        block = _Block(bounds, path, offset, self._mend)
        data, spans = self._finder.find(data, block)
        counts = []
        for field in self._fields:
            counts.append(_count(*_joined(data, spans[field.feature.name]), field, block))
            _check_length(counts[-1], field, block)
        return {LENGTH: np.max(counts, axis=0)}


class _Block(NamedTuple):
    """Records that are taken apart together: as `Decoder` is given them, and what to do where one is not as the fields say."""

    bounds: npt.NDArray[np.int64]
    path: str
    offset: int
    mend: str

    def refuse(self, bad: npt.NDArray[np.bool_], field: Field, message: str) -> None:
        """Raises where a record is bad; names the first one."""
        if bad.any():
            begin = self.offset + int(self.bounds[int(np.argmax(bad))])
            raise FeatureError(f"{self.path} at byte {begin}: feature {field.feature.name!r} {message}")


class _Finder:
    """Finds the values of fields in records of a few orders of features, which it learns as they come."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields = fields
        self._kinds = {field.feature.name: field.feature.kind for field in fields}
        self._orders: list[list[str]] = []

    def find(self, data: bytes, block: _Block) -> tuple[bytes, dict[str, Spans]]:
        """The spans of each feature, and the bytes that they are of."""
        spans, odd = self._spans(data, block.bounds)
        if not len(odd):
            return data, spans
        # Other writers may do as they like: these records are written again, behind the others, as this package does.
        records = [self._rewritten(data, row, block) for row in odd.tolist()]
        bounds = len(data) + np.cumsum([0, *map(len, records)])
        data = b"".join((data, *records))
        order = sorted(self._kinds)
        found, fits = find_spans(np.frombuffer(data, np.uint8), bounds[:-1], bounds[1:], order, self._kinds)
        bad = np.zeros(len(block.bounds) - 1, np.bool_)
        bad[odd[~fits]] = True
        message = f"or another one has values of another kind or number. {block.mend}"
        block.refuse(bad, self._fields[0], message)
        for name, span in found.items():
            spans[name].begins[odd] = span.begins
            spans[name].ends[odd] = span.ends
        return data, spans

    def _spans(self, data: bytes, bounds: npt.NDArray[np.int64]) -> tuple[dict[str, Spans], npt.NDArray[np.int64]]:
        """The spans, and the numbers of the records that are built in no order that is known."""
        array = np.frombuffer(data, np.uint8)
        begins, ends = bounds[:-1] + HEADER_BYTES, bounds[1:] - FOOTER_BYTES
        spans = {name: Spans(np.zeros_like(begins), np.zeros_like(begins)) for name in self._kinds}
        left, orders = np.arange(len(begins)), self._orders
        for number in range(_MAX_ORDERS):
            if number == len(orders):
                order = _order(data[begins[left[0]] : ends[left[0]]])
                # Two threads may learn the same one: then it is tried twice where it does not fit.
                if order in orders or not self._kinds.keys() <= set(order):
                    break
                orders.append(order)
            order = orders[number]
            found, fits = find_spans(array, begins[left], ends[left], order, self._kinds)
            if fits.all() and len(left) == len(begins):
                return found, left[:0]
            for name, span in found.items():
                spans[name].begins[left[fits]] = span.begins[fits]
                spans[name].ends[left[fits]] = span.ends[fits]
            left = left[~fits]
            if not len(left):
                break
        return spans, left

    def _rewritten(self, data: bytes, row: int, block: _Block) -> bytes:
        """A record with the wanted features alone, in the order of their names."""
        begin, end = int(block.bounds[row]), int(block.bounds[row + 1])
        record = data[begin + HEADER_BYTES : end - FOOTER_BYTES]
        example = decode_example(record, path=block.path, offset=block.offset + begin)
        this = np.arange(len(block.bounds) - 1) == row
        for field in self._fields:
            if field.feature.name not in example:
                block.refuse(this, field, f"is not in the record. {block.mend}")
        return encode_example({name: example[name] for name in self._kinds})


def _order(record: bytes) -> list[str]:
    """The names of a record's features as they follow each other; none where it is no Example."""
    try:
        return list(decode_example(record))
    except CorruptionError:
        return []


def _joined(data: bytes, spans: Spans) -> tuple[bytes, npt.NDArray[np.int64]]:
    """The bytes of a feature in all records, and where those of each end, after a first 0."""
    parts = [data[begin:end] for begin, end in zip(spans.begins.tolist(), spans.ends.tolist(), strict=True)]
    return b"".join(parts), np.append(0, np.cumsum(spans.ends - spans.begins))


def _count(data: bytes, ends: npt.NDArray[np.int64], field: Field, block: _Block) -> npt.NDArray[np.int64]:
    """How many values each record has."""
    if field.feature.kind == "int64":
        array = np.frombuffer(data, np.uint8)
        _check_ends(array, ends, field, block)
        return count_varints(array, ends)
    size = _dtype(field).itemsize
    sizes = np.diff(ends)
    block.refuse(sizes % size > 0, field, f"has no whole number of {size} bytes. {block.mend}")
    return sizes // size


def _check_ends(array: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], field: Field, block: _Block) -> None:
    """Checks that the last integer of each record ends."""
    last = array.take(ends[1:] - 1, mode="wrap") if len(array) else np.zeros(len(ends) - 1, np.uint8)
    block.refuse((np.diff(ends) > 0) & (last >= 0x80), field, f"is cut off. {block.mend}")


def _check_length(counts: npt.NDArray[np.int64], field: Field, block: _Block) -> None:
    length = field.shape[0]
    if not field.cuts and (counts > length).any():
        longer = int(counts[np.argmax(counts > length)])
        message = (
            f"has {longer} values, and {length} are room for. Pass a larger sequence_length or bucket, or truncate=True; to a"
            " command, --sequence-length or --truncate."
        )
        block.refuse(counts > length, field, message)


def _column(data: bytes, spans: Spans, field: Field, block: _Block) -> npt.NDArray[Any]:
    """A field's values [n, *field.shape]."""
    if field.feature.dtype == "string":
        strings = np.empty(len(spans.begins), object)
        for row, (begin, end) in enumerate(zip(spans.begins.tolist(), spans.ends.tolist(), strict=True)):
            strings[row] = data[begin:end]
        return strings
    values, counts = _numbers(*_joined(data, spans), field, block)
    length = math.prod(field.shape)
    if not field.pads:
        message = f"has another number of values than the {length} of shape {field.shape}. {block.mend}"
        block.refuse(counts != length, field, message)
    else:
        _check_length(counts, field, block)
    values = _fitting(values, counts, field, block)
    if not field.pads:
        return values.reshape(len(counts), *field.shape)
    if field.cuts and (counts > length).any():
        nth = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
        values, counts = values[nth < length], np.minimum(counts, length)
    column = np.full((len(counts), length), PADDING, np.int32)
    column[np.arange(length) < counts[:, None]] = values
    return column


def _numbers(
    data: bytes, ends: npt.NDArray[np.int64], field: Field, block: _Block
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """All values, one behind the other, and how many each record has."""
    if field.feature.kind != "int64":
        counts = _count(data, ends, field, block)
        return np.frombuffer(data, _dtype(field)), counts
    array = np.frombuffer(data, np.uint8)
    _check_ends(array, ends, field, block)
    try:
        return decode_varints(array, ends)
    except ValueError as error:
        raise FeatureError(
            f"{block.path} at byte {block.offset}: feature {field.feature.name!r} has {error} in one of"
            f" {counted(len(ends) - 1, 'record')} from there on. {block.mend}"
        ) from None


def _fitting(values: npt.NDArray[Any], counts: npt.NDArray[np.int64], field: Field, block: _Block) -> npt.NDArray[Any]:
    """int64, and what is padded, as int32."""
    if values.dtype == np.int32 or not (field.pads or values.dtype == np.int64):
        return values
    small = values.astype(np.int32)
    wrong = values != small
    if wrong.any():
        record = np.searchsorted(np.cumsum(counts), np.argmax(wrong), "right")
        message = "has a value that does not fit int32, which is what a TPU takes. Store smaller numbers."
        block.refuse(np.arange(len(counts)) == record, field, message)
    return small


def _dtype(field: Field) -> np.dtype[Any]:
    little_endian: np.dtype[Any] = np.dtype(field.feature.dtype).newbyteorder("<")
    return little_endian
