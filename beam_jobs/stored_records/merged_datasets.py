"""Merged metadata of several datasets: one schema, one list of classes, one tokenizer, or an error with the difference."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from beam_jobs.stored_records.options import ReshardOptions
from tpudata.errors import DatasetError, FeatureError, UsageError
from tpudata.format import Dataset, Feature
from tpudata.format.manifest.manifest import join_maxima
from tpudata.format.manifest.model_features import label_feature
from tpudata.format.tokenizer_file import tokenizer_files
from tpudata.storage import storage_for

_FIX = "Convert them alike, or reshard them one by one."


@dataclasses.dataclass(frozen=True)
class MergedDatasets:
    """Metadata that several datasets have in common.

    Attributes:
        datasets: the datasets, in order.
        layout: the feature layout of all datasets.
        features: the features of all datasets, with the number of classes that they have together.
        class_names: class names of all datasets together, or None without classes.
        label_numbers: by index of the dataset, as a string, the new label of each old one, both counted from 0; only for datasets
            whose labels change.
        options: those options of the earlier conversions that are equal in all manifests.
    """

    datasets: tuple[Dataset, ...]
    layout: str
    features: tuple[Feature, ...]
    class_names: tuple[str, ...] | None
    label_numbers: Mapping[str, tuple[int, ...]]
    options: Mapping[str, Any]

    @classmethod
    def merge(cls, datasets: Sequence[Dataset], options: ReshardOptions) -> MergedDatasets:
        """Merge the metadata of datasets, at least one.

        Raises:
            DatasetError: their layouts, tokenizers or classes do not fit each other.
            FeatureError: their features do not fit each other; the message names the feature.
            UsageError: their class names differ, and the options do not merge them.
        """
        first = datasets[0]
        for other in datasets[1:]:
            _check_alike(first, other)
        class_names, label_numbers = _merge_labels(datasets, options)
        return cls(
            tuple(datasets),
            first.manifest.layout,
            tuple(_merge_feature(feature, datasets, class_names) for feature in first.manifest.features),
            class_names,
            label_numbers,
            _find_common_options(datasets),
        )

    @property
    def compression(self) -> str | None:
        """The compression of all datasets; None if they differ in it, or are not compressed."""
        compressions = {dataset.manifest.compression for dataset in self.datasets}
        return compressions.pop() if len(compressions) == 1 else None

    @property
    def label(self) -> Feature | None:
        """The feature of the label: the first with classes or, if there is none, the label of the layout; None if it has none."""
        with_classes = (feature for feature in self.features if feature.num_classes is not None)
        return next(with_classes, None) or label_feature(self.datasets[0].manifest)

    @property
    def label_offset(self) -> int:
        """The label of the first class, which is the same in all datasets."""
        return _find_label_offset(self.datasets[0])

    @property
    def tokenizer_paths(self) -> tuple[tuple[str, str], ...]:
        """(name, path) of each of the tokenizer's files; empty if the datasets have none."""
        # All datasets have the same tokenizer.
        dataset = self.datasets[0]
        join = storage_for(dataset.path).join
        return tuple((file.name, join(dataset.path, file.name)) for file in tokenizer_files(dataset.manifest))

    def list_decoded_sizes(self) -> dict[str, tuple[int, int]]:
        """Return (number of decoded bytes, number of records) of each split, by `StoredRecord.origin`, such as `0/train`."""
        return {
            f"{index}/{name}": (split.decoded_bytes, split.records)
            for index, dataset in enumerate(self.datasets)
            for name, split in dataset.manifest.splits.items()
        }

    def sum_counts(self, selected_splits: Sequence[str] | None) -> dict[str, int]:
        """Return the counts for the manifest of the merged datasets, besides the record count of each split.

        These are the sums of the counts that all datasets have, and, if above 0, the count of records in quarantine and the count
        of inputs that the earlier conversions rejected.

        Args:
            selected_splits: the splits that are read, or None for all.
        """
        quarantined_count = sum(
            dataset.quarantine.for_shard(shard).count
            for dataset in self.datasets
            for name, split in dataset.manifest.splits.items()
            if selected_splits is None or name in selected_splits
            for shard in split.shards
        )
        rejected_count = sum(sum(dataset.manifest.rejected.values()) for dataset in self.datasets)
        totals: Counter[str] = Counter()
        common_names = set.intersection(*(set(dataset.manifest.counts) for dataset in self.datasets))
        for dataset in self.datasets:
            totals.update({name: count for name, count in dataset.manifest.counts.items() if name in common_names})
        for name, count in (("quarantined", quarantined_count), ("rejected_before", rejected_count)):
            if count:
                totals[name] += count
        return dict(sorted(totals.items()))

    def join_maxima(self) -> dict[str, int]:
        """Return the maximum number of entries of each feature of lists, except features for which a dataset does not state it."""
        return join_maxima(dataset.manifest for dataset in self.datasets)

    def count_converted(self) -> dict[str, int]:
        """Return the number of inputs that the earlier conversions re-encoded, by reason."""
        counts: Counter[str] = Counter()
        for dataset in self.datasets:
            counts.update(dataset.manifest.converted)
        return dict(counts)


