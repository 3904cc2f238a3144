"""Checks of a dataset and a model folder for `tpudata doctor`: access, files, shapes and labels.

TensorFlow is loaded only to look up the params of a bundled model.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tpudata.console.tables import count_text
from tpudata.errors import StorageError, TpudataError
from tpudata.format import Dataset, Feature, decode_example, index_name
from tpudata.format.layout import INDEX_FOLDER
from tpudata.format.manifest.model_features import fed_features, is_sequence, label_feature
from tpudata.models import learns_label_maps, param_defaults
from tpudata.source import RecordSource
from tpudata.storage import Entry, is_remote, storage_for
from tpudata.storage.local.local_storage import TEMPORARY_PREFIX

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_TEST_CONTENT = b"tpudata doctor"
# Maximum number of records of a split whose labels are checked, spread evenly.
_MAX_CHECKED_RECORDS = 2000
# Number of records that are read at a time.
_BATCH_SIZE = 64


class DoctorLine(NamedTuple):
    """One line of the report.

    Attributes:
        name: name of the check.
        state: OK, WARNING or PROBLEM.
        text: the finding, and the fix.
    """

    name: str
    state: str
    text: str


def check_model_dir(folder: str) -> DoctorLine:
    """Check that a small file can be written, read and deleted in a model's folder; return the report's line.

    Folders that this creates are removed.
    """
    new_folders = _list_missing_folders(folder)
    try:
        return _write_and_read(folder)
    finally:
        for path in new_folders:
            # A folder stays if another program has written into it in the meantime.
            with contextlib.suppress(OSError):
                path.rmdir()


def _list_missing_folders(folder: str) -> list[Path]:
    """Return the folders that writing into a folder creates, the innermost first; an empty list on an object store."""
    if is_remote(folder):
        return []
    path = Path(folder)
    return list(itertools.takewhile(lambda parent: not parent.exists(), [path, *path.parents]))


def _write_and_read(folder: str) -> DoctorLine:
    """Write, read and delete a small file in a folder; return the report's line, which names the first step that fails."""
    storage = storage_for(folder)
    path = storage.join(folder, f"{TEMPORARY_PREFIX}doctor-{uuid.uuid4().hex}")
    # What is to be done with the file next, for the message if that fails.
    step = "written"
    try:
        storage.check_writable(folder)
        with storage.create(path) as file:
            file.write(_TEST_CONTENT)
        step = "read"
        content = storage.read(path)
        if content != _TEST_CONTENT:
            with contextlib.suppress(StorageError, OSError):
                storage.delete(path)
            return DoctorLine(
                "model dir", PROBLEM, f"{folder}: a file came back as {content[:20]!r}. Use another store."
            )
        step = "deleted"
        storage.delete(path)
        if storage.stat(path) is not None:
            return DoctorLine(
                "model dir", PROBLEM, f"{path} still exists after its deletion. Grant the permission to delete."
            )
    except (StorageError, OSError) as error:
        if step == "read":
            with contextlib.suppress(StorageError, OSError):
                storage.delete(path)
        return DoctorLine(
            "model dir",
            PROBLEM,
            f"no file can be {step} in {folder}: {error} Grant the permission, or pass another folder.",
        )
    return DoctorLine("model dir", OK, f"{folder}: a file was written, read and deleted")


def check_files(dataset: Dataset) -> DoctorLine:
    """Compare the files of a dataset with the manifest, and return the report's line.

    Compared are the names of shards and indexes, and the sizes and reported checksums of shards. If the files match, one index and
    a byte of its shard are read.
    """
    storage = storage_for(dataset.path)
    try:
        shards = {entry.name: entry for entry in storage.list(dataset.path)}
        indexes = {entry.name for entry in storage.list(storage.join(dataset.path, INDEX_FOLDER))}
        problems = list(_find_file_problems(dataset, shards, indexes))
        shards_in_order = (shard for split in dataset.manifest.splits.values() for shard in split.shards)
        # A missing shard in quarantine has no bytes.
        first_shard = next((shard for shard in shards_in_order if dataset.quarantine.for_shard(shard).bytes), None)
        if not problems and first_shard is not None:
            dataset.index(first_shard)
            storage.read_range(dataset.shard_path(first_shard), 0, 1)
    except TpudataError as error:
        return DoctorLine("files", PROBLEM, str(error))
    shard_count = sum(len(split.shards) for split in dataset.manifest.splits.values())
    if problems:
        more = f" and {count_text(len(problems) - 1)} more" if len(problems) > 1 else ""
        return DoctorLine(
            "files", PROBLEM, f"{problems[0]}{more}. Copy the dataset again, or convert it again with --resume."
        )
    skipped_count = sum(shard.count for shard in dataset.quarantine.shards.values())
    if skipped_count:
        return DoctorLine(
            "files",
            WARNING,
            f"{count_text(skipped_count, 'record')} in quarantine, which readers skip. Restore the shards to get them back.",
        )
    return DoctorLine(
        "files", OK, f"{count_text(shard_count, 'shard')} with the sizes that the manifest says, and their indexes"
    )


