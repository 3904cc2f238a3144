"""Encoding of features as a `tf.train.Example`.

Keys are written in sorted order, so equal features give equal bytes; `tpudata.format.example.wire` has the wire format.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpudata.error_text.values import format_value
from tpudata.errors import FeatureError
from tpudata.format.example.wire import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    INT64_MAX,
    INT64_MIN,
    KEY,
    LENGTH,
    LIST_VALUE,
    MAP_ENTRY,
    VALUE,
)

# Longest bytes value whose head is cached for later values of the same length.
_MAX_CACHED_BYTES = 256
# From this length on, a copy costs more than a separate part.
_LARGE_BYTES = 1 << 14
_EXAMPLE_TAG = b"\x0a"


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Serialize features to a `tf.train.Example`.

    Args:
        features: by name: bytes, bytearray, memoryview of bytes, str (stored as UTF-8), int, bool, float, a sequence of one of
            these, or a numpy array or scalar (integers and bools become the int64 list, floats the float32 list; flattened in C
            order). An empty array is an empty list of its kind; another empty sequence is a feature without a list.

    Raises:
        FeatureError: a name is not str, or UTF-8 cannot encode it; or a value is of the wrong type, mixed, an integer that does not
            fit int64, a finite float that does not fit float32, text that UTF-8 cannot encode, or an array with masked values. The
            message names the feature.
    """
    return b"".join(encode_example_parts(features))


def encode_example_parts(features: Mapping[str, Any]) -> list[bytes]:
    """Serialize features in parts that concatenate to the Example; bytes values of 16 KiB and more are not copied.

    Args:
        features: values by name, as `encode_example` takes them.

    Raises:
        FeatureError: a name or a value is one that `encode_example` does not take.
    """
    parts: list[bytes] = []
    # Small pieces that are not yet in `parts`; they become one part.
    small_pieces: list[bytes] = []
    total_bytes = 0
    for name in _sort_names(tuple(features)):
        value = features[name]
        if type(value) is bytes and len(value) >= _LARGE_BYTES:
            head = _encode_bytes_head(name, len(value))
            total_bytes += len(head) + len(value)
            parts += (b"".join((*small_pieces, head)), value)
            small_pieces = []
        else:
            entry = encode_entry(name, value)
            small_pieces.append(entry)
            total_bytes += len(entry)
    if small_pieces:
        parts.append(b"".join(small_pieces))
    example_head = _EXAMPLE_TAG + encode_varint(total_bytes)
    return [example_head + parts[0], *parts[1:]] if parts else [example_head]


def plain_bytes(name: str, value: bytes | bytearray | memoryview) -> bytes:
    """Return a value as bytes; FeatureError for a memoryview that is not one dimension of single bytes.

    Args:
        name: name of the feature, for the message.
        value: the bytes of one value.
    """
    if isinstance(value, memoryview) and (value.itemsize != 1 or value.ndim != 1):
        raise FeatureError(
            f"Feature {name!r}: unsupported memoryview (got format {value.format!r} and {value.ndim} dimensions,"
            " expected bytes in one). Pass numpy.asarray(view) to store its items, or bytes(view)."
        )
    return bytes(value)


