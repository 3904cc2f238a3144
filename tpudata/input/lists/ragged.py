"""Lists of any length: as stored, as padded columns with the number of their entries, and as multi-hot classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tpudata.format import Feature
from tpudata.input.dataset.fields import Field
from tpudata.input.dataset_ops import cast_to_int32, ensure


def make_list_spec(feature: Feature) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    """Return the spec with which `tf.io.parse_example` reads a feature of lists; a record without the feature has an empty list."""
    if feature.encoding == "raw":
        return tf.io.FixedLenFeature((), tf.string, default_value=b"")
    return tf.io.RaggedFeature({"bytes": tf.string, "int64": tf.int64, "float": tf.float32}[feature.kind])


def make_ragged(stored: tf.Tensor | tf.RaggedTensor, feature: Feature) -> tf.RaggedTensor:
    """Return the values of each record, [n, None]; int64 as int32. Entries of several values are flattened.

    Args:
        stored: result of `tf.io.parse_example` for `make_list_spec`: ragged values, or their bytes, string [n].
        feature: the feature.
    """
    if feature.encoding == "raw":
        dtype = tf.as_dtype(feature.dtype)
        sizes = tf.strings.length(stored)
        message = f"Feature {feature.name}: a record has bytes that are not whole {dtype.name} values. Convert the dataset again."
        stored = ensure(stored, tf.reduce_all(tf.equal(sizes % dtype.size, 0)), message)
        # Decode all bytes as one row, which is then split into records again.
        values = tf.reshape(tf.io.decode_raw(tf.strings.reduce_join(stored), dtype), [-1])
        stored = tf.RaggedTensor.from_row_lengths(values, sizes // dtype.size, validate=False)
    return stored.with_values(cast_to_int32(feature.name, stored.values))


def pad_columns(
    stored: Mapping[str, tf.Tensor | tf.RaggedTensor], fields: Sequence[Field], hint: str
) -> dict[str, tf.Tensor]:
    """Return padded lists and the fields that count their entries, by the names of features.

    Args:
        stored: stored values of a batch of records, by feature name.
        fields: fields that are read; fields that are not padded lists are ignored.
        hint: fix for a record that does not match the fields; ends the error message.

    Returns:
        [n, *field.shape]; a count is int32 [n].
    """
    columns = {}
    # The first field of each key of `pad`, with the lengths of its lists, which the lists of the other fields must also have.
    first_fields: dict[str, tuple[Field, tf.Tensor]] = {}
    for field in fields:
        if field.padding is None:
            continue
        rows = make_ragged(stored[field.feature.name], field.feature)
        lengths = _count_entries(rows, field, hint)
        first_field, expected_lengths = first_fields.setdefault(field.padding.key, (field, lengths))
        values = rows.values
        if first_field is not field:
            message = (
                f"Feature {field.feature.name}: a record has lists of a different length than {first_field.feature.name}, and both"
                f" are in the table {field.padding.key} of pad. Pad them by separate keys, or correct the records."
            )
            values = ensure(values, tf.reduce_all(tf.equal(lengths, expected_lengths)), message)
        if not field.cuts:
            message = (
                f"Feature {field.feature.name}: a record has lists of more entries than pad has for {field.padding.key},"
                f" {field.shape[0]}. Pass a larger number, or tpudata.Pad({field.shape[0]}, cut=True) to cut; to a command, --pad."
            )
            values = ensure(values, tf.reduce_all(lengths <= field.shape[0]), message)
        size = math.prod(field.shape)
        padded = rows.with_values(values).to_tensor(field.padding.value, shape=(None, size))
        columns[field.feature.name] = tf.reshape(padded, (-1, *field.shape))
    for field in fields:
        # A field with a `counted_key` counts the entries of the lists of this key.
        if field.counted_key is not None:
            list_field, lengths = first_fields[field.counted_key]
            # Lists that are cut have as many entries as their shape.
            columns[field.feature.name] = tf.minimum(tf.cast(lengths, tf.int32), list_field.shape[0])
    return columns


def _count_entries(rows: tf.RaggedTensor, field: Field, hint: str) -> tf.Tensor:
    """Return the number of entries of each record, integers [n]; values that are not whole entries fail at run time with `hint`."""
    lengths, values_per_entry = rows.row_lengths(), math.prod(field.shape[1:])
    if values_per_entry == 1:
        return lengths
    message = (
        f"Feature {field.feature.name}: a record has values that are not whole entries of {field.shape[1:]}. {hint}"
    )
    has_whole_entries = tf.reduce_all(tf.equal(lengths % values_per_entry, 0))
    return ensure(lengths // values_per_entry, has_whole_entries, message)


def encode_multi_hot(stored: tf.Tensor | tf.RaggedTensor, field: Field) -> tf.Tensor:
    """Return 1 for the classes of each record, and 0 for the others: float32 [n, classes].

    Args:
        stored: labels of each record, counted from the feature's label offset: ragged values, or their bytes, string [n].
        field: field of the shape (classes,).
    """
    (num_classes,) = field.shape
    offset = field.feature.label_offset
    rows = make_ragged(stored, field.feature)
    labels = tf.cast(rows.values, tf.int32) - offset
    message = (
        f"Feature {field.feature.name}: a record has a label that is none of its classes, {offset} to {offset + num_classes - 1}."
        " Correct num_classes in the schema, or the records."
    )
    labels = ensure(labels, tf.reduce_all((labels >= 0) & (labels < num_classes)), message)
    row_and_class = tf.stack([tf.cast(rows.value_rowids(), tf.int32), labels], axis=1)
    shape = tf.stack([tf.cast(rows.nrows(), tf.int32), num_classes])
    # scatter_nd adds: a label may come twice in a record.
    sums = tf.scatter_nd(row_and_class, tf.ones_like(labels, tf.float32), shape)
    return tf.ensure_shape(tf.minimum(sums, 1.0), (None, num_classes))
