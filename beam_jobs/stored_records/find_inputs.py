"""Search for the datasets and TFRecord files among the inputs of `tpudata reshard`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from beam_jobs.stored_records.stored_files import FIX, StoredFile, is_folder, list_stored_files, resolve_path
from tpudata.errors import DatasetError, UsageError
from tpudata.format import Dataset, open_dataset
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.storage import storage_for

# Maximum number of files that are searched for the first records, which show the types of features.
_MAX_FIRST_FILES = 100


class StoredInputs(NamedTuple):
    """The datasets or the foreign files that the inputs are.

    Attributes:
        first_files: the first files of all inputs, in order: 100 at most.
        splits: splits of all files.
        datasets: the datasets; empty for foreign files.
        skips_other_files: whether files without TFRecords are skipped, since an input is a folder, which may hold other files.
    """

    first_files: tuple[StoredFile, ...]
    splits: frozenset[str]
    datasets: tuple[Dataset, ...]
    skips_other_files: bool


def find_inputs(paths: Sequence[str], selected_splits: Sequence[str] | None) -> StoredInputs:
    """Return the datasets, or the foreign files, at paths.

    Args:
        paths: the inputs: each is the folder of a dataset, a folder of files, a file or a pattern.
        selected_splits: the splits that are read, or None for all.

    Raises:
        SourceError: an input does not exist, or has no files.
        UsageError: datasets and foreign files are mixed, an input is empty or repeated, or one of
            `selected_splits` is in no input.
        DatasetError: the manifest of a dataset is damaged.
    """
    for path in paths:
        if not path.strip():
            raise UsageError(f"An input is empty. {FIX}")
    seen_paths: set[str] = set()
    for path in paths:
        if resolve_path(path) in seen_paths:
            raise UsageError(f"{path} comes twice. Name each input once.")
        seen_paths.add(resolve_path(path))
    dataset_paths = list(filter(_is_dataset, paths))
    datasets = tuple(map(open_dataset, dataset_paths))
    if datasets and len(datasets) < len(paths):
        foreign_path = next(path for path in paths if path not in dataset_paths)
        raise UsageError(
            f"{foreign_path} has no {MANIFEST_NAME}, and {datasets[0].path} is a dataset. Reshard the files first, then merge the"
            " two."
        )
    files = list_stored_files(paths, datasets, selected_splits)
    first_files = tuple(itertools.islice(files, _MAX_FIRST_FILES))
    # The iterator `files` continues after the first files.
    splits = frozenset(file.split for file in itertools.chain(first_files, files))
    for split in selected_splits or ():
        if split not in splits:
            raise UsageError(f"--take-splits: no input has the split {split!r}. Choose from the splits of the inputs.")
    return StoredInputs(first_files, splits, datasets, skips_other_files=not datasets and any(map(is_folder, paths)))


def _is_dataset(path: str) -> bool:
    storage = storage_for(path)
    return is_folder(path) and storage.stat(storage.join(path, MANIFEST_NAME)) is not None


def check_output_outside(paths: Sequence[str], output: str) -> None:
    """Raise UsageError if the output lies in an input folder: the next run would read it."""
    for path in paths:
        if is_folder(path) and f"{resolve_path(output)}/".startswith(f"{resolve_path(path)}/"):
            raise UsageError(f"--output {output} lies in the input {path}. Name a folder outside.")


def check_splits(splits: Collection[str], selected_splits: Sequence[str] | None, *, assigns_splits: bool) -> None:
    """Check that the inputs have records, and that `--split` does not silently replace their splits.

    Args:
        splits: splits of the inputs.
        selected_splits: the splits that are read, or None for all.
        assigns_splits: whether `--split` assigns records to splits.

    Raises:
        DatasetError: all records are in quarantine.
        UsageError: `--split` is passed without `--take-splits`, and the inputs have several splits.
    """
    names = sorted(splits)
    if assigns_splits and selected_splits is None and len(names) > 1:
        raise UsageError(
            f"--split: the inputs have splits already ({', '.join(names)}). Pass --take-splits {','.join(names)} to assign"
            " all their records again, or fewer of them."
        )
    if not names:
        raise DatasetError("All records of the inputs are in quarantine. Restore the shards.")
