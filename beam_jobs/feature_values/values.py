"""Values of a user's examples: the feature of each, and the value that its record stores.

    value                                       feature
    bytes, bytearray, memoryview of bytes       bytes, dtype string, shape ()
    str                                         the same with encoding utf8
    int, bool                                   int64, shape ()
    float                                       float, dtype float32, shape ()
    a list of n values of one of these types    the same, shape (n,); nested lists only if a schema has their shape
    numpy array or scalar of int or bool        int64, the array's shape
    numpy array or scalar of float              float, dtype float32, the array's shape
    numpy array of bytes or str                 bytes, dtype string, the array's shape
    numpy array of uint8 of rank 1 or more      bytes, encoding raw, dtype uint8, the array's shape: a byte a value
    array or scalar of a type of ml_dtypes,     float or int64 as above, without a loss
    such as bfloat16, or a list of such scalars

float32 rounds fractions, but a large whole float that it would change, such as 1234567890123.0, is an error: it may be an id. Pass
numpy.float32, or a schema with float32, to round all. numpy drops zero bytes at the end of each value of an array of bytes; lists
of bytes keep them.

A `tf.train.Example` has flat lists; the shape is in the schema. Images and label maps, which only a schema declares, may be arrays
of any size: they become PNGs. `beam_jobs.feature_values.label_maps` has the rules for label maps.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.feature_values.label_maps import encode_label_map
from beam_jobs.feature_values.png import encode_png
from beam_jobs.values.column_kinds import FLOAT32_WHOLE, FLOAT64_WHOLE, float32_problem
from tpudata.errors import FeatureError
from tpudata.format import Feature
from tpudata.format.example.encode import check_unmasked, plain_bytes
from tpudata.images.check import check_fits

_BYTES_LIKE = (bytearray, memoryview)
_ML_DTYPES = "ml_dtypes"
# Channels of PNGs that TensorFlow decodes.
_CHANNELS = (1, 3, 4)
_ALLOWED = "bytes, str, int, bool, float, sequences of one of them, and numpy arrays"


def infer_feature(name: str, value: Any) -> tuple[Feature, Any]:
    """Return the feature of a value without a schema, and the value for `encode_example`.

    Raises:
        FeatureError: the value is None, masked, or of an unsupported type, or float32 would change a large number in it.
    """
    value = _unwrap(name, value)
    # Scalars of numpy.bytes_ and numpy.str_ are bytes and str as well, and are taken as these.
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, (bytes, str)):
        check_unmasked(name, value)
        array = np.asarray(value)
        _check_float32_holds(name, array)
        return _infer_array(name, array)
    if isinstance(value, (bytes, str, int, float)):
        if isinstance(value, float):
            _check_float32_holds(name, np.asarray(value))
        return _make_feature(name, type(value), ()), value
    if not isinstance(value, Sequence):
        raise FeatureError(f"Feature {name!r}: unsupported type (got {type(value).__name__}, expected {_ALLOWED}).")
    types = {type(element) for element in value}
    # An empty list has no type; it counts as bytes until another record has values.
    element_type = types.pop() if len(types) == 1 else _find_common_type(types)
    feature = _make_feature(name, element_type, (len(value),))
    if feature.kind == "float":
        _check_float32_holds(name, np.asarray(value, np.float64))
    return feature, value


def fit_feature(feature: Feature, value: Any) -> tuple[Feature, Any]:
    """Return a feature of the schema with the shape of a value, and the value for `encode_example`.

    The feature of an image, or of raw values that are bytes, is returned unchanged.

    Raises:
        FeatureError: the value does not fit the feature.
    """
    value = _unwrap(feature.name, value)
    check_unmasked(feature.name, value)
    if feature.encoding == "raw":
        return _fit_raw(feature, value)
    if feature.is_label_map:
        png, map_shape = encode_label_map(feature, value)
        _check_shape(feature, map_shape)
        return dataclasses.replace(feature, shape=map_shape), png
    if feature.encoding == "image":
        return feature, _fit_image(feature, value)
    # `infer_feature` takes only flat lists, so nested lists are flattened, and their shape is kept here.
    nested_shape: tuple[int, ...] | None = None
    if isinstance(value, (list, tuple)) and len(feature.shape) > 1:
        value, nested_shape = _flatten(feature, value)
    # With a schema, floats are rounded to float32; `infer_feature` rejects large ones that this would move by 0.5 or more.
    if feature.kind == "float" and not isinstance(value, (bytes, str)):
        value = _convert_to_dtype(feature, value, np.float32, accepted_kinds="biuf")
    elif isinstance(value, np.ndarray) and value.dtype == np.uint8 and feature.kind == "int64":
        # `infer_feature` would take arrays of uint8 for raw bytes.
        value = value.astype(np.int64)
    inferred, stored = infer_feature(feature.name, value)
    # An empty list fits every kind, so its inferred kind may differ from the feature's.
    is_empty = inferred.shape == (0,) and inferred.encoding != "raw"
    if (inferred.kind != feature.kind and not is_empty) or inferred.encoding == "raw":
        raise FeatureError(
            f"Feature {feature.name!r}: it does not fit the schema (got {describe(inferred)}, expected"
            f" {describe(feature)})."
        )
    shape = inferred.shape if nested_shape is None else nested_shape
    _check_shape(feature, shape)
    # An empty string of a scalar feature is a value, not an empty list.
    if isinstance(stored, Sequence) and not stored and feature.shape:
        stored = make_empty_list(feature)
    return dataclasses.replace(feature, shape=shape), stored


def make_empty_list(feature: Feature) -> npt.NDArray[Any]:
    """Return an empty array that is stored as an empty list of the feature's kind, which some readers need."""
    return np.empty(0, np.dtype({"bytes": "S1", "float": "f4", "int64": "i8"}[feature.kind]))


