"""The features of a dataset of images, from what was counted of them."""

from __future__ import annotations

from beam_jobs.image_records.options import RAW
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.references.labels import Labels
from tpudata.errors import SourceError
from tpudata.format import Feature


def image_schema(
    layout: str,
    summary: ImageSummary,
    labels: Labels,
    *,
    several_labels: bool,
    label_offset: int,
    extra: tuple[Feature, ...],
) -> tuple[Feature, ...]:
    """The schema of a dataset.

    Args:
        layout: of its records, see `ImageOptions`.
        summary: of all images.
        labels: the classes; without any, the schema has no labels.
        several_labels: a record has any number of classes.
        label_offset: label of the first class.
        extra: further features, which end the schema.

    Raises:
        SourceError: layout raw, and the images are not all of one size.
    """
    shape = (_single(summary.heights), _single(summary.widths), (summary.channels or (3, 3))[1])
    # A list of labels is no TFDS ClassLabel, so it does without their number, which the manifest has too.
    number = None if several_labels else len(labels.names)
    many: tuple[int | None, ...] = (None,) if several_labels else ()
    if layout == RAW:
        check_one_size(summary)
        image = Feature("image_raw", "bytes", "uint8", shape, encoding="raw")
        return (image, *((_label("label", many, number, label_offset),) if labels.names else ()), *extra)
    return (
        Feature("image/encoded", "bytes", "uint8", shape, encoding="image"),
        _text("image/format"),
        _int("image/height"),
        _int("image/width"),
        _text("image/colorspace"),
        _int("image/channels"),
        *((_label("image/class/label", many, number, label_offset),) if labels.names else ()),
        *((_text("image/class/text", many),) if labels.names else ()),
        _text("image/filename"),
        *extra,
    )


def check_one_size(summary: ImageSummary) -> None:
    """Raises SourceError where images that layout raw cannot hold together have been counted."""
    if len(summary.examples) < 2:
        return
    (one, first), (two, other) = summary.examples
    raise SourceError(
        f"{other} is {' x '.join(map(str, two))} (height, width, channels), but {first} is {' x '.join(map(str, one))}. Layout raw"
        " needs images of one size: make them so, or use --layout imagenet, which keeps each one's own."
    )


def _label(name: str, shape: tuple[int | None, ...], classes: int | None, offset: int) -> Feature:
    return Feature(
        name, "int64", "int64", shape, num_classes=classes, label_offset=offset if classes is not None else 0
    )


def _text(name: str, shape: tuple[int | None, ...] = ()) -> Feature:
    return Feature(name, "bytes", "string", shape, encoding="utf8")


def _int(name: str) -> Feature:
    return Feature(name, "int64", "int64")


def _single(span: tuple[int, int] | None) -> int | None:
    return span[0] if span and span[0] == span[1] else None
