"""TFDS metadata: the files that `tfds.builder_from_directory(DIR)` needs to read a dataset that tpudata wrote.

`tfds.load(NAME, data_dir=DATA_DIR)` and `seqio.TfdsDataSource` find a dataset in `DATA_DIR/NAME/VERSION`, such as
`data/pets/1.0.0`; a dataset in a folder of this form has the path's NAME and VERSION. `LABEL.labels.txt`, where LABEL is the name
of the feature with dots for slashes, holds the class names, a line for each label from 0: labels before the offset
have names such as `background`.

`dataset_info.json` follows the DatasetInfo proto and `features.json` the Feature proto of tensorflow_datasets
(core/proto/{dataset_info,feature}.proto) in proto3 JSON, where 64-bit integers are strings. Features keep their flat names, such
as `image/encoded`.

A split of TFDS is one run of numbered files, so the shards that an append adds to a split are a separate split there, named like
their files: `train` and `train-a001`. `split="train+train-a001"` reads both, and `split="all"` everything.

A planned shard that was not written because all its inputs were rejected has the length 0, and TFDS skips it
(tensorflow_datasets/core/utils/shard_utils.py).

TFDS reads no compressed TFRecord files (tensorflow_datasets/core/file_adapters.py), so a compressed dataset has no TFDS metadata.

A manifest of an earlier version has no `tfds`; the metadata next to it has neither class names nor supervised keys.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tpudata.format.layout import parse_number_and_count, parse_prefix
from tpudata.format.manifest.features import Feature
from tpudata.format.manifest.manifest import Manifest, Shard, list_shards

DATASET_INFO_NAME = "dataset_info.json"
FEATURES_NAME = "features.json"
NAMES = (DATASET_INFO_NAME, FEATURES_NAME)
LABELS_SUFFIX = ".labels.txt"
# The dataset's name and version, for a folder that has none in its path.
DEFAULT_NAME = "tpudata:1.0.0"
_NUMBER = r"(?:0|[1-9][0-9]*)"
_VERSION = rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
_FOLDER = re.compile(rf".*/([a-zA-Z][a-zA-Z0-9_]*)/({_VERSION})")
# Labels before the offset also get a line each. Readers that reserve labels reserve one; a huge offset would make a huge file.
_MAX_UNUSED_LABELS = 1000
_FILE_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"
_PACKAGE = "tensorflow_datasets.core.features"


def list_file_names(compression: str | None, schema: Iterable[Feature]) -> tuple[str, ...]:
    """Return the names of the files that TFDS may read next to the shards; empty if it does not read the shards.

    Args:
        compression: compression of the shards; TFDS reads only shards without compression.
        schema: features of the records; if exactly one has classes, there may be a file of its class names.
    """
    if compression is not None:
        return ()
    label = _find_label(schema)
    return NAMES if label is None else (*NAMES, labels_file_name(label.name))


def encode_files(manifest: Manifest, class_names: Sequence[str] | None) -> dict[str, bytes]:
    """Return the contents of TFDS's files, by name; empty if TFDS does not read the shards.

    Args:
        manifest: manifest of the dataset.
        class_names: class names in the order of their labels; None without classes.
    """
    if manifest.compression is not None:
        return {}
    files = {DATASET_INFO_NAME: encode_dataset_info(manifest), FEATURES_NAME: encode_features(manifest)}
    label = _find_label(manifest.features)
    # Earlier versions, whose manifests have no `tfds`, wrote no class names.
    if manifest.tfds is not None and label is not None and class_names is not None:
        label_names = _make_label_names(label, class_names)
        if label_names is not None:
            files[labels_file_name(label.name)] = "".join(f"{name}\n" for name in label_names).encode()
    return files


def find_tfds_name(folder: str) -> str:
    """Return the name and version, such as `pets:1.0.0`, under which TFDS finds a dataset in this folder, or the default."""
    is_complete = "://" in folder or posixpath.isabs(folder)
    path = folder if is_complete else posixpath.join(Path.cwd().as_posix(), folder)
    match = _FOLDER.fullmatch(path.rstrip("/"))
    return f"{match[1]}:{match[2]}" if match else DEFAULT_NAME


def encode_dataset_info(manifest: Manifest) -> bytes:
    """Return the content of `dataset_info.json`."""
    shards_by_prefix: dict[str, list[Shard]] = {}
    for shard in list_shards(manifest):
        shards_by_prefix.setdefault(parse_prefix(shard.name), []).append(shard)
    splits = [
        {
            "name": prefix,
            "shardLengths": _list_lengths(shards),
            "numBytes": str(sum(shard.bytes for shard in shards)),
            "filepathTemplate": _FILE_TEMPLATE,
        }
        for prefix, shards in sorted(shards_by_prefix.items())
    ]
    name, _, version = (manifest.tfds or DEFAULT_NAME).partition(":")
    info: dict[str, Any] = {"name": name, "version": version, "fileFormat": "tfrecord", "splits": splits}
    # The metadata of earlier versions, whose manifests have no `tfds`, name no supervised keys.
    keys = None if manifest.tfds is None else _find_supervised_keys(manifest.features)
    if keys is not None:
        info["supervisedKeys"] = {"tuple": {"items": [{"featureKey": key} for key in keys]}}
    return _encode_json(info)


def encode_features(manifest: Manifest) -> bytes:
    """Return the content of `features.json`."""
    features = {feature.name: _describe_feature(feature) for feature in manifest.features}
    return _encode_json(
        {"pythonClassName": f"{_PACKAGE}.features_dict.FeaturesDict", "featuresDict": {"features": features}}
    )


def labels_file_name(feature_name: str) -> str:
    """Return the name of the file with the class names of a feature."""
    # As TFDS names it (tensorflow_datasets/core/features/feature.py, convert_feature_name_to_filename).
    return f"{feature_name.replace('/', '.')}{LABELS_SUFFIX}"


def _find_label(schema: Iterable[Feature]) -> Feature | None:
    """Return the only feature with a number of classes; None if no feature or several have one, or its name is not printable."""
    class_features = [feature for feature in schema if feature.num_classes is not None]
    return class_features[0] if len(class_features) == 1 and class_features[0].name.isprintable() else None


def _find_supervised_keys(schema: Sequence[Feature]) -> tuple[str, str] | None:
    """Return the names of the input and the label for `as_supervised=True`.

    The input is the image, or without images the only feature that is not the label. Returns None unless there is exactly one
    input and one label, and the label is a scalar.
    """
    label = _find_label(schema)
    candidates = [feature for feature in schema if feature is not label]
    images = [feature for feature in candidates if feature.encoding == "image" or feature.name == "image_raw"]
    inputs = images or candidates
    if label is None or label.shape != () or len(inputs) != 1:
        return None
    return inputs[0].name, label.name


def _make_label_names(label: Feature, class_names: Sequence[str]) -> list[str] | None:
    """Return a name for each label from 0.

    Returns None if TFDS cannot hold the names, since it strips white space and requires distinct names that are not empty, or if
    the label offset is above 1,000.
    """
    offset = label.label_offset
    if offset > _MAX_UNUSED_LABELS:
        return None
    unused_names = ["background" if offset == 1 else f"background_{number}" for number in range(offset)]
    # Class names are kept unchanged, so the names of the unused labels are changed while one of them equals a class name.
    while {*unused_names} & {*class_names}:
        unused_names = [f"{name}_" for name in unused_names]
    names = [*unused_names, *class_names]
    stripped_names = {name.strip() for name in names}
    return names if len(stripped_names) == len(names) and "" not in stripped_names else None


def _list_lengths(shards: list[Shard]) -> list[str]:
    """Return the number of records, in digits, of each planned shard of one prefix; "0" if the shard was not written."""
    numbers_and_counts = [parse_number_and_count(shard.name) for shard in shards]
    lengths = ["0"] * max(count for _, count in numbers_and_counts)
    for (number, _), shard in zip(numbers_and_counts, shards, strict=True):
        lengths[number] = str(shard.records)
    return lengths


def _describe_feature(feature: Feature) -> dict[str, Any]:
    """Return the entry of a feature in features.json."""
    if feature.encoding == "image":
        return {
            "pythonClassName": f"{_PACKAGE}.image_feature.Image",
            "image": {"dtype": feature.dtype, "shape": _describe_shape(feature)},
        }
    if feature.is_label_map:
        # LabeledImage would require a number of classes. With the colour map, TFDS shows classes as colours.
        return {
            "pythonClassName": f"{_PACKAGE}.image_feature.Image",
            "image": {
                "dtype": feature.dtype,
                "shape": _describe_shape(feature),
                "encodingFormat": "png",
                "useColormap": True,
            },
        }
    if feature.dtype == "string" and feature.shape == ():
        return {"pythonClassName": f"{_PACKAGE}.text_feature.Text", "text": {}}
    # TFDS's ClassLabel is int64, a scalar or a list; other labels are described like other features.
    if feature.num_classes is not None and feature.kind == "int64" and len(feature.shape) < 2:
        # TFDS counts classes from 0, so labels before the offset are also classes.
        label = {
            "pythonClassName": f"{_PACKAGE}.class_label_feature.ClassLabel",
            "classLabel": {"numClasses": str(feature.num_classes + feature.label_offset)},
        }
        if feature.shape == ():
            return label
        # The length -1 stands for a length that varies; it also allows lists that are always empty.
        return {
            "pythonClassName": f"{_PACKAGE}.sequence_feature.Sequence",
            "sequence": {"feature": label, "length": str(feature.shape[0] or -1)},
        }
    encoding = "bytes" if feature.encoding == "raw" else "none"
    class_name = "scalar.Scalar" if feature.shape == () else "tensor_feature.Tensor"
    return {
        "pythonClassName": f"{_PACKAGE}.{class_name}",
        "tensor": {"dtype": feature.dtype, "encoding": encoding, "shape": _describe_shape(feature)},
    }


def _describe_shape(feature: Feature) -> dict[str, list[str]]:
    """Return the shape of a feature in features.json: empty for a scalar, and -1 for a dimension that varies."""
    return {"dimensions": [str(-1 if size is None else size) for size in feature.shape]} if feature.shape else {}


def _encode_json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
