"""Values of features that a record lacks: the option `defaults`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpudata.errors import UsageError
from tpudata.input.dataset.fields import Field, Fields


def fill_defaults(fields: Fields, defaults: Mapping[str, Any]) -> Fields:
    """Return the fields with values for records that lack them.

    Args:
        fields: fields that are read of each record.
        defaults: a value for all entries, or an array of the feature's shape, by the name of the feature.

    Raises:
        UsageError: a name that is not read, a list or an image, or a value that does not fit its feature.
    """
    stored = {field.feature.name: field for field in fields.all if field.is_stored}
    for name in defaults:
        field = stored.get(name)
        if field is None:
            raise UsageError(f"defaults: {name!r} is not read (expected one of {', '.join(stored)}). Omit it.")
        if field.is_list:
            raise UsageError(f"defaults: {name!r} is a list, which is empty in a record that lacks it. Omit it.")
        if field.feature.is_image_file:
            raise UsageError(f"defaults: {name!r} is an image file, which every record has. Omit it.")

    def fill(field: Field) -> Field:
        name = field.feature.name
        return dataclasses.replace(field, default=_convert_value(field, defaults[name])) if name in defaults else field

    return Fields(
        tuple(map(fill, fields.inputs)),
        None if fields.label is None else fill(fields.label),
        None if fields.weight is None else fill(fields.weight),
    )


def _convert_value(field: Field, value: Any) -> tuple[Any, ...]:
    """Return a value as the feature stores it, one item for each value."""
    feature, shape = field.feature, field.shape
    is_text = feature.dtype == "string"
    if is_text:
        values = np.array(value, dtype=object)
        fits = all(isinstance(item, str | bytes) for item in values.ravel())
    else:
        values = np.asarray(value)
        fits = values.dtype.kind in ("iuf" if "float" in feature.dtype else "iu")
    expected = "str or bytes" if is_text else "numbers" if "float" in feature.dtype else "integers"
    if not fits or values.shape not in ((), shape):
        one = "one of" if not shape else f"one, or an array of shape {shape}, of"
        raise UsageError(
            f"defaults: invalid value of {feature.name!r} (got {value!r}, expected {one} {expected}). Pass such a value."
        )
    values = np.broadcast_to(values, shape)
    if is_text:
        return tuple(item.encode() if isinstance(item, str) else item for item in values.ravel())
    if "int" in feature.dtype and values.size:
        # A TPU takes no int64.
        limits = np.iinfo("int32" if feature.dtype == "int64" else feature.dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise UsageError(
                f"defaults: the value of {feature.name!r} is out of range (got {value!r}, expected {limits.min} to {limits.max})."
            )
    if feature.is_one_value:
        return (values.astype(np.dtype(feature.dtype).newbyteorder("<")).tobytes(),)
    return tuple(values.ravel().tolist())
