"""The features of a dataset of images, from their summary."""

from __future__ import annotations

from beam_jobs.image_records.layouts import ImageLayout
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.references.labels import Labels
from tpudata.format import Feature


def image_schema(
    layout: ImageLayout,
    summary: ImageSummary,
    labels: Labels,
    *,
    several_labels: bool,
    label_offset: int,
    extra: tuple[Feature, ...],
) -> tuple[Feature, ...]:
    """Return the schema of a dataset.

    Args:
        layout: layout of its records.
        summary: summary of all images.
        labels: classes; without any, the schema has no labels.
        several_labels: whether a record has any number of classes.
        label_offset: label of the first class.
        extra: extra features, which end the schema.

    Raises:
        SourceError: the layout is raw, and the images differ in size.
    """
    if not labels.names:
        return (*layout.features(summary, ()), *extra)
    # A list of labels is not a TFDS ClassLabel, so the feature omits the number of classes, which the manifest has, too.
    number = None if several_labels else len(labels.names)
    shape: tuple[int | None, ...] = (None,) if several_labels else ()
    offset = 0 if several_labels else label_offset
    classes = [Feature(layout.label, "int64", "int64", shape, num_classes=number, label_offset=offset)]
    if layout.has_texts:
        classes.append(Feature("image/class/text", "bytes", "string", shape, encoding="utf8"))
    return (*layout.features(summary, tuple(classes)), *extra)
