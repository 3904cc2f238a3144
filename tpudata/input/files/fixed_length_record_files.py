"""Binary files of records of one length."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpudata.checks import check_integer, convert_integers
from tpudata.console.tables import count_text
from tpudata.errors import CorruptionError, FeatureError, UsageError
from tpudata.format import Feature
from tpudata.format.tfrecord.frame_scan import Offsets
from tpudata.input.dataset.fields import Field, Fields
from tpudata.input.dataset_ops import cast_to_int32
from tpudata.input.files.paths import Paths, check_label, check_paths
from tpudata.input.files.split_files import Decode, Run, SplitFiles
from tpudata.input.options.columns import FeatureOptions
from tpudata.storage import Entry

# Dtypes of a Feature of raw bytes.
_DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")
_DEFAULT_LABEL = "label"


@dataclasses.dataclass(frozen=True)
class FixedLengthRecordFiles:
    """Binary files of records of one length, such as CIFAR-10's batches or MNIST's idx files.

    Attributes:
        files: as in `TFRecordFiles`.
        record: layout of a record as a numpy dtype: `[("label", "u1"), ("image", "u1", (3, 32, 32))]` is a byte of a label and
            3,072 of an image, ">i4" a big-endian integer.
        header_bytes: bytes before the first record of each file, such as 16 in MNIST's images.
        footer_bytes: bytes after the last record.
        label: name of the part that is yielded as labels, by default "label" if there is one; a single integer.

    Raises:
        UsageError: an argument is of the wrong type or out of range.
        FeatureError: a part of the record has a dtype that cannot be fed, or the label is missing or not one integer.
    """

    files: Paths
    record: npt.DTypeLike
    header_bytes: int = 0
    footer_bytes: int = 0
    label: str | None = None

    def __post_init__(self) -> None:
        check_paths(self.files)
        check_integer("header_bytes", self.header_bytes, 0)
        check_integer("footer_bytes", self.footer_bytes, 0)
        convert_integers(self, "header_bytes", "footer_bytes")
        names = self.dtype.names or ()
        for name in names:
            part = self.dtype[name]
            if part.base.name not in _DTYPES or 0 in part.shape:
                raise FeatureError(
                    f"record: unsupported dtype of {name!r} (got {part}, expected {', '.join(_DTYPES)})."
                )
        check_label(self.label, names)
        label = self.label_name
        if label is not None and (self.dtype[label].shape != () or self.dtype[label].base.kind not in "iu"):
            raise FeatureError(f"record: invalid label {label!r} (got {self.dtype[label]}, expected one integer).")

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The record as numpy's structured dtype.

        Raises:
            UsageError: `record` is not a dtype with named parts.
        """
        try:
            dtype: np.dtype[np.void] = np.dtype(self.record)
        except (TypeError, ValueError, SyntaxError) as error:
            raise UsageError(f"record={self.record!r}: {error}. Pass (name, dtype, shape) of each part.") from None
        # numpy takes None for float64, which has no parts either.
        if not dtype.names:
            raise UsageError(
                f'record={self.record!r}: it has no named parts. Pass a list such as [("image", "u1", (28, 28, 1))].'
            )
        return dtype

    @property
    def label_name(self) -> str | None:
        """Name of the label's part; None without a label."""
        has_default = _DEFAULT_LABEL in (self.dtype.names or ())
        return _DEFAULT_LABEL if self.label is None and has_default else self.label

    @property
    def features(self) -> tuple[Feature, ...]:
        """Features of the parts, as decoded, in the order of the record."""
        return tuple(map(self._make_feature, self.dtype.names or ()))

    def _make_feature(self, name: str) -> Feature:
        """Return the feature of a part: the label is one int64, other parts are raw bytes of their dtype and shape."""
        if name == self.label_name:
            return Feature(name, "int64", "int64")
        part = self.dtype[name]
        return Feature(name, "bytes", part.base.name, part.shape, "raw")