def _find_file_problems(dataset: Dataset, shards: Mapping[str, Entry], indexes: set[str]) -> Iterator[str]:
    """Yield a problem for each shard or index that is missing, and each shard that differs from the manifest or the quarantine.

    Args:
        dataset: the dataset.
        shards: entries of the files in its folder, by name.
        indexes: names of the files in the folder of indexes.
    """
    for split in dataset.manifest.splits.values():
        for shard in split.shards:
            # A shard in quarantine must have the size that it had when it was put there (0 if missing); no checksum is recorded.
            # For any other shard, `for_shard` returns the manifest's size and no records.
            quarantined = dataset.quarantine.for_shard(shard)
            expected_bytes = quarantined.bytes
            entry = shards.get(shard.name)
            if entry is None:
                if expected_bytes:
                    yield f"{dataset.shard_path(shard)} is missing"
            elif entry.size != expected_bytes:
                yield f"{entry.path} has {count_text(entry.size)} bytes (expected {count_text(expected_bytes)})"
            # Only object stores report checksums.
            elif not quarantined.count and entry.crc32c not in (None, shard.crc32c):
                yield f"{entry.path} has checksum {entry.crc32c:08x} (expected {shard.crc32c:08x})"
            if index_name(shard.name).rpartition("/")[2] not in indexes:
                yield f"{dataset.path}/{index_name(shard.name)} is missing"


def check_shapes(dataset: Dataset, flag_values: Mapping[str, str | None]) -> DoctorLine:
    """Check that every feature that a model is fed has one shape in all records; return the report's line.

    Args:
        dataset: the dataset.
        flag_values: values of the flags that bring records to one shape, by name: `image-size`, `crop` and `sequence-length`; None
            for a flag that is not passed.
    """
    label = label_feature(dataset.manifest)
    features = [*fed_features(dataset.manifest, label), *([] if label is None else [label])]
    if not features:
        return DoctorLine("shapes", PROBLEM, f"{dataset.path} has no feature that a model is fed. Convert it again.")
    problems = [problem for feature in features if (problem := _find_shape_problem(feature, flag_values))]
    if problems:
        return DoctorLine("shapes", PROBLEM, " ".join(problems))
    return DoctorLine("shapes", OK, f"every record has one shape: {', '.join(feature.name for feature in features)}")


def _find_shape_problem(feature: Feature, flag_values: Mapping[str, str | None]) -> str:
    """Return the problem with the shape of a feature, and its fix; empty if all records have one shape."""
    if feature.is_static:
        return ""
    if feature.is_image_file:
        if flag_values.get("image-size") or flag_values.get("crop"):
            return ""
        return (
            f"{feature.name}: images of several sizes. Pass --image-size HxW or --crop SIZE here and to tpudata train."
        )
    if is_sequence(feature):
        if flag_values.get("sequence-length"):
            return ""
        return f"{feature.name}: sequences of several lengths. Pass --sequence-length N here and to tpudata train."
    return f"{feature.name}: shape {feature.shape} varies between records. Convert the data to one shape."


