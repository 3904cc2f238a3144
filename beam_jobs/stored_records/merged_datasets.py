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

_ACTION = "Convert them alike, or reshard them one by one."


@dataclasses.dataclass(frozen=True)
class MergedDatasets:
    """Common metadata of several datasets.

    Attributes:
        datasets: the datasets, in order.
        layout: layout of all.
        features: features of all.
        class_names: class names of all together, or None without classes.
        label_numbers: by index of the dataset, the new label of each old one; only of datasets whose labels change.
        options: options of the conversions that made them, as far as these agree.
    """

    datasets: tuple[Dataset, ...]
    layout: str
    features: tuple[Feature, ...]
    class_names: tuple[str, ...] | None
    label_numbers: Mapping[str, tuple[int, ...]]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, datasets: Sequence[Dataset], options: ReshardOptions) -> MergedDatasets:
        """Merge datasets.

        Raises:
            DatasetError: their layouts, tokenizers or classes do not fit each other.
            FeatureError: their features do not; names the feature.
            UsageError: their class names differ, and the options do not merge them.
        """
        first = datasets[0]
        for other in datasets[1:]:
            _check_alike(first, other)
        names, numbers = _merge_labels(datasets, options)
        features = tuple(_merge_feature(feature, datasets, names) for feature in first.manifest.features)
        return cls(tuple(datasets), first.manifest.layout, features, names, numbers, _find_common_options(datasets))

    @property
    def compression(self) -> str | None:
        """The compression of all; None if they differ."""
        compressions = {dataset.manifest.compression for dataset in self.datasets}
        return compressions.pop() if len(compressions) == 1 else None

    @property
    def label(self) -> Feature | None:
        """The feature of the label."""
        by_classes = (feature for feature in self.features if feature.num_classes is not None)
        return next(by_classes, None) or label_feature(self.datasets[0].manifest)

    @property
    def label_offset(self) -> int:
        """The label of the first class."""
        return _label_offset(self.datasets[0])

    @property
    def tokenizer(self) -> tuple[tuple[str, str], ...]:
        """(name, path) of each of the tokenizer's files."""
        dataset = self.datasets[0]
        join = storage_for(dataset.path).join
        return tuple((file.name, join(dataset.path, file.name)) for file in tokenizer_files(dataset.manifest))

    def list_decoded_sizes(self) -> dict[str, tuple[int, int]]:
        """Return (decoded bytes, records) of each split, by the dataset's index and the split: `0/train`."""
        return {
            f"{index}/{name}": (split.decoded_bytes, split.records)
            for index, dataset in enumerate(self.datasets)
            for name, split in dataset.manifest.splits.items()
        }

    def counts(self, take: Sequence[str] | None) -> dict[str, int]:
        """Return the counts of a manifest besides records, if every record is carried over.

        Args:
            take: the splits that are read, or None for all.
        """
        omitted = sum(
            dataset.quarantine.for_shard(shard).count
            for dataset in self.datasets
            for name, split in dataset.manifest.splits.items()
            if take is None or name in take
            for shard in split.shards
        )
        rejected = sum(sum(dataset.manifest.rejected.values()) for dataset in self.datasets)
        totals: Counter[str] = Counter()
        common_names = set.intersection(*(set(dataset.manifest.counts) for dataset in self.datasets))
        for dataset in self.datasets:
            totals.update({name: count for name, count in dataset.manifest.counts.items() if name in common_names})
        for name, count in (("quarantined", omitted), ("rejected_before", rejected)):
            if count:
                totals[name] += count
        return dict(sorted(totals.items()))

    def maxima(self) -> dict[str, int]:
        """Return the most entries of each feature of lists; without those that a dataset does not state."""
        return join_maxima(dataset.manifest for dataset in self.datasets)

    def count_converted(self) -> dict[str, int]:
        """Return the number of inputs that were re-encoded, by reason."""
        counts: Counter[str] = Counter()
        for dataset in self.datasets:
            counts.update(dataset.manifest.converted)
        return dict(counts)


