"""The manifest: what exactly is in a dataset. It is written last, so a folder that has one is complete.

`DIR/manifest.json`, UTF-8 JSON with sorted keys:

    checksum         CRC-32C of this file, taken while these eight digits are zeros
    format_version   int, 1
    created_by       the version of tpudata that wrote it
    layout           "imagenet", ...: which features stand for image, label, ...
    splits           {name: {"shards": [{"name", "records", "bytes", "crc32c"}, ...], "decoded_bytes": int}}
    features         [Feature.to_json(), ...]
    labels           the number of classes, or null; their names are in labels.txt
    labels_crc32c    CRC-32C of labels.txt, or null
    rejected         {reason: count}
    options          the conversion's options that decide the bytes
    source           {"input", "files", "bytes", "fingerprint", "ignored_files"}

`crc32c` is the CRC-32C of the whole shard file; every checksum is eight lower-case hexadecimal digits. There is no time stamp:
the same inputs and options give the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import google_crc32c

from tpudata.errors import DatasetError
from tpudata.format._manifest_json import check_manifest_json
from tpudata.format.features import Feature
from tpudata.format.layout import is_shard_name, is_split_name

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
# A line of its own, with the indentation of the outermost object: JSON has no line breaks inside strings.
_CHECKSUM = re.compile(rb'(?<=\n "checksum": ")[0-9a-f]{8}(?=",\n)')
_NO_CHECKSUM = "00000000"


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file of a split.

    Attributes:
        name: file name inside the dataset's folder, such as `train-00000-of-00012.tfrecord`.
        records: number of records; never 0.
        bytes: size of the file.
        crc32c: CRC-32C of the file's bytes, as an unsigned 32-bit integer.

    Raises:
        DatasetError: the name is not of the form of `shard_name`, or the shard is empty.
    """

    name: str
    records: int
    bytes: int
    crc32c: int

    def __post_init__(self) -> None:
        # Readers open what a manifest names, and --overwrite deletes it: a name must never lead out of the folder.
        if not is_shard_name(self.name):
            raise DatasetError(
                f"Shard {self.name!r}: a shard is a file of the dataset's own folder, called"
                " SPLIT-NNNNN-of-NNNNN.tfrecord. Restore the manifest, or convert the dataset again."
            )
        if self.records <= 0 or self.bytes <= 0:
            raise DatasetError(
                f"Shard {self.name}: {self.records} records in {self.bytes} bytes; a shard is never empty."
            )


