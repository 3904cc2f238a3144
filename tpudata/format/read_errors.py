"""The file and record that an error of TensorFlow's readers is about.

TensorFlow reports the byte at which a record is damaged, but not the file. It also reports the name of the dataset that failed, so
the reader gives its datasets names that encode the files: "tpudata_" and a JSON array. The array is [folder, split], or
[file, ..., ""] for files without a manifest; each of its bytes that is not a letter or digit is "_" and two hexadecimal digits.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tpudata.console.tables import count_text
from tpudata.error_text import libraries as patterns
from tpudata.error_text.own import recover_own_error
from tpudata.errors import CorruptionError, DatasetError, FeatureError, ServiceError, StorageError, TpudataError
from tpudata.format.dataset import open_dataset
from tpudata.format.example.decode import decode_example
from tpudata.format.example.wire import Value
from tpudata.format.shards.stored_shards import find_changed_shard_error
from tpudata.format.tfrecord.framing import FRAME_BYTES, HEADER_BYTES, find_damage, read_records
from tpudata.storage import storage_for
from tpudata.storage.local.errors import make_storage_error

# Message of a check in the reader's graph: the records of a file have different sizes than its index says.
INDEX_MISMATCH = "The records of a file do not match its index."
# TensorFlow's message contains the name of the dataset, and a longer name would hide the rest.
_MAX_NAME_CHARACTERS = 1000
# Seconds that a search for a record unlike the others may take.
_MAX_SEARCH_SECONDS = 60.0
_PLAIN_HINT = (
    " For files without a manifest, tpudata.format.read_records(FILE) yields (offset, record), to try one by one."
)
# Types of a feature's values by TensorFlow's name of their kind.
_VALUE_TYPE_BY_KIND = {"string": bytes, "int64": int, "float": float}
# Numbers of the operating system's errors by their message, which is all that TensorFlow passes on.
_ERROR_NUMBER_BY_MESSAGE = {os.strerror(number): number for number in errno.errorcode}


class _OddFeature(NamedTuple):
    """A feature that TensorFlow could not parse in a record.

    Attributes:
        name: name of the feature.
        fault: its fault, in words that follow "feature NAME".
        is_odd: function that returns whether the feature's values in a record (None if the record lacks the feature) have the
            fault. None if the fault is the number of values, which TensorFlow does not report: of two records with different
            numbers of values, the one with more is taken to have the fault.
    """

    name: str
    fault: str
    is_odd: Callable[[Value | None], bool] | None


def name_of_split(folder: str, split: str) -> str:
    """Return the name for tf.data datasets that read a split, which encodes the folder and the split."""
    return _make_dataset_name([folder, split])


def name_of_files(paths: Sequence[str]) -> str:
    """Return the name for tf.data datasets that read files without a manifest; it omits the paths if it would become too long."""
    name = _make_dataset_name([*paths, ""])
    return name if len(name) <= _MAX_NAME_CHARACTERS else _make_dataset_name([""])


def translate_reader_error(error: BaseException, *, may_be_plain: bool = False) -> TpudataError | None:
    """Return tpudata's error for an error that was raised while TensorFlow read records; None if the error is not recognized.

    The returned error is the cause that `recover_own_error` finds, or has the file and record as far as they can be found.

    Args:
        error: the raised error.
        may_be_plain: whether the records may be in files without a manifest.

    Raises:
        TpudataError: a file that the error may be about cannot be read.
    """
    own_cause = recover_own_error(error)
    if own_cause is not None:
        return own_cause
    # TensorFlow's message contains the record, which Python cannot decode if it is not UTF-8.
    message = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
    service_failure = patterns.CHECKED_SERVICE.search(message)
    if service_failure is not None:
        return ServiceError(service_failure[1])
    file_error = find_file_error(message)
    if file_error is not None:
        return file_error
    hint = _PLAIN_HINT if may_be_plain else ""
    fix = (
        "TensorFlow does not say which: `tpudata verify DIR` names the file and the offset. Convert the dataset again."
    )
    if patterns.NO_EXAMPLE.search(message):
        return DatasetError(f"a record is not a tf.train.Example. {fix}{hint}")
    odd_feature = _find_odd_feature(message)
    if odd_feature is not None:
        try:
            record_error: TpudataError | None = _find_odd_record_error(message, odd_feature)
        except TpudataError as search_error:
            # The search's error says more than TensorFlow's, such as which file is damaged.
            record_error = search_error
        return record_error or FeatureError(
            f"feature {odd_feature.name!r} of a record {odd_feature.fault}. {fix}{hint}"
        )
    image_match = patterns.NO_IMAGE.search(message)
    if image_match is not None:
        return DatasetError(
            f"an encoded image does not decode: {image_match[0].strip().rstrip('.')}. TensorFlow does not say which:"
            " `tpudata verify DIR --decode` names the file and the offset. Convert the dataset again with --check decode, which"
            f" rejects such images.{hint}"
        )
    shape_match = patterns.OTHER_IMAGE_SHAPE.search(message)
    if shape_match is not None:
        shape, expected_shape = shape_match["shape"], shape_match["expected"]
        shape_hint = " In features= of files without a manifest, None stands for what varies, with images=tpudata.Images(size=...)."
        return FeatureError(
            f"an encoded image is {shape}, and its feature says {expected_shape}. Convert the dataset again."
            f"{shape_hint if may_be_plain else ''}"
        )
    value_match = patterns.CHECKED_VALUE.search(message)
    return None if value_match is None else FeatureError(value_match[1])


def _find_odd_feature(message: str) -> _OddFeature | None:
    """Return the feature that an error of TensorFlow's parser is about; None if it is not about a feature."""
    match = patterns.ABSENT_FEATURE.search(message)
    if match is not None:
        return _OddFeature(match[1], "is not in the record", lambda values: not values)
    match = patterns.OTHER_KIND.search(message)
    if match is not None:
        value_type = _VALUE_TYPE_BY_KIND[match["type"]]
        return _OddFeature(
            match["name"],
            "has values of a different kind",
            lambda values: any(type(value) is not value_type for value in values or ()),
        )
    match = patterns.OTHER_VALUES.search(message)
    if match is not None:
        return _OddFeature(match["name"], "has a different number of values", is_odd=None)
    match = patterns.OTHER_COUNT.search(message)
    if match is not None:
        count = int(match["count"])
        fault = f"has {count_text(count, 'value')}, and not those of shape {match['shape']}"
        return _OddFeature(match["name"], fault, lambda values: values is not None and len(values) == count)
    # The message of the reader's own check: the feature, the fault, and the expected number of bytes in it.
    match = patterns.CHECKED_BYTES.search(message)
    if match is None:
        return None
    size = int(match["size"])
    return _OddFeature(
        match["name"],
        match["fault"],
        lambda values: any(isinstance(value, bytes) and len(value) != size for value in values or ()),
    )


