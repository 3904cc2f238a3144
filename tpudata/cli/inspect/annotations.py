"""Annotations, as `tpudata inspect` shows them: their kinds, by the features, and their counts in the first records of a split."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tpudata.format import Dataset, Feature
from tpudata.format.manifest.annotation_features import caption_feature, count_entries, object_tables

# Records in which annotations are counted: no more are read of a large dataset.
COUNTED_RECORDS = 100
_CLASSES, _POINTS = "/class/", "/keypoint/"


def annotation_kinds(features: Sequence[Feature]) -> dict[str, list[str]]:
    """Return the kinds of annotations, by the prefix or name of the features that have them."""
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
        `records` that were read; of objects `objects`, `most_objects` of a record, `without_objects` (records) and `classes`
        (objects by class, the most frequent first); of captions `captions` and `most_captions`. None without objects and captions.

    Raises:
        CorruptionError: one of the records is damaged.
    """
    features, names = dataset.manifest.features, dataset.labels() or ()
    tables, captions = object_tables(features), caption_feature(features)
    table = next(iter(tables), None)
    if table is None and captions is None:
        return None
    examples = list(itertools.islice(dataset.examples(split), COUNTED_RECORDS))
    counts: dict[str, Any] = {"records": len(examples)}
    if table is not None:
        objects = [table.count(example) for example in examples]
        counts |= {
            "objects": sum(objects),
            "most_objects": max(objects, default=0),
            "without_objects": objects.count(0),
        }
        classes = Counter(name for example in examples for name in table.class_names(example, names))
        counts["classes"] = dict(classes.most_common())
    if captions is not None:
        sizes = [count_entries(captions, example.get(captions.name, ())) for example in examples]
        counts |= {"captions": sum(sizes), "most_captions": max(sizes, default=0)}
    return counts


def _find_kind(part: str, feature: Feature) -> str:
    if _CLASSES in part or part == "/label":
        return "classes"
    if _POINTS in part:
        return "keypoints" if len(feature.shape) == 1 else f"{feature.shape[1]} keypoints"
    if part == "/mask":
        return "masks"
    return part.rpartition("/")[2]