def _check_alike(first: Dataset, other: Dataset) -> None:
    """Raise an error if two datasets differ.

    Raises:
        DatasetError: they differ in layout, label offset, tokenizer or chat template.
        FeatureError: their features differ, apart from the number of classes.
    """
    first_manifest, other_manifest = first.manifest, other.manifest
    if first_manifest.layout != other_manifest.layout:
        raise DatasetError(
            f"{other.path} has layout {other_manifest.layout!r}, {first.path} has {first_manifest.layout!r}. {_ACTION}"
        )
    features, other_features = (
        {feature.name: feature for feature in manifest.features} for manifest in (first_manifest, other_manifest)
    )
    for name in sorted(features.keys() | other_features.keys()):
        if name not in features or name not in other_features:
            has, lacks = (first, other) if name in features else (other, first)
            raise FeatureError(f"Feature {name!r}: {has.path} has it, {lacks.path} does not. {_ACTION}")
        if dataclasses.replace(features[name], num_classes=None) != dataclasses.replace(
            other_features[name], num_classes=None
        ):
            raise FeatureError(
                f"Feature {name!r}: {_describe(other_features[name])} in {other.path}, {_describe(features[name])} in"
                f" {first.path}. {_ACTION}"
            )
    if _label_offset(first) != _label_offset(other):
        raise DatasetError(
            f"{other.path} counts labels from {_label_offset(other)}, {first.path} from {_label_offset(first)}. {_ACTION}"
        )
    for name, kinds in (("tokenizer", "tokenizers"), ("chat_template", "chat templates")):
        if first_manifest.options.get(name) != other_manifest.options.get(name):
            raise DatasetError(f"{other.path} and {first.path} have different {kinds}. {_ACTION}")


def _merge_feature(feature: Feature, datasets: Sequence[Dataset], names: Sequence[str] | None) -> Feature:
    """Return a feature of the first dataset with the number of classes that all datasets have together.

    That is the number of names, if each dataset has a name for every class of the feature; otherwise the largest number, since a
    label without a name is named by its number. A dataset may leave the number of classes open.
    """
    numbers = [dataset.manifest.feature(feature.name).num_classes for dataset in datasets]
    if names is not None and numbers == [dataset.manifest.labels for dataset in datasets]:
        return dataclasses.replace(feature, num_classes=len(names))
    declared = [number for number in numbers if number is not None]
    return dataclasses.replace(feature, num_classes=max(declared) if len(declared) == len(numbers) else None)


def _describe(feature: Feature) -> str:
    words = [feature.kind, feature.encoding or "", feature.dtype, f"shape {feature.shape}"]
    if feature.label_offset:
        words.append(f"labels from {feature.label_offset}")
    return " ".join(filter(None, words))


def _label_offset(dataset: Dataset) -> int:
    by_feature = [feature.label_offset for feature in dataset.manifest.features if feature.num_classes is not None]
    return by_feature[0] if by_feature else int(dataset.manifest.options.get("label_offset", 0))


def _merge_labels(
    datasets: Sequence[Dataset], options: ReshardOptions
) -> tuple[tuple[str, ...] | None, dict[str, tuple[int, ...]]]:
    """Return the merged class names, and the new labels of the old ones for each dataset whose labels change.

    Raises:
        DatasetError: only some datasets have classes, or only some have whole numbers as class names.
        UsageError: class names differ, and `--merge-labels` was not passed.
    """
    labels = [dataset.labels() for dataset in datasets]
    names_of_datasets = [names for names in labels if names is not None]
    if not names_of_datasets:
        return None, {}
    if len(names_of_datasets) < len(labels):
        without = datasets[labels.index(None)].path
        raise DatasetError(f"{without} has no classes, and other inputs have. {_ACTION}")
    names = list(names_of_datasets[0])
    for mine, dataset in zip(names_of_datasets[1:], datasets[1:], strict=True):
        shorter, longer = sorted((names, list(mine)), key=len)
        if longer[: len(shorter)] == shorter:
            names = longer
            continue
        if not options.merge_labels:
            number = next((n for n, (a, b) in enumerate(zip(names, mine, strict=False)) if a != b), 0)
            raise UsageError(
                f"{dataset.path} has other class names than {datasets[0].path} (got {mine[number]!r} for class {number}, expected"
                f" {names[number]!r}). Pass --merge-labels to number its labels anew by name."
            )
        known_names = set(names)
        names += [name for name in mine if name not in known_names]
    label_of_name = {name: number for number, name in enumerate(names)}
    labels_of_datasets = {
        str(number): tuple(label_of_name[name] for name in mine) for number, mine in enumerate(names_of_datasets)
    }
    changed = {number: new for number, new in labels_of_datasets.items() if new != tuple(range(len(new)))}
    if changed and _are_numbers(names_of_datasets):
        first = datasets[int(next(iter(changed)))].path
        raise DatasetError(
            f"{first}: some inputs have whole numbers for class names, which are labels themselves, and others have names;"
            f" nothing says which are the same classes. {_ACTION}"
        )
    return tuple(names), changed


def _are_numbers(names_of_datasets: Sequence[Sequence[str]]) -> bool:
    """Return whether some datasets, but not all, have class names that are integers equal to the labels."""
    plain = [list(names) == [str(number) for number in range(len(names))] for names in names_of_datasets]
    return any(plain) and not all(plain)


def _find_common_options(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Return the options that are equal in all of the conversions."""
    first, *others = (dataset.manifest.options for dataset in datasets)
    missing = object()
    return {name: value for name, value in first.items() if all(other.get(name, missing) == value for other in others)}