def check_unmasked(name: str, value: object) -> None:
    """Raise FeatureError if a value is an array with masked values, which would be stored."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise FeatureError(f"Feature {name!r}: a numpy array with masked values. Pass array.filled(VALUE).")


def encode_entry(name: str, value: Any) -> bytes:
    """Return the map entry of one feature, with its tag.

    Args:
        name: name of the feature.
        value: its value or values, as `encode_example` takes them.

    Raises:
        FeatureError: the name or the value is one that `encode_example` does not take.
    """
    # The most frequent values: the entries of integers, and the heads of short bytes values, are cached.
    if type(value) is int:
        return _encode_int_entry(name, value)
    if type(value) is bytes:
        encode_head = _encode_short_bytes_head if len(value) <= _MAX_CACHED_BYTES else _encode_bytes_head
        return encode_head(name, len(value)) + value
    return _encode_map_entry(name, _encode_feature(name, value))


def _encode_tag(number: int, wire: int) -> bytes:
    return bytes((number << 3 | wire,))


def encode_varint(value: int) -> bytes:
    """Return the varint of an integer that is not negative."""
    if value < 0x80:
        return bytes((value,))
    # Unrolled for the lengths of images and of short features.
    if value < 0x4000:
        return (value & 0x7F | (value & 0x3F80) << 1 | 0x80).to_bytes(2, "little")
    if value < 0x200000:
        return (value & 0x7F | (value & 0x3F80) << 1 | (value & 0x1FC000) << 2 | 0x8080).to_bytes(3, "little")
    varint = bytearray()
    while value > 0x7F:
        varint.append(value & 0x7F | 0x80)
        value >>= 7
    varint.append(value)
    return bytes(varint)


def _encode_field(number: int, data: bytes) -> bytes:
    """Return a field of bytes, or of an encoded message, with its tag and length."""
    return _encode_tag(number, LENGTH) + encode_varint(len(data)) + data


def _encode_map_entry(name: str, feature: bytes) -> bytes:
    """Return the map entry of a feature, with its tag."""
    return _encode_field(MAP_ENTRY, encode_key(name) + _encode_field(VALUE, feature))


@functools.lru_cache(maxsize=256)
def _sort_names(names: tuple[str, ...]) -> list[str]:
    # Cached, because consecutive records have the same features. The key only checks the names: UTF-8 sorts as str does.
    return sorted(names, key=encode_name)


@functools.lru_cache(maxsize=8192)
def _encode_int_entry(name: str, value: int) -> bytes:
    # Cached, because labels and sizes recur from record to record.
    return _encode_map_entry(name, _encode_feature(name, value))


def _encode_bytes_head(name: str, size: int) -> bytes:
    """Return the beginning of the map entry of a feature that is one bytes value of `size` bytes: all but the value itself."""
    # From the value outwards: each level is a tag of one byte, the encoded size of the next inner level, and that level.
    encoded_size = encode_varint(size)
    list_size = 1 + len(encoded_size) + size
    encoded_list_size = encode_varint(list_size)
    feature_size = 1 + len(encoded_list_size) + list_size
    encoded_feature_size = encode_varint(feature_size)
    key = encode_key(name)
    encoded_entry_size = encode_varint(len(key) + 1 + len(encoded_feature_size) + feature_size)
    # The tag 0x0a is field 1: the map entry, its key, the BytesList and its value. The tag 0x12 is field 2: the entry's Feature.
    return b"\x0a%b%b\x12%b\x0a%b\x0a%b" % (
        encoded_entry_size,
        key,
        encoded_feature_size,
        encoded_list_size,
        encoded_size,
    )


_encode_short_bytes_head = functools.lru_cache(maxsize=8192)(_encode_bytes_head)


@functools.lru_cache(maxsize=1024)
def encode_key(name: str) -> bytes:
    """Return the key of a feature's map entry.

    Raises:
        FeatureError: the name is not str, or UTF-8 cannot encode it.
    """
    return _encode_field(KEY, encode_name(name))


def encode_name(name: str) -> bytes:
    """Return a feature's name in UTF-8.

    Raises:
        FeatureError: it is not str, or UTF-8 cannot encode it.
    """
    if not isinstance(name, str):
        raise FeatureError(f"Feature {name!r}: unsupported name (got {type(name).__name__}, expected str). Rename it.")
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise FeatureError(f"Feature {name!r}: its name is not UTF-8. Rename it.") from None


def _encode_feature(name: str, value: Any) -> bytes:
    """Return the Feature message of a value.

    Raises:
        FeatureError: the value is one that `encode_example` does not take.
    """
    # Before the elements are listed: those of a bytearray or memoryview would be integers.
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _encode_field(BYTES_LIST, _encode_field(LIST_VALUE, plain_bytes(name, value)))
    elements = _list_elements(name, value)
    if not elements:
        # Some readers take the kind of a list from its field. So an empty array gets an empty list of its kind, but an empty
        # sequence, whose kind is unknown, gets no list.
        return _encode_field(_find_list_number(value.dtype), b"") if isinstance(value, np.ndarray) else b""
    if all(isinstance(element, bytes) for element in elements):
        return _encode_field(BYTES_LIST, b"".join(_encode_field(LIST_VALUE, element) for element in elements))
    if all(isinstance(element, int) for element in elements):
        for element in elements:
            if not INT64_MIN <= element <= INT64_MAX:
                raise FeatureError(
                    f"Feature {name!r}: {format_value(element)} does not fit int64. Store it as bytes, or scale it."
                )
        # A negative integer is encoded as the unsigned one of the same 64 bits.
        packed = b"".join(encode_varint(element & (2**64 - 1)) for element in elements)
        return _encode_field(INT64_LIST, _encode_field(LIST_VALUE, packed))
    if all(isinstance(element, float) for element in elements):
        return _encode_field(FLOAT_LIST, _encode_field(LIST_VALUE, _convert_to_float32(name, elements).tobytes()))
    type_names = sorted({type(element).__name__ for element in elements})
    raise FeatureError(
        f"Feature {name!r}: values of mixed or unknown types (got {', '.join(type_names)}, expected one of bytes, str, int,"
        " bool, float)."
    )


def _find_list_number(dtype: np.dtype[Any]) -> int:
    """Return the field number of the list that holds values of a numpy type."""
    return {"f": FLOAT_LIST, "S": BYTES_LIST, "U": BYTES_LIST}.get(dtype.kind, INT64_LIST)


def _convert_to_float32(name: str, values: list[float]) -> npt.NDArray[np.float32]:
    """Return numbers as float32; FeatureError if one is finite and too large."""
    exact = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        stored = exact.astype("<f4")
    is_too_large = np.isinf(stored) & np.isfinite(exact)
    if is_too_large.any():
        raise FeatureError(
            f"Feature {name!r}: {exact[is_too_large][0]} does not fit float32. Scale it, or store it as bytes."
        )
    return stored


def _list_elements(name: str, value: Any) -> list[Any]:
    """Return a value or a sequence of values as a list of bytes, ints and floats; elements of other types are returned unchanged.

    Raises:
        FeatureError: the value has an unsupported type or dtype, masked values, or text that UTF-8 cannot encode.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        check_unmasked(name, value)
        array = np.asarray(value)
        if array.dtype.kind not in "biufSU":
            raise FeatureError(
                f"Feature {name!r}: unsupported numpy dtype (got {array.dtype}, expected bool, integer, float, bytes or str)."
            )
        elements: Sequence[Any] = array.ravel().tolist()
    elif isinstance(value, (str, int, float)):
        elements = [value]
    elif isinstance(value, Sequence):
        elements = value
    else:
        raise FeatureError(
            f"Feature {name!r}: unsupported type (got {type(value).__name__}, expected bytes, str, int, bool, float, a"
            " sequence of one of them, or a numpy array)."
        )
    try:
        return [_convert_element(name, element) for element in elements]
    except UnicodeEncodeError as error:
        raise FeatureError(
            f"Feature {name!r}: the text {error.object!r} is not UTF-8. Store it as bytes (of a file name: os.fsencode)."
        ) from None


def _convert_element(name: str, element: Any) -> Any:
    """Return an element as bytes, int or float; an element of another type unchanged.

    Raises:
        FeatureError: the element is a memoryview that is not one dimension of single bytes.
        UnicodeEncodeError: the element is text that UTF-8 cannot encode.
    """
    if isinstance(element, str):
        return element.encode()
    if isinstance(element, (bytes, bytearray, memoryview)):
        # `item()` would drop trailing zero bytes of numpy.bytes_.
        return plain_bytes(name, element)
    if isinstance(element, (bool, np.generic)):
        return int(element) if isinstance(element, (bool, np.bool_, np.integer)) else element.item()
    return element
