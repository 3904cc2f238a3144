"""Comparison of encoded images with the features that describe them, in records and in examples that will be written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tpudata.format import Feature, Manifest
from tpudata.format.example.wire import Value
from tpudata.format.label_map import find_label_map_problem, png_kind
from tpudata.format.manifest.annotation_features import is_mask
from tpudata.format.verification.defect import MASKS, Problem
from tpudata.images.header import read_header
from tpudata.images.image_format import AVIF, HEIC, JPEG, JPEG_2000, PNG, PPM, TIFF, detect_format
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
        ValueError: the bytes are something else; the message describes it.
    """
    image_format = detect_format(data)
    if image_format in _NOT_FED:
        raise ValueError(f"{_add_article(image_format)}, which TensorFlow does not decode; convert it to JPEG or PNG")
    height, width = _read_size(data, image_format)
    if feature.shape[0] not in (None, height) or feature.shape[1] not in (None, width):
        raise ValueError(f"{_add_article(image_format)} of height {height} and width {width}")


def find_image_problems(manifest: Manifest, example: Mapping[str, Value]) -> Iterator[str | Problem]:
    """Yield the problems of a record's encoded images, in words.

    Every image feature of the manifest must hold an image of a known format, which the feature next to it names (`image/format`
    for `image/encoded`). The header of a JPEG or PNG must be complete, and match the height, width and channels in the features
    next to it, and the manifest's height and width if all images share them. A label map must have a format whose values readers
    do not change. Masks of objects must be PNGs, and masks and label maps must have the size of their picture. No pixel is decoded.

    Args:
        manifest: manifest of the dataset.
        example: a decoded record.
    """
    for feature, data in _list_images(manifest, example):
        yield from _find_problems(feature, data, example)
    yield from _find_size_problems(manifest, example)


def find_decoded_image_problems(manifest: Manifest, example: Mapping[str, Value]) -> Iterator[str | Problem]:
    """Yield the problems of `find_image_problems`, and one for each image or label map with a complete header that does not decode.

    For JPEG and PNG, the formats that a conversion writes, the rules of a conversion with `--check decode` apply; an image of a
    different format, which datasets of users may contain, is a problem if it is damaged or TensorFlow does not decode the format.

    Args:
        manifest: manifest of the dataset.
        example: a decoded record.
    """
    yield from find_image_problems(manifest, example)
    for feature, data in _list_images(manifest, example):
        try:
            image_format = detect_format(data)
            if image_format in (JPEG, PNG):
                read_header(data, image_format)
        except ValueError:
            continue  # `find_image_problems` reports it.
        if image_format in _NOT_FED:
            yield (
                f"feature {feature.name!r} is {_add_article(image_format)}, which TensorFlow does not decode; convert it to JPEG"
                " or PNG"
            )
            continue
        try:
            check_decodes(data, image_format)
        except ValueError as error:
            yield f"feature {feature.name!r} does not decode: {error}"


def _read_size(data: bytes, image_format: str) -> tuple[int, int]:
    """Return the height and width of an image; ValueError if it is truncated or damaged."""
    if image_format in (JPEG, PNG):
        header = read_header(data, image_format)
        return header.height, header.width
    width, height = open_image(data, image_format).size
    return height, width


def _find_size_problems(manifest: Manifest, example: Mapping[str, Value]) -> Iterator[Problem]:
    """Yield a problem for each label map or mask that differs in size from its picture, and for each mask that is not a PNG."""
    pictures = [feature for feature in manifest.features if feature.encoding == "image"]
    for feature in manifest.features:
        if not (feature.is_label_map or is_mask(feature)):
            continue
        picture = _find_picture(feature, pictures)
        picture_values = None if picture is None else example.get(picture.name)
        picture_size = _find_size(picture_values[0]) if picture_values else None
        for index, data in enumerate(example.get(feature.name, ())):
            subject = f"feature {feature.name!r}" if feature.is_label_map else f"mask {index} of {feature.name!r}"
            size = _find_size(data) if isinstance(data, bytes) and png_kind(data) is not None else None
            if size is None:
                if not feature.is_label_map:  # `_find_problems` reports label maps.
                    yield Problem(f"{subject} is not a PNG, or a cut one", MASKS)
            elif picture is not None and picture_size not in (None, size):
                yield Problem(
                    f"{subject} has {size[1]} x {size[0]} pixels; the picture {picture.name!r} has"
                    f" {picture_size[1]} x {picture_size[0]}",
                    MASKS,
                )


def _find_picture(feature: Feature, pictures: Sequence[Feature]) -> Feature | None:
    """Return the picture that a mask or label map belongs to; None if the names do not show it.

    `image/object/mask` and `image/segmentation/class/encoded` belong to `image/encoded`, since their names begin with its folder,
    `image/`. Names without a folder, such as `mask` and `image`, show it only in a dataset with one picture.
    """
    if len(pictures) == 1 and "/" not in feature.name + pictures[0].name:
        return pictures[0]
    return next(
        (picture for picture in pictures if feature.name.startswith(f"{picture.name.rpartition('/')[0]}/")), None
    )


def _find_size(data: object) -> tuple[int, int] | None:
    """Return the height and width of an image; None for a damaged one or a value that is not bytes: other checks report both."""
    if not isinstance(data, bytes):
        return None
    try:
        return _read_size(data, detect_format(data))
    except ValueError:
        return None


def _add_article(image_format: str) -> str:
    return f"{'an' if image_format == AVIF else 'a'} {image_format}"


def _list_images(manifest: Manifest, example: Mapping[str, Value]) -> Iterator[tuple[Feature, bytes]]:
    """Yield the features of a record that are image files, among them label maps, each with its bytes."""
    for feature in manifest.features:
        if feature.is_image_file:
            values = example.get(feature.name)
            # The schema's check reports a missing value, or one that is not bytes.
            if values and isinstance(values[0], bytes):
                yield feature, values[0]


def _find_problems(feature: Feature, data: bytes, example: Mapping[str, Value]) -> Iterator[str]:
    """Yield the problems of an image file: damage, or a format, size or channels that differ from the feature or the record."""
    map_problem = find_label_map_problem(data, feature.dtype) if feature.is_label_map else ""
    if map_problem:
        yield f"feature {feature.name!r} {map_problem}"
        return
    try:
        image_format = detect_format(data)
        header = read_header(data, image_format) if image_format in (JPEG, PNG) else None
    except ValueError as error:
        yield f"feature {feature.name!r}: {error}"
        return
    folder, slash, _ = feature.name.rpartition("/")
    if slash:
        formats = example.get(f"{folder}/format")
        if formats and isinstance(formats[0], bytes) and formats[0].upper() != image_format.upper().encode():
            yield f"feature '{folder}/format' is {formats[0]!r}; the image is {_add_article(image_format)}"
    if header is None:
        return
    # Writers may count the alpha channel or not.
    channels = (header.components, header.components + 1) if header.has_alpha else (header.components,)
    height, width, _ = feature.shape
    for size_name, allowed_sizes, manifest_size in (
        ("height", (header.height,), height),
        ("width", (header.width,), width),
        # Readers convert images to the manifest's channels.
        ("channels", channels, None),
    ):
        stored_sizes = example.get(f"{folder}/{size_name}") if slash else None
        if stored_sizes and stored_sizes[0] not in allowed_sizes:
            yield f"feature '{folder}/{size_name}' is {stored_sizes[0]!r}; the image's header says {allowed_sizes[0]}"
        if manifest_size is not None and manifest_size not in allowed_sizes:
            yield f"feature {feature.name!r} has {size_name} {allowed_sizes[0]}; the manifest says {manifest_size}"
