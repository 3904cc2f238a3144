"""Search for the datasets and TFRecord files among the inputs of `tpudata reshard`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from beam_jobs.stored_records.stored_files import FIX, StoredFile, is_folder, list_stored_files, whole_path
from tpudata.errors import DatasetError, UsageError
from tpudata.format import Dataset, open_dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.storage import storage_for

# Files whose first records show the type of all.
_FIRST = 100


class Inputs(NamedTuple):
    """Inputs that were found.

    Attributes:
        first: the first files of all inputs, in order: 100 at most.
        splits: splits of all files.
        datasets: those that the inputs are; empty for foreign files.
        skips_foreign: whether foreign files are those of a folder, which may hold others too.
    """

    first: tuple[StoredFile, ...]
    splits: frozenset[str]
    datasets: tuple[Dataset, ...]
    skips_foreign: bool


def find_inputs(paths: Sequence[str], take: Sequence[str] | None) -> Inputs:
    """Find the datasets or the files.

    Args:
        paths: each the folder of a dataset, a folder of files, a file, or a pattern.
        take: the splits that are read, or None for all.

    Raises:
        SourceError: an input is not there, or has no files.
        UsageError: datasets and foreign files are mixed, an input is repeated, or a split to take is in none.
        DatasetError: the manifest of a dataset is damaged.
    """
    for path in paths:
        if not path.strip():
            raise UsageError(f"An input is empty. {FIX}")
    seen_paths: set[str] = set()
    for path in paths:
        if whole_path(path) in seen_paths:
            raise UsageError(f"{path} comes twice. Name each input once.")
        seen_paths.add(whole_path(path))
    datasets = [open_dataset(path) if _is_dataset(path) else None for path in paths]
    opened = tuple(dataset for dataset in datasets if dataset is not None)
    if opened and len(opened) < len(paths):
        foreign = paths[datasets.index(None)]
        raise UsageError(
            f"{foreign} has no {MANIFEST_NAME}, and {opened[0].path} is a dataset. Reshard the files first, then merge the two."
        )
    files = list_stored_files(paths, opened, take)
    first = tuple(itertools.islice(files, _FIRST))
    splits = frozenset(file.split for file in itertools.chain(first, files))
    for split in take or ():
        if split not in splits:
            raise UsageError(f"--take-splits: no input has the split {split!r}. Choose from the splits of the inputs.")
    return Inputs(first, splits, opened, not opened and any(map(is_folder, paths)))


def _is_dataset(path: str) -> bool:
    storage = storage_for(path)
    return is_folder(path) and storage.stat(storage.join(path, MANIFEST_NAME)) is not None


def check_apart(paths: Sequence[str], output: str) -> None:
    """Raise UsageError if the output lies in an input folder, so that the next run would read it."""
    for path in paths:
        if is_folder(path) and f"{whole_path(output)}/".startswith(f"{whole_path(path)}/"):
            raise UsageError(f"--output {output} lies in the input {path}. Name a folder outside.")


def check_splits(splits: Collection[str], take: Sequence[str] | None, *, assigns_splits: bool) -> None:
    """Check that the inputs have records, and that `--split` does not replace their splits unnoticed.

    Args:
        splits: splits of the inputs.
        take: the splits that are read, or None for all.
        assigns_splits: whether `--split` assigns records to splits.

    Raises:
        DatasetError: all records are in quarantine.
        UsageError: `--split` is passed without `--take-splits`, and the inputs have several splits.
    """
    names = sorted(splits)
    if assigns_splits and take is None and len(names) > 1:
        raise UsageError(
            f"--split: the inputs have splits already ({', '.join(names)}). Pass --take-splits {','.join(names)} to assign"
            " all their records again, or fewer of them."
        )
    if not names:
        raise DatasetError("All records of the inputs are in quarantine. Restore the shards.")
