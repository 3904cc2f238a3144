"""The file and record that an error of TensorFlow's readers is about.

TensorFlow reports the byte at which a record is damaged, but not the file. It also reports the name of the dataset that failed, so
the reader gives its datasets names from which the files follow: "tpudata_" and the JSON array [folder, split], or [file, ..., ""]
for files without a manifest, in which each byte that is not a letter or digit is "_" and two hexadecimal digits.
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

from tpudata.console.tables import count_text
from tpudata.error_text import libraries as texts
from tpudata.error_text.own import recover_own_error
from tpudata.errors import CorruptionError, DatasetError, FeatureError, ServiceError, StorageError, TpudataError
from tpudata.format.dataset import open_dataset
from tpudata.format.example.decode import decode_example
from tpudata.format.example.wire import Value
from tpudata.format.shards.stored_shards import find_changed_shard
from tpudata.format.tfrecord.framing import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, find_damage, read_records
from tpudata.storage import storage_for
from tpudata.storage.local.errors import storage_error

# Message of a check in the reader's graph.
OTHER_RECORDS = "A file has other records than its index says."
# Longer names would hide the message.
_MOST_BYTES = 1000
# Seconds that a search for a record unlike the others may take.
_SEARCH_SECONDS = 60.0
_PLAIN = " For files without a manifest, tpudata.format.read_records(FILE) yields (offset, record), to try one by one."
# Ways in which a record may differ from the others.
Odd: TypeAlias = Literal["absent", "kind", "count"]
# Errors of the operating system by their text, which is all that TensorFlow passes on.
_NUMBERS = {os.strerror(number): number for number in errno.errorcode}


def name_of_split(folder: str, split: str) -> str:
    """Return the name of datasets that read a split."""
    return _mangle([folder, split])


def name_of_files(paths: Sequence[str]) -> str:
    """Return the name of datasets that read files without a manifest; with too many files it does not name them."""
    name = _mangle([*paths, ""])
    return name if len(name) <= _MOST_BYTES else _mangle([""])


def translate_reader_error(error: BaseException, *, may_be_plain: bool = False) -> TpudataError | None:
    """Return `recover_own_error`, or else an error that tells how to find a record that TensorFlow cannot parse or decode.

    Args:
        error: the raised error.
        may_be_plain: whether the records may be in files without a manifest.
    """
    own_cause = recover_own_error(error)
    if own_cause is not None:
        return own_cause
    # TensorFlow's message contains the record, which Python cannot decode if it is not text.
    text = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
    lost = texts.CHECKED_SERVICE.search(text)
    translated = translate_read_error(text) if lost is None else ServiceError(lost[1])
    if translated is not None:
        return translated
    plain = _PLAIN if may_be_plain else ""
    origin = (
        "TensorFlow does not say which: `tpudata verify DIR` names the file and the offset. Convert the dataset again."
    )
    if texts.NO_EXAMPLE.search(text):
        return DatasetError(f"a record is not a tf.train.Example. {origin}{plain}")
    odd = _find_odd_feature(text)
    if odd is not None:
        feature, difference, kind = odd
        located: TpudataError | None
        try:
            located = odd_record_error(text, feature, difference, kind)
        except TpudataError as error:
            located = error
        return located or FeatureError(f"feature {feature!r} of a record {difference}. {origin}{plain}")
    undecoded = texts.NO_IMAGE.search(text)
    if undecoded is not None:
        return DatasetError(
            f"an encoded image does not decode: {undecoded[0].strip().rstrip('.')}. TensorFlow does not say which: `tpudata verify"
            " DIR --decode` names the file and the offset. Convert the dataset again with --check decode, which rejects such"
            f" images.{plain}"
        )
    shapes = texts.OTHER_IMAGE_SHAPE.search(text)
    if shapes is not None:
        varies = " In features= of files without a manifest, None stands for what varies, with images=tpudata.Images(size=...)."
        return FeatureError(
            f"an encoded image is {shapes[1]}, and its feature says {shapes[2]}. Convert the dataset again."
            f"{varies if may_be_plain else ''}"
        )
    misfit = texts.CHECKED_VALUE.search(text)
    return None if misfit is None else FeatureError(misfit[1])


def _find_odd_feature(text: str) -> tuple[str, str, Odd] | None:
    """Return the feature that does not fit, a description of its fault, and the kind of the fault."""
    match = texts.ABSENT_FEATURE.search(text)
    if match is not None:
        return match[1], "is not in the record", "absent"
    match = texts.OTHER_KIND.search(text)
    if match is not None:
        return match[1], "has values of another kind", "kind"
    match = texts.OTHER_VALUES.search(text)
    if match is not None:
        return match[1], "has another number of values", "count"
    match = texts.OTHER_COUNT.search(text)
    if match is not None:
        return match[1], f"has {count_text(int(match[2]), 'value')}, and not those of shape {match[3]}", "count"
    match = texts.CHECKED_BYTES.search(text)
    return None if match is None else (match[1], match[2], "count")


def translate_read_error(text: str) -> TpudataError | None:
    """Return the `TpudataError` for the text of a TensorFlow error, if one of our datasets failed to read its files.

    Reads the record in question from each file that it can be in.
    """
    parts = _parse_parts(text)
    if parts is None:
        return None
    *paths, split = parts
    origin = paths[0] if split else "a file"
    damaged = texts.DAMAGED_RECORD.search(text)
    if damaged is not None:
        # The offset is that of the record's data, or of its header if that is damaged.
        offset = int(damaged[1])
        for begin in (offset, offset - HEADER_BYTES):
            damaged_path = _find_damaged_shard(paths[0], split, begin) if split else _find_damaged_file(paths, begin)
            if damaged_path is not None:
                return CorruptionError(damaged_path, begin, f"the record is damaged or cut. {_choose_fix(split)}")
        if split:
            return TpudataError(
                f"{origin}: a record at byte {offset} of one of its files was damaged in transit; the stored record is intact."
                " Start again."
            )
        return TpudataError(
            f"{origin}: a record at byte {offset} of one of its files is damaged or cut. {_choose_fix(split)}"
        )
    failed = texts.GCS_FAILURE.search(text)
    if failed is not None:
        fix = "Check the network and the credentials."
        if "requester pays" in failed[1]:
            fix = "Set GCS_ADDITIONAL_REQUEST_HEADER='x-goog-user-project: PROJECT' before TensorFlow is imported."
        return StorageError(f"{failed[2]} could not be read: {failed[1]}. {fix}")
    unreadable = texts.UNREADABLE_FILE.search(text)
    if unreadable is not None:
        path, reason = unreadable[1], unreadable[2].strip()
        if reason in _NUMBERS:
            return storage_error("read", path, OSError(_NUMBERS[reason], reason))
        return StorageError(f"{path} could not be read: {reason}. Check that it is there and may be read.")
    reason = _find_reason(text, split)
    if reason is None:
        return None
    changed = find_changed_shard(open_dataset(origin), split) if split else None
    return changed or TpudataError(f"{origin}: {reason}")


def _find_reason(text: str, split: str) -> str | None:
    """Return how the files are damaged or have changed, with a fix; None if the error has another cause."""
    if texts.DAMAGED_BLOCK.search(text):
        return f"a compressed block does not unpack. {_choose_fix(split)}"
    if OTHER_RECORDS in text:
        return f"an index has other places of records than its shard. {_choose_fix(split)}"
    if texts.SHORT_FILE.search(text):
        return "it has changed since it was opened. Make the input_fn again."
    return None


def odd_record_error(text: str, feature: str, difference: str, odd: Odd) -> FeatureError | None:
    """Return the error for the first record whose feature differs from that of the records before it.

    Returns None if the text names no file, no record differs, or the search takes too long.

    Args:
        text: text of TensorFlow's error.
        feature: name of the feature.
        difference: the difference, in words.
        odd: the difference to search for: a missing feature, or values of a different kind, count or size.
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
    name = texts.DATASET_NAME.search(text)
    if name is None:
        return None
    parts: list[str] = json.loads(re.sub("_([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), name[1]))
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
        record = int(np.searchsorted(offsets, offset))
        if record < len(offsets) - 1 and offsets[record] == offset:
            frame = storage_for(path).read_range(path, offset, int(offsets[record + 1]) - offset)
            if len(frame) < FRAME_BYTES or find_damage(frame, frame[HEADER_BYTES:-FOOTER_BYTES]):
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


def _mangle(parts: Sequence[str]) -> str:
    data = json.dumps(parts).encode()
    return "tpudata_" + "".join(chr(byte) if chr(byte).isalnum() else f"_{byte:02x}" for byte in data)
