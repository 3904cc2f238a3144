"""Files of a dataset as written, which are compared with the storage's listing before the manifest is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import google_crc32c

from tpudata.errors import OutputError
from tpudata.storage import Entry, storage_for


class WrittenFile(NamedTuple):
    """A file that was written.

    Attributes:
        name: its path below the dataset's folder, such as `index/train-00000-of-00012.index`.
        size: bytes.
        crc32c: CRC-32C, as an unsigned integer; None if unknown.
    """

    name: str
    size: int
    crc32c: int | None

    @classmethod
    def of(cls, name: str, data: bytes) -> WrittenFile:
        """Return the description of a file with this content."""
        return cls(name, len(data), google_crc32c.value(data))


def check_written(folder: str, files: Iterable[WrittenFile]) -> None:
    """Compare files with the listing of a folder: names and sizes, and checksums if the storage lists them.

    Raises:
        OutputError: a file is missing or differs.
        StorageError: a folder cannot be listed.
    """
    files_by_folder: dict[str, dict[str, WrittenFile]] = defaultdict(dict)
    for file in files:
        inner_folder, _, name = file.name.rpartition("/")
        files_by_folder[inner_folder][name] = file
    for inner_folder, files_by_name in files_by_folder.items():
        entries = _get_entries_by_name(folder, inner_folder)
        for name, file in files_by_name.items():
            problem = _find_problem(file, entries.get(name))
            if problem:
                raise OutputError(
                    f"{folder}/{file.name}: it is not as it was written ({problem}). Run again; --resume keeps whole shards."
                )


def _get_entries_by_name(folder: str, inner_folder: str) -> dict[str, Entry]:
    """Return the entries of a folder inside the dataset's folder, by name; empty if it does not exist."""
    storage = storage_for(folder)
    path = storage.join(folder, inner_folder) if inner_folder else folder
    if storage.stat(path) is None:
        return {}
    return {entry.name: entry for entry in storage.list(path)}


def _find_problem(file: WrittenFile, entry: Entry | None) -> str:
    """Return how a listed file differs from the one that was written, in words; empty if it does not."""
    if entry is None:
        return f"got no file, expected {file.size} bytes"
    if entry.is_folder or entry.size != file.size:
        return f"got {entry.size} bytes, expected {file.size}"
    # Not every storage lists checksums.
    if None not in (file.crc32c, entry.crc32c) and file.crc32c != entry.crc32c:
        return f"got CRC-32C {entry.crc32c:08x}, expected {file.crc32c:08x}"
    return ""