def describe(feature: Feature) -> str:
    """Return a feature in words, such as `float of shape (3,)`."""
    kind = f"{feature.encoding} {feature.dtype}" if feature.is_one_value else feature.kind
    return f"{kind} of shape {feature.shape}"


def compute_decoded_size(feature: Feature) -> int | None:
    """Return the size in bytes of a feature's value as a tensor of the reader, or None if the feature does not determine it."""
    if feature.dtype == "string" or not feature.is_static:
        return None
    # The reader yields int64, and label maps of uint16, as int32.
    is_int32 = feature.dtype == "int64" or (feature.is_label_map and feature.dtype == "uint16")
    item_bytes = 4 if is_int32 else np.dtype(feature.dtype).itemsize
    # No size of a static shape is None; the filter shows this to the type checker.
    return item_bytes * math.prod(size for size in feature.shape if size is not None)


def _unwrap(name: str, value: Any) -> Any:
    """Return a value with types that features have: bytes for bytearrays and memoryviews, float32 or int64 for types of ml_dtypes.

    Also converts the elements of a list. Raises FeatureError for None.
    """
    if value is None:
        raise FeatureError(f"Feature {name!r}: None, and no default. Pass defaults={{{name!r}: VALUE}}, or a value.")
    if isinstance(value, _BYTES_LIKE):
        return plain_bytes(name, value)
    if isinstance(value, (list, tuple)) and any(isinstance(element, _BYTES_LIKE) for element in value):
        return [plain_bytes(name, element) if isinstance(element, _BYTES_LIKE) else element for element in value]
    return _widen(value)


def _widen(value: Any) -> Any:
    """Return arrays, scalars and sequences of ml_dtypes' floats as float32, its integers as int64, and other values unchanged."""
    if isinstance(value, np.ndarray):
        return value.astype(_find_wide_type(value.dtype.type)) if _is_ml_dtype(value.dtype.type) else value
    if isinstance(value, np.generic):
        return _find_wide_type(type(value))(value) if _is_ml_dtype(type(value)) else value
    if isinstance(value, (list, tuple)) and any(map(_is_ml_dtype, {*map(type, value)})):
        return [_widen(element) for element in value]
    return value


def _is_ml_dtype(number_type: type) -> bool:
    """Return whether a type is one of ml_dtypes' numbers. Names are compared, since the package may not be installed."""
    name = number_type.__name__
    return number_type.__module__ == _ML_DTYPES and name.startswith(("bfloat", "float", "int", "uint"))


def _find_wide_type(number_type: type) -> type[np.float32] | type[np.int64]:
    return np.float32 if "float" in number_type.__name__ else np.int64