@dataclasses.dataclass(frozen=True)
class Split:
    """A named part of a dataset, such as `train`.

    Attributes:
        shards: in order.
        decoded_bytes: what all records take once decoded (images as uint8), each picture in its own size and channels. What a
            reader makes of them may take more: it brings all to one shape.
    """

    shards: tuple[Shard, ...]
    decoded_bytes: int = 0

    @property
    def records(self) -> int:
        """Number of records in all shards."""
        return sum(shard.records for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Size of all shards on disk, in bytes."""
        return sum(shard.bytes for shard in self.shards)


@dataclasses.dataclass(frozen=True)
class Source:
    """What a dataset was made from.

    Attributes:
        input: the input as it was given.
        files: number of input records found.
        bytes: their size.
        fingerprint: digest over the sorted (key, size) of every input record; equal for equal listings.
        ignored_files: how many files were passed over by name (hidden files, `Thumbs.db`).
    """

    input: str
    files: int
    bytes: int
    fingerprint: str
    ignored_files: int = 0


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What is in a dataset; the module's docstring says how it stands on disk.

    Raises:
        DatasetError: the parts do not fit each other.
    """

    layout: str
    splits: Mapping[str, Split]
    features: tuple[Feature, ...]
    source: Source
    created_by: str
    labels: int | None = None
    rejected: Mapping[str, int] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    labels_crc32c: int | None = None

    def __post_init__(self) -> None:
        _check_version(self.format_version)
        for name in self.splits:
            if not is_split_name(name):
                raise DatasetError(
                    f"Split {name!r}: allowed are letters, digits and _.- with no dot or dash in front. Restore the"
                    " manifest, or convert the dataset again."
                )
        names = [shard.name for split in self.splits.values() for shard in split.shards]
        if len(set(names)) != len(names):
            raise DatasetError("The manifest names a shard twice.")
        if len({feature.name for feature in self.features}) != len(self.features):
            raise DatasetError("The manifest names a feature twice.")

    @property
    def records(self) -> int:
        """Number of records in all splits."""
        return sum(split.records for split in self.splits.values())

    def split(self, name: str) -> Split:
        """The split called `name`; DatasetError names the splits there are."""
        try:
            return self.splits[name]
        except KeyError:
            raise DatasetError(f"No split {name!r}; the dataset has {', '.join(self.splits)}.") from None

    def feature(self, name: str) -> Feature:
        """The feature called `name`; DatasetError names the features there are."""
        for feature in self.features:
            if feature.name == name:
                return feature
        raise DatasetError(f"No feature {name!r}; the dataset has {', '.join(f.name for f in self.features)}.")

    def to_bytes(self) -> bytes:
        """The manifest as it stands on disk."""
        value = {
            "checksum": _NO_CHECKSUM,
            "format_version": self.format_version,
            "created_by": self.created_by,
            "layout": self.layout,
            "splits": {name: _split_to_json(split) for name, split in self.splits.items()},
            "features": [feature.to_json() for feature in self.features],
            "labels": self.labels,
            "labels_crc32c": None if self.labels_crc32c is None else f"{self.labels_crc32c:08x}",
            "rejected": dict(self.rejected),
            "options": dict(self.options),
            "source": dataclasses.asdict(self.source),
        }
        data = (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
        return _CHECKSUM.sub(b"%08x" % google_crc32c.value(data), data, count=1)

    @classmethod
    def from_bytes(cls, data: bytes, path: str = MANIFEST_NAME) -> Manifest:
        """Parses what `to_bytes` wrote.

        Args:
            data: the file's bytes.
            path: where they come from, for messages.

        Raises:
            DatasetError: not a manifest (names the field that does not fit), or one of another format version.
        """
        try:
            value = json.loads(data)
            # First: the keys and types below are those of this version.
            if isinstance(value, dict) and isinstance(value.get("format_version"), int):
                _check_version(value["format_version"])
            check_manifest_json(value)
            labels_crc32c = value.get("labels_crc32c")
            return cls(
                format_version=value["format_version"],
                created_by=value["created_by"],
                layout=value["layout"],
                splits={name: _split_from_json(split) for name, split in sorted(value["splits"].items())},
                features=tuple(Feature.from_json(feature) for feature in value["features"]),
                labels=value["labels"],
                rejected=value["rejected"],
                options=value["options"],
                source=Source(**value["source"]),
                labels_crc32c=None if labels_crc32c is None else int(labels_crc32c, 16),
            )
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}") from None
        except (ValueError, RecursionError) as error:
            reason = "its JSON is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise DatasetError(
                f"{path} is not a manifest: {reason}. Convert the dataset again, or restore the file."
            ) from None


def checksum_fits(data: bytes) -> bool | None:
    """Whether the bytes of a manifest are those that `Manifest.to_bytes` wrote; None where they have no checksum to tell by."""
    found = _CHECKSUM.search(data)
    if found is None:
        return None
    zeroed = data[: found.start()] + _NO_CHECKSUM.encode() + data[found.end() :]
    return bool(google_crc32c.value(zeroed) == int(found[0], 16))


def _check_version(version: int) -> None:
    if version != FORMAT_VERSION:
        raise DatasetError(
            f"Manifest of format version {version}; this tpudata reads version {FORMAT_VERSION}."
            " Read it with the tpudata that wrote it, or convert again."
        )


def _split_to_json(split: Split) -> dict[str, Any]:
    shards = [{**dataclasses.asdict(shard), "crc32c": f"{shard.crc32c:08x}"} for shard in split.shards]
    return {"shards": shards, "decoded_bytes": split.decoded_bytes}


def _split_from_json(value: dict[str, Any]) -> Split:
    shards = tuple(Shard(**{**shard, "crc32c": int(shard["crc32c"], 16)}) for shard in value["shards"])
    return Split(shards=shards, decoded_bytes=value["decoded_bytes"])