def _check_alike(first: Dataset, other: Dataset) -> None:
    """Check that two datasets can be merged, apart from their classes.

    Raises:
        DatasetError: they differ in layout, label offset, tokenizer or chat template.
        FeatureError: their features differ, apart from the number of classes.
    """
    first_manifest, other_manifest = first.manifest, other.manifest
    if first_manifest.layout != other_manifest.layout:
        raise DatasetError(
            f"{other.path} has layout {other_manifest.layout!r}, {first.path} has {first_manifest.layout!r}. {_FIX}"
        )
    features, other_features = (
        {feature.name: feature for feature in manifest.features} for manifest in (first_manifest, other_manifest)
    )
    for name in sorted(features.keys() | other_features.keys()):
        if name not in features or name not in other_features:
            owner, other_dataset = (first, other) if name in features else (other, first)
            raise FeatureError(f"Feature {name!r}: {owner.path} has it, {other_dataset.path} does not. {_FIX}")
        if dataclasses.replace(features[name], num_classes=None) != dataclasses.replace(
            other_features[name], num_classes=None
        ):
            raise FeatureError(
                f"Feature {name!r}: {_describe(other_features[name])} in {other.path}, {_describe(features[name])} in"
                f" {first.path}. {_FIX}"
            )
    if _find_label_offset(first) != _find_label_offset(other):
        raise DatasetError(
            f"{other.path} counts labels from {_find_label_offset(other)}, {first.path} from {_find_label_offset(first)}. {_FIX}"
        )
    for name, kinds in (("tokenizer", "tokenizers"), ("chat_template", "chat templates")):
        if first_manifest.options.get(name) != other_manifest.options.get(name):
            raise DatasetError(f"{other.path} and {first.path} have different {kinds}. {_FIX}")


def _merge_feature(feature: Feature, datasets: Sequence[Dataset], class_names: Sequence[str] | None) -> Feature:
    """Return a feature of the first dataset with the number of classes that all datasets have together.

    That is the number of names, if each dataset has a name for every class of the feature; otherwise the maximum of the datasets'
    numbers, since a class without a name is identified by its number. It is None if a dataset does not state its number.
    """
    counts = [dataset.manifest.feature(feature.name).num_classes for dataset in datasets]
    # `Manifest.labels` is the number of classes that have names.
    named_counts = [dataset.manifest.labels for dataset in datasets]
    if class_names is not None and counts == named_counts:
        return dataclasses.replace(feature, num_classes=len(class_names))
    stated_counts = [count for count in counts if count is not None]
    return dataclasses.replace(feature, num_classes=max(stated_counts) if len(stated_counts) == len(counts) else None)


def _describe(feature: Feature) -> str:
    """Return the kind, encoding, dtype, shape and label offset of a feature, for a message about a difference."""
    words = [feature.kind, feature.encoding or "", feature.dtype, f"shape {feature.shape}"]
    if feature.label_offset:
        words.append(f"labels from {feature.label_offset}")
    return " ".join(filter(None, words))


def _find_label_offset(dataset: Dataset) -> int:
    """Return the label of the first class, from the first feature with classes or, if there is none, from the options."""
    offsets = [feature.label_offset for feature in dataset.manifest.features if feature.num_classes is not None]
    return offsets[0] if offsets else int(dataset.manifest.options.get("label_offset", 0))


def _merge_labels(
    datasets: Sequence[Dataset], options: ReshardOptions
) -> tuple[tuple[str, ...] | None, dict[str, tuple[int, ...]]]:
    """Return the merged class names, None if no dataset has classes, and `MergedDatasets.label_numbers`.

    Raises:
        DatasetError: only some datasets have classes, or labels would change and only some datasets have integers as class
            names.
        UsageError: a dataset's class names do not continue the merged ones or begin them, and `--merge-labels` was not passed.
    """
    all_names = [dataset.labels() for dataset in datasets]
    names_of_datasets = [names for names in all_names if names is not None]
    if not names_of_datasets:
        return None, {}
    if len(names_of_datasets) < len(all_names):
        path = datasets[all_names.index(None)].path
        raise DatasetError(f"{path} has no classes, and other inputs have. {_FIX}")
    merged_names = list(names_of_datasets[0])
    for names, dataset in zip(names_of_datasets[1:], datasets[1:], strict=True):
        # If one list continues the other, every class keeps its label.
        shorter, longer = sorted((merged_names, list(names)), key=len)
        if longer[: len(shorter)] == shorter:
            merged_names = longer
            continue
        if not options.merge_labels:
            # Neither list continues the other, so they differ at a label that both have.
            label = next(label for label in range(len(shorter)) if names[label] != merged_names[label])
            name, expected = names[label], merged_names[label]
            raise UsageError(
                f"{dataset.path}: its class names differ from those of {datasets[0].path} (got {name!r} for class {label}, expected"
                f" {expected!r}). Pass --merge-labels to number its labels anew by name."
            )
        merged_set = set(merged_names)
        merged_names += [name for name in names if name not in merged_set]
    labels_by_name = {name: label for label, name in enumerate(merged_names)}
    new_labels = {
        str(index): tuple(labels_by_name[name] for name in names) for index, names in enumerate(names_of_datasets)
    }
    # The datasets whose classes do not keep their labels.
    changed_labels = {index: labels for index, labels in new_labels.items() if labels != tuple(range(len(labels)))}
    if changed_labels and _have_numbers_and_names(names_of_datasets):
        path = datasets[int(next(iter(changed_labels)))].path
        raise DatasetError(
            f"{path}: some inputs have whole numbers for class names, which are labels themselves, and others have names;"
            f" nothing says which are the same classes. {_FIX}"
        )
    return tuple(merged_names), changed_labels


def _have_numbers_and_names(names_of_datasets: Sequence[Sequence[str]]) -> bool:
    """Return whether the class names of some datasets, but not of all, are the labels themselves: "0", "1" and so on."""
    names_are_labels = [list(names) == [str(label) for label in range(len(names))] for names in names_of_datasets]
    return any(names_are_labels) and not all(names_are_labels)


def _find_common_options(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Return the options that are equal in the manifests of all datasets."""
    first, *others = (dataset.manifest.options for dataset in datasets)
    # This object is unequal to every value of an option.
    missing = object()
    return {name: value for name, value in first.items() if all(other.get(name, missing) == value for other in others)}
