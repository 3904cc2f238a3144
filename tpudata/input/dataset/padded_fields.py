"""Fields of lists that are padded to one length, and of the numbers of their entries: the option `pad`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence

import numpy as np

from tpudata.checks import is_number
from tpudata.errors import UsageError
from tpudata.format import Feature
from tpudata.format.manifest.annotation_features import object_tables
from tpudata.input.dataset.fields import Field, Padding, StoredValue
from tpudata.input.options.pad import Pad

# Wildcards of fnmatch.
_WILDCARDS = re.compile(r"\[!?[^\]]*\]|[*?]")
_ANY_CHARACTERS = "*"
# Number of names in a message.
_MAX_NAMES = 20


def pad_fields(features: Sequence[Feature], pad: Mapping[str, Pad], maxima: Mapping[str, int]) -> list[Field]:
    """Return a field for each padded feature, followed by a count field for each key of `pad`.

    Args:
        features: all features of the dataset.
        pad: options by key: the name of a feature, or a pattern with `*` for several.
        maxima: maximum number of entries of each feature in a record, if known.

    Raises:
        UsageError: a key matches no list, two keys have the same feature or count, the longest list is unknown, or a value does
            not fit.
    """
    fields: dict[str, Field] = {}
    for key, options in pad.items():
        chosen = _match_features(features, key)
        length = _compute_length(chosen, key, maxima) if options.length is None else options.length
        for feature in chosen:
            earlier = fields.get(feature.name)
            if earlier is not None:
                assert earlier.padding is not None
                earlier_key = earlier.padding.key
                raise UsageError(
                    f"pad: {feature.name!r} is in two keys, {earlier_key!r} and {key!r}. Pass keys that share no feature."
                )
            fields[feature.name] = _make_field(feature, key, options, length)
        if options.value is not None and not any(_has_type(feature, options.value) for feature in chosen):
            raise UsageError(
                f"pad: the value {options.value!r} of {key!r} fits none of its features"
                f" ({', '.join(f'{feature.name} is {feature.dtype}' for feature in chosen)}). Omit it."
            )
    count_fields = [_make_count_field(key, features) for key in pad]
    names = [field.name for field in count_fields]
    for name in names:
        if names.count(name) > 1:
            keys = ", ".join(repr(key) for key, other_name in zip(pad, names, strict=True) if other_name == name)
            raise UsageError(f"pad: the counts of {keys} would have the same name, {name!r}. Pass other patterns.")
    return [*fields.values(), *count_fields]


def make_default_fields(
    unpadded_lists: Sequence[Feature], features: Sequence[Feature], maxima: Mapping[str, int]
) -> list[Field]:
    """Return fields for lists that no key of `pad` matches, padded to the longest of the dataset, followed by count fields.

    Args:
        unpadded_lists: lists that are read, and that no key of `pad` matches.
        features: all features of the dataset. Lists of the same objects have one count.
        maxima: maximum number of entries of each feature in a record, if known; lists of unknown length are ignored.
    """
    # The key that a caller would pass in `pad`: a pattern for all columns of an object table, otherwise the name.
    keys_by_column = {
        column.name: f"{table.prefix}/*" if table.prefix else column.name
        for table in object_tables(features)
        for column in table.columns
    }
    columns_by_key: dict[str, list[Feature]] = {}
    for feature in unpadded_lists:
        if feature.name in maxima:
            columns_by_key.setdefault(keys_by_column.get(feature.name, feature.name), []).append(feature)
    fields = [
        _make_field(feature, key, Pad(), _compute_length(columns, key, maxima))
        for key, columns in columns_by_key.items()
        for feature in columns
    ]
    return [*fields, *(_make_count_field(key, features) for key in columns_by_key)]


def _compute_length(features: Sequence[Feature], key: str, maxima: Mapping[str, int]) -> int:
    """Return the maximum number of entries of some features, at least 1.

    Args:
        features: the lists that are padded alike.
        key: their key of `pad`, for the message.
        maxima: maximum number of entries of each feature in a record, if known.

    Raises:
        UsageError: the number of a feature is unknown.
    """
    uncounted = next((feature.name for feature in features if feature.name not in maxima), None)
    if uncounted is not None:
        raise UsageError(
            f"pad: {key!r} pads to the longest list, and the manifest has no length of {uncounted!r} (it has those of"
            f" {', '.join(maxima) or 'no lists'}). Pass a number."
        )
    return max(1, *(maxima[feature.name] for feature in features))


def _match_features(features: Sequence[Feature], key: str) -> list[Feature]:
    """Return the list that a key names, or the lists that it matches as a pattern; UsageError if it matches no list."""
    named = [feature for feature in features if feature.name == key]
    if named:
        (feature,) = named
        if feature.is_image_file or feature.is_image:
            raise UsageError(
                f"pad: {key!r} is an image (expected a list). Pass images=tpudata.Images(size=...) instead."
            )
        if feature.is_static:
            raise UsageError(
                f"pad: {key!r} has the same shape in all records, {feature.shape} (expected a first size of None). Omit it."
            )
        if not feature.is_list:
            raise UsageError(
                f"pad: {key!r} has the shape {feature.shape} (expected None only as the first size). Omit it."
            )
        return named
    lists = [feature for feature in features if feature.is_list]
    is_pattern = _ANY_CHARACTERS in key
    matches = [feature for feature in lists if is_pattern and fnmatch.fnmatchcase(feature.name, key)]
    if not matches:
        names = [feature.name for feature in lists]
        more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        raise UsageError(
            f"pad: {key!r} {'matches' if is_pattern else 'is'} no list of the dataset, which has"
            f" {', '.join(names[:_MAX_NAMES]) or 'none'}{more}. Name these, or a pattern such as 'image/object/*'."
        )
    return matches


def _make_field(feature: Feature, key: str, options: Pad, length: int) -> Field:
    """Return the field of a list that `key` of `pad` pads to `length` entries, with `options` for the padding."""
    entry_shape = tuple(int(size) for size in feature.shape[1:] if size is not None)
    padding_value = _pick_padding_value(feature, key, options)
    # Use the full feature name, as for extra features.
    return Field(feature, feature.name, (length, *entry_shape), cuts=options.cut, padding=Padding(key, padding_value))


def _pick_padding_value(feature: Feature, key: str, options: Pad) -> StoredValue:
    """Return the padding value: the options' value if it has the feature's type, otherwise the type's zero.

    Raises:
        UsageError: the value is out of the dtype's range.
    """
    value = options.value
    if value is None or not _has_type(feature, value):
        if feature.dtype == "string":
            return b""
        return 0.0 if "float" in feature.dtype else 0
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    is_float = "float" in feature.dtype
    # A TPU takes no int64.
    fed_dtype = "int32" if feature.dtype == "int64" else feature.dtype
    limits = np.finfo(fed_dtype) if is_float else np.iinfo(fed_dtype)
    fits = _fits_float(feature.dtype, value) if is_float else bool(limits.min <= value <= limits.max)
    if not fits:
        raise UsageError(
            f"pad: the value {value} of {key!r} does not fit {feature.name!r} (expected {limits.min} to {limits.max})."
        )
    return float(value) if is_float else value


def _fits_float(dtype: str, value: int | float) -> bool:
    """Return whether a float dtype can hold a padding value: it rounds to a finite number, or is infinity or NaN."""
    # `is_number` is False for infinity and NaN, and for integers too large for any float.
    if not is_number(value):
        return isinstance(value, float)
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float64(value).astype(dtype)))


def _has_type(feature: Feature, value: int | float | str | bytes) -> bool:
    """Return whether a padding value has the type of a feature; an integer also fits floats."""
    if isinstance(value, str | bytes):
        return feature.dtype == "string"
    return "float" in feature.dtype or ("int" in feature.dtype and isinstance(value, int))


def _make_count_field(key: str, features: Sequence[Feature]) -> Field:
    """Return the field of the number of entries for a key of `pad`: `image/object/count` for `image/object/*`."""
    # A key that is the name of a feature is not a pattern, whatever characters it has.
    is_name = any(feature.name == key for feature in features)
    parts = (key if is_name else _WILDCARDS.sub("", key)).split("/")
    name = "/".join((*filter(None, parts), "count"))
    return Field(Feature(name, "int64", "int64"), name, (), counted_key=key)
