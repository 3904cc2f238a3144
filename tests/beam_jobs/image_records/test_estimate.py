from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from beam_jobs.image_records.converter import ImageConverter
from beam_jobs.image_records.estimate import estimate_ratio
from beam_jobs.image_records.options import ImageOptions
from beam_jobs.image_records.summary import ImageSummary
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import WHOLE_FILE, Reference
from tests.beam_jobs.images import encode
from tpudata.errors import BadRecordError
from tpudata.format import decode_example

RANDOM = np.random.default_rng(0)
FILES = {
    f"a/{number}.jpg": encode(RANDOM.integers(0, 256, (size, size, 3), np.uint8), "JPEG")
    for number, size in enumerate(RANDOM.integers(16, 96, 150))
}


def references() -> list[Reference]:
    return [Reference(key, "train", ("a",), f"/in/{key}", WHOLE_FILE, len(data)) for key, data in FILES.items()]


def read(reference: Reference) -> bytes:
    return FILES[reference.key]


def reads(references: Iterable[Reference]) -> Iterator[tuple[Reference, bytes | BadRecordError]]:
    return ((reference, read(reference)) for reference in references)


def ratio(options: ImageOptions, limit: int = 1000) -> float:
    return estimate_ratio(ImageConverter(options=options), references()[:limit], reads)


def test_what_passes_untouched_keeps_its_size() -> None:
    assert ratio(ImageOptions()) == 1.0


@pytest.mark.parametrize("options", [ImageOptions(resize_shorter=24), ImageOptions(layout="raw", resize_shorter=8)])
def test_all_images_give_the_exact_ratio(options: ImageOptions) -> None:
    # Layout raw needs one shape, so a separate converter for each image.
    name = "image_raw" if options.layout == "raw" else "image/encoded"
    stored = 0
    for reference in references():
        parts = ImageConverter(options=options).convert(reference, Labels(("a",)), read(reference), ImageSummary())
        record = b"".join(parts)
        (image,) = decode_example(record)[name]
        assert isinstance(image, bytes)
        stored += len(image)
    assert ratio(options) == stored / sum(map(len, FILES.values()))


def test_a_part_is_near_the_whole() -> None:
    options = ImageOptions(resize_shorter=24)
    assert ratio(options, 50) == pytest.approx(ratio(options), rel=0.15)
    assert ratio(options, 50) != ratio(options)


def test_rejected_images_are_passed_over() -> None:
    broken = Reference("a/broken", "train", ("a",), "/in/a/broken", WHOLE_FILE, 10**9)
    converter = ImageConverter(options=ImageOptions(resize_shorter=24))

    for data in (b"no image", BadRecordError("/in/a/broken", "gone")):

        def read_or_break(
            references: Iterable[Reference], data: bytes | BadRecordError = data
        ) -> Iterator[tuple[Reference, bytes | BadRecordError]]:
            return ((reference, data if reference is broken else read(reference)) for reference in references)

        assert estimate_ratio(converter, [broken, *references()], read_or_break) == ratio(converter.options)
        assert estimate_ratio(converter, [broken], read_or_break) == 1.0
        assert estimate_ratio(converter, [], read_or_break) == 1.0
