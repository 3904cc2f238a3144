"""Options of `tpudata reshard` for records, in addition to those of every conversion."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np

from beam_jobs.options import ConvertOptions, SplitShares
from beam_jobs.options.groups import FlagGroup
from beam_jobs.stored_records.foreign.declared_feature import DeclaredFeature
from tpudata.console.option import Stored, Value, option
from tpudata.errors import FeatureError, SourceError, UsageError
from tpudata.format import Feature
from tpudata.storage import storage_for

# Values of `--key`: a record's file and number, or a hash of its bytes. Any other value names a feature.
RECORD, CONTENT = "record", "content"


@dataclasses.dataclass(frozen=True)
class RawFeature:
    """A feature of a foreign TFRecord that is declared to be raw bytes of an array.

    Attributes:
        name: name of the feature.
        dtype: numpy name of the array's dtype.
        shape: shape of the array.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> RawFeature:
        """Parse `NAME=DTYPE:HxWxC`.

        Raises:
            UsageError: `text` has another form, or no array has this dtype.
        """
        name, equals, type_text = text.rpartition("=")
        dtype, _, sizes = type_text.partition(":")
        try:
            raw = cls(name, dtype, tuple(int(size) for size in sizes.split("x")) if sizes else ())
            if not name or not equals:
                raise ValueError
            # `Feature` raises if there are no arrays of this dtype and shape.
            Feature(name, "bytes", dtype, raw.shape, "raw")
        except (ValueError, FeatureError):
            raise UsageError(
                f"{text!r} does not describe an array (expected NAME=DTYPE:SHAPE, such as image_raw=uint8:28x28x1)"
            ) from None
        return raw

    @property
    def feature(self) -> Feature:
        """The feature as the manifest describes it."""
        return Feature(self.name, "bytes", self.dtype, self.shape, "raw")

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return int(np.dtype(self.dtype).itemsize) * math.prod(self.shape)


def _parse_key_file(text: str) -> tuple[str, str]:
    """Parse `SPLIT=FILE`, a file with the keys of a split; UsageError if `text` has another form, or no split can have the name."""
    name, equals, path = text.partition("=")
    if not equals or not path:
        raise UsageError(f"{text!r} is not NAME=FILE, such as validation=validation-keys.txt")
    SplitShares.check_name(name)
    return name, path


def _parse_split_names(text: str) -> tuple[str, ...]:
    """Parse `NAME,...`, dropping repeated names; UsageError if a name is empty."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in names:
        raise UsageError(f"{text!r} names an empty split (expected NAME,...)")
    return names


def _read_keys(path: str) -> frozenset[str]:
    """Return the keys in a file, one a line; SourceError if it is missing, not UTF-8 or empty."""
    entry = storage_for(path).stat(path)
    if entry is None or entry.is_folder:
        raise SourceError(f"--split-keys: {path} is not a file. Name a file with one key on each line.")
    try:
        lines = storage_for(path).read(path).decode().removeprefix("\ufeff").splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(f"--split-keys: {path} at byte {error.start} is not UTF-8. Save it as UTF-8.") from None
    keys = frozenset(line for line in lines if line)
    if not keys:
        raise SourceError(f"--split-keys: {path} lists no keys. Put one key on each line.")
    return keys


def _collect_keys(files: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """Return the keys of each split from pairs (split, path).

    Raises:
        UsageError: a split is repeated, or a key is in the lists of two splits.
        SourceError: a file is missing, not UTF-8 or empty.
    """
    keys_by_split: dict[str, frozenset[str]] = {}
    for split, path in files:
        if split in keys_by_split:
            raise UsageError(f"--split-keys: split {split} is named twice. Put all its keys into one file.")
        keys_by_split[split] = _read_keys(path)
    for (split, keys), (other_split, other_keys) in itertools.combinations(sorted(keys_by_split.items()), 2):
        if keys & other_keys:
            raise UsageError(
                f"--split-keys: {min(keys & other_keys)!r} is in the lists of {split} and {other_split}. Remove it from one."
            )
    return keys_by_split


def _hash_keys(keys_by_split: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Return a digest of each split's keys, which the manifest stores in place of the keys."""
    return {
        split: hashlib.blake2b("\n".join(sorted(keys)).encode(), digest_size=16).hexdigest()
        for split, keys in keys_by_split.items()
    }


def _raw_to_json(features: Iterable[RawFeature]) -> dict[str, list[str | int]]:
    """Return [dtype, *shape] of each array by name, for the manifest."""
    return {raw.name: [raw.dtype, *raw.shape] for raw in features}