def _check_float32_holds(name: str, array: np.ndarray[Any, Any]) -> None:
    """Raise FeatureError if float32 would change a large number; see beam_jobs.values.column_kinds."""
    if array.dtype.kind != "f" or array.dtype.itemsize <= 4:
        return
    # From 2**53 on a float64 is not exact itself; encoding rejects numbers that are too large for float32.
    magnitudes = np.abs(array)
    for number in array[(magnitudes >= FLOAT32_WHOLE) & (magnitudes < FLOAT64_WHOLE)].tolist():
        problem = float32_problem(float(number))
        if problem:
            raise FeatureError(
                f"Feature {name!r}: {number} {problem}. Store it as int or str, or pass numpy.float32 or features= to round."
            )


def _infer_array(name: str, array: np.ndarray[Any, Any]) -> tuple[Feature, Any]:
    """Return the feature of an array, and its value to store; FeatureError for an unsupported dtype."""
    # An array of uint8, such as pixels, is stored as its bytes; a single uint8 is a number like any other.
    if array.dtype == np.uint8 and array.ndim:
        return Feature(name, "bytes", "uint8", array.shape, "raw"), array.tobytes()
    types_by_kind: dict[str, type] = {"b": int, "i": int, "u": int, "f": float, "S": bytes, "U": str}
    if array.dtype.kind not in types_by_kind:
        raise FeatureError(
            f"Feature {name!r}: unsupported numpy dtype (got {array.dtype}, expected bool, integer,"
            " float, bytes or str)."
        )
    feature = _make_feature(name, types_by_kind[array.dtype.kind], array.shape)
    # np.array([]) is float64 in any dataset. Stored without a kind, as an empty list is, it fits the values of other records.
    return feature, [] if array.shape == (0,) else array


def _make_feature(name: str, value_type: type, shape: tuple[int, ...]) -> Feature:
    """Return the feature of values of a Python or numpy type; FeatureError for an unsupported type."""
    if issubclass(value_type, str):
        return Feature(name, "bytes", "string", shape, "utf8")
    if issubclass(value_type, bytes):
        return Feature(name, "bytes", "string", shape)
    if issubclass(value_type, (int, np.integer, np.bool_)):
        return Feature(name, "int64", "int64", shape)
    if issubclass(value_type, (float, np.floating)):
        return Feature(name, "float", "float32", shape)
    raise FeatureError(
        f"Feature {name!r}: unsupported type (got a sequence of {value_type.__name__}, expected {_ALLOWED})."
    )


def _find_common_type(types: set[type]) -> type:
    """Return int if all types are integers, float if all are floats, else bytes, also if there are none.

    `encode_example` then rejects all values but str, bytes and mixtures of these two.
    """
    if types and all(issubclass(element_type, (int, np.integer, np.bool_)) for element_type in types):
        return int
    if types and all(issubclass(element_type, (float, np.floating)) for element_type in types):
        return float
    return bytes


def _fit_raw(feature: Feature, value: Any) -> tuple[Feature, Any]:
    """Return a raw feature with the shape of a value, and the value's bytes; FeatureError if it does not fit.

    A value of bytes has no shape, so it fits only a feature whose own shape is fixed.
    """
    dtype = np.dtype(feature.dtype)
    if isinstance(value, bytes):
        # The size of the stored numbers; the reader may yield smaller ones: int64 as int32.
        size = dtype.itemsize * math.prod(side for side in feature.shape if side is not None)
        if not feature.is_static or len(value) != size:
            raise FeatureError(
                f"Feature {feature.name!r}: it does not fit the schema (got {len(value)} bytes, expected"
                f" {describe(feature)}). Pass an array."
            )
        return feature, value
    array = _convert_to_dtype(feature, value, dtype, accepted_kinds="biuf" if dtype.kind == "f" else "biu")
    _check_shape(feature, array.shape)
    # Records store raw values in little-endian order.
    return dataclasses.replace(feature, shape=array.shape), array.astype(dtype.newbyteorder("<")).tobytes()


