"""Files of records in the inputs of `tpudata reshard`: shards of datasets, or files of other programs."""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from beam_jobs.file_names import is_ignored_path
from beam_jobs.options import DEFAULT_SPLIT
from beam_jobs.references.reference import key_bytes
from beam_jobs.sources.named_splits import find_split_in_path
from beam_jobs.stored_records.stored_record import StoredRecord
from tpudata.errors import DatasetError, SourceError, UsageError
from tpudata.format import Dataset, Shard, open_dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.storage import Entry, expand, is_pattern, split_pattern, storage_for

FIX = "Name the folder of a dataset, TFRecord files, a folder of such files, or a pattern such as 'DIR/train-*'."


class StoredFile(NamedTuple):
    """One file of records, a unit of listing.

    Attributes:
        path: path of the file.
        size: size of the file in bytes.
        name: prefix of the keys of its records.
        split: split that its records have in the input.
        dataset: index of the dataset that it belongs to; None for a foreign file.
        shard: its entry in the dataset's manifest; None for a foreign file.
    """

    path: str
    size: int
    name: str
    split: str
    dataset: int | None = None
    shard: Shard | None = None

    @property
    def payload(self) -> StoredRecord:
        """Kind of the bytes that references to its records point to."""
        return StoredRecord(self.dataset, self.split, None if self.shard is None else self.shard.crc32c)


class StoredDataset(NamedTuple):
    """A dataset that workers open by themselves, since a manifest with many shards is too large to send.

    Attributes:
        path: folder of the dataset.
        digest: hash of its manifest and its quarantine, in hexadecimal digits.
    """

    path: str
    digest: str

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> StoredDataset:
        """Return the StoredDataset of a dataset that is open in this process."""
        return cls(dataset.path, _hash_metadata(dataset))

    def open(self) -> Dataset:
        """Return the dataset; DatasetError if it has changed since `from_dataset` was called."""
        return _open(self)


def list_stored_files(
    paths: Sequence[str], datasets: Sequence[Dataset], selected_splits: Sequence[str] | None
) -> Iterator[StoredFile]:
    """Yield the files of inputs, in order, with unique names.

    Args:
        paths: the inputs: each is the folder of a dataset, a folder of files, a file or a pattern.
        datasets: the datasets at the paths; empty if the files are of other programs.
        selected_splits: the splits that are read, or None for all.

    Raises:
        SourceError: an input does not exist, or has no files.
        UsageError: a file is in two inputs, or an input has datasets below it.
    """
    if datasets:
        files_of_inputs = [_list_shards(index, dataset, selected_splits) for index, dataset in enumerate(datasets)]
    else:
        files_of_inputs = [
            [file for file in _list_foreign(path) if selected_splits is None or file.split in selected_splits]
            for path in paths
        ]
        for path, files in zip(paths, files_of_inputs, strict=True):
            # With `selected_splits`, an input may have none of the splits; `find_inputs` checks that some input has each.
            if not files and selected_splits is None:
                raise SourceError(f"{path} has no files. {FIX}")
    return _make_names_unique(paths, files_of_inputs)


@functools.lru_cache(maxsize=16)
def _open(stored: StoredDataset) -> Dataset:
    """Open a dataset on a worker; DatasetError if its metadata has changed since the run began."""
    dataset = open_dataset(stored.path)
    if _hash_metadata(dataset) != stored.digest:
        raise DatasetError(f"{stored.path}: the dataset was changed during the run. Run again, into an empty folder.")
    return dataset


def _hash_metadata(dataset: Dataset) -> str:
    """Return a digest of the metadata that decide which records a dataset has: the manifest and the quarantine."""
    data = dataset.manifest.to_bytes() + dataset.quarantine.to_bytes()
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _list_shards(dataset_index: int, dataset: Dataset, selected_splits: Sequence[str] | None) -> list[StoredFile]:
    """Return the shards of a dataset, except those whose records are all in quarantine.

    Args:
        dataset_index: index of the dataset among the inputs.
        dataset: dataset whose shards are listed.
        selected_splits: the splits that are read, or None for all.
    """
    return [
        StoredFile(dataset.shard_path(shard), shard.bytes, shard.name, split_name, dataset_index, shard)
        for split_name, split in dataset.manifest.splits.items()
        if selected_splits is None or split_name in selected_splits
        for shard in split.shards
        if dataset.quarantine.for_shard(shard).count < shard.records
    ]


def _list_foreign(path: str) -> list[StoredFile]:
    """Return the foreign files of an input, sorted by the bytes of their names; raise what `list_stored_files` raises."""
    input_entry = storage_for(path).stat(path)
    if input_entry is not None and not input_entry.is_folder:
        split = find_split_in_path(input_entry.name) or DEFAULT_SPLIT
        return [StoredFile(input_entry.path, input_entry.size, input_entry.name, split)]
    if input_entry is not None:
        entries = list(_list_below(path, ""))
    elif is_pattern(path):
        folder, _ = split_pattern(path)
        if not is_folder(folder):
            raise SourceError(f"{path}: there is no folder {folder}. {FIX}")
        entries = [(entry, relative_path) for entry, relative_path in expand(path) if not entry.is_folder]
    else:
        raise SourceError(f"{path} does not exist. {FIX}")
    for entry, _ in entries:
        if entry.name == MANIFEST_NAME:
            dataset = entry.path.removesuffix(f"/{MANIFEST_NAME}")
            raise UsageError(
                f"{path}: {dataset} in it is a dataset. Name datasets one by one: their records are read by their manifest."
            )
    files = [
        StoredFile(entry.path, entry.size, relative_path, find_split_in_path(relative_path) or DEFAULT_SPLIT)
        for entry, relative_path in entries
        if not is_ignored_path(relative_path)
    ]
    return sorted(files, key=lambda file: key_bytes(file.name))


def _list_below(folder: str, prefix: str) -> Iterator[tuple[Entry, str]]:
    """Yield (file, `prefix` and the file's path below the folder) for each file below a folder, at any depth.

    Args:
        folder: path of the folder.
        prefix: path of the folder below the input, with a slash at its end; empty for the input itself.
    """
    for entry in storage_for(folder).list(folder):
        if entry.is_folder:
            yield from _list_below(entry.path, f"{prefix}{entry.name}/")
        else:
            yield entry, f"{prefix}{entry.name}"


def _make_names_unique(paths: Sequence[str], files_of_inputs: Sequence[Sequence[StoredFile]]) -> Iterator[StoredFile]:
    """Yield all files with unique names: files with equal names get the name or the index of their input as a prefix.

    Raises:
        UsageError: a file is in two inputs.
    """
    name_counts = collections.Counter(file.name for file in itertools.chain.from_iterable(files_of_inputs))
    folders = [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]
    prefixes = folders if len(set(folders)) == len(folders) else [str(index) for index in range(len(paths))]
    seen_paths: set[str] = set()
    for prefix, files in zip(prefixes, files_of_inputs, strict=True):
        for file in files:
            if resolve_path(file.path) in seen_paths:
                raise UsageError(f"{file.path} is in two inputs. Name each file once.")
            seen_paths.add(resolve_path(file.path))
            yield file._replace(name=f"{prefix}/{file.name}") if name_counts[file.name] > 1 else file


def is_folder(path: str) -> bool:
    """Return whether there is a folder at a path."""
    entry = storage_for(path).stat(path)
    return entry is not None and entry.is_folder


def resolve_path(path: str) -> str:
    """Return a path for comparison: without a slash at its end, and absolute and without links if it is local."""
    return path.rstrip("/") if "://" in path else str(Path(path).resolve()).rstrip("/")