def _declared_to_json(features: Iterable[DeclaredFeature]) -> dict[str, str]:
    """Return KIND or KIND:SHAPE of each declared feature by name, for the manifest."""
    return {declared.name: declared.text for declared in features}


@dataclasses.dataclass(frozen=True)
class ReshardOptions:
    """Options for stored records; `labels` are the class names in the file of `--labels`, or None without it.

    Raises:
        UsageError: options do not fit each other.
    """

    take: tuple[str, ...] | None = option(
        None,
        FlagGroup.INPUT,
        "read only these splits of the inputs (default: all)",
        Value("NAME,...", _parse_split_names),
        flag="--take-splits",
        stored=Stored(write=list, is_optional=True, name="take_splits"),
    )
    raw: tuple[RawFeature, ...] = option(
        (),
        FlagGroup.INPUT,
        "feature that holds the bytes of an array, such as image_raw=uint8:28x28x1; once for each feature",
        Value("NAME=DTYPE:SHAPE", RawFeature.parse),
        collect=tuple,
        stored=Stored(write=_raw_to_json, is_optional=True),
    )
    features: tuple[DeclaredFeature, ...] = option(
        (),
        FlagGroup.INPUT,
        "kind of a feature of other programs' TFRecords: int, float, str or bytes, with a shape whose first size may be N for"
        " any, such as boxes=float:Nx4; or ints, floats or strings for a list; once for each feature (default: what the"
        " values of all records show)",
        Value("NAME=KIND[:SHAPE]", DeclaredFeature.parse),
        flag="--feature",
        collect=tuple,
        stored=Stored(write=_declared_to_json, is_optional=True),
    )
    label_maps: tuple[str, ...] = option(
        (),
        FlagGroup.INPUT,
        "feature that holds the class of each pixel as a grey PNG, such as image/segmentation/class/encoded: readers change"
        " no value of it; once for each feature",
        Value("NAME"),
        flag="--label-map",
        collect=lambda names: tuple(dict.fromkeys(names)),
        stored=Stored(write=list, is_optional=True),
    )
    labels_file: str | None = option(
        None,
        FlagGroup.LABELS,
        "for other programs' TFRecords: class names, one a line, in the order of labels",
        Value("FILE"),
        flag="--labels",
    )
    label: str | None = option(
        None,
        FlagGroup.LABELS,
        "feature that holds the class (default: image/class/label, else label)",
        Value("FEATURE"),
        stored=Stored(is_optional=True),
    )
    merge_labels: bool = option(
        False,
        FlagGroup.LABELS,
        "merge datasets whose class names differ: number their labels anew by name",
        stored=Stored(is_optional=True),
    )
    key: str | None = option(
        None,
        FlagGroup.OUTPUT,
        "what --split and --split-keys know a record by: its file and number, a hash of its bytes, or a feature's value"
        " (default: image/filename in datasets of images, else record)",
        Value("record|content|FEATURE"),
        stored=Stored(is_optional=True),
    )
    split_keys: Mapping[str, frozenset[str]] = option(
        {},
        FlagGroup.OUTPUT,
        "put the records whose keys FILE lists, one a line, into split NAME; once for each split",
        Value("NAME=FILE", _parse_key_file),
        collect=_collect_keys,
        stored=Stored(write=_hash_keys, is_optional=True),
    )
    labels: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Raise UsageError if options do not fit each other."""
        feature_names = [feature.name for feature in self.features]
        raw_names = [raw.name for raw in self.raw]
        # A feature in --raw and in --label-map is an error once the input is known to have it.
        for flag, names, described_names in (
            ("--feature", feature_names, [*feature_names, *raw_names, *self.label_maps]),
            ("--raw", raw_names, raw_names),
        ):
            for name in names:
                if described_names.count(name) > 1:
                    raise UsageError(f"{flag} {name}: this feature is described twice. Omit one of the flags.")
        if self.key is not None and not self.key:
            raise UsageError("--key is empty (expected record, content or the name of a feature)")
        if self.label is not None and self.labels is None:
            raise UsageError(
                f"--label={self.label} is for the class names of --labels. Pass --labels, or omit --label."
            )

    def check_with(self, options: ConvertOptions) -> None:
        """Raise UsageError if the options of the conversion do not fit the options for stored records."""
        if self.key is not None and options.split is None and not self.split_keys:
            raise UsageError(f"--key={self.key} is for making splits. Pass --split or --split-keys, or omit --key.")
        if options.label_offset and self.labels is None:
            raise UsageError(
                "--label-offset is for the class names of --labels. Pass --labels, or omit --label-offset."
            )