def _fit_image(feature: Feature, value: Any) -> bytes:
    """Return the bytes of an encoded image, or the PNG of an array of pixels; FeatureError if they do not fit."""
    if isinstance(value, np.ndarray):
        return _encode_image(feature, value)
    if not isinstance(value, bytes):
        got = describe(infer_feature(feature.name, value)[0])
        raise FeatureError(
            f"Feature {feature.name!r}: it does not fit the schema (got {got}, expected {describe(feature)}). Pass the bytes"
            " of an encoded image, or an array of its pixels."
        )
    try:
        check_fits(feature, value)
    except ValueError as error:
        raise FeatureError(
            f"Feature {feature.name!r}: it does not fit the schema (got {error}; expected {describe(feature)})."
        ) from None
    return value


def _encode_image(feature: Feature, value: np.ndarray[Any, Any]) -> bytes:
    """Return the PNG of pixels: integers from 0 to 255, [height, width, channels], or [height, width] for one channel.

    Raises:
        FeatureError: the array has another form, does not fit the feature's shape, or has no pixels.
    """
    array = value[:, :, None] if value.ndim == 2 else value
    _check_shape(feature, array.shape)
    pixels = _convert_to_dtype(feature, array, np.uint8, accepted_kinds="biu")
    if not pixels.size or pixels.shape[2] not in _CHANNELS:
        expected = "1, 3 or 4 channels" if pixels.size else f"{describe(feature)} with pixels"
        raise FeatureError(
            f"Feature {feature.name!r}: it does not fit the schema (got shape {array.shape}, expected {expected})."
        )
    # Pillow takes grey pixels without an axis of channels.
    return encode_png(pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels))


def _flatten(feature: Feature, value: Sequence[Any]) -> tuple[list[Any], tuple[int, ...]]:
    """Return the elements of nested lists in C order, and the shape of the lists; FeatureError if they have no common shape."""
    elements, shape = list(value), [len(value)]
    for size in feature.shape[1:]:
        # -1 stands for an element that is not a list. Below an empty list the feature's size counts, or 0 if it varies.
        sizes = {len(sublist) if isinstance(sublist, (list, tuple)) else -1 for sublist in elements} or {size or 0}
        if len(sizes) > 1 or -1 in sizes:
            raise FeatureError(
                f"Feature {feature.name!r}: it does not fit the schema (got lists of several sizes or depths, expected"
                f" {describe(feature)})."
            )
        shape.append(sizes.pop())
        elements = [element for sublist in elements for element in sublist]
    return elements, tuple(shape)


def _convert_to_dtype(feature: Feature, value: Any, dtype: Any, accepted_kinds: str) -> np.ndarray[Any, Any]:
    """Return a value as an array of `dtype`, which may round fractions.

    Args:
        feature: the feature, for messages.
        value: anything that numpy makes an array of.
        dtype: dtype of the result.
        accepted_kinds: letters of the numpy kinds that the value may have, such as "biuf".

    Raises:
        FeatureError: the value's numpy kind is not in `accepted_kinds`, an integer would change, or a number would become infinite.
    """
    array = np.asarray(value)
    if array.size == 0:
        return array.astype(dtype)
    if array.dtype.kind not in accepted_kinds:
        raise FeatureError(
            f"Feature {feature.name!r}: it does not fit the schema (got dtype {array.dtype}, expected {describe(feature)})."
        )
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    if array.dtype.kind == "f" and converted.dtype.kind == "f":
        # Fractions are rounded, but no number becomes infinite.
        fits = bool((np.isinf(converted) == np.isinf(array)).all())
    elif converted.dtype.kind == "f":
        # A float holds all integers below 2**nmant. Larger ones are compared by Python, which is exact; numpy would compare floats.
        is_large = np.abs(array.astype(np.float64)) >= 2.0 ** np.finfo(converted.dtype).nmant
        fits = all(map(operator.eq, converted[is_large].tolist(), array[is_large].tolist()))
    else:
        fits = np.array_equal(converted, array)
    if not fits:
        raise FeatureError(
            f"Feature {feature.name!r}: values that do not fit {feature.dtype}, the dtype of the schema."
            " Declare a dtype that holds them."
        )
    return converted


def _check_shape(feature: Feature, shape: tuple[int | None, ...]) -> None:
    """Raise FeatureError if a value's shape does not fit the feature's, in which None fits any size."""
    if len(shape) != len(feature.shape) or any(
        expected not in (None, size) for size, expected in zip(shape, feature.shape, strict=True)
    ):
        raise FeatureError(
            f"Feature {feature.name!r}: it does not fit the schema (got shape {shape}, expected {describe(feature)})."
        )