def check_labels(dataset: Dataset, model: str | None, params: Mapping[str, Any]) -> DoctorLine | None:
    """Compare the labels of some records with the classes of the dataset and of the model; return the report's line.

    It is None without labels that are integers, and for a model of label maps.

    Args:
        dataset: the dataset.
        model: name of the model, or None.
        params: parameters of the model from the user.
    """
    label = label_feature(dataset.manifest)
    if label is None or label.kind != "int64" or (model is not None and learns_label_maps(model)):
        return None
    try:
        labels_by_record = [
            record_labels
            for split_name, split in dataset.manifest.splits.items()
            if split.records
            for record_labels in _sample_labels(dataset, split_name, label.name)
        ]
    except TpudataError as error:
        return DoctorLine("labels", PROBLEM, f"{error} Run tpudata verify {dataset.path}.")
    labels = list(itertools.chain.from_iterable(labels_by_record))
    if not labels:
        return DoctorLine("labels", PROBLEM, f"{label.name}: no record has a label. Convert the data again.")
    low, high = min(labels), max(labels)
    labelled_count = sum(1 for record_labels in labels_by_record if record_labels)
    label_range = f"labels {low} to {high} in {count_text(labelled_count, 'record')}"
    num_classes = label.num_classes
    if num_classes is not None and not label.label_offset <= low <= high < label.label_offset + num_classes:
        largest_label = label.label_offset + num_classes - 1
        return DoctorLine(
            "labels",
            PROBLEM,
            f"{label_range} (expected {label.label_offset} to {largest_label}, by the manifest). Convert the data again.",
        )
    first_output, output_count = _find_outputs(model, params, label)
    if output_count is None:
        if num_classes is not None:
            return DoctorLine("labels", OK, f"{label_range}; {count_text(num_classes, 'class', 'classes')}")
        # Without a model, nothing needs the number of classes.
        state = OK if model is None else WARNING
        return DoctorLine("labels", state, f"{label_range}; no number of classes in the manifest")
    last_output = first_output + output_count - 1
    if not first_output <= low <= high <= last_output:
        return DoctorLine(
            "labels",
            PROBLEM,
            f"{label_range}, and {model} has outputs for {first_output} to {last_output}."
            f" {_suggest_outputs(first_output, last_output, low, high)}",
        )
    return DoctorLine(
        "labels", OK, f"{label_range}; {model} has {count_text(output_count, 'output')} from {first_output}"
    )


def _suggest_outputs(first_output: int, last_output: int, low: int, high: int) -> str:
    """Return the sentence that says how a model gets outputs for the labels from `low` to `high`, too."""
    if low < 0:
        return "No output can have a negative label. Convert the data again."
    num_classes = max(last_output, high) - min(first_output, low) + 1
    offset = f"--param label_offset={low} " if low < first_output else ""
    return f"Pass {offset}--param num_classes={num_classes}."


def _find_outputs(model: str | None, params: Mapping[str, Any], label: Feature) -> tuple[int, int | None]:
    """Return the label of a model's first output, and the number of its outputs, None if unknown; (0, None) without a model."""
    if model is None:
        return 0, None
    defaults = param_defaults(model)
    # A model without the parameter label_offset also has outputs for the numbers below the dataset's first label.
    first_output = 0
    if defaults and "label_offset" in defaults:
        first_output = int(params.get("label_offset", label.label_offset))
    num_classes = params.get("num_classes")
    if num_classes is not None:
        return first_output, int(num_classes)
    if defaults is None or "num_classes" not in defaults:
        return first_output, None
    if label.num_classes is not None:
        # `tpudata train` derives num_classes in the same way: the last output belongs to the last class.
        return first_output, label.num_classes + label.label_offset - first_output
    default = defaults["num_classes"]
    # The default of a required parameter is dataclasses.MISSING.
    output_count = default if isinstance(default, int) else None
    return first_output, output_count


def _sample_labels(dataset: Dataset, split_name: str, feature_name: str) -> list[list[int]]:
    """Return the labels of each of some records of a split, spread evenly.

    Args:
        dataset: the dataset.
        split_name: name of the split.
        feature_name: name of the feature with the labels.
    """
    source = RecordSource(dataset.path, split_name, decode=None)
    indices = np.unique(np.linspace(0, len(source) - 1, min(len(source), _MAX_CHECKED_RECORDS)).astype(int)).tolist()
    labels_by_record: list[list[int]] = []
    for start in range(0, len(indices), _BATCH_SIZE):
        # `__getitems__`, which PyTorch's loaders call, reads several records with few requests.
        examples = map(decode_example, source.__getitems__(indices[start : start + _BATCH_SIZE]))
        labels_by_record += [[int(value) for value in example.get(feature_name, [])] for example in examples]
    return labels_by_record
