"""TFRecord files without a manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tpudata.errors import FeatureError, UsageError
from tpudata.format import Feature
from tpudata.format.tfrecord.frame_scan import Offsets, frame_offsets
from tpudata.input.dataset.fields import Fields
from tpudata.input.files.first_record import check_first_record
from tpudata.input.files.paths import Paths, check_label, check_paths
from tpudata.input.files.shards import Shards
from tpudata.input.options.columns import FeatureOptions
from tpudata.storage import Entry


@dataclasses.dataclass(frozen=True)
class TFRecordFiles:
    """TFRecord files of `tf.train.Example`s, or of any records that a parse function takes.

    `make_input_fn` rejects compressed files, in which records have no known offsets, and files with a damaged record length, after
    which the next record cannot be found.

    Attributes:
        files: a path, a pattern such as "data/train-*", or a sequence of these. Records are in the order of the sequence; files of
            a pattern are sorted by name.
        features: features that are read of each record, as `tpudata.format.Feature`s; not needed with a parse function.
        label: name of the feature that is yielded as labels, by default "label" or "image/class/label" if there is one.

    Raises:
        UsageError: an argument is of the wrong type.
        FeatureError: two features have the same name, or no feature has the name of the label.
    """

    files: Paths
    features: Sequence[Feature] = ()
    label: str | None = None

    def __post_init__(self) -> None:
        check_paths(self.files)
        if not isinstance(self.features, Sequence) or not all(isinstance(item, Feature) for item in self.features):
            got = type(self.features).__name__
            raise UsageError(
                f"features: not a sequence of tpudata.format.Feature (got {got}). Pass [Feature(...), ...]."
            )
        names = [feature.name for feature in self.features]
        if len(set(names)) != len(names):
            raise FeatureError(f"features: two have the same name: {', '.join(sorted(names))}. Omit one.")
        check_label(self.label, names)


class DescribedTFRecords(Shards):
    """The TFRecords of `TFRecordFiles`."""

    description: TFRecordFiles
    hint = record_hint = "Correct features= of TFRecordFiles, or pass parse= to make_input_fn."

    @staticmethod
    def scan(_: TFRecordFiles, file: Entry) -> Offsets:
        """Return where the records of a file begin, from their headers, which need no description."""
        return frame_offsets(file)

    @property
    def declared_features(self) -> Sequence[Feature]:
        """Features of the description."""
        return self.description.features

    def choose_fields(self, feature_options: FeatureOptions, **options: Any) -> Fields:
        """Return the fields of each record, from the features of the description, after a check of the first record.

        It raises what `SplitFiles.choose_fields` raises, and UsageError if the description has no features.
        """
        if not self.declared_features:
            raise UsageError(
                "TFRecordFiles: the features of the records are unknown. Pass features=[tpudata.format.Feature(...), ...] with"
                " it, or parse= to make_input_fn."
            )
        fields = super().choose_fields(feature_options, **options, label_name=self.description.label)
        check_first_record(self.dataset, self.split, fields, self.hint)
        return fields
