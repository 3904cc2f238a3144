"""Default values of features that a record lacks: the option `defaults`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tpudata.errors import UsageError
from tpudata.input.dataset.fields import Field, Fields, StoredValue


def fill_defaults(fields: Fields, defaults: Mapping[str, npt.ArrayLike]) -> Fields:
    """Return the fields with default values for records that lack them.

    Args:
        fields: fields that are read of each record.
        defaults: a value for all entries, or an array of the feature's shape, by the name of the feature.

    Raises:
        UsageError: a name belongs to no feature that is read, or to a list or an image file; or a value does not fit its feature.
    """
    stored_fields = {field.feature.name: field for field in fields.all if field.is_stored}
    for name in defaults:
        field = stored_fields.get(name)
        if field is None:
            raise UsageError(f"defaults: {name!r} is not read (expected one of {', '.join(stored_fields)}). Omit it.")
        if field.is_list:
            raise UsageError(f"defaults: {name!r} is a list, which is empty in a record that lacks it. Omit it.")
        if field.feature.is_image_file:
            raise UsageError(f"defaults: {name!r} is an image file, which every record has. Omit it.")

    def fill(field: Field) -> Field:
        """Return a field with its default value; unchanged without one."""
        name = field.feature.name
        if name not in defaults:
            return field
        return dataclasses.replace(field, default=_encode_default(field, defaults[name]))

    return Fields(
        tuple(map(fill, fields.inputs)),
        None if fields.label is None else fill(fields.label),
        None if fields.weight is None else fill(fields.weight),
    )


def _encode_default(field: Field, default: npt.ArrayLike) -> tuple[StoredValue, ...]:
    """Return the values that a record with the default would store; UsageError if the default does not fit the feature.

    Args:
        field: field whose records may lack the feature.
        default: a value for all entries, or an array of the field's shape.
    """
    feature, shape = field.feature, field.shape
    is_text, is_float = feature.dtype == "string", "float" in feature.dtype
    try:
        array = np.array(default, dtype=object if is_text else None)
    except ValueError:
        # Lists of unequal lengths, which no feature takes: None has no valid type either.
        array = np.array(None)
    if is_text:
        expected = "str or bytes"
        has_type = all(isinstance(element, str | bytes) for element in array.ravel())
    elif is_float:
        expected = "numbers"
        has_type = array.dtype.kind in "iuf"
    else:
        expected = "integers"
        has_type = array.dtype.kind in "iu"
    if not has_type or array.shape not in ((), shape):
        allowed = "one of" if not shape else f"one, or an array of shape {shape}, of"
        raise UsageError(
            f"defaults: invalid value of {feature.name!r} (got {default!r}, expected {allowed} {expected}). Pass such a value."
        )
    array = np.broadcast_to(array, shape)
    if is_text:
        return tuple(element.encode() if isinstance(element, str) else element for element in array.ravel())
    if "int" in feature.dtype and array.size:
        # A TPU takes no int64.
        limits = np.iinfo("int32" if feature.dtype == "int64" else feature.dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise UsageError(
                f"defaults: the value of {feature.name!r} is out of range (got {default!r}, expected {limits.min} to {limits.max})."
            )
    # A feature of raw bytes stores the whole array as one bytes value.
    if feature.is_one_value:
        return (array.astype(np.dtype(feature.dtype).newbyteorder("<")).tobytes(),)
    return tuple(array.ravel().tolist())
