"""The output folder: what may be in it before a job starts, and how an earlier dataset is removed."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Any

from beam_jobs.rejects import rejects_name
from tpudata.errors import OutputError
from tpudata.format import Manifest, index_name
from tpudata.format.layout import INDEX_FOLDER, LABELS_NAME, REJECTS_FOLDER, is_shard_name
from tpudata.format.manifest import MANIFEST_NAME
from tpudata.format.tfds import DATASET_INFO_NAME, FEATURES_NAME
from tpudata.storage import Entry, storage_for
from tpudata.storage.local import TEMPORARY_PREFIX

_METADATA = (LABELS_NAME, DATASET_INFO_NAME, FEATURES_NAME)


class Found(enum.Enum):
    """What an output folder holds before a job starts."""

    NOTHING = enum.auto()
    PARTS = enum.auto()
    DATASET = enum.auto()


def look_at_output(output: str, *, resume: bool, overwrite: bool) -> Found:
    """Checks that a job may write into a folder; changes nothing.

    An empty or absent folder is always fine. `resume` accepts what a killed run leaves: shards, indexes and metadata, but
    nothing else. `overwrite` accepts whatever lies beside a complete dataset.

    Raises:
        OutputError: the folder holds something else; says what, and what to do.
    """
    storage = storage_for(output)
    found = storage.stat(output)
    if found is None:
        return Found.NOTHING
    if not found.is_folder:
        raise OutputError(f"--output {output} is a file. Name a folder.")
    entries = [entry for entry in storage.list(output) if not _is_nothing(entry)]
    if not entries:
        return Found.NOTHING
    complete = any(entry.name == MANIFEST_NAME for entry in entries)
    if overwrite and complete:
        return Found.DATASET
    if overwrite:
        raise OutputError(
            f"--overwrite: {output} is not empty and has no {MANIFEST_NAME}, so nothing says what may be removed."
            " Say --resume to carry on a killed run there, or name another folder."
        )
    if not resume:
        choices = "--overwrite to replace it" if complete else "--resume to carry on a killed run there"
        what = "holds a dataset" if complete else f"is not empty (it has {entries[0].name})"
        raise OutputError(f"--output {output} {what}. Say {choices}, or name another folder.")
    strange = [entry.name for entry in entries if not _is_ours(entry.name)]
    if strange:
        raise OutputError(
            f"--resume: {output} has {strange[0]}, which no conversion writes. Name the folder of the killed run."
        )
    return Found.DATASET if complete else Found.PARTS


def refuse_another_dataset(output: str, options: Mapping[str, Any], fingerprint: str) -> None:
    """Raises OutputError where the complete dataset in a folder was made with other options or from another input."""
    storage = storage_for(output)
    path = storage.join(output, MANIFEST_NAME)
    manifest = Manifest.from_bytes(storage.read(path), path)
    for name in sorted({*options, *manifest.options}):
        was, now = manifest.options.get(name), options.get(name)
        if was != now:
            raise OutputError(
                f"--resume: {output} holds a complete dataset that was made with {name} = {was!r}, and now it is {now!r}."
                " Say --overwrite to replace it, or name another folder."
            )
    if manifest.source.fingerprint != fingerprint:
        raise OutputError(
            f"--resume: {output} holds a complete dataset, and the input has changed since. Say --overwrite to replace it, or name"
            " another folder."
        )


def refuse_strays(output: str, names: Collection[str]) -> None:
    """Raises OutputError where the folder has shards beside those of these names, left by a run with another plan."""
    storage = storage_for(output)
    if storage.stat(output) is None:
        return
    strays = [entry.name for entry in storage.list(output) if is_shard_name(entry.name) and entry.name not in names]
    if strays:
        raise OutputError(
            f"{output} has {len(strays)} shards of another run, such as {strays[0]}: the input or the options changed since."
            " Remove them, or name another folder."
        )


def remove_temporary_files(output: str) -> None:
    """Removes the unfinished files that killed workers left."""
    storage = storage_for(output)
    for folder in (output, storage.join(output, INDEX_FOLDER), storage.join(output, REJECTS_FOLDER)):
        if storage.stat(folder) is None:
            continue
        for entry in storage.list(folder):
            if entry.name.startswith(TEMPORARY_PREFIX):
                storage.delete(entry.path)


def remove_dataset(output: str) -> None:
    """Removes exactly what the manifest in a folder lists, the manifest first."""
    storage = storage_for(output)
    path = storage.join(output, MANIFEST_NAME)
    manifest = Manifest.from_bytes(storage.read(path), path)
    # The manifest goes first: from then on the folder no longer claims to be complete.
    storage.delete(path)
    for split in manifest.splits.values():
        for shard in split.shards:
            storage.delete(storage.join(output, index_name(shard.name)))
            storage.delete(storage.join(output, rejects_name(shard.name)))
            storage.delete(storage.join(output, shard.name))
    for name in _METADATA:
        storage.delete(storage.join(output, name))


def _is_nothing(entry: Entry) -> bool:
    """Whether an entry does not make a folder any less empty: an unfinished file, or a folder with nothing in it."""
    if entry.is_folder:
        return all(_is_nothing(inner) for inner in storage_for(entry.path).list(entry.path))
    return entry.name.startswith(TEMPORARY_PREFIX)


def _is_ours(name: str) -> bool:
    return name in (*_METADATA, MANIFEST_NAME, INDEX_FOLDER, REJECTS_FOLDER) or is_shard_name(name)
