"""Comparison of a record's encoded images with the features that describe them, for `tpudata verify`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from beam_jobs.image_records.codecs.header import read_header
from beam_jobs.image_records.codecs.image_format import AVIF, HEIC, JPEG, JPEG_2000, PNG, PPM, TIFF, image_format
from beam_jobs.image_records.codecs.pixels import check_decodes
from tpudata.format import Feature, Manifest
from tpudata.format.example.wire import Value

# A conversion reads them and writes others; no TensorFlow decodes them.
_NOT_FED = (AVIF, HEIC, JPEG_2000, PPM, TIFF)


def image_problems(manifest: Manifest, example: Mapping[str, Value]) -> Iterator[str]:
    """Yield what does not fit in a record's encoded images, in words.

    Every feature that the manifest calls an image is looked at: its header must be whole, and say the height, width, channels and
    format that stand in the features next to it (`image/height` and so on for `image/encoded`), and the height and width of the
    manifest, where all images have one. No pixel is decoded.

    Args:
        manifest: of the dataset.
        example: a decoded record.
    """
    for feature, data in _images(manifest, example):
        yield from _problems(feature, data, example)


def decoded_image_problems(manifest: Manifest, example: Mapping[str, Value]) -> Iterator[str]:
    """Yield what `image_problems` does, and which images do not decode: all pixels of those whose header is whole.

    Of JPEGs and PNGs, which are all that a conversion writes, it rejects what a conversion with `--check decode` does; of other
    formats, which user-made datasets may hold, those that are broken or that TensorFlow does not know.

    Args:
        manifest: of the dataset.
        example: a decoded record.
    """
    for feature, data in _images(manifest, example):
        yield from _problems(feature, data, example)
        try:
            name = image_format(data)
            if name in (JPEG, PNG):
                read_header(data, name)
        except ValueError:
            continue  # Said already.
        if name in _NOT_FED:
            yield f"feature {feature.name!r} is a {name}, which TensorFlow does not decode; convert it to JPEG or PNG"
            continue
        try:
            check_decodes(data, name)
        except ValueError as error:
            yield f"feature {feature.name!r} does not decode: {error}"


def _images(manifest: Manifest, example: Mapping[str, Value]) -> Iterator[tuple[Feature, bytes]]:
    for feature in manifest.features:
        if feature.encoding == "image":
            values = example.get(feature.name)
            # One that is missing or of another kind is a matter of the schema.
            if values and isinstance(values[0], bytes):
                yield feature, values[0]


def _problems(feature: Feature, data: bytes, example: Mapping[str, Value]) -> Iterator[str]:
    try:
        name = image_format(data)
        header = read_header(data, name) if name in (JPEG, PNG) else None
    except ValueError as error:
        yield f"feature {feature.name!r}: {error}"
        return
    folder, slash, _ = feature.name.rpartition("/")
    if slash:
        stored = example.get(f"{folder}/format")
        if stored and isinstance(stored[0], bytes) and stored[0].upper() != name.upper().encode():
            yield f"feature '{folder}/format' is {stored[0]!r}; the image is a {name}"
    if header is None:
        return
    channels = (header.components, header.components + 1) if header.alpha else (header.components,)
    found = (("height", (header.height,)), ("width", (header.width,)), ("channels", channels))
    for (part, allowed), size in zip(found, (*feature.shape[:2], None), strict=True):
        beside = example.get(f"{folder}/{part}") if slash else None
        if beside and beside[0] not in allowed:
            yield f"feature '{folder}/{part}' is {beside[0]!r}; the image's header says {allowed[0]}"
        if size is not None and size not in allowed:
            yield f"feature {feature.name!r} has {part} {allowed[0]}; the manifest says {size}"
