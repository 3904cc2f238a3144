"""Fields of a record: the features that are read, their names for a model, and their static shapes."""

from __future__ import annotations

import dataclasses
import math
from typing import TypeAlias

import numpy as np

from tpudata.format import Feature

# Marks padding until the model's pad id replaces it: no id is this small.
PADDING = -(2**31)
# Fix for a record that does not match the manifest.
CONVERT_AGAIN = "Convert the dataset again."
# Fix for features that match the manifest and cannot be fed; converting again would not help.
PARSE = "Pass parse= to make_input_fn, which takes records apart itself."
# A value in a stored feature.
StoredValue: TypeAlias = int | float | bytes


@dataclasses.dataclass(frozen=True)
class Padding:
    """Padding of a feature whose records have any number of entries.

    Attributes:
        key: key of `pad`; in each record, all features that it matches have the same number of entries.
        value: value of padding.
    """

    key: str
    value: StoredValue


@dataclasses.dataclass(frozen=True)
class Field:
    """A feature that is read, or the number of entries of padded lists, which is counted as they are read.

    Attributes:
        feature: the stored feature.
        name: its key in the features that a model is fed.
        shape: static shape of one record's value once decoded.
        is_encoded: whether an image, a label map or a list of masks remains encoded, so that a crop can decode only its window; its
            shape is () or, of masks, (entries,).
        is_whole: whether the value is the whole record, as bytes.
        is_padded_sequence: whether it is a sequence of tokens of any length, which `PADDING` fills up to shape; int32 once decoded.
        cuts: whether values longer than shape are truncated instead of rejected.
        padding: padding of a list that `pad` fills up to shape; None for anything else.
        counted_key: key of `pad` that matches the lists whose entries the field counts; None for stored features.
        is_multi_hot: whether records have any number of classes, which become float32 [classes] of 1 and 0.
        masks_of: image of the objects whose encoded masks the field holds; the masks become uint8 [entries, height, width], 1
            inside and 0 outside. None for other features.
        default: stored values, flattened, for records that lack the feature; None if it is required.
    """

    feature: Feature
    name: str
    shape: tuple[int, ...]
    is_encoded: bool = False
    is_whole: bool = False
    is_padded_sequence: bool = False
    cuts: bool = False
    padding: Padding | None = None
    counted_key: str | None = None
    is_multi_hot: bool = False
    masks_of: Feature | None = None
    default: tuple[StoredValue, ...] | None = None

    @property
    def is_stored(self) -> bool:
        """Whether records may have the feature; False for a count."""
        return self.counted_key is None

    @property
    def is_list(self) -> bool:
        """Whether the value is made of lists of any length."""
        return self.is_padded_sequence or self.padding is not None or self.counted_key is not None or self.is_multi_hot

    @property
    def decodes_masks(self) -> bool:
        """Whether the field holds masks that are decoded with the record, not by a crop."""
        return self.masks_of is not None and not self.is_encoded

    @property
    def dtype(self) -> str:
        """NumPy's name of the decoded value's dtype, or "string"."""
        if self.is_encoded:
            return "string"
        if self.is_multi_hot:
            return "float32"
        if self.masks_of is not None:
            return "uint8"
        # A TPU takes no int64, and label maps of uint16 are decoded to int32, see `decode_label_maps`.
        is_narrowed = self.feature.dtype == "int64" or (self.feature.is_label_map and self.feature.dtype == "uint16")
        return "int32" if is_narrowed or self.is_padded_sequence else self.feature.dtype

    @property
    def bytes(self) -> int | None:
        """Size of one decoded value in bytes; None for a string."""
        if self.dtype == "string":
            return None
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class Fields:
    """Fields that are read of each record.

    Attributes:
        inputs: fields that a model is fed, by name.
        label: the label, or None without labels.
        weight: the weight of each record, or None without one.
    """

    inputs: tuple[Field, ...]
    label: Field | None
    weight: Field | None = None

    @classmethod
    def for_whole_records(cls, name: str) -> Fields:
        """Return one field, called `name`, whose value is the whole record."""
        return cls((Field(Feature(name, "bytes", "string"), name, (), is_whole=True),), label=None)

    @property
    def all(self) -> tuple[Field, ...]:
        """Inputs, label and weight."""
        return (*self.inputs, *(field for field in (self.label, self.weight) if field is not None))

    @property
    def images(self) -> tuple[Field, ...]:
        """The inputs that are images; only these are scaled and normalized."""
        return tuple(field for field in self.inputs if field.feature.is_image)

    @property
    def label_maps(self) -> tuple[Field, ...]:
        """The inputs that are label maps: they are cropped, resized and moved with the image, and keep their values."""
        return tuple(field for field in self.inputs if field.feature.is_label_map)

    @property
    def masks(self) -> tuple[Field, ...]:
        """The inputs that are lists of masks: they are cropped, resized and moved with the image."""
        return tuple(field for field in self.inputs if field.masks_of is not None)

    def find_count_field(self, field: Field) -> Field:
        """Return the field that counts the entries of `field`, a padded list."""
        assert field.padding is not None
        key = field.padding.key
        return next(candidate for candidate in self.inputs if candidate.counted_key == key)

    def estimate_record_bytes(self, stored_bytes: int) -> int:
        """Estimate the memory of one decoded record, in bytes, at least 1.

        Args:
            stored_bytes: mean size of a stored record before compression.
        """
        sizes = [field.bytes for field in self.all]
        # The sizes of strings are unknown. On average, the strings of a record have at most the bytes of a stored record.
        string_bytes = stored_bytes if None in sizes else 0
        return max(1, sum(size for size in sizes if size is not None) + string_bytes)
