"""How many bytes images will take once they are stored, learned from some of them, for the plan."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from beam_jobs.image_records import ImageConverter
from beam_jobs.reference import Reference
from tpudata.errors import BadRecordError

# Of images whose ratios spread by a half of their mean, 200 give the mean to some 4 %.
SAMPLE_IMAGES = 200


def estimate_ratio(
    converter: ImageConverter,
    references: Iterable[Reference],
    read: Callable[[Reference], bytes],
    limit: int = SAMPLE_IMAGES,
) -> float:
    """Estimates bytes of stored images over bytes of input.

    The sample is the images whose keys have the smallest digests: a random one, and the same whatever the order of `references`.
    Refused images are passed over here; whoever writes the shards reports them.

    Args:
        converter: makes the records.
        references: of all images, or of any part of them that is a fair sample.
        read: the bytes that a reference points to.
        limit: how many images to try.

    Returns:
        The ratio; 1.0 where the sample holds nothing that can be converted.
    """
    before = after = 0
    for reference in heapq.nsmallest(limit, references, key=lambda reference: (reference.digest, reference.key)):
        try:
            size = converter.content_size(reference, read(reference))
        except BadRecordError:
            continue
        before += reference.size
        after += size
    return after / before if before else 1.0
