"""Decoding of a serialized tf.train.Example to numpy arrays, with the features that the manifest describes."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from tpudata.errors import CorruptionError, DatasetError, FeatureError
from tpudata.format import Feature, Manifest, decode_example
from tpudata.format.example.wire import Value
from tpudata.format.label_map import find_label_map_problem
from tpudata.format.manifest.model_features import fed_features, label_feature, short_name

Decoded: TypeAlias = "npt.NDArray[np.generic] | np.generic | bytes | str"
# Pillow's modes by the number of channels, and Python's types by the kind of a feature.
_MODE_BY_CHANNEL_COUNT = {1: "L", 3: "RGB", 4: "RGBA"}
_TYPE_BY_KIND = {"bytes": bytes, "int64": int, "float": float}
# Features with paths of inputs: names of files need not be UTF-8.
_PATH_FEATURES = ("image/filename", "key")


class ExampleDecoder:
    """Decodes serialized Examples of a dataset.

    A record becomes a dict with one value for each feature, under the names that `make_input_fn` uses (`image` for `image/encoded`
    and `image_raw`):

    - encoded images: uint8 [height, width, channels], each in its own size, decoded by Pillow;
    - label maps: the class of each pixel, uint8 [height, width, 1], each in its own size; int32 for maps of uint16;
    - raw bytes: an array of the feature's dtype and shape;
    - UTF-8 text: str, in `image/filename` and `key` with surrogates for other bytes, as `os.fsdecode` gives them; other strings:
      bytes; several of them: an array of objects;
    - integers: int64, floats: float32; a scalar if the shape is ().

    Args:
        manifest: manifest of the dataset.
        features: names to decode, short or as in the manifest; None decodes the features that a model is fed, and the label.

    Raises:
        FeatureError: a name is not in the dataset, two features share a short name and `features` is None, or a feature has
            channels or a shape that cannot be decoded.
    """

    def __init__(self, manifest: Manifest, features: Sequence[str] | None = None) -> None:
        label = label_feature(manifest)
        names_and_features = [(short_name(feature), feature) for feature in fed_features(manifest, label)]
        if label is not None:
            names_and_features.append((label.name, label))
        counts_by_name = Counter(name for name, _ in names_and_features)
        shared_names = [name for name, count in counts_by_name.items() if count > 1]
        if shared_names and features is None:
            full_names = ", ".join(feature.name for name, feature in names_and_features if name == shared_names[0])
            raise FeatureError(
                f"Feature {shared_names[0]!r}: several features would have this name ({full_names}). Choose by features=."
            )
        # Features that share a short name are requested by their full names.
        fed_by_name = {name: feature for name, feature in names_and_features if name not in shared_names}
        self._features = fed_by_name if features is None else _look_up_features(manifest, fed_by_name, features)
        for name, feature in self._features.items():
            if feature.encoding == "image" and feature.shape[2] not in _MODE_BY_CHANNEL_COUNT:
                raise FeatureError(
                    f"Feature {name!r}: {feature.shape[2]} channels (expected 1, 3 or 4). Omit it from features=."
                )
            # An image file states its own size.
            sizes = () if feature.is_image_file else feature.shape
            if sizes.count(None) > 1 or (None in sizes and 0 in sizes):
                raise FeatureError(
                    f"Feature {name!r}: the number of values does not determine its shape (got {sizes}, expected one None at most,"
                    " and no 0 with it). Omit it from features=."
                )

    def __call__(self, data: bytes) -> dict[str, Decoded]:
        """Return the features of one record.

        Raises:
            CorruptionError: not an Example, or an image or text that does not decode; the caller adds the file and the offset.
            FeatureError: a feature is missing, or has values of a different kind or number; a label map is of the wrong kind.
        """
        example = decode_example(data)
        return {name: _decode(feature, example) for name, feature in self._features.items()}


def _look_up_features(manifest: Manifest, fed_by_name: dict[str, Feature], names: Sequence[str]) -> dict[str, Feature]:
    """Return features by the requested names: short names of fed features, or names of features in the manifest.

    Raises:
        FeatureError: a name is not in the dataset.
    """
    features = {}
    for name in names:
        try:
            features[name] = fed_by_name[name] if name in fed_by_name else manifest.feature(name)
        except DatasetError as error:
            raise FeatureError(f"features: {error}") from None
    return features


def _decode(feature: Feature, example: dict[str, Value]) -> Decoded:
    """Return the decoded value of a feature; raises what `ExampleDecoder.__call__` raises for a feature."""
    values = example.get(feature.name)
    if values is None and feature.shape == (None,) and feature.encoding in (None, "utf8"):
        # Some writers omit a list without values; TensorFlow parses it as empty.
        values = []
    if values is None:
        raise FeatureError(
            f"Feature {feature.name!r} is missing. Check the record's writer, or convert the data again."
        )
    if values and type(values[0]) is not _TYPE_BY_KIND[feature.kind]:
        raise FeatureError(
            f"Feature {feature.name!r} holds {type(values[0]).__name__} (expected {feature.kind}). Convert the data again."
        )
    if feature.kind != "bytes":
        return _reshape(feature, np.array(values, "int64" if feature.kind == "int64" else "float32"))
    if feature.encoding is None or feature.encoding == "utf8":
        strings = [_decode_text(feature, value) for value in values] if feature.encoding == "utf8" else values  # type: ignore[arg-type]
        if feature.shape == () and len(strings) == 1:
            return strings[0]  # type: ignore[return-value]
        # An array of objects: in numpy's own arrays of bytes, values lose trailing zero bytes.
        array = np.empty(len(strings), object)
        array[:] = strings
        return _reshape(feature, array)
    if len(values) != 1:
        raise FeatureError(f"Feature {feature.name!r} holds {len(values)} values (expected 1). Convert the data again.")
    if feature.encoding == "image":
        return _decode_image(feature, values[0])  # type: ignore[arg-type]
    if feature.is_label_map:
        return decode_label_map(feature, values[0])  # type: ignore[arg-type]
    return _decode_raw(feature, values[0])  # type: ignore[arg-type]


def _decode_text(feature: Feature, data: bytes) -> str:
    """Return the text of a value; in a path, bytes that are not UTF-8 become surrogates, as in `os.fsdecode`.

    Raises:
        CorruptionError: text that is not a path is not UTF-8; the caller adds the file and the offset.
    """
    try:
        return data.decode(errors="surrogateescape" if feature.name in _PATH_FEATURES else "strict")
    except UnicodeDecodeError as error:
        raise CorruptionError(
            "tf.train.Example",
            0,
            f"feature {feature.name!r}: the text is not UTF-8 ({error.reason} at its byte {error.start}). Convert the data"
            " again.",
        ) from None


def _decode_raw(feature: Feature, data: bytes) -> Decoded:
    """Return the array of a raw value; FeatureError if its size does not fit the feature."""
    dtype = np.dtype(feature.dtype).newbyteorder("<")
    if len(data) % dtype.itemsize:
        raise FeatureError(
            f"Feature {feature.name!r}: {len(data)} bytes (expected a multiple of {dtype.itemsize}). Convert the data again."
        )
    # A copy: an array over the record's bytes would be read-only, which PyTorch warns about.
    return _reshape(feature, np.frombuffer(data, dtype).astype(dtype.newbyteorder("=")))


def _reshape(feature: Feature, array: npt.NDArray[Any]) -> Decoded:
    """Return a record's values in the feature's shape, in which one dimension may vary; a scalar if the shape is ().

    Raises:
        FeatureError: the values do not fill the shape.
    """
    shape = [-1 if size is None else size for size in feature.shape]
    try:
        shaped = array.reshape(shape)
    except ValueError:
        raise FeatureError(
            f"Feature {feature.name!r}: {array.size} values (expected shape {feature.shape}). Convert the data again."
        ) from None
    # This index makes a scalar of an array without dimensions, and changes no other array.
    value: Decoded = shaped[()]
    return value


def _decode_image(feature: Feature, data: bytes) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image file: uint8 [height, width, channels].

    Raises:
        CorruptionError: the file does not decode; the caller adds the record's file and offset.
    """
    channels = feature.shape[2]
    assert channels is not None  # __init__ checks
    pixels = _decode_pixels(feature, data, _MODE_BY_CHANNEL_COUNT[channels])
    return pixels.reshape(pixels.shape[0], pixels.shape[1], channels)


def decode_label_map(feature: Feature, data: bytes) -> npt.NDArray[Any]:
    """Return the class of each pixel of a stored map, uint8 [height, width, 1]; int32 if the feature is uint16.

    Raises:
        CorruptionError: the map does not decode; the caller adds the record's file and offset.
        FeatureError: the map is a file of the wrong kind, whose values would not be the classes.
    """
    problem = find_label_map_problem(data, feature.dtype)
    if problem:
        raise FeatureError(f"Feature {feature.name!r} {problem}. Store it so, or declare the feature as an image.")
    classes = _decode_pixels(feature, data, mode=None)
    return classes.astype("uint8" if feature.dtype == "uint8" else "int32")[..., np.newaxis]


def _decode_pixels(feature: Feature, data: bytes, mode: str | None) -> npt.NDArray[Any]:
    """Decode an image file to one of Pillow's modes; with `mode` None, to the values as stored.

    Raises:
        CorruptionError: the file does not decode; the caller adds the record's file and offset.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.array(image if mode is None else image.convert(mode))
    # Pillow raises any of these for a damaged file.
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise CorruptionError(
            "tf.train.Example", 0, f"feature {feature.name!r}: the image does not decode: {error}"
        ) from None
