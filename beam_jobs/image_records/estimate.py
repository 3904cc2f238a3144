"""Estimate of the stored size of images, from a sample of them, for the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from beam_jobs.image_records.converter import ImageConverter
from beam_jobs.references.reading import read_references
from beam_jobs.references.reference import Reference
from tpudata.errors import BadRecordError

Read = Callable[[Iterable[Reference]], Iterator[tuple[Reference, bytes | BadRecordError]]]


def estimate_ratio(converter: ImageConverter, references: Iterable[Reference], read: Read = read_references) -> float:
    """Estimate the ratio of bytes of stored images to bytes of input.

    Rejected images are skipped here; writing the shards reports them.

    Args:
        converter: converter of images to records.
        references: a sample of all images.
        read: yields each reference, in order, with its bytes or its error.

    Returns:
        The ratio; 1.0 if no image of the sample can be converted.
    """
    before = after = 0
    for reference, data in read(references):
        if isinstance(data, BadRecordError):
            continue
        try:
            size = converter.content_size(reference, data)
        except BadRecordError:
            continue
        before += reference.size
        after += size
    return after / before if before else 1.0
