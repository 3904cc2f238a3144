"""Values of features that a source lists, as a record stores them: scalars, lists, arrays, text, and encoded images."""

from __future__ import annotations

from typing import Any

from beam_jobs.feature_values.values import fit_feature
from beam_jobs.references.ranged_map import RangedMap
from beam_jobs.values.column_kinds import FLOAT32_MAX, fits_int64, float32_problem
from tpudata.error_text.values import shorten_value
from tpudata.errors import FeatureError
from tpudata.format import Feature


def convert_value(feature: Feature, value: Any) -> Any:
    """Convert a value that a source lists to the form that `encode_example` takes.

    Text may have surrogate escapes, which stand for bytes of file names that are not UTF-8. Float features accept any number that
    is not too large for float32, and round it.

    Args:
        feature: the feature, declared by the source.
        value: value of the feature, see beam_jobs.feature_values.values; None if the input lacks it.

    Raises:
        ValueError: the value does not fit the feature; the message names the column, what was got, and what is expected.
    """
    value_type = type(value)
    # Most values are scalars of exactly these types; without numpy they take a tenth of the time.
    if not feature.shape and not feature.is_one_value:
        if value_type is str and feature.kind == "bytes":
            return _encode_text(value)
        if value_type is int and feature.kind == "int64" and fits_int64(value):
            return value
        # `not >` in place of `<=`, since NaN is also a float32.
        if value_type is float and feature.kind == "float" and not abs(value) > FLOAT32_MAX:
            return value
    try:
        return _fit_value(feature, value)
    except (FeatureError, OverflowError) as error:
        raise ValueError(_describe_problem(feature, value, error)) from None


def _fit_value(feature: Feature, value: Any) -> Any:
    """Return the value that a record stores; FeatureError or OverflowError if it does not fit the feature."""
    if feature.kind == "bytes":
        value = _encode_text(value)
    _, stored = fit_feature(feature, _convert_to_floats(value) if feature.kind == "float" else value)
    if feature.kind == "int64":
        _check_range(feature, stored)
    return stored


def _encode_text(value: Any) -> Any:
    """Encode a string, or the strings in a list, as UTF-8; return other values unchanged."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return [_encode_text(element) for element in value] if isinstance(value, (list, tuple)) else value


def _convert_to_floats(value: Any) -> Any:
    """Convert integers, including those in lists, to floats; raise FeatureError for a bool."""
    if isinstance(value, (list, tuple)):
        return [_convert_to_floats(element) for element in value]
    if isinstance(value, bool):
        raise FeatureError("A truth value is not a float.")
    return float(value) if isinstance(value, int) else value


def _check_range(feature: Feature, stored: Any) -> None:
    """Raise FeatureError if an integer, or one in a list or an array, does not fit int64."""
    # Arrays and scalars of NumPy have `ravel`.
    if hasattr(stored, "ravel"):
        integers = stored.ravel().tolist()
    elif isinstance(stored, list):
        integers = stored
    else:
        integers = [stored]
    if not all(map(fits_int64, integers)):
        raise FeatureError(f"Feature {feature.name!r}: an integer that does not fit int64.")


def count_bytes(value: Any) -> int:
    """Return the size in bytes of a value of bytes or a `RangedMap`, summed over a list; 0 for other values, such as numbers."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, RangedMap):
        return value.size
    return sum(map(count_bytes, value)) if isinstance(value, (list, tuple)) else 0


def _describe_problem(feature: Feature, value: Any, error: Exception) -> str:
    """Return why a value does not fit its feature."""
    # Errors of images, label maps and raw bytes name the feature and say what is expected.
    if feature.is_one_value and value is not None:
        return str(error)
    got = "no value" if value is None else shorten_value(value)
    is_number = feature.kind == "float" and isinstance(value, (int, float))
    problem = float32_problem(value, rounds=True) if is_number else ""
    if problem:
        return f"{got} in column {feature.name!r} {problem}"
    shape = f" of shape {feature.shape}" if feature.shape else ""
    return f"no {feature.dtype}{shape} in column {feature.name!r}: {got}"
