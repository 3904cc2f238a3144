"""TFDS metadata: what `tfds.builder_from_directory(DIR)` needs to read a dataset that tpudata wrote.

`dataset_info.json` follows the DatasetInfo proto and `features.json` the Feature proto of tensorflow_datasets
(core/proto/{dataset_info,feature}.proto) in proto3 JSON, where 64-bit integers are strings. Features keep their flat names, such
as `image/encoded`.
"""

from __future__ import annotations

import json
from typing import Any

from tpudata.format.features import Feature
from tpudata.format.manifest import Manifest

DATASET_INFO_NAME = "dataset_info.json"
FEATURES_NAME = "features.json"
_FILE_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"
_PACKAGE = "tensorflow_datasets.core.features"


def dataset_info(manifest: Manifest) -> bytes:
    """The bytes of `dataset_info.json`."""
    splits = [
        {
            "name": name,
            "shardLengths": [str(shard.records) for shard in split.shards],
            "numBytes": str(split.bytes),
            "filepathTemplate": _FILE_TEMPLATE,
        }
        for name, split in sorted(manifest.splits.items())
    ]
    return _json({"name": "tpudata", "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits})


def features(manifest: Manifest) -> bytes:
    """The bytes of `features.json`."""
    inner = {feature.name: _feature(feature) for feature in manifest.features}
    return _json({"pythonClassName": f"{_PACKAGE}.features_dict.FeaturesDict", "featuresDict": {"features": inner}})


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
