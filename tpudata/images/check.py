"""Comparison of encoded images with the features that describe them: those of records, and those of examples to be written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tpudata.format import Feature, Manifest
from tpudata.format.example.wire import Value
from tpudata.format.label_map import label_map_problem, png_kind
from tpudata.format.manifest.annotation_features import is_mask
from tpudata.format.verification.defect import MASKS, Problem
from tpudata.images.header import read_header
from tpudata.images.image_format import AVIF, HEIC, JPEG, JPEG_2000, PNG, PPM, TIFF, image_format
from tpudata.images.pillow_files import open_image
from tpudata.images.pixels import check_decodes

# Formats that a conversion reads but never writes; TensorFlow does not decode them.
_NOT_FED = (AVIF, HEIC, JPEG_2000, PPM, TIFF)


def check_fits(feature: Feature, data: bytes) -> None:
    """Check that bytes are an image that TensorFlow decodes, with a complete header and the size of its feature.

    Args:
        feature: feature of encoding `image`; it may leave height and width open.
        data: the bytes.

    Raises:
        ValueError: they are not; the message says what they are.
    """
    name = image_format(data)
    if name in _NOT_FED:
        raise ValueError(f"{_choose_article(name)} {name}, which TensorFlow does not decode; convert it to JPEG or PNG")
    height, width = _read_size(data, name)
    if any(size not in (None, got) for size, got in zip(feature.shape, (height, width), strict=False)):
        raise ValueError(f"{_choose_article(name)} {name} of height {height} and width {width}")


def image_problems(manifest: Manifest, example: Mapping[str, Value]) -> Iterator[str | Problem]:
    """Yield the problems of a record's encoded images, in words.

    The header of every image feature of the manifest must be complete, and match the height, width, channels and format in the
    features next to it (`image/height` and so on for `image/encoded`), and the manifest's height and width if all images share
    them. The header of a label map must be that of a file whose values readers do not change. Masks of objects are PNGs, and they
    and label maps have the size of their picture. No pixel is decoded.

    Args:
        manifest: manifest of the dataset.
        example: a decoded record.
    """
    for feature, data in _list_images(manifest, example):
        yield from _find_problems(feature, data, example)
    yield from _find_size_problems(manifest, example)


def decoded_image_problems(manifest: Manifest, example: Mapping[str, Value]) -> Iterator[str | Problem]:
    """Yield the problems of `image_problems`, and images and label maps with a complete header whose pixels do not decode.

    For JPEG and PNG, the formats that a conversion writes, the rules are those of a conversion with `--check decode`; images of
    other formats, which datasets of users may contain, are problems if they are broken or unknown to TensorFlow.

    Args:
        manifest: manifest of the dataset.
        example: a decoded record.
    """
    yield from image_problems(manifest, example)
    for feature, data in _list_images(manifest, example):
        try:
            name = image_format(data)
            if name in (JPEG, PNG):
                read_header(data, name)
        except ValueError:
            continue  # Reported already.
        if name in _NOT_FED:
            yield (
                f"feature {feature.name!r} is {_choose_article(name)} {name}, which TensorFlow does not decode; convert it to JPEG"
                " or PNG"
            )
            continue
        try:
            check_decodes(data, name)
        except ValueError as error:
            yield f"feature {feature.name!r} does not decode: {error}"


def _read_size(data: bytes, name: str) -> tuple[int, int]:
    """Return the height and width of an image of format `name`; ValueError if it is truncated or broken."""
    if name in (JPEG, PNG):
        header = read_header(data, name)
        return header.height, header.width
    width, height = open_image(data, name).size
    return height, width


def _find_size_problems(manifest: Manifest, example: Mapping[str, Value]) -> Iterator[Problem]:
    """Yield label maps and masks of objects that do not have the size of their picture, and masks that are not PNGs."""
    pictures = [feature for feature in manifest.features if feature.encoding == "image"]
    for feature in manifest.features:
        if not (feature.is_label_map or is_mask(feature)):
            continue
        picture = next(
            (candidate for candidate in pictures if feature.name.startswith(f"{candidate.name.rpartition('/')[0]}/")),
            None,
        )
        size = None if picture is None else _find_stored_size(example.get(picture.name, ()))
        for index, data in enumerate(example.get(feature.name, ())):
            subject = f"feature {feature.name!r}" if feature.is_label_map else f"mask {index} of {feature.name!r}"
            stored_size = _find_stored_size([data]) if isinstance(data, bytes) and png_kind(data) is not None else None
            if stored_size is None:
                if not feature.is_label_map:  # Those are reported already.
                    yield Problem(f"{subject} is not a PNG, or a cut one", MASKS)
            elif picture is not None and size not in (None, stored_size):
                sides = " x ".join(map(str, stored_size))
                yield Problem(
                    f"{subject} has {sides} pixels; the picture {picture.name!r} has {size[0]} x {size[1]}", MASKS
                )


def _find_stored_size(values: Sequence[object]) -> tuple[int, int] | None:
    """Return the height and width of the image in a record; None if it is missing, cut or broken, which is reported elsewhere."""
    if not values or not isinstance(values[0], bytes):
        return None
    try:
        return _read_size(values[0], image_format(values[0]))
    except ValueError:
        return None


def _choose_article(name: str) -> str:
    return "an" if name == AVIF else "a"


def _list_images(manifest: Manifest, example: Mapping[str, Value]) -> Iterator[tuple[Feature, bytes]]:
    for feature in manifest.features:
        if feature.is_image_file:
            values = example.get(feature.name)
            # The schema's check reports a missing one or one of another kind.
            if values and isinstance(values[0], bytes):
                yield feature, values[0]


def _find_problems(feature: Feature, data: bytes, example: Mapping[str, Value]) -> Iterator[str]:
    """Yield the problems of an image file: damage, or a format, size or channels that differ from the feature or the record."""
    problem = label_map_problem(data, feature.dtype) if feature.is_label_map else ""
    if problem:
        yield f"feature {feature.name!r} {problem}"
        return
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
    allowed_sizes = (("height", (header.height,)), ("width", (header.width,)), ("channels", channels))
    for (part, allowed), size in zip(allowed_sizes, (*feature.shape[:2], None), strict=True):
        neighbour = example.get(f"{folder}/{part}") if slash else None
        if neighbour and neighbour[0] not in allowed:
            yield f"feature '{folder}/{part}' is {neighbour[0]!r}; the image's header says {allowed[0]}"
        if size is not None and size not in allowed:
            yield f"feature {feature.name!r} has {part} {allowed[0]}; the manifest says {size}"
