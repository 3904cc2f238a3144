"""The manifest of a dataset: its exact contents. It is written last, so a folder that has one is complete.

`DIR/manifest.json`, UTF-8 JSON with sorted keys:

    checksum         CRC-32C of this file, taken while these eight digits are zeros
    format_version   int, 1
    created_by       the version of tpudata that wrote it
    layout           "imagenet", ...: name of the set of features
    compression      null, or "gzip": compression of every shard file
    splits           {name: {"shards": [{"name", "records", "bytes", "crc32c"}, ...], "decoded_bytes": int}}
    features         [Feature.to_json(), ...]
    labels           the number of classes, or null; their names are in labels.txt
    labels_crc32c    CRC-32C of labels.txt, or null
    rejected         {reason: count}
    rejects          names of the files in rejects/ for rejected inputs that belong to no shard
    converted        {reason: count} of inputs that were re-encoded
    appends          int, number of appends
    counts           {what: count} of a conversion of text: documents, tokens, padding, dropped and unknown tokens, duplicates;
                     of `tpudata reshard`: quarantined records that were omitted, inputs that were rejected_before
    real_token_share tokens divided by tokens plus padding, in sequences of one length: follows from counts; missing for
                     other layouts
    maxima           {feature: count} of lists of any length: no record has more entries; missing for other features, and
                     if they were not counted
    warnings         {kind: line} about the conversion's input; missing without any
    keys             whether index/ has the keys of every shard, see tpudata.format.shards.keys
    dali_index       whether index/ has an index for DALI of every shard, see tpudata.format.shards.dali_index
    tfds             name and version for TFDS, such as "pets:1.0.0", or null; see tpudata.format.tfds
    options          the conversion's options that decide the bytes
    source           {"input", "files", "bytes", "fingerprint", "ignored_files"}

`bytes` and `crc32c` are the size and the CRC-32C of the whole shard file, compressed or not; every checksum is eight lower-case
hexadecimal digits. There is no time stamp: the same inputs and options give the same bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from tpudata.checked_json import INT64_MAX, parse_json
from tpudata.console.tables import count_text
from tpudata.errors import DatasetError
from tpudata.format.checksums import NO_CHECKSUM, insert_checksum
from tpudata.format.layout import (
    MAX_SHARDS,
    is_listing_rejects,
    is_split_name,
    parse_number_and_count,
    parse_prefix,
    shard_stem,
)
from tpudata.format.manifest.features import Feature
from tpudata.format.manifest.json_check import check_manifest_json
from tpudata.format.manifest.parts import RESTORE, Shard, Source, Split
from tpudata.format.tfrecord.framing import FRAME_BYTES
from tpudata.format.tfrecord.gzip_blocks import GZIP, MAX_RATIO

__all__ = ["FORMAT_VERSION", "MANIFEST_NAME", "Manifest", "Shard", "Source", "Split", "join_maxima", "list_shards"]

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
# Layouts whose records consist of several inputs, or of parts of them.
_MIXED_LAYOUTS = ("sequences", "packed", "packed_pairs")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Contents of a dataset; the module's docstring describes the file.

    Raises:
        DatasetError: a part is invalid, or the parts do not fit each other.
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
    compression: str | None = None
    rejects: tuple[str, ...] = ()
    keys: bool = False
    converted: Mapping[str, int] = dataclasses.field(default_factory=dict)
    appends: int = 0
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tfds: str | None = None
    dali_index: bool = False
    warnings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    maxima: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_version(self.format_version)
        if self.compression not in (None, GZIP):
            raise DatasetError(
                f"Unknown compression (got {self.compression!r}, expected null or {GZIP!r}). Update tpudata."
            )
        for name in self.splits:
            if not is_split_name(name):
                raise DatasetError(
                    f"Split {name!r}: invalid name (expected letters, digits and _.-, the first no dot or dash). {RESTORE}"
                )
        shards = list_shards(self)
        # Shards whose names differ only in their ending would share an index.
        if len({shard_stem(shard.name) for shard in shards}) != len(shards):
            raise DatasetError(f"The manifest names a shard twice. {RESTORE}")
        if sum(shard.records for shard in shards) > INT64_MAX or sum(shard.bytes for shard in shards) > INT64_MAX:
            raise DatasetError(f"The manifest counts more than 2**63 - 1 records or bytes. {RESTORE}")
        if len({feature.name for feature in self.features}) != len(self.features):
            raise DatasetError(f"The manifest names a feature twice. {RESTORE}")
        for name in self.rejects:
            # --overwrite deletes these files, so their names must not lead out of the folder.
            if not is_listing_rejects(name):
                raise DatasetError(
                    f"File of rejected inputs {name!r}: invalid name (expected listing-HEXDIGITS.jsonl). {RESTORE}"
                )

    @property
    def records(self) -> int:
        """Number of records in all splits."""
        return sum(split.records for split in self.splits.values())

    @property
    def real_token_share(self) -> float | None:
        """Tokens divided by tokens plus padding, in sequences of one length; None if the dataset has no such sequences."""
        if "padding" not in self.counts:
            return None
        token_count = self.counts.get("tokens", 0)
        # 0 for a dataset that has neither tokens nor padding.
        return token_count / max(1, token_count + self.counts["padding"])

    @property
    def is_one_to_one(self) -> bool:
        """Whether each input that was not rejected has its own record."""
        return self.layout not in _MIXED_LAYOUTS

    def shard_names(self) -> set[str]:
        """Return the file names of the shards of all splits."""
        return {shard.name for shard in list_shards(self)}

    def split(self, name: str) -> Split:
        """Return the split called `name`; DatasetError if it does not exist."""
        try:
            return self.splits[name]
        except KeyError:
            raise DatasetError(f"No split {name!r}; the dataset has {', '.join(self.splits)}.") from None

    def feature(self, name: str) -> Feature:
        """Return the feature called `name`; DatasetError if it does not exist."""
        for feature in self.features:
            if feature.name == name:
                return feature
        raise DatasetError(f"No feature {name!r}; the dataset has {', '.join(f.name for f in self.features)}.")

    def to_bytes(self) -> bytes:
        """Return the manifest as stored on disk."""
        value = {
            "checksum": NO_CHECKSUM,
            "format_version": self.format_version,
            "created_by": self.created_by,
            "layout": self.layout,
            "compression": self.compression,
            "splits": {name: _split_to_json(split) for name, split in self.splits.items()},
            "features": [feature.to_json() for feature in self.features],
            "labels": self.labels,
            "labels_crc32c": None if self.labels_crc32c is None else f"{self.labels_crc32c:08x}",
            "rejected": dict(self.rejected),
            "rejects": list(self.rejects),
            "converted": dict(self.converted),
            "appends": self.appends,
            "counts": dict(self.counts),
            "keys": self.keys,
            "tfds": self.tfds,
            "dali_index": self.dali_index,
            "options": dict(self.options),
            "source": dataclasses.asdict(self.source),
        }
        if self.maxima:
            value["maxima"] = dict(self.maxima)
        if self.warnings:
            value["warnings"] = dict(self.warnings)
        if self.real_token_share is not None:
            value["real_token_share"] = round(self.real_token_share, 6)
        # backslashreplace makes a JSON escape of a lone surrogate, which stands for a byte of a file name that is not UTF-8.
        data = (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode(
            errors="backslashreplace"
        )
        return insert_checksum(data)

    @classmethod
    def from_bytes(cls, data: bytes, path: str = MANIFEST_NAME) -> Manifest:
        """Parse what `to_bytes` wrote. The checksum is not compared: `verify` does that.

        Args:
            data: the file's bytes.
            path: path of the file, for messages.

        Raises:
            DatasetError: the bytes are not a manifest (the message names the wrong field), or a manifest of another format version.
        """
        try:
            value = parse_json(data)
            # The version is checked first, since the keys and types below are those of this version.
            if isinstance(value, dict) and isinstance(value.get("format_version"), int):
                _check_version(value["format_version"])
            check_manifest_json(value)
            # Manifests of earlier versions lack the keys that have a default here.
            labels_crc32c = value.get("labels_crc32c")
            manifest = cls(
                format_version=value["format_version"],
                created_by=value["created_by"],
                layout=value["layout"],
                compression=value["compression"],
                splits={name: _split_from_json(split) for name, split in sorted(value["splits"].items())},
                features=tuple(Feature.from_json(feature) for feature in value["features"]),
                labels=value["labels"],
                rejected=value["rejected"],
                options=value["options"],
                source=Source(**value["source"]),
                labels_crc32c=None if labels_crc32c is None else int(labels_crc32c, 16),
                rejects=tuple(value.get("rejects", ())),
                keys=value.get("keys", False),
                converted=value.get("converted", {}),
                appends=value.get("appends", 0),
                counts=value.get("counts", {}),
                tfds=value.get("tfds"),
                dali_index=value.get("dali_index", False),
                warnings=value.get("warnings", {}),
                maxima=value.get("maxima", {}),
            )
            _check_shards(manifest)
        except DatasetError as error:
            raise DatasetError(f"{path}: {error}") from None
        except ValueError as error:
            raise DatasetError(
                f"{path}: not a manifest: {error}. Restore the file, or convert into another folder."
            ) from None
        return manifest


def list_shards(manifest: Manifest) -> list[Shard]:
    """Return the shards of all splits, split after split."""
    return [shard for split in manifest.splits.values() for shard in split.shards]


def join_maxima(manifests: Iterable[Manifest]) -> dict[str, int]:
    """Return the maxima of several datasets together: by feature, a number of entries that no record exceeds.

    A feature that is not in the maxima of every dataset is omitted, since its entries were not counted everywhere.
    """
    all_maxima = [manifest.maxima for manifest in manifests]
    names = set.intersection(*map(set, all_maxima)) if all_maxima else set()
    return {name: max(maxima[name] for maxima in all_maxima) for name in sorted(names)}


def _check_version(version: int) -> None:
    """Raise DatasetError unless the version of a manifest's format is the one that this code reads."""
    if version != FORMAT_VERSION:
        raise DatasetError(
            f"Manifest of another format version (got {version}, expected {FORMAT_VERSION}). Read it with the tpudata"
            " that wrote it, or convert into another folder."
        )


