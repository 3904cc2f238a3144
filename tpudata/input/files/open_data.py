"""Data to feed, opened: a split of a dataset, or files without a manifest."""

from __future__ import annotations

import os
from typing import TypeAlias

import tensorflow as tf

from tpudata.error_text.values import format_value
from tpudata.errors import DatasetError, UsageError
from tpudata.format import Dataset, open_dataset
from tpudata.input.files.plain_dataset import open_files
from tpudata.input.files.record_files import RecordFiles
from tpudata.input.files.shards import check_shards, open_shards
from tpudata.input.files.split_files import SplitFiles
from tpudata.storage import is_pattern, storage_for

Data: TypeAlias = "str | os.PathLike[str] | RecordFiles"

# Endings of files: a path that has one of them and does not exist was not meant as a folder.
_FILE_ENDINGS = (".tfrecord", ".tfrecords", ".gz")


def open_data(data: Data, split: str | None) -> SplitFiles:
    """Open a split of a dataset, or files without a manifest.

    Raises:
        UsageError: a split is named for files, or none for a dataset; `data` is of the wrong type; or TensorFlow has no file
            system for its path.
        DatasetError: there is no complete dataset, no such split or no record, or a file is missing or damaged.
        StorageError: a file cannot be read, or a folder cannot be listed.
    """
    if isinstance(data, RecordFiles):
        if split is not None:
            raise UsageError(
                f"split={split!r}: files without a manifest have no splits. Omit it, and pass the files of one split."
            )
        files = open_files(data)
        for shard in files.shards:
            _check_scheme(files.dataset.shard_path(shard))
        return files
    folder = os.fspath(data) if isinstance(data, (str, os.PathLike)) else None
    if not isinstance(folder, str) or not folder:
        raise UsageError(
            f"data={format_value(data)}: pass the path of the dataset's folder, or tpudata.TFRecordFiles, FixedLengthRecordFiles or"
            " TextLineFiles."
        )
    dataset = _open_folder(folder)
    if not isinstance(split, str):
        raise UsageError(f"split={format_value(split)}: pass the name of one split, such as 'train'.")
    check_shards(dataset, split)
    _check_scheme(dataset.path)
    return open_shards(dataset, split)


def _open_folder(folder: str) -> Dataset:
    """Open the dataset in a folder; if the path names files instead, the DatasetError explains how to read them."""
    try:
        return open_dataset(folder)
    except DatasetError:
        entry = storage_for(folder).stat(folder)
        looks_like_files = is_pattern(folder) or folder.endswith(_FILE_ENDINGS)
        names_files = looks_like_files if entry is None else not entry.is_folder
        if not names_files:
            raise
    raise DatasetError(
        f"data={folder!r} names files, and not the folder of a dataset that `tpudata convert` has finished. For files without a"
        f" manifest pass tpudata.TFRecordFiles({folder!r}, features=[tpudata.format.Feature(...), ...]), or FixedLengthRecordFiles"
        " or TextLineFiles."
    )


def _check_scheme(path: str) -> None:
    """Check that TensorFlow, which reads the shards, has a file system for a path; UsageError if not."""
    scheme = path.partition("://")[0] if "://" in path else ""
    # Local paths are registered as "".
    schemes = tf.io.gfile.get_registered_schemes()
    if scheme not in schemes:
        names = ", ".join(f"{name}://" for name in schemes if name not in ("", "ram", "file"))
        raise UsageError(
            f"data={path!r}: TensorFlow has no file system for {scheme}:// (expected a local path or {names}). Copy the dataset"
            " there, or read it with tpudata.RecordSource."
        )