def find_file_error(message: str) -> TpudataError | None:
    """Return the error for a message of TensorFlow, if one of our datasets failed to read its files; otherwise None.

    If a record is damaged, searches one file after another for damage at its offset.

    Raises:
        TpudataError: a file cannot be read.
    """
    origin = _parse_dataset_name(message)
    if origin is None:
        return None
    paths, split = origin
    record_match = patterns.DAMAGED_RECORD.search(message)
    if record_match is not None:
        return _find_damaged_record_error(paths, split, int(record_match[1]))
    gcs_failure = patterns.GCS_FAILURE.search(message)
    if gcs_failure is not None:
        reason, path = gcs_failure["reason"], gcs_failure["path"]
        fix = "Check the network and the credentials."
        if "requester pays" in reason:
            fix = "Set GCS_ADDITIONAL_REQUEST_HEADER='x-goog-user-project: PROJECT' before TensorFlow is imported."
        return StorageError(f"{path} could not be read: {reason}. {fix}")
    file_match = patterns.UNREADABLE_FILE.search(message)
    if file_match is not None:
        path, reason = file_match["path"], file_match["reason"].strip()
        if reason in _ERROR_NUMBER_BY_MESSAGE:
            return make_storage_error("read", path, OSError(_ERROR_NUMBER_BY_MESSAGE[reason], reason))
        return StorageError(f"{path} could not be read: {reason}. Check that it exists and may be read.")
    damage = _find_damage_reason(message, paths, split)
    if damage is None:
        return None
    # The listing of the shards may show which one has changed.
    shard_error = find_changed_shard_error(open_dataset(paths[0]), split) if split else None
    return shard_error or TpudataError(f"{_name_origin(paths, split)}: {damage}")


def _find_damaged_record_error(paths: Sequence[str], split: str, offset: int) -> TpudataError:
    """Return the error for a record that TensorFlow found damaged; it names the file whose stored record is damaged, if any.

    Args:
        paths: the dataset's folder, or the files without a manifest.
        split: name of the split; empty for files without a manifest.
        offset: byte of the record's data in its file, or of its header if that is damaged.
    """
    for record_offset in (offset, offset - HEADER_BYTES):
        damaged_path = (
            _find_damaged_shard(paths[0], split, record_offset) if split else _find_damaged_file(paths, record_offset)
        )
        if damaged_path is not None:
            return CorruptionError(
                damaged_path, record_offset, f"the record is damaged or cut. {_choose_fix(paths, split)}"
            )
    origin = _name_origin(paths, split)
    if split:
        return TpudataError(
            f"{origin}: a record at byte {offset} of one of its files was damaged in transit; the stored record is intact."
            " Start again."
        )
    # Without an index, the search ends at the first damage of a file, so the record at `offset` may be damaged, too.
    return TpudataError(
        f"{origin}: a record at byte {offset} of one of its files is damaged or cut. {_choose_fix(paths, split)}"
    )


def _name_origin(paths: Sequence[str], split: str) -> str:
    """Return the words for the dataset in a message; files without a manifest (no `split`) may be too many to name."""
    return paths[0] if split else "a file"


