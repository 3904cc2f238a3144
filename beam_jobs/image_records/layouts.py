"""The feature layouts of images.

`imagenet`, encoded images:

    image/encoded       JPEG or PNG                          image/channels      1 or 3
    image/format        "JPEG" or "PNG"                      image/class/label   int, or a list of them
    image/height        pixels                               image/class/text    the class's name, or a list of them
    image/width         pixels                               image/filename      the key: path below the input
    image/colorspace    "grayscale" or "RGB"

`raw`, pixels of one size:

    image_raw           uint8 [height, width, channels]      label               int, or a list of them

Without classes there is neither label nor text. Pairs have the second image in image/target/encoded.

Sources of the keys: tensorflow/tpu, tools/datasets/imagenet_to_gcs.py; TensorFlow's convert_to_records.py for MNIST.
"""

from __future__ import annotations

import abc
from typing import Any, TypeAlias

from beam_jobs.feature_values.values import make_empty_list
from beam_jobs.image_records.options import IMAGENET, RAW, RIGHT, ImageOptions
from beam_jobs.image_records.rules import StoredImage, decode_pixels, make_stored_halves, make_stored_image
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.references.reference import Payload, Reference, key_bytes
from tpudata.errors import SourceError
from tpudata.format import Feature

# The second image of a pair, which readers decode to 3 channels even if it is grey.
TARGET = Feature("image/target/encoded", "bytes", "uint8", (None, None, 3), encoding="image")
# Empty lists that show their kind.
_NO_LABELS = make_empty_list(Feature("label", "int64", "int64", (None,)))
_NO_TEXTS = make_empty_list(Feature("text", "bytes", "string", (None,)))
# The label of a record; a tuple if a record may have several, None in a dataset without classes.
Label: TypeAlias = int | tuple[int, ...] | None


