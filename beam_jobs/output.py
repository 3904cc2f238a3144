"""The output folder: what may be in it before a job starts, and how an earlier dataset is taken away."""

from __future__ import annotations

import re

from tpudata.errors import OutputError
from tpudata.format import Manifest, index_name
from tpudata.format.layout import INDEX_FOLDER, LABELS_NAME, SHARD_SUFFIX
from tpudata.format.manifest import MANIFEST_NAME
from tpudata.format.tfds import DATASET_INFO_NAME, FEATURES_NAME
from tpudata.storage import storage_for
from tpudata.storage.local import TEMPORARY_PREFIX

_METADATA = (LABELS_NAME, DATASET_INFO_NAME, FEATURES_NAME)
_SHARD = re.compile(rf"[A-Za-z]\w*-\d{{5,}}-of-\d{{5,}}{re.escape(SHARD_SUFFIX)}", re.ASCII)


def prepare_output(output: str, *, resume: bool, overwrite: bool) -> None:
    """Checks that a job may write into a folder, and clears it where that was asked for.

    An empty or absent folder is always fine. `resume` accepts what a killed run leaves: shards, indexes and metadata, but
    nothing else. `overwrite` removes exactly what the manifest there lists.

    Raises:
        OutputError: the folder holds something else; says what, and what to do. Nothing was removed.
    """
    storage = storage_for(output)
    found = storage.stat(output)
    if found is None:
        return
    if not found.is_folder:
        raise OutputError(f"--output {output} is a file. Name a folder.")
    entries = [entry for entry in storage.list(output) if not entry.name.startswith(TEMPORARY_PREFIX)]
    if not entries:
        return
    if overwrite:
        _remove_dataset(output)
        return
    complete = any(entry.name == MANIFEST_NAME for entry in entries)
    if not resume:
        choices = "--overwrite to replace it" if complete else "--resume to carry on a killed run there"
        what = "holds a dataset" if complete else f"is not empty (it has {entries[0].name})"
        raise OutputError(f"--output {output} {what}. Say {choices}, or name another folder.")
    strange = [entry.name for entry in entries if not _is_ours(entry.name)]
    if strange:
        raise OutputError(
            f"--resume: {output} has {strange[0]}, which no conversion writes. Name the folder of the killed run."
        )


def refuse_strays(output: str, manifest: Manifest) -> None:
    """Raises OutputError where the folder has shards that the manifest does not list, left by a run with another plan."""
    storage = storage_for(output)
    listed = {shard.name for split in manifest.splits.values() for shard in split.shards}
    strays = [entry.name for entry in storage.list(output) if _SHARD.fullmatch(entry.name) and entry.name not in listed]
    if strays:
        raise OutputError(
            f"{output} has {len(strays)} shards of another run, such as {strays[0]}: the input or the options changed since."
            " Remove them, or name another folder."
        )


def remove_temporary_files(output: str) -> None:
    """Removes the unfinished files that killed workers left."""
    storage = storage_for(output)
    for folder in (output, storage.join(output, INDEX_FOLDER)):
        if storage.stat(folder) is None:
            continue
        for entry in storage.list(folder):
            if entry.name.startswith(TEMPORARY_PREFIX):
                storage.delete(entry.path)


def _remove_dataset(output: str) -> None:
    storage = storage_for(output)
    path = storage.join(output, MANIFEST_NAME)
    if storage.stat(path) is None:
        raise OutputError(
            f"--overwrite: {output} is not empty and has no {MANIFEST_NAME}, so nothing says what may be removed."
            " Say --resume to carry on a killed run there, or name another folder."
        )
    manifest = Manifest.from_bytes(storage.read(path), path)
    # The manifest goes first: from then on the folder no longer claims to be complete.
    storage.delete(path)
    for split in manifest.splits.values():
        for shard in split.shards:
            storage.delete(storage.join(output, index_name(shard.name)))
            storage.delete(storage.join(output, shard.name))
    for name in _METADATA:
        storage.delete(storage.join(output, name))


def _is_ours(name: str) -> bool:
    return name in (*_METADATA, MANIFEST_NAME, INDEX_FOLDER) or _SHARD.fullmatch(name) is not None
