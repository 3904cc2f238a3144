"""The schema of a dataset: each feature of a record, on disk and decoded."""

from __future__ import annotations

import dataclasses
import math
import operator
from typing import Any

from tpudata.checked_json import INT64_MAX
from tpudata.error_text.values import format_value
from tpudata.errors import FeatureError
from tpudata.format.example.encode import encode_name
from tpudata.format.example.wire import MAX_EXAMPLE_BYTES

KINDS = ("bytes", "int64", "float")
# By encoding and kind, the dtypes that a feature may have.
_DTYPES: dict[str | None, dict[str, tuple[str, ...]]] = {
    None: {"bytes": ("string",), "int64": ("int64",), "float": ("float32",)},
    "image": {"bytes": ("uint8",)},
    "label_map": {"bytes": ("uint8", "uint16")},
    "raw": {"bytes": ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64")},
    "utf8": {"bytes": ("string",)},
}
# As many as numpy before 2.0 allows.
_MAX_DIMENSIONS = 32
# Image files are compressed, so they may hold more values than a record has bytes.
_MAX_IMAGE_VALUES = 2**40


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of every record of a dataset.

    Attributes:
        name: its key in the `tf.train.Example`.
        kind: list of the Example that holds it: `"bytes"`, `"int64"` or `"float"`.
        dtype: numpy name of the decoded values' dtype (`"string"` for bytes that stay bytes).
        shape: shape of the decoded value; `()` is a scalar and `None` a dimension that varies between records, as in `(None,)` for
            a list of any length. The number of dimensions is fixed. An image is (height, width, channels), and every record is
            decoded to these channels. A label map is (height, width, 1).
        encoding: encoding of the stored bytes: `None` (the list is the values), `"image"` (an encoded JPEG, PNG, ...),
            `"label_map"` (a grey PNG of 8 or 16 bits, as in `dtype`, whose values are the class of each pixel, which
            readers keep unchanged), `"raw"` (little-endian values of `dtype` in C order) or `"utf8"` text.
        num_classes: number of classes of a class label; labels count from `label_offset`. None without classes, and for label maps.
        label_offset: label of the first class (1 for readers that keep 0 for "background").

    Raises:
        FeatureError: the attributes do not fit each other, or exceed the format's limits.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: str | None = None
    num_classes: int | None = None
    label_offset: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise FeatureError("Feature: its name is empty. Pass its key in the tf.train.Example.")
        if self.kind not in KINDS:
            raise FeatureError(f"Feature {self.name!r}: unknown kind (got {self.kind!r}, expected {', '.join(KINDS)}).")
        allowed_dtypes = _DTYPES.get(self.encoding, {}).get(self.kind, ())
        if self.dtype not in allowed_dtypes:
            raise FeatureError(
                f"Feature {self.name!r}: unsupported dtype for kind {self.kind!r} and encoding {self.encoding!r}"
                f" (got {self.dtype!r}, expected {', '.join(allowed_dtypes) or 'none'})."
            )
        object.__setattr__(self, "shape", _normalize_shape(self.name, self.shape))
        if any(size is not None and size < 0 for size in self.shape):
            raise FeatureError(
                f"Feature {self.name!r}: shape {format_value(self.shape)} has a negative size. Use None for a size that varies."
            )
        if self.encoding == "image" and len(self.shape) != 3:
            raise FeatureError(
                f"Feature {self.name!r}: unsupported shape of an image (got {self.shape}, expected (height, width, channels))."
            )
        if self.is_label_map and (len(self.shape) != 3 or self.shape[2] != 1):
            raise FeatureError(
                f"Feature {self.name!r}: unsupported shape of a label map (got {self.shape}, expected (height, width, 1))."
            )
        if self.is_label_map and self.num_classes is not None:
            raise FeatureError(
                f"Feature {self.name!r}: num_classes is for labels of records (got {format_value(self.num_classes)}). Omit it for a"
                " label map."
            )
        self._check_limits()

    def _check_limits(self) -> None:
        """Raise FeatureError if the name is not UTF-8, or the shape or the labels exceed the format's limits."""
        encode_name(self.name)
        if len(self.shape) > _MAX_DIMENSIONS:
            raise FeatureError(
                f"Feature {self.name!r}: too many dimensions (got {len(self.shape)}, expected at most {_MAX_DIMENSIONS})."
                " Flatten it."
            )
        max_values = _MAX_IMAGE_VALUES if self.is_image_file else MAX_EXAMPLE_BYTES
        # The number of values in a record, with sizes that vary and sizes of 0 counted as 1.
        value_count = math.prod(size for size in self.shape if size)
        if value_count > max_values:
            raise FeatureError(
                f"Feature {self.name!r}: shape {format_value(self.shape)} has {format_value(value_count)} values (expected at most"
                f" {max_values}). Store less in a record."
            )
        if self.label_offset < 0 or not 0 <= self.label_offset + (self.num_classes or 0) <= INT64_MAX:
            raise FeatureError(
                f"Feature {self.name!r}: the labels of its classes do not fit int64 (got"
                f" num_classes={format_value(self.num_classes)} from {format_value(self.label_offset)} on). Pass fewer."
            )

    @property
    def is_static(self) -> bool:
        """Whether every record has the same shape."""
        return None not in self.shape

    @property
    def is_list(self) -> bool:
        """Whether records have any number of entries of one size; images and label maps are not lists."""
        return self.shape[:1] == (None,) and all(self.shape[1:]) and not self.is_image_file and not self.is_image

    @property
    def is_image(self) -> bool:
        """Whether a decoded value is an image, uint8 [height, width, channels]; other uint8 values are numbers."""
        return self.encoding in ("image", "raw") and self.dtype == "uint8" and len(self.shape) == 3

    @property
    def is_label_map(self) -> bool:
        """Whether it holds the class of each pixel, integers [height, width, 1]."""
        return self.encoding == "label_map"

    @property
    def is_image_file(self) -> bool:
        """Whether the stored bytes are an image file, such as a PNG, that readers decode."""
        return self.encoding in ("image", "label_map")

    @property
    def is_one_value(self) -> bool:
        """Whether a record holds one bytes value that is decoded to the whole array: an image file or raw numbers."""
        return self.is_image_file or self.encoding == "raw"

    def to_json(self) -> dict[str, Any]:
        """Return this feature as a JSON object, without an encoding or classes if it has none."""
        value: dict[str, Any] = {"name": self.name, "kind": self.kind, "dtype": self.dtype, "shape": list(self.shape)}
        if self.encoding is not None:
            value["encoding"] = self.encoding
        if self.num_classes is not None:
            value["num_classes"] = self.num_classes
        if self.num_classes is not None or self.label_offset:
            value["label_offset"] = self.label_offset
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Feature:
        """Return the feature that `to_json` wrote.

        Raises:
            KeyError, TypeError: a key is missing or unknown.
            FeatureError: the name, kind, dtype, shape, encoding or classes cannot be used.
        """
        return cls(**{**value, "shape": tuple(value["shape"])})


def _normalize_shape(name: str, shape: Any) -> tuple[int | None, ...]:
    """Return a shape as a tuple of Python's integers and None; FeatureError, with the feature's name, for other values."""
    try:
        if isinstance(shape, str | bytes) or any(isinstance(size, bool) for size in shape):
            # Without this check, True would be the size 1, each of the bytes a size, and an empty string the shape of a scalar.
            raise TypeError
        return tuple(None if size is None else operator.index(size) for size in shape)
    except TypeError:
        raise FeatureError(
            f"Feature {name!r}: unsupported shape (got {shape!r}, expected a tuple of sizes). Pass () for a scalar,"
            " (None,) for a list whose length varies."
        ) from None