class ImageLayout(abc.ABC):
    """Features of an image's record.

    Attributes:
        names: names of its features.
        overhead: approximate bytes of a record without its image and its texts: keys, tags, and small values.
        label_name: name of the feature with the label.
        has_texts: whether records contain the names of files and classes.
    """

    names: frozenset[str]
    overhead: int
    label_name: str
    has_texts: bool

    @abc.abstractmethod
    def measure_content(self, data: bytes, payload: Payload, options: ImageOptions) -> int:
        """Return the number of bytes of an image in its record.

        Args:
            data: bytes of the input.
            payload: kind of the bytes: `Pixels`, or any other kind for an encoded image.
            options: rules for checking and storing images.

        Raises:
            ValueError: the image is rejected.
        """

    @abc.abstractmethod
    def make_values(
        self, reference: Reference, label: Label, data: bytes, options: ImageOptions, summary: ImageSummary
    ) -> dict[str, Any]:
        """Return the values of a record by feature, and count the image in `summary`.

        Args:
            reference: reference to the image.
            label: label or labels of the record; None in a dataset without classes.
            data: bytes of the image.
            options: rules for checking and storing images.
            summary: summary to which the image is added.

        Raises:
            ValueError: the image is rejected.
            SourceError: the layout does not allow the image together with earlier ones.
        """

    @abc.abstractmethod
    def features(self, summary: ImageSummary, classes: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return the features of the records.

        Args:
            summary: summary of all images.
            classes: features of classes; empty in a dataset without classes.

        Raises:
            SourceError: the layout does not allow these images together.
        """


class ImagenetLayout(ImageLayout):
    """Encoded images, and their headers."""

    names = frozenset(
        {
            "image/encoded",
            "image/format",
            "image/height",
            "image/width",
            "image/colorspace",
            "image/channels",
            "image/class/label",
            "image/class/text",
            "image/filename",
        }
    )
    overhead = 230
    label_name = "image/class/label"
    has_texts = True

    def measure_content(self, data: bytes, payload: Payload, options: ImageOptions) -> int:
        """Return the number of bytes of the encoded image, or of both halves if one of them is a target."""
        if options.target_half is not None:
            return sum(len(half.data) for half in make_stored_halves(data, payload, options))
        return len(make_stored_image(data, payload, options).data)

    def make_values(
        self, reference: Reference, label: Label, data: bytes, options: ImageOptions, summary: ImageSummary
    ) -> dict[str, Any]:
        """Return the values of a record by feature, and count the image in `summary`."""
        target: StoredImage | None = None
        if options.target_half is None:
            stored = make_stored_image(data, reference.payload, options)
        else:
            halves = make_stored_halves(data, reference.payload, options)
            # `target_half` names the half that is the target; the image of the record is the other one.
            stored, target = halves if options.target_half == RIGHT else reversed(halves)
        summary.add((stored.height, stored.width, stored.channels), reference.key, stored.reason)
        values: dict[str, Any] = {
            "image/channels": stored.channels,
            "image/colorspace": b"grayscale" if stored.channels == 1 else b"RGB",
            "image/encoded": stored.data,
            "image/filename": key_bytes(reference.key),
            "image/format": stored.format.encode(),
            "image/height": stored.height,
            "image/width": stored.width,
        }
        if target is not None:
            values[TARGET.name] = target.data
        if label is not None:
            texts = [key_bytes(class_name) for class_name in reference.labels]
            values["image/class/label"] = _NO_LABELS if label == () else label
            values["image/class/text"] = (texts or _NO_TEXTS) if isinstance(label, tuple) else texts[0]
        return values

    def features(self, summary: ImageSummary, classes: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return the schema."""
        return (
            Feature("image/encoded", "bytes", "uint8", summary.shape, encoding="image"),
            _make_text_feature("image/format"),
            _make_int_feature("image/height"),
            _make_int_feature("image/width"),
            _make_text_feature("image/colorspace"),
            _make_int_feature("image/channels"),
            *classes,
            _make_text_feature("image/filename"),
        )


class RawLayout(ImageLayout):
    """Pixels of images of one size."""

    names = frozenset({"image_raw", "label"})
    overhead = 45
    label_name = "label"
    has_texts = False

    def measure_content(self, data: bytes, payload: Payload, options: ImageOptions) -> int:
        """Return the number of bytes of the pixels."""
        return len(decode_pixels(data, payload, options)[0])

    def make_values(
        self, reference: Reference, label: Label, data: bytes, options: ImageOptions, summary: ImageSummary
    ) -> dict[str, Any]:
        """Return the values of a record by feature, and count the image in `summary`."""
        pixels, shape = decode_pixels(data, reference.payload, options)
        summary.add(shape, reference.key)
        _check_one_size(summary)
        if label is None:
            return {"image_raw": pixels}
        return {"image_raw": pixels, "label": _NO_LABELS if label == () else label}

    def features(self, summary: ImageSummary, classes: tuple[Feature, ...]) -> tuple[Feature, ...]:
        """Return the schema."""
        _check_one_size(summary)
        return (Feature("image_raw", "bytes", "uint8", summary.shape, encoding="raw"), *classes)


LAYOUTS: dict[str, ImageLayout] = {IMAGENET: ImagenetLayout(), RAW: RawLayout()}


def _check_one_size(summary: ImageSummary) -> None:
    """Raise SourceError if images of layout raw differ in size."""
    if len(summary.examples) < 2:
        return
    (shape, first_key), (other_shape, other_key) = summary.examples
    raise SourceError(
        f"{other_key} is {' x '.join(map(str, other_shape))} (height, width, channels), but {first_key} is"
        f" {' x '.join(map(str, shape))}. Layout raw needs images of one size: resize them, or use --layout imagenet, which keeps"
        " the size of each."
    )


def _make_text_feature(name: str) -> Feature:
    return Feature(name, "bytes", "string", encoding="utf8")


def _make_int_feature(name: str) -> Feature:
    return Feature(name, "int64", "int64")