def _check_shards(manifest: Manifest) -> None:
    """Check the shards of a manifest that was read, so that no reader allocates memory for records that cannot exist.

    Raises:
        DatasetError: a shard has more records than fit its bytes, or the shards' names, which end in the planned number of
            shards of their prefix, announce more shards than a dataset may have.
    """
    # A record takes at least the 16 bytes of its frame, which gzip compresses by a factor of 1032 at best.
    largest_ratio = 1 if manifest.compression is None else MAX_RATIO
    planned_count_by_prefix: dict[str, int] = {}
    for shard in list_shards(manifest):
        max_records = shard.bytes * largest_ratio // FRAME_BYTES
        if shard.records > max_records:
            raise DatasetError(
                f"Shard {shard.name}: too many records for its size (got {count_text(shard.records, 'record')} in {shard.bytes}"
                f" bytes, expected at most {max_records}). {RESTORE}"
            )
        prefix = parse_prefix(shard.name)
        _, count = parse_number_and_count(shard.name)
        # All names of a prefix have one count, except in a damaged manifest.
        planned_count_by_prefix[prefix] = max(planned_count_by_prefix.get(prefix, 0), count)
    planned_count = sum(planned_count_by_prefix.values())
    if planned_count > MAX_SHARDS:
        raise DatasetError(
            f"The shard names (...-of-N) announce too many shards in all (got {planned_count}, expected at most {MAX_SHARDS})."
            f" {RESTORE}"
        )


def _split_to_json(split: Split) -> dict[str, Any]:
    """Return a split as a JSON object, with checksums in hexadecimal digits."""
    shards = [{**dataclasses.asdict(shard), "crc32c": f"{shard.crc32c:08x}"} for shard in split.shards]
    return {"shards": shards, "decoded_bytes": split.decoded_bytes}


def _split_from_json(value: dict[str, Any]) -> Split:
    """Return the split that `_split_to_json` converted."""
    shards = tuple(Shard(**{**shard, "crc32c": int(shard["crc32c"], 16)}) for shard in value["shards"])
    return Split(shards=shards, decoded_bytes=value["decoded_bytes"])
