"""Search for the datasets and TFRecord files among the inputs of `tpudata reshard`."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from beam_jobs.references.reference import key_bytes
from beam_jobs.sources.names import is_left_behind
from beam_jobs.stored_records.source import StoredFile
from beam_jobs.stored_records.splits import named_split
from tpudata.errors import DatasetError, SourceError, UsageError
from tpudata.format import Dataset, open_dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.storage import Entry, expand, is_pattern, split_pattern, storage_for

_FIX = "Name the folder of a dataset, TFRecord files, a folder of such files, or a pattern such as 'DIR/train-*'."


class Inputs(NamedTuple):
    """Inputs that were found.

    Attributes:
        files: of all inputs, in order.
        datasets: those that the files belong to; empty for foreign files.
        skips_foreign: whether foreign files are those of a folder, which may hold others too.
    """

    files: tuple[StoredFile, ...]
    datasets: tuple[Dataset, ...]
    skips_foreign: bool


def find_inputs(paths: Sequence[str], take: Sequence[str] | None) -> Inputs:
    """Find the datasets or the files.

    Args:
        paths: each the folder of a dataset, a folder of files, a file, or a pattern.
        take: the splits that are read, or None for all.

    Raises:
        SourceError: an input is not there, or has no files.
        UsageError: datasets and foreign files are mixed, an input comes twice, or a split to take is in none.
        DatasetError: the manifest of a dataset is damaged.
    """
    for path in paths:
        if not path.strip():
            raise UsageError(f"An input is empty. {_FIX}")
    seen: set[str] = set()
    for path in paths:
        if _whole(path) in seen:
            raise UsageError(f"{path} comes twice. Name each input once.")
        seen.add(_whole(path))
    datasets = [open_dataset(path) if _is_dataset(path) else None for path in paths]
    opened = tuple(dataset for dataset in datasets if dataset is not None)
    if opened and len(opened) < len(paths):
        foreign = paths[datasets.index(None)]
        raise UsageError(
            f"{foreign} has no {MANIFEST_NAME}, and {opened[0].path} is a dataset. Reshard the files first, then merge the two."
        )
    if opened:
        listed = [_shards(number, dataset, take) for number, dataset in enumerate(opened)]
    else:
        listed = [[file for file in _foreign(path) if take is None or file.split in take] for path in paths]
    for path, files in zip(paths, listed, strict=True):
        if not files and take is None and not opened:
            raise SourceError(f"{path} has no files. {_FIX}")
    found = {file.split for files in listed for file in files}
    for split in take or ():
        if split not in found:
            raise UsageError(f"--take-splits: no input has the split {split!r}. Choose from the splits of the inputs.")
    is_folder = any(_is_folder(path) for path in paths)
    return Inputs(tuple(_with_names(paths, listed)), opened, is_folder and not opened)


def _is_dataset(path: str) -> bool:
    storage = storage_for(path)
    return _is_folder(path) and storage.stat(storage.join(path, MANIFEST_NAME)) is not None


def _is_folder(path: str) -> bool:
    found = storage_for(path).stat(path)
    return found is not None and found.is_folder


def _shards(number: int, dataset: Dataset, take: Sequence[str] | None) -> list[StoredFile]:
    """Return the shards of a dataset that have records left."""
    return [
        StoredFile(dataset.shard_path(shard), shard.bytes, shard.name, name, number, shard)
        for name, split in dataset.manifest.splits.items()
        if take is None or name in take
        for shard in split.shards
        if dataset.quarantine.of(shard).count < shard.records
    ]


def _foreign(path: str) -> list[StoredFile]:
    found = storage_for(path).stat(path)
    if found is not None and not found.is_folder:
        return [StoredFile(found.path, found.size, found.name, named_split(found.name))]
    if found is not None:
        entries = list(_below(path, ""))
    elif is_pattern(path):
        folder, _ = split_pattern(path)
        if not _is_folder(folder):
            raise SourceError(f"{path}: there is no folder {folder}. {_FIX}")
        entries = [(entry, below) for entry, below in expand(path) if not entry.is_folder]
    else:
        raise SourceError(f"{path} is not there. {_FIX}")
    for entry, _ in entries:
        if entry.name == MANIFEST_NAME:
            dataset = entry.path.removesuffix(f"/{MANIFEST_NAME}")
            raise UsageError(
                f"{path}: {dataset} in it is a dataset. Name datasets one by one: their records are read by their manifest."
            )
    kept = [(entry, below) for entry, below in entries if not any(map(is_left_behind, below.split("/")))]
    kept.sort(key=lambda item: key_bytes(item[1]))
    return [StoredFile(entry.path, entry.size, below, named_split(below)) for entry, below in kept]


def _below(folder: str, prefix: str) -> Iterator[tuple[Entry, str]]:
    for entry in storage_for(folder).list(folder):
        if entry.is_folder:
            yield from _below(entry.path, f"{prefix}{entry.name}/")
        else:
            yield entry, f"{prefix}{entry.name}"


def _with_names(paths: Sequence[str], listed: Sequence[Sequence[StoredFile]]) -> Iterator[StoredFile]:
    """Yield all files, with names that no two of them share: the input's name goes in front of those that do."""
    names = collections.Counter(file.name for file in itertools.chain.from_iterable(listed))
    folders = [path.rstrip("/").rsplit("/", 1)[-1] for path in paths]
    heads = folders if len(set(folders)) == len(folders) else [str(number) for number in range(len(paths))]
    seen: set[str] = set()
    for head, files in zip(heads, listed, strict=True):
        for file in files:
            if _whole(file.path) in seen:
                raise UsageError(f"{file.path} is in two inputs. Name each file once.")
            seen.add(_whole(file.path))
            yield file._replace(name=f"{head}/{file.name}") if names[file.name] > 1 else file


def check_apart(paths: Sequence[str], output: str) -> None:
    """Raise UsageError if the output lies in an input folder, so that the next run would read it."""
    for path in paths:
        if _is_folder(path) and f"{_whole(output)}/".startswith(f"{_whole(path)}/"):
            raise UsageError(f"--output {output} lies in the input {path}. Name a folder outside.")


def check_splits(files: Sequence[StoredFile], take: Sequence[str] | None, *, deals: bool) -> None:
    """Raise UsageError if records that have splits would be dealt out again without notice.

    Args:
        files: of the inputs.
        take: the splits that are read, or None for all.
        deals: whether `--split` deals records out.
    """
    found = sorted({file.split for file in files})
    if deals and take is None and len(found) > 1:
        raise UsageError(
            f"--split: the inputs have splits already ({', '.join(found)}). Pass --take-splits {','.join(found)} to deal all their"
            " records out anew, or fewer of them."
        )
    if not files:
        raise DatasetError("All records of the inputs are in quarantine. Restore the shards.")


def _whole(path: str) -> str:
    """Return a path as it can be compared: a local one without links and shortcuts."""
    return path.rstrip("/") if "://" in path else str(Path(path).resolve()).rstrip("/")
