"""Records of fixed-size features, taken apart as one matrix of bytes and not one by one.

Records that hold the same features in the same sizes differ in nothing but the values: keys, tags and lengths stand at the same
bytes. So the first record of a size tells where the values are; that all others are built like it is compared, for all at once; and
a feature of n records is a slice of the matrix [n, bytes]. What a `tf.train.Example` looks like stands in `tpudata.format.example`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpudata.errors import FeatureError
from tpudata.format import ShardIndex, decode_example
from tpudata.format.tfrecord import FOOTER_BYTES, HEADER_BYTES
from tpudata.input.dataset.fields import CONVERT_AGAIN, Field
from tpudata.input.source import Columns

_BYTES, _FLOATS, _INTS = 1, 2, 3
_KIND = {"bytes": _BYTES, "float": _FLOATS, "int64": _INTS}
# Integers are varints of one byte to ten, a step for each: worth it for labels and sizes, not for a sequence of tokens.
_MAX_INTS = 16
# Beyond, a matrix for each size would hold too few records.
_MAX_SIZES = 32
# Layouts that are tried on records of one size, before they are taken one by one.
_MAX_LAYOUTS = 4


def has_fixed_layout(fields: Sequence[Field], index: ShardIndex) -> bool:
    """Whether records are worth reading as matrices: features of fixed size, and few sizes of records in a shard."""
    for field in fields:
        if field.feature.encoding == "image" or field.feature.dtype == "string" or field.pads:
            return False
        if field.feature.kind == "int64" and math.prod(field.shape) > _MAX_INTS:
            return False
    return len(np.unique(np.diff(index.offsets))) <= _MAX_SIZES


class FixedColumns:
    """Takes records apart into the values of some fields; see `Decoder`.

    Args:
        fields: of fixed size.
        mend: what to do where a record is not as they say.
    """

    def __init__(self, fields: Sequence[Field], mend: str = CONVERT_AGAIN) -> None:
        self._fields = fields
        self._mend = mend
        # By size of a record.
        self._layouts: dict[int, list[Layout]] = {}

    def decode(self, data: bytes, bounds: npt.NDArray[np.int64], path: str, offset: int) -> Columns:
        """By feature, an array [n, *field.shape]; integers of a list are int64."""
        sizes = bounds[1:] - bounds[:-1]
        columns: Columns = {}
        if (sizes == sizes[0]).all():
            # Almost always, once the first layout is learnt.
            matrix = np.frombuffer(data, np.uint8).reshape(len(sizes), sizes[0])
            records = matrix[:, HEADER_BYTES:-FOOTER_BYTES]
            for layout in self._layouts.get(records.shape[1], ())[:1]:
                found = [layout.values(records, field) for field in self._fields] if layout.fits_all(records) else []
                if found and all(good is None or good.all() for _, good in found):
                    # Views: they are copied when they are mixed.
                    return {f.feature.name: values for f, (values, _) in zip(self._fields, found, strict=True)}
        every = np.arange(len(sizes))
        for size in np.unique(sizes):
            here = every[sizes == size]
            # One by one: numpy would take eight bytes of index for each byte.
            matrix = np.frombuffer(b"".join([data[a : a + size] for a in bounds[here].tolist()]), np.uint8).reshape(
                len(here), size
            )
            odd = self._by_layout(matrix[:, HEADER_BYTES:-FOOTER_BYTES], here, columns, len(sizes))
            if len(odd):
                self._allocate(columns, len(sizes))
            for row in odd.tolist():
                start = int(bounds[row])
                record = data[start + HEADER_BYTES : start + int(size) - FOOTER_BYTES]
                self._by_hand(record, row, columns, path, offset + start)
        return columns

    def _by_layout(
        self, matrix: npt.NDArray[np.uint8], rows: npt.NDArray[Any], columns: Columns, count: int
    ) -> npt.NDArray[Any]:
        """Fills the rows of records of one size, out of `count` records; returns those that no layout fits."""
        # Layouts are learnt once. Two threads may learn the same one: then it is tried twice where it does not fit.
        known = self._layouts.setdefault(matrix.shape[1], [])
        for number in range(_MAX_LAYOUTS):
            if number == len(known):
                learnt = Layout.of(matrix[0].tobytes())
                if learnt is None or not all(learnt.holds(field) for field in self._fields):
                    return rows
                known.append(learnt)
            layout = known[number]
            fits = layout.fits(matrix)
            values = {}
            for field in self._fields:
                values[field.feature.name], good = layout.values(matrix, field)
                if good is not None:
                    fits &= good
            if len(rows) == count and fits.all():
                columns.update(values)
                return rows[:0]
            self._allocate(columns, count)
            for name, value in values.items():
                columns[name][rows[fits]] = value[fits]
            matrix, rows = matrix[~fits], rows[~fits]
            if not len(rows):
                break
        return rows

    def _allocate(self, columns: Columns, count: int) -> None:
        """Makes room for the fields of `count` records, where there is none yet."""
        if not columns:
            columns.update({f.feature.name: np.empty((count, *f.shape), _dtype(f)) for f in self._fields})

    def _by_hand(self, record: bytes, row: int, columns: Columns, path: str, offset: int) -> None:
        example = decode_example(record, path=path, offset=offset)
        for field in self._fields:
            name, column = field.feature.name, columns[field.feature.name]
            where = f"{path} at byte {offset}: feature {name!r}"
            if name not in example:
                raise FeatureError(f"{where} is not in the record. {self._mend}")
            values = example[name]
            if field.feature.encoding == "raw" and len(values) == 1 and isinstance(values[0], bytes):
                if len(values[0]) != column[row].nbytes:
                    raise FeatureError(
                        f"{where} has {len(values[0])} bytes, and not the {column[row].nbytes} of {field.shape}"
                        f" {field.feature.dtype} values. {self._mend}"
                    )
                column[row] = np.frombuffer(values[0], column.dtype).reshape(field.shape)
            elif field.feature.encoding != "raw" and len(values) == math.prod(field.shape) and _is_kind(values, field):
                column[row] = np.array(values, column.dtype).reshape(field.shape)
            else:
                raise FeatureError(
                    f"{where} has {len(values)} values of another kind or number than {field.feature.kind} of shape"
                    f" {field.shape}. {self._mend}"
                )


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Where the values of a record stand.

    Attributes:
        record: the record it was learnt from.
        spans: by feature, (which list, first byte, byte behind the last) of the value: one bytes value, or a packed list.
        fixed: [first, last) of the runs of bytes between, which are equal in all records of the layout.
    """

    record: bytes
    spans: dict[str, tuple[int, int, int]]
    fixed: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, record: bytes) -> Layout | None:
        """Learns the layout of a record; None where it is not built as protobuf writers build it."""
        spans: dict[str, tuple[int, int, int]] = {}
        try:
            for number, begin, end in _fields(record, 0, len(record)):
                if number != 1:
                    return None
                for inner, start, stop in _fields(record, begin, end):
                    if inner != 1:
                        return None
                    (key, a, b), (value, c, d) = _fields(record, start, stop)
                    (kind, e, f), *more = _fields(record, c, d)
                    (one, first, last), *others = _fields(record, e, f)
                    name = record[a:b].decode()
                    if (key, value, one) != (1, 2, 1) or more or others or name in spans:
                        return None
                    spans[name] = kind, first, last
        except (ValueError, IndexError):
            return None
        ends = [0, *(place for _, first, last in sorted(spans.values(), key=lambda s: s[1]) for place in (first, last))]
        ends.append(len(record))
        return cls(record, spans, tuple((a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if a < b))

    def holds(self, field: Field) -> bool:
        """Whether a field's values are there, in their size as far as the layout tells."""
        kind, first, last = self.spans.get(field.feature.name, (0, 0, 0))
        if kind != _KIND[field.feature.kind]:
            return False
        count, size = math.prod(field.shape), last - first
        # An integer takes at least one byte; and more than one integer is taken apart only where each takes one.
        return (
            (size == count or (count == 1 and 1 <= size <= 10))
            if kind == _INTS
            else size == count * _dtype(field).itemsize
        )

    def fits(self, matrix: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Which of the records [n, bytes] have this layout."""
        fits = np.ones(len(matrix), np.bool_)
        for first, last in self.fixed:
            fits &= (matrix[:, first:last] == np.frombuffer(self.record, np.uint8)[first:last]).all(axis=1)
        return fits

    def fits_all(self, matrix: npt.NDArray[np.uint8]) -> bool:
        """Whether all of the records [n, bytes] have this layout; that is seen fastest as bytes."""
        count = len(matrix)
        return all(matrix[:, first:last].tobytes() == self.record[first:last] * count for first, last in self.fixed)

    def values(
        self, matrix: npt.NDArray[np.uint8], field: Field
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
        """A field's values [n, *shape] in records of this layout, and for which records they are; None for all."""
        kind, first, last = self.spans[field.feature.name]
        stored = matrix[:, first:last]
        if kind != _INTS:
            # A view, that need not be aligned.
            return stored.view(_dtype(field)).reshape(len(matrix), *field.shape), None
        more = stored >= 0x80
        if math.prod(field.shape) == last - first:
            # A byte each, as labels of up to 127 are.
            whole = np.logical_not(more.any(axis=1)) if more.any() else None
            return stored.astype(np.int64).reshape(len(matrix), *field.shape), whole
        value = np.zeros(len(matrix), np.uint64)
        for place in range(last - first):
            value |= (stored[:, place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
        good: npt.NDArray[np.bool_] = more[:, :-1].all(axis=1) & ~more[:, -1]
        return value.view(np.int64).reshape(len(matrix), *field.shape), good


def _dtype(field: Field) -> np.dtype[Any]:
    return _little_endian(field.feature.dtype)


@functools.cache
def _little_endian(dtype: str) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    return found


def _is_kind(values: Sequence[Any], field: Field) -> bool:
    kind = {"bytes": bytes, "float": float, "int64": int}[field.feature.kind]
    return all(isinstance(value, kind) for value in values)


def _fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields (field number, first byte, byte behind the last) of a message; ValueError where a field has no length."""
    while position < end:
        tag, position = data[position], position + 1
        if tag & 7 != 2 or tag >= 0x80:
            raise ValueError(tag)
        size = shift = 0
        while True:
            byte, position = data[position], position + 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if size > end - position:
            raise ValueError(size)
        yield tag >> 3, position, position + size
        position += size