def _find_damage_reason(message: str, paths: Sequence[str], split: str) -> str | None:
    """Return how the files are damaged or have changed, with a fix; None if the error has another cause."""
    if patterns.DAMAGED_BLOCK.search(message):
        return f"a compressed block does not unpack. {_choose_fix(paths, split)}"
    if INDEX_MISMATCH in message:
        return f"an index does not match its shard: the records are at different positions. {_choose_fix(paths, split)}"
    if patterns.SHORT_FILE.search(message):
        return "it has changed since it was opened. Make the input_fn again."
    return None


def _find_odd_record_error(message: str, feature: _OddFeature) -> FeatureError | None:
    """Return the error for the first record whose feature has the fault.

    Returns None if the message names no dataset of ours, no record has the fault, or the search takes too long.

    Args:
        message: the message of TensorFlow's error.
        feature: the feature, and the fault to search for.

    Raises:
        TpudataError: a file cannot be searched.
    """
    origin = _parse_dataset_name(message)
    if origin is None:
        return None
    paths, split = origin
    compression = None
    if split:
        dataset = open_dataset(paths[0])
        compression = dataset.manifest.compression
        paths = [dataset.shard_path(shard) for shard in dataset.manifest.split(split).shards]
    # By number of values, the file and offset of the first record whose feature has this number.
    first_location_by_count: dict[int, tuple[str, int]] = {}
    deadline = time.monotonic() + _MAX_SEARCH_SECONDS
    for path in paths:
        for offset, record in read_records(path, compression):
            values = decode_example(record, path=path, offset=offset).get(feature.name)
            odd_path, odd_offset = path, offset
            if feature.is_odd is not None:
                has_fault = feature.is_odd(values)
            elif values:
                first_location_by_count.setdefault(len(values), (path, offset))
                # Once two records differ, the one with more values has the fault.
                has_fault = len(first_location_by_count) > 1
                odd_path, odd_offset = first_location_by_count[max(first_location_by_count)]
            else:
                has_fault = False
            if has_fault:
                fix = (
                    "Convert the dataset again."
                    if split
                    else "Correct features= of TFRecordFiles, or pass parse= to make_input_fn."
                )
                # TensorFlow takes a feature without values for a missing one.
                fault = "has no values" if values == [] else feature.fault
                return FeatureError(f"{odd_path} at byte {odd_offset}: feature {feature.name!r} {fault}. {fix}")
            if time.monotonic() > deadline:
                return None
    return None


def _parse_dataset_name(message: str) -> tuple[list[str], str] | None:
    """Return the paths and the split in the name of the dataset that a message is about; None if it names no dataset of ours.

    The only path is the dataset's folder or, for files without a manifest, the paths are the files (none if they made the
    name too long), and the split is empty.
    """
    name_match = patterns.DATASET_NAME.search(message)
    if name_match is None:
        return None
    *paths, split = json.loads(re.sub("_([0-9a-f]{2})", lambda escaped: chr(int(escaped[1], 16)), name_match[1]))
    return paths, split


def _choose_fix(paths: Sequence[str], split: str) -> str:
    """Return the fix for damage in a split of the folder `paths[0]`, or in files without a manifest if `split` is empty."""
    if not split:
        return "Restore the file."
    # A cache of make_input_fn has its folder's name as the fingerprint of its source.
    (folder,) = paths
    if open_dataset(folder).manifest.source.fingerprint == Path(folder).name:
        return f"Delete the folder {folder}; it is made again."
    return "Run `tpudata verify DIR` to list all damage, with --quarantine to skip it."


def _find_damaged_shard(folder: str, split: str, offset: int) -> str | None:
    """Return the path of the split's first shard in which a damaged record begins at an offset; None if no shard has one."""
    dataset = open_dataset(folder)
    for shard in dataset.manifest.split(split).shards:
        path, offsets = dataset.shard_path(shard), dataset.index(shard).offsets
        record_index = int(np.searchsorted(offsets, offset))
        if record_index < len(offsets) - 1 and offsets[record_index] == offset:
            frame = storage_for(path).read_range(path, offset, int(offsets[record_index + 1]) - offset)
            if len(frame) < FRAME_BYTES or find_damage(frame):
                return path
    return None


def _find_damaged_file(paths: Sequence[str], offset: int) -> str | None:
    """Return the path of the first file whose first damaged record begins at an offset; None if no file has one there."""
    for path in paths:
        try:
            for record_offset, _ in read_records(path):
                if record_offset >= offset:
                    break
        except CorruptionError as error:
            if error.offset == offset:
                return path
    return None


def _make_dataset_name(parts: Sequence[str]) -> str:
    """Return the dataset name that encodes these parts; `_parse_dataset_name` decodes it."""
    data = json.dumps(parts).encode()
    return "tpudata_" + "".join(chr(byte) if chr(byte).isalnum() else f"_{byte:02x}" for byte in data)
