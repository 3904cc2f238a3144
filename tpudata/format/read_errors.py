"""The file and record that an error of TensorFlow's readers is about.

TensorFlow reports the byte at which a record is damaged, but not the file. It also reports the name of the dataset that failed, so
the reader gives its datasets names from which the files follow: "tpudata_" and the JSON array [folder, split], or [file, ..., ""]
for files without a manifest, in which each byte that is no letter or digit is "_" and two hexadecimal digits.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from tpudata.errors import CorruptionError, FeatureError, StorageError, TpudataError
from tpudata.format.dataset import open_dataset
from tpudata.format.example.decode import decode_example
from tpudata.format.example.wire import Value
from tpudata.format.shards.stored_shards import find_changed_shard
from tpudata.format.tfrecord.framing import FOOTER_BYTES, HEADER_BYTES, masked_crc32c, read_records
from tpudata.storage import storage_for
from tpudata.storage.local.errors import storage_error

# Message of a check in the reader's graph.
OTHER_RECORDS = "A file has other records than its index says."
# Longer names would hide the message.
_MOST_BYTES = 1000
# Seconds that a search for a record unlike the others may take.
_SEARCH_SECONDS = 60.0
# Ways in which a record may differ from the others.
Odd: TypeAlias = Literal["absent", "kind", "count"]
_DATASET_NAME = re.compile(r"passed to tpudata_(\w+) transformation")
_DAMAGED = re.compile(r"(?:corrupted|truncated) record at (\d+)")
_UNPACKED = re.compile(r"inflate\(\) failed|Reading from zlib|incorrect data check|invalid \w+|unexpected end of")
_CHANGED = re.compile(r"A file has fewer records than its index says|Excluding the header|Dataset was empty")
_GCS_FAILED = re.compile(r": (Error executing an HTTP request: [^\n]*)\n\s*when reading (gs://[^\n]+)")
_UNREADABLE = re.compile(r"transformation with iterator: \S+: ([^\n]+?); ([A-Z][^\n\[]+)")
# Errors of the operating system by their text, which is all that TensorFlow passes on.
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}


def name_of_split(folder: str, split: str) -> str:
    """Return the name of datasets that read a split."""
    return _mangle([folder, split])


def name_of_files(paths: Sequence[str]) -> str:
    """Return the name of datasets that read files without a manifest; with too many files it does not name them."""
    name = _mangle([*paths, ""])
    return name if len(name) <= _MOST_BYTES else _mangle([""])


def read_error(text: str) -> TpudataError | None:
    """Return the `TpudataError` for the text of a TensorFlow error, if one of our datasets failed to read its files.

    Reads the record in question from each file that it can be in.
    """
    parts = _parse_parts(text)
    if parts is None:
        return None
    *paths, split = parts
    where = paths[0] if split else "a file"
    damaged = _DAMAGED.search(text)
    if damaged is not None:
        # The offset is that of the record's data, or of its header if that is damaged.
        offset = int(damaged[1])
        for begin in (offset, offset - HEADER_BYTES):
            damaged_path = _find_damaged_shard(paths[0], split, begin) if split else _find_damaged_file(paths, begin)
            if damaged_path is not None:
                return CorruptionError(damaged_path, begin, f"the record is damaged or cut. {_choose_fix(split)}")
        if split:
            return TpudataError(
                f"{where}: a record at byte {offset} of one of its files was damaged in transit; the stored record is intact."
                " Start again."
            )
        return TpudataError(
            f"{where}: a record at byte {offset} of one of its files is damaged or cut. {_choose_fix(split)}"
        )
    failed = _GCS_FAILED.search(text)
    if failed is not None:
        fix = "Check the network and the credentials."
        if "requester pays" in failed[1]:
            fix = "Set GCS_ADDITIONAL_REQUEST_HEADER='x-goog-user-project: PROJECT' before TensorFlow is imported."
        return StorageError(f"{failed[2]} could not be read: {failed[1]}. {fix}")
    unreadable = _UNREADABLE.search(text)
    if unreadable is not None:
        path, reason = unreadable[1], unreadable[2].strip()
        if reason in _NUMBERS:
            return storage_error("read", path, OSError(_NUMBERS[reason], reason))
        return StorageError(f"{path} could not be read: {reason}. Check that it is there and may be read.")
    reason = _find_reason(text, split)
    if reason is None:
        return None
    changed = find_changed_shard(open_dataset(where), split) if split else None
    return changed or TpudataError(f"{where}: {reason}")


def _find_reason(text: str, split: str) -> str | None:
    """Return the difference between the files and their index, with a fix; None if the error has another cause."""
    if _UNPACKED.search(text):
        return f"a compressed block does not unpack. {_choose_fix(split)}"
    if OTHER_RECORDS in text:
        return f"an index has other places of records than its shard. {_choose_fix(split)}"
    if _CHANGED.search(text):
        return "it has changed since it was opened. Make the input_fn again."
    return None


def odd_record_error(text: str, feature: str, difference: str, odd: Odd) -> FeatureError | None:
    """Return the error for the first record whose feature differs from that of the records before it, or None.

    Args:
        text: text of TensorFlow's error.
        feature: name of the feature.
        difference: the difference, in words.
        odd: the difference to search for: no such feature, values of another kind, another number of values, or another number of
            bytes in a value.
    """
    parts = _parse_parts(text)
    if parts is None:
        return None
    *paths, split = parts
    compression = None
    if split:
        dataset = open_dataset(paths[0])
        compression = dataset.manifest.compression
        paths = [dataset.shard_path(shard) for shard in dataset.manifest.split(split).shards]
    usual: object = None
    end = time.monotonic() + _SEARCH_SECONDS
    for path in paths:
        for offset, record in read_records(path, compression):
            values = decode_example(record, path=path, offset=offset).get(feature)
            trait = _find_trait(values, odd)
            usual = trait if usual is None else usual
            if trait is not None and trait != usual:
                fix = (
                    "Convert the dataset again."
                    if split
                    else "Correct features= of TFRecordFiles, or pass parse= to make_input_fn."
                )
                return FeatureError(f"{path} at byte {offset}: feature {feature!r} {difference}. {fix}")
            if time.monotonic() > end:
                return None
    return None


def _find_trait(values: Value | None, odd: Odd) -> object:
    if odd == "absent":
        return values is None
    if not values:
        # No list of another kind.
        return 0 if odd == "count" else None
    if odd == "kind":
        return type(values[0])
    return len(values), len(values[0]) if isinstance(values[0], bytes) else None


def _parse_parts(text: str) -> list[str] | None:
    """Return the folder and split, or the files, that the name of a dataset in an error's text stands for."""
    marked = _DATASET_NAME.search(text)
    if marked is None:
        return None
    parts: list[str] = json.loads(re.sub("_([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), marked[1]))
    return parts


def _choose_fix(split: str) -> str:
    if not split:
        return "Restore the file."
    return "Run `tpudata verify DIR` to list all damage, with --quarantine to skip it."


def _find_damaged_shard(folder: str, split: str, offset: int) -> str | None:
    """Return the shard of a split in which a record begins at an offset and is damaged."""
    dataset = open_dataset(folder)
    for shard in dataset.manifest.split(split).shards:
        path, offsets = dataset.shard_path(shard), dataset.index(shard).offsets
        place = int(np.searchsorted(offsets, offset))
        if place < len(offsets) - 1 and offsets[place] == offset:
            frame = storage_for(path).read_range(path, offset, int(offsets[place + 1]) - offset)
            if not _is_whole(frame):
                return path
    return None


def _find_damaged_file(paths: Sequence[str], offset: int) -> str | None:
    """Return the file whose first damaged record is at an offset."""
    for path in paths:
        try:
            for begin, _ in read_records(path):
                if begin >= offset:
                    break
        except CorruptionError as error:
            if error.offset == offset:
                return path
    return None


def _is_whole(frame: bytes) -> bool:
    header, record, footer = frame[:HEADER_BYTES], frame[HEADER_BYTES:-FOOTER_BYTES], frame[-FOOTER_BYTES:]
    return (
        masked_crc32c(header[:8]) == int.from_bytes(header[8:], "little")
        and len(record) == int.from_bytes(header[:8], "little")
        and masked_crc32c(record) == int.from_bytes(footer, "little")
    )


def _mangle(parts: Sequence[str]) -> str:
    data = json.dumps(parts).encode()
    return "tpudata_" + "".join(chr(byte) if chr(byte).isalnum() else f"_{byte:02x}" for byte in data)
