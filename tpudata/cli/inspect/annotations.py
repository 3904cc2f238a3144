"""Annotations, as `tpudata inspect` shows them: their kinds by feature, and their counts in the first records of a split."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tpudata.format import Dataset, Feature
from tpudata.format.manifest.annotation_features import caption_feature, count_entries, object_tables

# Annotations are counted in at most this number of records of a split, so that a large dataset takes no longer.
_MAX_COUNTED_RECORDS = 100
# Parts of the names of features with classes and with keypoints.
_CLASSES, _POINTS = "/class/", "/keypoint/"


def find_annotation_kinds(features: Sequence[Feature]) -> dict[str, list[str]]:
    """Return the kinds of annotations, such as `boxes`, by the name of their feature or the prefix that their features share."""
    kinds_by_feature = {}
    for table in object_tables(features):
        kinds = ["boxes"] if table.box_columns else []
        for feature in table.columns:
            kind = _find_kind(feature.name.removeprefix(table.prefix), feature)
            if kind not in kinds and feature not in table.box_columns:
                kinds.append(kind)
        kinds_by_feature[table.prefix] = kinds
    captions = caption_feature(features)
    if captions is not None:
        kinds_by_feature[captions.name] = ["captions"]
    return kinds_by_feature | {feature.name: ["label map"] for feature in features if feature.is_label_map}


def count_annotations(dataset: Dataset, split: str) -> dict[str, Any] | None:
    """Count the objects and captions in the first records of a split.

    Returns:
        An object with `records`, the number of records that were read; for a dataset with objects also `objects`, `most_objects`
        (of a record), `without_objects` (records) and `classes` (objects by class, the most frequent first); for a dataset with
        captions also `captions` and `most_captions` (of a record). None for a dataset with neither.

    Raises:
        CorruptionError: one of the records is damaged.
    """
    features, class_names = dataset.manifest.features, dataset.labels() or ()
    captions = caption_feature(features)
    # Of several tables of objects, the first is counted.
    table = next(iter(object_tables(features)), None)
    if table is None and captions is None:
        return None
    examples = list(itertools.islice(dataset.examples(split), _MAX_COUNTED_RECORDS))
    counts: dict[str, Any] = {"records": len(examples)}
    if table is not None:
        object_counts = [table.count(example) for example in examples]
        classes = Counter(name for example in examples for name in table.class_names(example, class_names))
        counts |= {
            "objects": sum(object_counts),
            "most_objects": max(object_counts, default=0),
            "without_objects": object_counts.count(0),
            "classes": dict(classes.most_common()),
        }
    if captions is not None:
        caption_counts = [count_entries(captions, example.get(captions.name, ())) for example in examples]
        counts |= {"captions": sum(caption_counts), "most_captions": max(caption_counts, default=0)}
    return counts


def _find_kind(suffix: str, feature: Feature) -> str:
    """Return the kind of annotation in a feature of objects, in the plural: "classes", "keypoints", "17 keypoints" or "masks".

    For other features, the kind is the last part of the name, such as "is_crowd".

    Args:
        suffix: name of the feature after the prefix that all features of the objects share, such as `/keypoint/x`.
        feature: the feature; the shape of keypoints is part of their kind.
    """
    if _CLASSES in suffix or suffix == "/label":
        return "classes"
    if _POINTS in suffix:
        # The shape is (None, keypoints), or (None,) for a flat list of the keypoints of all objects.
        return "keypoints" if len(feature.shape) == 1 else f"{feature.shape[1]} keypoints"
    if suffix == "/mask":
        return "masks"
    return suffix.rpartition("/")[2]