class FixedLengthRecords(SplitFiles):
    """The records of `FixedLengthRecordFiles`."""

    description: FixedLengthRecordFiles

    @staticmethod
    def scan(description: FixedLengthRecordFiles, file: Entry) -> Offsets:
        """Return where the records of a file begin and end, from the file's size; see `SplitFiles.scan`."""
        record_bytes = description.dtype.itemsize
        return compute_offsets(file, record_bytes, description.header_bytes, description.footer_bytes)

    def choose_fields(self, feature_options: FeatureOptions, **options: Any) -> Fields:
        """Return the fields of each record, from the parts that the description has; see `SplitFiles.choose_fields`."""
        if feature_options.defaults:
            raise UsageError(
                f"defaults={feature_options.defaults!r}: records of one length have all their parts. Omit it."
            )
        return super().choose_fields(feature_options, **options, label_name=self.description.label)

    def read_records(self, run: Run) -> tf.data.Dataset:
        """Return a dataset of the records from a run's first wanted one to the end of its bytes."""
        return run.read_parts(self.description.dtype.itemsize).skip(run.skipped)

    def make_decoder(self, fields: Sequence[Field]) -> Decode:
        """Return a function that takes records apart by the description's dtype."""
        return functools.partial(_parse_fixed, dtype=self.description.dtype, fields=fields)

    def parse_features(self, stored: tf.Tensor, _: Sequence[Field]) -> dict[str, tf.Tensor]:
        """Return all parts of records, [n, *shape], by their names, without regard to the fields that are read."""
        dtype = self.description.dtype
        return {feature.name: _take_part(stored, dtype, feature, feature.shape) for feature in self.manifest.features}


def compute_offsets(file: Entry, record_bytes: int, header_bytes: int, footer_bytes: int) -> Offsets:
    """Return the offsets of a file's records, all of one length, and the end of the last one: int64 [records + 1].

    Args:
        file: the file, as it was listed.
        record_bytes: bytes of a record.
        header_bytes: bytes before the first record.
        footer_bytes: bytes after the last record.

    Raises:
        CorruptionError: the bytes between header and footer are not a whole number of records, or the file is too short for both.
    """
    body_bytes = file.size - header_bytes - footer_bytes
    if body_bytes < 0:
        raise CorruptionError(
            file.path,
            file.size,
            f"the file has {count_text(file.size, 'byte')}, fewer than its header and footer (expected"
            f" {header_bytes + footer_bytes} or more). Restore it, omit it, or name the right sizes.",
        )
    num_records, surplus_bytes = divmod(body_bytes, record_bytes)
    if surplus_bytes:
        raise CorruptionError(
            file.path,
            file.size - footer_bytes - surplus_bytes,
            f"the file has {file.size} bytes: {header_bytes} of header, {footer_bytes} of footer and"
            f" {count_text(num_records, 'record')} of {record_bytes} leave {surplus_bytes}."
            " Name the right sizes, or unpack a file that is compressed.",
        )
    return header_bytes + record_bytes * np.arange(num_records + 1)


def _parse_fixed(records: tf.Tensor, dtype: np.dtype[np.void], fields: Sequence[Field]) -> dict[str, tf.Tensor]:
    """Decode the parts of records that are read.

    Args:
        records: string [n], each of the size of `dtype`.
        dtype: structured dtype of a record.
        fields: the parts that are read.

    Returns:
        By feature name, a tensor [n, *field.shape]; int64 as int32.
    """
    columns = {field.feature.name: _take_part(records, dtype, field.feature, field.shape) for field in fields}
    return {name: cast_to_int32(name, column) for name, column in columns.items()}


def _take_part(
    records: tf.Tensor, dtype: np.dtype[np.void], feature: Feature, shape: Sequence[int | None]
) -> tf.Tensor:
    """Return one part of records, [n, *shape], of the feature's dtype.

    Args:
        records: string [n], each of the size of `dtype`.
        dtype: structured dtype of a record.
        feature: feature of the part.
        shape: shape of the part in one record.
    """
    assert dtype.fields is not None
    part_dtype, offset = dtype.fields[feature.name][:2]
    stored = tf.strings.substr(records, offset, part_dtype.itemsize)
    base = part_dtype.base
    # TensorFlow's dtypes have no byte order: decode_raw takes it as an argument.
    native_dtype = tf.as_dtype(base.newbyteorder("="))
    is_little_endian = base == base.newbyteorder("<")
    values = tf.io.decode_raw(stored, native_dtype, little_endian=is_little_endian)
    return tf.cast(tf.reshape(values, (-1, *shape)), tf.as_dtype(feature.dtype))
