"""Facts about records from the metadata of TensorFlow Datasets next to them: classes, arrays and label maps.

`features.json` is the Feature proto in JSON, `LABEL.labels.txt` has the names of classes, and `dataset_info.json` names the
feature that is the label, see tpudata.format.tfds. In records, the features of nested dictionaries have names with slashes.
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

_MAX_CLASSES = 1 << 20


class TfdsFacts(NamedTuple):
    """Facts about the records of a folder.

    Attributes:
        label: name of the feature that is the label, or None.
        labels: its class names, or None.
        raw: features that hold the bytes of arrays.
        label_maps: names of the features that hold the class of each pixel.
    """

    label: str | None = None
    labels: tuple[str, ...] | None = None
    raw: tuple[RawFeature, ...] = ()
    label_maps: tuple[str, ...] = ()


def add_tfds_facts(options: ReshardOptions, inputs: Sequence[str]) -> ReshardOptions:
    """Return the options, completed from the TFDS metadata of the inputs; options that are set take precedence.

    Raises:
        SourceError: the facts of two inputs differ, or their metadata is damaged.
    """
    common_facts: TfdsFacts | None = None
    for path in inputs:
        facts = read_tfds_facts(path)
        if facts is not None and common_facts is not None and facts != common_facts:
            raise SourceError(
                f"{path} and an earlier input differ in their classes, arrays or label maps in {FEATURES_NAME}. Reshard them one by"
                " one."
            )
        common_facts = facts or common_facts
    if common_facts is None:
        return options
    # The label and the class names belong together, so both come from the same object.
    class_source = options if options.labels is not None else common_facts
    declared_names = (
        {raw.name for raw in options.raw} | {feature.name for feature in options.features} | {*options.label_maps}
    )
    raw = (*options.raw, *(feature for feature in common_facts.raw if feature.name not in declared_names))
    label_maps = (*options.label_maps, *(name for name in common_facts.label_maps if name not in declared_names))
    return dataclasses.replace(
        options, raw=raw, label_maps=label_maps, label=class_source.label, labels=class_source.labels
    )


def read_tfds_facts(folder: str) -> TfdsFacts | None:
    """Return the facts in the TFDS metadata of a folder; None if it has none.

    Raises:
        SourceError: the metadata is damaged.
    """
    schema, info = (_read_object(folder, name) for name in (FEATURES_NAME, DATASET_INFO_NAME))
    if schema is None or info is None:
        return None
    try:
        features = dict(_list_leaves("", schema, is_in_list=False))
        label = _find_label(features, info)
        class_count = int(features[label]["classLabel"]["numClasses"]) if label is not None else 0
        raw = tuple(filter(None, (_parse_raw(name, feature) for name, feature in features.items())))
        maps = tuple(name for name, feature in features.items() if feature["pythonClassName"].endswith(".LabeledImage"))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SourceError(
            f"{storage_for(folder).join(folder, FEATURES_NAME)}: not as TensorFlow Datasets writes it: {error!r}. Remove it, and"
            " pass --labels and --raw."
        ) from None
    # There are no names of more than `_MAX_CLASSES` classes: without a file of names, `_read_class_names` makes them, and a damaged
    # count may be huge.
    names = None if label is None or class_count > _MAX_CLASSES else _read_class_names(folder, label, class_count)
    # As with flags, a label is of use only with the names of its classes.
    return TfdsFacts(label if names else None, names, raw, maps)


def _read_object(folder: str, name: str) -> Mapping[str, Any] | None:
    """Return the JSON object in a metadata file of a folder; None if the file is missing or holds no JSON object.

    Raises:
        SourceError: the file is not JSON.
    """
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


def _list_leaves(name: str, feature: Any, *, is_in_list: bool) -> Iterator[tuple[str, Any]]:
    """Yield (name in the records, feature) of each feature that records have, with the key `is_in_list` added to the feature.

    Args:
        name: name of `feature` in the records; empty for the dictionary of all features.
        feature: the Feature proto in JSON.
        is_in_list: whether the feature lies in a sequence.
    """
    if "featuresDict" in feature:
        for key, inner in feature["featuresDict"]["features"].items():
            yield from _list_leaves(f"{name}/{key}" if name else key, inner, is_in_list=is_in_list)
    elif "sequence" in feature:
        yield from _list_leaves(name, feature["sequence"]["feature"], is_in_list=True)
    else:
        yield name, {**feature, "is_in_list": is_in_list}


def _find_label(features: Mapping[str, Any], info: Mapping[str, Any]) -> str | None:
    """Return the name of the label: the class that is the target of the supervised keys, or the only class; None without either."""
    class_features = [
        name for name, feature in features.items() if "classLabel" in feature and not feature["is_in_list"]
    ]
    # The items are the input, the target and perhaps the weight.
    supervised_keys = info.get("supervisedKeys", {}).get("tuple", {}).get("items", [])
    target = supervised_keys[1].get("featureKey") if len(supervised_keys) > 1 else None
    if target in class_features:
        return str(target)
    return class_features[0] if len(class_features) == 1 else None


def _read_class_names(folder: str, label: str, count: int) -> tuple[str, ...]:
    """Return the class names in a dataset's file of labels, or the numbers of the classes if that file does not exist.

    Raises:
        SourceError: the number of names is not `count`, or the file is not UTF-8.
    """
    storage = storage_for(folder)
    # TFDS has dashes between the names of nested features, and dots in place of slashes in a name.
    paths = [
        storage.join(folder, name) for name in (labels_file_name(label.replace("/", "-")), labels_file_name(label))
    ]
    path = next((path for path in paths if storage.stat(path) is not None), None)
    if path is None:
        return tuple(map(str, range(count)))
    try:
        names = tuple(storage.read(path).decode().removeprefix("\ufeff").splitlines())
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path}: not UTF-8 ({error.reason} at byte {error.start}). Download it again, or pass --labels."
        ) from None
    if len(names) != count:
        raise SourceError(
            f"{path} has {len(names):,} names of classes (expected {count:,}, as {FEATURES_NAME} says). Download it again, or pass"
            " --labels."
        )
    return names


def _parse_raw(name: str, feature: Mapping[str, Any]) -> RawFeature | None:
    """Return the array that a feature stores as raw bytes; None if it stores none, is in a list, or has an unknown size."""
    tensor = feature.get("tensor", {})
    # TFDS writes -1 for an unknown size.
    sizes = [int(size) for size in tensor.get("shape", {}).get("dimensions", [])]
    if tensor.get("encoding") != "bytes" or feature["is_in_list"] or min(sizes, default=0) < 0:
        return None
    return RawFeature(name, tensor["dtype"], tuple(sizes))
