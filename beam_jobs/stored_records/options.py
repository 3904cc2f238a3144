"""Options of `tpudata reshard` for records, in addition to those of every conversion."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from beam_jobs.options import SplitShares
from beam_jobs.sources.classes import read_labels
from tpudata.console.flags import FlagParser, flag_type
from tpudata.errors import FeatureError, SourceError, UsageError
from tpudata.format import Feature
from tpudata.storage import storage_for

# What a record is known by: its file and number, or a hash of its bytes; any other value names a feature.
RECORD, CONTENT = "record", "content"


@dataclasses.dataclass(frozen=True)
class RawFeature:
    """A feature of a foreign TFRecord that is declared to be raw bytes of an array.

    Attributes:
        name: of the feature.
        dtype: numpy name of the array's dtype.
        shape: of the array.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> RawFeature:
        """Parse `NAME=DTYPE:HxWxC`.

        Raises:
            UsageError: the text has another form, or no array has this dtype.
        """
        name, equals, rest = text.rpartition("=")
        dtype, _, sizes = rest.partition(":")
        try:
            raw = cls(name, dtype, tuple(int(size) for size in sizes.split("x")) if sizes else ())
            if not name or not equals:
                raise ValueError
            Feature(name, "bytes", dtype, raw.shape, "raw")
        except (ValueError, FeatureError):
            raise UsageError(
                f"{text!r} does not describe an array (expected NAME=DTYPE:SHAPE, such as image_raw=uint8:28x28x1)"
            ) from None
        return raw

    @property
    def feature(self) -> Feature:
        """The feature as the manifest has it."""
        return Feature(self.name, "bytes", self.dtype, self.shape, "raw")

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return int(np.dtype(self.dtype).itemsize) * math.prod(self.shape)


@dataclasses.dataclass(frozen=True)
class ReshardOptions:
    """Options for stored records.

    Attributes:
        key: what a record is known by when splits are made: RECORD, CONTENT, the name of a feature, or None: the file name in
            the records of images, and RECORD otherwise.
        split_keys: by split, the keys of the records that go there.
        take: the splits of the inputs that are read; None for all.
        merge_labels: whether records of datasets with other class names are numbered anew.
        labels_file: names of the classes of foreign files, a line each; None for none.
        labels: these names.
        label: name of the feature that holds the class in foreign files; None for the usual names.
        raw: features of foreign files that hold arrays.
        label_maps: names of the features of foreign files that hold label maps.
    """

    key: str | None = None
    split_keys: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    take: tuple[str, ...] | None = None
    merge_labels: bool = False
    labels_file: str | None = None
    labels: tuple[str, ...] | None = None
    label: str | None = None
    raw: tuple[RawFeature, ...] = ()
    label_maps: tuple[str, ...] = ()

    def deciding(self) -> dict[str, Any]:
        """Return the options that decide what the shards hold, for the manifest: a JSON object."""
        lists = {
            name: hashlib.blake2b("\n".join(sorted(keys)).encode(), digest_size=16).hexdigest()
            for name, keys in self.split_keys.items()
        }
        found: dict[str, Any] = {
            "key": self.key,
            "split_keys": lists,
            "take_splits": self.take,
            "merge_labels": self.merge_labels,
            "label": self.label,
            "raw": {raw.name: [raw.dtype, *raw.shape] for raw in self.raw},
            "label_maps": self.label_maps,
        }
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items() if value}


def add_reshard_flags(parser: FlagParser) -> None:
    """Add the flags that `reshard_options` reads."""
    add = parser.add_argument
    add(
        "--key",
        metavar="record|content|FEATURE",
        help="what --split and --split-keys know a record by: its file and number, a hash of its bytes, or a feature's value"
        " (default: image/filename in datasets of images, else record)",
    )
    add(
        "--split-keys",
        action="append",
        default=[],
        type=flag_type("split", _split_keys),
        metavar="NAME=FILE",
        help="put the records whose keys FILE lists, one a line, into split NAME; once for each split",
    )
    add(
        "--take-splits",
        type=flag_type("splits", _split_names),
        metavar="NAME,...",
        help="read only these splits of the inputs (default: all)",
    )
    parser.add_switch(
        "--merge-labels",
        default=False,
        help="merge datasets whose class names differ: number their labels anew by name",
    )
    add(
        "--labels",
        metavar="FILE",
        help="for other programs' TFRecords: class names, one a line, in the order of labels",
    )
    add("--label", metavar="FEATURE", help="feature that holds the class (default: image/class/label, else label)")
    add("--label-offset", type=int, default=0, metavar="N", help="label of the first class of --labels (default 0)")
    add(
        "--raw",
        action="append",
        default=[],
        type=flag_type("feature", RawFeature.parse),
        metavar="NAME=DTYPE:SHAPE",
        help="feature that holds the bytes of an array, such as image_raw=uint8:28x28x1; once for each feature",
    )
    add(
        "--label-map",
        action="append",
        default=[],
        metavar="NAME",
        help="feature that holds the class of each pixel as a grey PNG, such as image/segmentation/class/encoded: readers change"
        " no value of it; once for each feature",
    )


def reshard_options(flags: argparse.Namespace) -> ReshardOptions:
    """Return the options that the flags of `add_reshard_flags` set.

    Raises:
        UsageError: two flags do not fit each other.
        SourceError: a file of keys or class names cannot be read.
    """
    keys: dict[str, frozenset[str]] = {}
    for name, path in flags.split_keys:
        if name in keys:
            raise UsageError(f"--split-keys: split {name} is named twice. Put all its keys into one file.")
        keys[name] = _read_keys(path)
    for name, found in keys.items():
        for other, others in keys.items():
            if name < other and found & others:
                raise UsageError(
                    f"--split-keys: {min(found & others)!r} is in the lists of {name} and {other}. Remove it from one."
                )
    if flags.key is not None and not flags.key:
        raise UsageError("--key is empty (expected record, content or the name of a feature)")
    if flags.key is not None and flags.split is None and not keys:
        raise UsageError(f"--key={flags.key} is for making splits. Pass --split or --split-keys, or omit --key.")
    if flags.label_offset and flags.labels is None:
        raise UsageError("--label-offset is for the class names of --labels. Pass --labels, or omit --label-offset.")
    if flags.label is not None and flags.labels is None:
        raise UsageError(f"--label={flags.label} is for the class names of --labels. Pass --labels, or omit --label.")
    return ReshardOptions(
        key=flags.key,
        split_keys=keys,
        take=flags.take_splits,
        merge_labels=flags.merge_labels,
        labels_file=flags.labels,
        labels=None if flags.labels is None else read_labels(flags.labels).names,
        label=flags.label,
        raw=tuple(flags.raw),
        label_maps=tuple(dict.fromkeys(flags.label_map)),
    )


def _split_keys(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals or not path:
        raise UsageError(f"{text!r} is not NAME=FILE, such as validation=validation-keys.txt")
    SplitShares.check_name(name)
    return name, path


def _split_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if "" in names:
        raise UsageError(f"{text!r} names an empty split (expected NAME,...)")
    return names


def _read_keys(path: str) -> frozenset[str]:
    found = storage_for(path).stat(path)
    if found is None or found.is_folder:
        raise SourceError(f"--split-keys: {path} is not a file. Name a file with one key on each line.")
    try:
        lines = storage_for(path).read(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(f"--split-keys: {path} at byte {error.start} is not UTF-8. Save it as UTF-8.") from None
    keys = frozenset(line for line in lines if line)
    if not keys:
        raise SourceError(f"--split-keys: {path} lists no keys. Put one key on each line.")
    return keys
