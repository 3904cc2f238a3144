"""Adding to a dataset: checks that new inputs fit it, and the manifest of both together.

New inputs become separate shards, `train-a001-00000-of-00003.tfrecord`, and existing shards are not touched. Only labels.txt (if
there are new classes), the TFDS metadata and, last, the manifest are replaced, each atomically and in this order, so that a reader
in between, or after a kill, finds the old dataset.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from beam_jobs.options import ConvertOptions
from beam_jobs.output.folder import reject_different_options
from beam_jobs.planning.plan import Plan, make_plan
from beam_jobs.planning.tally import Tally, is_fingerprint, join_fingerprints
from beam_jobs.references.labels import Labels, check_classes, is_integer_label
from tpudata.console.tables import count_text
from tpudata.errors import FeatureError, OutputError
from tpudata.format import Dataset, Feature, Manifest, Shard, Source, Split, open_dataset
from tpudata.format.layout import parse_append
from tpudata.format.manifest.manifest import MANIFEST_NAME, join_maxima
from tpudata.format.manifest.parts import RESTORE

if TYPE_CHECKING:
    from beam_jobs.image_records.annotated.schema import AnnotationSchema

# Options that may differ from those of the dataset, since they only change the sizes of shards.
_SHARD_SIZE_OPTIONS = ("num_shards", "shard_bytes", "shards_multiple_of")


@dataclasses.dataclass(frozen=True)
class Base:
    """The dataset that an append adds to.

    Attributes:
        output: folder of the dataset.
        manifest: manifest of the dataset.
        labels: its class names; None if it has no classes.
        labels_file: path of the file of `--labels`, which fixes the classes; None if it was not passed.
        path_options: names of the options that are paths, which may differ from those of the dataset.
    """

    output: str
    manifest: Manifest
    labels: tuple[str, ...] | None
    labels_file: str | None = None
    path_options: frozenset[str] = frozenset()

    @classmethod
    def open(
        cls,
        output: str,
        deciding_options: Mapping[str, Any],
        *,
        layout: str,
        path_options: frozenset[str] = frozenset(),
    ) -> Base:
        """Open a complete dataset.

        Args:
            output: folder of the dataset.
            deciding_options: the options that would determine the content of the new shards.
            layout: the feature layout that new records would have.
            path_options: names of the options that are paths.

        Raises:
            OutputError: the dataset differs in layout or options, was written by a job that keeps no keys, or has a damaged
                fingerprint of its source.
        """
        dataset = open_dataset(output)
        manifest = dataset.manifest
        if manifest.layout != layout:
            raise OutputError(
                f"--append: {output} has the layout {manifest.layout!r}, and new records would have {layout!r}. Name another"
                " folder."
            )
        if not manifest.keys:
            if "reshard" in manifest.options:
                raise OutputError(
                    f"--append: {output} does not say what it was made from (index/*.keys): `tpudata reshard` wrote it. Append to"
                    " a dataset that `tpudata convert` wrote, and reshard it again."
                )
            raise OutputError(
                f"--append: {output} does not say what it was made from (index/*.keys): WriteTFRecordShards or an earlier version"
                " wrote it. Pass --overwrite to convert everything again, or name another folder."
            )
        if not is_fingerprint(manifest.source.fingerprint):
            raise OutputError(
                f"--append: {output}/{MANIFEST_NAME}: the fingerprint of the source is not as it was written (got"
                f" {manifest.source.fingerprint!r}, expected 32 hexadecimal digits). {RESTORE}"
            )
        # Files may have moved, as the input may; their content is compared. New shards may differ in size from the existing ones.
        moved_paths = {name for name in path_options if manifest.options.get(name) and deciding_options.get(name)}
        free_options = {*_SHARD_SIZE_OPTIONS, *moved_paths}
        stored_options, new_options = (
            {name: value for name, value in options.items() if name not in free_options}
            for options in (manifest.options, deciding_options)
        )
        reject_different_options(output, stored_options, new_options, flag="--append")
        return cls(output, manifest, dataset.labels(), deciding_options.get("labels_file"), path_options)

    def check_features(self, features: tuple[Feature, ...]) -> None:
        """Raise OutputError if the features of new records differ in more than sizes and the number of classes."""
        _reject_different_features(self.output, self.manifest.features, features)

    def check_annotations(self, schema: AnnotationSchema | None) -> None:
        """Raise OutputError if new pictures and new objects both have classes: labels.txt lists only those of pictures."""
        if schema is not None and schema.has_unlisted_classes:
            raise OutputError(
                f"--append: pictures and objects have classes, and {self.output}/labels.txt lists only those of pictures, so new"
                " objects cannot be numbered like the existing ones. Pass --overwrite to convert everything again, or name another"
                " folder."
            )

    @property
    def dataset(self) -> Dataset:
        """The dataset, opened."""
        return Dataset(self.output, self.manifest)

    @property
    def number(self) -> int:
        """The number of this append: one more than the number of the last complete append."""
        # Earlier versions counted no appends in the manifest, and an append without new inputs has no shards with its number.
        return 1 + max([self.manifest.appends, *map(parse_append, self.manifest.shard_names())])

    def list_shard_names(self, plan: Plan) -> set[str]:
        """Return the file names of the existing shards and of the shards in `plan`."""
        return self.manifest.shard_names() | plan.shard_names(self.number)

    def extend_labels(self, labels: Labels, has_integer_labels: bool) -> Labels:
        """Return the classes of the dataset in their order, followed by the new ones; `labels` unchanged with `--labels`.

        Args:
            labels: the classes of the input.
            has_integer_labels: whether the classes of the input are integers that are the labels themselves.

        Raises:
            OutputError: labels of existing records would have to change, or integers are the classes of only the dataset or
                only the input.
            SourceError: a new label is so large that almost all classes would be empty.
        """
        old_names = self.labels or ()
        if self.labels_file is not None:
            if labels.names[: len(old_names)] != old_names:
                raise OutputError(
                    f"--append: --labels {self.labels_file} does not begin with the"
                    f" {count_text(len(old_names), 'class', 'classes')} of"
                    f" {self.output}, in their order, which its records are numbered by. Add new names after them."
                )
            return labels
        # Fast to search: there may be many classes.
        old_name_set = set(old_names)
        names = (*old_names, *(name for name in labels.names if name not in old_name_set))
        text_name = next((name for name in labels.names if not is_integer_label(name)), None)
        if text_name is not None and old_names and old_names == _list_integer_labels(len(old_names)):
            raise OutputError(
                f"--append: the classes of {self.output} are whole numbers, which are labels themselves, and the input has the"
                f" class {text_name!r}. Write its number, or name another folder."
            )
        if has_integer_labels and names != _list_integer_labels(len(names)):
            raise OutputError(
                f"--append: the classes of the input are whole numbers, which are labels themselves, and those of {self.output}"
                f" have names, such as {old_names[0]!r}. Write names, or name another folder."
            )
        if has_integer_labels:
            check_classes(len(names) - 1, len(old_names), f"--append to {self.output}")
        return Labels(names)

    def merge(self, added: Manifest) -> Manifest:
        """Return the manifest of the dataset together with the added shards.

        Args:
            added: manifest of the append, whose splits have only the new shards.

        Raises:
            FeatureError: raw values differ in shape from those of the dataset.
        """
        old, new = self.manifest, added
        splits = {
            name: _join_splits(old.splits.get(name), new.splits.get(name))
            for name in sorted({*old.splits, *new.splits})
        }
        # Features are matched by name: flags may name the fields in another order. Without new shards there are no new features.
        features = {feature.name: feature for feature in (new.features if new.splits else old.features)}
        source = Source(
            input=new.source.input,
            files=old.source.files + new.source.files,
            bytes=old.source.bytes + new.source.bytes,
            fingerprint=join_fingerprints(old.source.fingerprint, new.source.fingerprint),
            ignored_files=new.source.ignored_files,
        )
        # The labels and the files of rejects of the new manifest are those of the whole dataset already.
        return dataclasses.replace(
            old,
            splits=splits,
            features=tuple(_merge_features(old_feature, features[old_feature.name]) for old_feature in old.features),
            source=source,
            created_by=new.created_by,
            # The next append finds the files where this one did.
            options={
                name: new.options.get(name, value) if name in self.path_options else value
                for name, value in old.options.items()
            },
            labels=new.labels,
            rejected=_add_counts(old.rejected, new.rejected),
            rejects=new.rejects,
            converted=_add_counts(old.converted, new.converted),
            appends=self.number,
            counts=_add_counts(old.counts, new.counts),
            # A manifest without records has no maxima, and would remove those of the other manifest.
            maxima=join_maxima(manifest for manifest in (old, new) if manifest.splits),
            warnings={**old.warnings, **new.warnings},
        )


@dataclasses.dataclass(frozen=True)
class AppendResult:
    """Result of an append.

    Attributes:
        before: manifest before the append.
        after: manifest after the append; equal to `before` if nothing was new.
        stored_count: number of inputs that have a record in `before`; None if the runner does not report it.
    """

    before: Manifest
    after: Manifest
    stored_count: int | None

    @property
    def new_shards(self) -> dict[str, tuple[Shard, ...]]:
        """The added shards of each split that has some; they come after the earlier ones."""
        earlier_counts = {name: len(split.shards) for name, split in self.before.splits.items()}
        shards = {name: split.shards[earlier_counts.get(name, 0) :] for name, split in self.after.splits.items()}
        return {name: added_shards for name, added_shards in shards.items() if added_shards}

    @property
    def new_warnings(self) -> dict[str, str]:
        """The warnings of the manifest that the append added or changed, by kind."""
        return {kind: line for kind, line in self.after.warnings.items() if self.before.warnings.get(kind) != line}

    def count_new(self, field: Literal["rejected", "converted", "counts"]) -> dict[str, int]:
        """Return by how much the append raised the counts in a field of the manifest, omitting counts that it did not raise."""
        return dict(Counter(getattr(self.after, field)) - Counter(getattr(self.before, field)))


def plan_append(tally: Tally, ratios: Mapping[str, float], options: ConvertOptions, overhead: int) -> Plan:
    """Return the plan of the new shards. Unlike in `make_plan`, there may be no inputs at all, or no inputs for a split.

    Args:
        tally: tally of all references to new inputs.
        ratios: by split, bytes of a record's content in a shard over its bytes in the input; 1 for a split without a ratio.
        options: options with the size or number of shards.
        overhead: bytes of a record in a shard besides its content, names and extra features.

    Raises:
        UsageError: the requested number of shards cannot be made.
    """
    if not tally.splits:
        return Plan(splits={}, input_count=0, bytes=0, fingerprint=tally.fingerprint)
    # With shares, `make_plan` would require a record in each of their splits.
    return make_plan(tally, ratios, dataclasses.replace(options, split=None), overhead)


def _list_integer_labels(class_count: int) -> tuple[str, ...]:
    """Return the class names "0", "1" and so on, which are the labels themselves."""
    return tuple(map(str, range(class_count)))


def _add_counts(counts: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted((Counter(counts) + Counter(other)).items()))


def _join_splits(old: Split | None, new: Split | None) -> Split:
    """Return a split with the old shards, then the new ones; an argument is None if its dataset lacks the split."""
    splits = [split for split in (old, new) if split is not None]
    shards = tuple(shard for split in splits for shard in split.shards)
    return Split(shards, sum(split.decoded_bytes for split in splits))


def _reject_different_features(output: str, old: tuple[Feature, ...], new: tuple[Feature, ...]) -> None:
    """Raise OutputError if two schemas differ in more than sizes and the number of classes."""
    old_kinds, new_kinds = ({feature.name: _describe_kind(feature) for feature in features} for features in (old, new))
    for name in [*old_kinds, *new_kinds]:
        old_kind, new_kind = (kinds.get(name, "missing") for kinds in (old_kinds, new_kinds))
        if old_kind != new_kind:
            raise OutputError(
                f"--append: feature {name!r} of {output} is {old_kind}, and in new records it would be {new_kind}. Bring the"
                " input's columns in line, or name another folder."
            )


def _describe_kind(feature: Feature) -> str:
    """Return the kind of a feature, which an append cannot change, in words such as `image uint8` or `list of int64`.

    Sizes and the number of classes are omitted, since new records may change them.
    """
    if feature.is_one_value:
        return f"{feature.encoding} {feature.dtype}"
    return f"{'list of ' if feature.shape else ''}{feature.dtype}"


def _merge_features(old: Feature, new: Feature) -> Feature:
    """Return the feature that describes the values of both features: sizes that differ become None, channels the larger number.

    Raises:
        FeatureError: raw values differ in shape.
    """
    if old.encoding == "raw" and old.shape != new.shape:
        raise FeatureError(
            f"Feature {old.name!r}: existing records have shape {old.shape}, new ones {new.shape}. Layout raw needs images of one"
            " size: resize the new ones, or take them out of the input."
        )
    shape = [size if size == new_size else None for size, new_size in zip(old.shape, new.shape, strict=True)]
    old_channels, new_channels = (feature.shape[2] if feature.encoding == "image" else None for feature in (old, new))
    if old_channels is not None and new_channels is not None:
        # Unlike sides, different channels do not become None: readers decode every image to the largest number of them.
        shape[2] = max(old_channels, new_channels)
    return dataclasses.replace(new, shape=tuple(shape))
