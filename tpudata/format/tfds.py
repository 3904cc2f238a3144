"""TFDS metadata: what `tfds.builder_from_directory(DIR)` needs to read a dataset that tpudata wrote.

`dataset_info.json` follows the DatasetInfo proto and `features.json` the Feature proto of tensorflow_datasets
(core/proto/{dataset_info,feature}.proto) in proto3 JSON, where 64-bit integers are strings. Features keep their flat names, such
as `image/encoded`.

A split of TFDS is one run of numbered files, so what an append has added to a split is a split of its own there, called like its
files: `train` and `train-a001`. `split="train+train-a001"` reads both, and `split="all"` everything.

A shard that was planned and is not there, since all its inputs were refused, has the length 0, and TFDS passes over it
(tensorflow_datasets/core/utils/shard_utils.py).

TFDS reads no compressed TFRecord files (tensorflow_datasets/core/file_adapters.py), so a dataset of those has no such metadata.
"""

from __future__ import annotations

import json
from typing import Any

from tpudata.format.features import Feature
from tpudata.format.layout import place_of, prefix_of
from tpudata.format.manifest import Manifest, Shard

DATASET_INFO_NAME = "dataset_info.json"
FEATURES_NAME = "features.json"
NAMES = (DATASET_INFO_NAME, FEATURES_NAME)
_FILE_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"
_PACKAGE = "tensorflow_datasets.core.features"


def names(compression: str | None) -> tuple[str, ...]:
    """The names of the files that TFDS needs; none where it would not read the shards."""
    return NAMES if compression is None else ()


def metadata(manifest: Manifest) -> dict[str, bytes]:
    """The files of these names."""
    written = {DATASET_INFO_NAME: dataset_info, FEATURES_NAME: features}
    return {name: written[name](manifest) for name in names(manifest.compression)}


def dataset_info(manifest: Manifest) -> bytes:
    """The bytes of `dataset_info.json`."""
    runs: dict[str, list[Shard]] = {}
    for split in manifest.splits.values():
        for shard in split.shards:
            runs.setdefault(prefix_of(shard.name), []).append(shard)
    splits = [
        {
            "name": name,
            "shardLengths": _lengths(shards),
            "numBytes": str(sum(shard.bytes for shard in shards)),
            "filepathTemplate": _FILE_TEMPLATE,
        }
        for name, shards in sorted(runs.items())
    ]
    return _json({"name": "tpudata", "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits})


def features(manifest: Manifest) -> bytes:
    """The bytes of `features.json`."""
    inner = {feature.name: _feature(feature) for feature in manifest.features}
    return _json({"pythonClassName": f"{_PACKAGE}.features_dict.FeaturesDict", "featuresDict": {"features": inner}})


def _lengths(shards: list[Shard]) -> list[str]:
    """The records of all shards that were planned."""
    places = [place_of(shard.name) for shard in shards]
    lengths = ["0"] * max(count for _, count in places)
    for (number, _), shard in zip(places, shards, strict=True):
        lengths[number] = str(shard.records)
    return lengths


def _feature(feature: Feature) -> dict[str, Any]:
    if feature.encoding == "image":
        return {
            "pythonClassName": f"{_PACKAGE}.image_feature.Image",
            "image": {"dtype": feature.dtype, "shape": _shape(feature)},
        }
    if feature.dtype == "string" and feature.shape == ():
        return {"pythonClassName": f"{_PACKAGE}.text_feature.Text", "text": {}}
    if feature.num_classes is not None:
        return {
            "pythonClassName": f"{_PACKAGE}.class_label_feature.ClassLabel",
            "classLabel": {"numClasses": str(feature.num_classes + feature.label_offset)},
        }
    encoding = "bytes" if feature.encoding == "raw" else "none"
    kind = "scalar.Scalar" if feature.shape == () else "tensor_feature.Tensor"
    return {
        "pythonClassName": f"{_PACKAGE}.{kind}",
        "tensor": {"dtype": feature.dtype, "encoding": encoding, "shape": _shape(feature)},
    }


def _shape(feature: Feature) -> dict[str, list[str]]:
    return {"dimensions": [str(-1 if size is None else size) for size in feature.shape]} if feature.shape else {}


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
