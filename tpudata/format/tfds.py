"""TFDS metadata: what `tfds.builder_from_directory(DIR)` needs to read a dataset that tpudata wrote.

`dataset_info.json` follows the DatasetInfo proto and `features.json` the Feature proto of tensorflow_datasets
(core/proto/{dataset_info,feature}.proto) in proto3 JSON, where 64-bit integers are strings. Features keep their flat names, such
as `image/encoded`. Class names are in `DIR/LABEL.labels.txt`, such as `image.class.label.labels.txt`: TFDS finds them by the
feature's name, with dots for slashes (core/features/feature.py).

A split of TFDS is one run of numbered files, so what an append has added to a split is a split of its own there, called like its
files: `train` and `train-a001`. `split="train+train-a001"` reads both, and `split="all"` everything.

A shard that was planned and is not there, since all its inputs were refused, has the length 0, and TFDS passes over it
(tensorflow_datasets/core/utils/shard_utils.py).

TFDS reads no compressed TFRecord files (tensorflow_datasets/core/file_adapters.py), so a dataset of those has no such metadata.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tpudata.format.features import Feature
from tpudata.format.layout import place_of, prefix_of
from tpudata.format.manifest import Manifest, Shard
from tpudata.format.model_features import LABELS, fed_features, label_feature

DATASET_INFO_NAME = "dataset_info.json"
FEATURES_NAME = "features.json"
NAMES = (DATASET_INFO_NAME, FEATURES_NAME)
# Class names of the features that usually hold the label.
CLASS_NAMES = tuple(f"{name.replace('/', '.')}.labels.txt" for name in LABELS)
_FILE_TEMPLATE = "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"
_PACKAGE = "tensorflow_datasets.core.features"


def names(compression: str | None, *, labelled: bool = False) -> tuple[str, ...]:
    """Return the names of the files that TFDS may need; none if it would not read the shards."""
    if compression is not None:
        return ()
    return (*NAMES, *(CLASS_NAMES if labelled else ()))


def metadata(manifest: Manifest, labels: Sequence[str] | None) -> dict[str, bytes]:
    """Return the files that TFDS needs, by name.

    Args:
        manifest: of the dataset.
        labels: its class names; None if it has no classes.
    """
    if manifest.compression is not None:
        return {}
    found = {DATASET_INFO_NAME: dataset_info(manifest), FEATURES_NAME: features(manifest)}
    label = label_feature(manifest)
    if labels is not None and label is not None and label.num_classes == len(labels) and _are_class_names(labels):
        # Below the offset no label occurs; TFDS wants a name all the same.
        unused = [f"unused {number}" for number in range(label.label_offset)]
        if not {*unused} & {*labels}:
            name = CLASS_NAMES[LABELS.index(label.name)]
            found[name] = "".join(f"{item}\n" for item in (*unused, *labels)).encode()
    return found


def _are_class_names(labels: Sequence[str]) -> bool:
    """Return whether TFDS takes them: it strips names, ignores empty ones and rejects equal ones."""
    stripped = [name.strip() for name in labels]
    return all(stripped) and len({*stripped}) == len(stripped)


def dataset_info(manifest: Manifest, *, supervised: bool = True) -> bytes:
    """Return the bytes of `dataset_info.json`; without `supervised` as earlier versions wrote it."""
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
    info = {"name": "tpudata", "version": "1.0.0", "fileFormat": "tfrecord", "splits": splits}
    return _json({**info, **(_supervised_keys(manifest) if supervised else {})})


def _supervised_keys(manifest: Manifest) -> dict[str, Any]:
    """Return the features that `as_supervised=True` gives: the one that a model is fed, and the label."""
    label = label_feature(manifest)
    fed = fed_features(manifest, label)
    if label is None or len(fed) != 1:
        return {}
    return {"supervisedKeys": {"input": fed[0].name, "output": label.name}}


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
