"""Facts about records from TensorFlow Datasets' metadata next to them: the classes, arrays and label maps among the features.

`features.json` is the Feature proto in JSON, `LABEL.labels.txt` has the names of classes, and `dataset_info.json` says which
feature is the label, see tpudata.format.tfds. The features of nested dictionaries have names with slashes in the records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from beam_jobs.stored_records.options import RawFeature, ReshardOptions
from tpudata.checked_json import parse_json
from tpudata.errors import SourceError
from tpudata.format.tfds import DATASET_INFO_NAME, FEATURES_NAME, labels_file_name
from tpudata.storage import storage_for

_MOST_CLASSES = 1 << 20


class TfdsFacts(NamedTuple):
    """Facts about the records of a folder.

    Attributes:
        label: name of the feature that is the label, or None.
        labels: its class names, or None.
        raw: features that hold the bytes of arrays.
        label_maps: features that hold the class of each pixel.
    """

    label: str | None = None
    labels: tuple[str, ...] | None = None
    raw: tuple[RawFeature, ...] = ()
    label_maps: tuple[str, ...] = ()


def add_tfds_facts(stored: ReshardOptions, inputs: Sequence[str]) -> ReshardOptions:
    """Return the options, completed from the TFDS metadata of the inputs.

    Raises:
        SourceError: the metadata of two inputs differ in this, or are damaged.
    """
    merged: TfdsFacts | None = None
    for path in inputs:
        facts = read_tfds(path)
        if facts is not None and merged is not None and facts != merged:
            raise SourceError(
                f"{path} and an input before it have other classes, arrays or label maps in {FEATURES_NAME}. Reshard them one by"
                " one."
            )
        merged = facts or merged
    if merged is None:
        return stored
    label, labels = (stored.label, stored.labels) if stored.labels is not None else (merged.label, merged.labels)
    own_names = {raw.name for raw in stored.raw} | {feature.name for feature in stored.features} | {*stored.label_maps}
    raw = (*stored.raw, *(feature for feature in merged.raw if feature.name not in own_names))
    label_maps = (*stored.label_maps, *(name for name in merged.label_maps if name not in own_names))
    return dataclasses.replace(stored, raw=raw, label_maps=label_maps, label=label, labels=labels)


def read_tfds(folder: str) -> TfdsFacts | None:
    """Return the facts in the metadata of a folder; None if it has none.

    Raises:
        SourceError: the metadata are damaged.
    """
    schema, info = (_read(folder, name) for name in (FEATURES_NAME, DATASET_INFO_NAME))
    if schema is None or info is None:
        return None
    try:
        features = dict(_list_leaves("", schema, in_list=False))
        label = _find_label(features, info)
        count = int(features[label]["classLabel"]["numClasses"]) if label is not None else 0
        raw = tuple(filter(None, (_parse_raw(name, feature) for name, feature in features.items())))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(
            f"{storage_for(folder).join(folder, FEATURES_NAME)}: not as TensorFlow Datasets writes it: {error!r}. Remove it, and"
            " pass --labels and --raw."
        ) from None
    maps = tuple(name for name, feature in features.items() if feature["pythonClassName"].endswith(".LabeledImage"))
    names = None if label is None or count > _MOST_CLASSES else _read_class_names(folder, label, count)
    return TfdsFacts(label if names else None, names, raw, maps)


def _read(folder: str, name: str) -> Mapping[str, Any] | None:
    """Return the object in a metadata file of a folder; None without one, SourceError if the file is not JSON."""
    storage = storage_for(folder)
    entry = storage.stat(folder)
    path = storage.join(folder, name)
    if entry is None or not entry.is_folder or storage.stat(path) is None:
        return None
    try:
        content = parse_json(storage.read(path))
    except ValueError as error:
        raise SourceError(f"{path}: not JSON: {error}. Download it again, or remove it.") from None
    return content if isinstance(content, dict) else None


def _list_leaves(name: str, feature: Any, *, in_list: bool) -> Iterator[tuple[str, Any]]:
    """Yield the features that records have, by their names in the records."""
    if "featuresDict" in feature:
        for key, inner in feature["featuresDict"]["features"].items():
            yield from _list_leaves(f"{name}/{key}" if name else key, inner, in_list=in_list)
    elif "sequence" in feature:
        yield from _list_leaves(name, feature["sequence"]["feature"], in_list=True)
    else:
        yield name, {**feature, "in_list": in_list}


def _find_label(features: Mapping[str, Any], info: Mapping[str, Any]) -> str | None:
    """Return the name of the label: the one of the supervised keys, or the only class of a record."""
    classes = [name for name, feature in features.items() if "classLabel" in feature and not feature["in_list"]]
    items = info.get("supervisedKeys", {}).get("tuple", {}).get("items", [])
    for class_feature in items[1:2]:
        if class_feature.get("featureKey") in classes:
            return str(class_feature["featureKey"])
    return classes[0] if len(classes) == 1 else None


def _read_class_names(folder: str, label: str, count: int) -> tuple[str, ...]:
    """Return the class names in a dataset's file of labels, or the numbers of the classes if there is no such file.

    Raises:
        SourceError: the number of names is not `count`.
    """
    storage = storage_for(folder)
    # The package has dashes between the names of nested features, and dots in place of slashes in a name.
    paths = [
        storage.join(folder, name) for name in (labels_file_name(label.replace("/", "-")), labels_file_name(label))
    ]
    path = next((path for path in paths if storage.stat(path) is not None), None)
    if path is None:
        return tuple(map(str, range(count)))
    names = tuple(storage.read(path).decode("utf-8-sig").splitlines())
    if len(names) != count:
        raise SourceError(
            f"{path} has {len(names):,} names of classes (expected {count:,}, as {FEATURES_NAME} says). Download it again, or pass"
            " --labels."
        )
    return names


def _parse_raw(name: str, feature: Mapping[str, Any]) -> RawFeature | None:
    """Return the array that a feature stores as raw bytes; None if it stores none, is in a list, or has an unknown dimension."""
    tensor = feature.get("tensor", {})
    sizes = [int(size) for size in tensor.get("shape", {}).get("dimensions", [])]
    if tensor.get("encoding") != "bytes" or feature["in_list"] or min(sizes, default=0) < 0:
        return None
    return RawFeature(name, tensor["dtype"], tuple(sizes))
