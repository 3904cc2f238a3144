"""The output folder: checks of what is in it before a run writes to it, and before it writes the manifest."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from beam_jobs.options import ConvertOptions
from beam_jobs.output.removal import list_metadata, read_manifest
from tpudata.console.tables import count_text
from tpudata.errors import OutputError, StorageError, TpudataError
from tpudata.format import Feature, Manifest, tfds
from tpudata.format.layout import (
    INDEX_FOLDER,
    LABELS_NAME,
    REJECTS_FOLDER,
    is_shard_name,
    shard_suffix,
)
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.format.metadata import planned_metadata_names
from tpudata.format.tfrecord.gzip_blocks import HEADER
from tpudata.format.tokenizer_file import is_tokenizer_name
from tpudata.storage import Entry, is_remote, storage_for
from tpudata.storage.local.local_storage import TEMPORARY_PREFIX

_CARRY_ON = "--resume to carry on a killed run there"
# A part of the local storage's messages.
_UNWRITTEN = " could not be written: "
_METADATA = (LABELS_NAME, *tfds.NAMES)


class OutputContents(enum.Enum):
    """Content of an output folder before a job starts.

    Attributes:
        NOTHING: the folder does not exist, or has nothing but unfinished files.
        PARTS: files of a killed run, without a manifest.
        DATASET: a complete dataset, with a manifest.
    """

    NOTHING = enum.auto()
    PARTS = enum.auto()
    DATASET = enum.auto()


def look_at_output(output: str, *, resume: bool, overwrite: bool, append: bool | None = None) -> OutputContents:
    """Check that a job may write into a folder, and return what is in it; changes nothing.

    An empty or absent folder is always accepted, except for an append.

    Args:
        output: path of the output folder.
        resume: whether to accept the shards, indexes, rejects and metadata of a run, killed or complete, but nothing else.
        overwrite: whether to accept a complete dataset, with any other files.
        append: whether to require a complete dataset, with any other files; None for a job that cannot append.

    Raises:
        OutputError: the path is a file, the folder holds something else, or an append finds no dataset; the message gives the fix.
    """
    storage = storage_for(output)
    folder = storage.stat(output)
    if folder is not None and not folder.is_folder:
        raise OutputError(f"--output {output} is a file. Name a folder.")
    entries = [] if folder is None else [entry for entry in storage.list(output) if not _counts_as_empty(entry)]
    is_complete = any(entry.name == MANIFEST_NAME for entry in entries)
    if append and not is_complete:
        raise OutputError(
            f"--append: {output} has no {MANIFEST_NAME}, so there is no complete dataset to add to."
            f" {f'Pass {_CARRY_ON}' if entries else 'Omit --append to make one'}, or name another folder."
        )
    if not entries:
        return OutputContents.NOTHING
    if (overwrite or append) and is_complete:
        return OutputContents.DATASET
    if overwrite:
        raise OutputError(
            f"--overwrite: {output} is not empty and has no {MANIFEST_NAME}, so nothing says what may be removed."
            f" Pass {_CARRY_ON}, or name another folder."
        )
    if not resume:
        choices = f"--overwrite to replace it{_offer_append(append is not None)}" if is_complete else _CARRY_ON
        state = "holds a dataset" if is_complete else f"is not empty (it has {entries[0].name})"
        raise OutputError(f"--output {output} {state}. Pass {choices}, or name another folder.")
    foreign_name = next((entry.name for entry in entries if not _is_written_by_conversions(entry.name)), None)
    if foreign_name is not None:
        raise OutputError(
            f"--resume: {output} has {foreign_name}, which no conversion writes. Name the folder of the killed run."
        )
    return OutputContents.DATASET if is_complete else OutputContents.PARTS


def choose_suffix(options: ConvertOptions, base: Manifest | None = None) -> str:
    """Return the suffix of the names of the shards that a run writes, such as `.tfrecord.gz`.

    Existing shards that the new ones join decide it: earlier versions gave compressed shards the suffix of plain ones.

    Args:
        options: options of the run.
        base: manifest of the dataset that an append adds to; None without an append.
    """
    if base is not None:
        return shard_suffix(options.compression, base.shard_names())
    storage = storage_for(options.output)
    # Only a resumed run joins shards that may be of an earlier version, and only compressed ones had another suffix.
    if options.compression is None or not options.resume or storage.stat(options.output) is None:
        return shard_suffix(options.compression)
    # One shard shows the suffix of all.
    names = (entry.name for entry in storage.list(options.output) if _is_compressed_shard(entry))
    return shard_suffix(options.compression, itertools.islice(names, 1))


def _is_compressed_shard(entry: Entry) -> bool:
    """Return whether a file is a compressed shard; a killed run without compression may have left plain ones."""
    return is_shard_name(entry.name) and storage_for(entry.path).read_range(entry.path, 0, len(HEADER)) == HEADER


def reject_another_dataset(
    output: str, options: Mapping[str, Any], fingerprint: str, *, can_append: bool = False
) -> None:
    """Raise OutputError if the complete dataset in a folder was made with different options or from a different input.

    Args:
        output: path of the output folder.
        options: the options of this run that decide the content of the shards.
        fingerprint: fingerprint of this run's input.
        can_append: whether the message offers --append.
    """
    manifest = read_manifest(output)
    reject_different_options(output, manifest.options, options, flag="--resume")
    if manifest.source.fingerprint != fingerprint:
        raise OutputError(
            f"--resume: {output} holds a complete dataset, and the input has changed since. Pass --overwrite to replace"
            f" it{_offer_append(can_append)}, or name another folder."
        )


def check_has_dali_index(options: ConvertOptions) -> None:
    """Raise OutputError if a complete dataset, whose shards a run does not write again, lacks a requested index for DALI."""
    if options.dali_index and not read_manifest(options.output).dali_index:
        raise OutputError(
            f"--dali-index: {options.output} holds a complete dataset without one. Run `tpudata index {options.output}`, which adds"
            " it, and omit --dali-index."
        )


def reject_different_options(output: str, before: Mapping[str, Any], now: Mapping[str, Any], flag: str) -> None:
    """Raise OutputError, naming each difference, if the options of the dataset in a folder differ from those of this run.

    Args:
        output: path of the output folder.
        before: options of the dataset, from its manifest.
        now: options of this run.
        flag: flag that begins the message.
    """
    changed_names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    if changed_names:
        differences = "; ".join(
            f"{name} = {before.get(name)!r}, and now it is {now.get(name)!r}" for name in changed_names
        )
        raise OutputError(
            f"{flag}: {output} holds a complete dataset that was made with {differences}. Pass --overwrite to replace it, or name"
            " another folder."
        )


def reject_strays(output: str, names: Collection[str]) -> None:
    """Raise OutputError if the folder has shards whose names are not in `names`: a run with another plan has left them."""
    storage = storage_for(output)
    if storage.stat(output) is None:
        return
    strays = [entry.name for entry in storage.list(output) if is_shard_name(entry.name) and entry.name not in names]
    if strays:
        raise OutputError(
            f"{output} has {count_text(len(strays), 'shard')} of another run, such as {strays[0]}: the input or the options changed"
            f" since. Remove them and their files in {INDEX_FOLDER}/ and {REJECTS_FOLDER}/, or name another folder."
        )


def reject_foreign_metadata(
    output: str, compression: str | None, features: Iterable[Feature], *, has_classes: bool, files: Collection[str] = ()
) -> None:
    """Raise OutputError if a new dataset would replace a file that does not belong to the dataset in the folder.

    Args:
        output: a folder with a complete dataset, which is to be overwritten.
        compression: compression of the new dataset.
        features: features of the new records.
        has_classes: whether the new dataset has classes.
        files: names of the additional files of the new dataset.
    """
    storage = storage_for(output)
    old_names = list_metadata(read_manifest(output))
    for name in (*planned_metadata_names(compression, features, has_classes=has_classes), *files):
        if name not in old_names and storage.stat(storage.join(output, name)) is not None:
            raise OutputError(
                f"--overwrite: {output} has {name}, which does not belong to its dataset, and the new one has a file of this name."
                " Move it elsewhere, or name another folder."
            )


def add_resume_hint(error: TpudataError, output: str, flag: str) -> OutputError | None:
    """Return the error with a hint to continue the run if a file of a local output could not be written; otherwise None.

    Args:
        error: error that ended the run.
        output: path of the output folder.
        flag: the flag that continues the run.
    """
    # An object store's own message gives the fix.
    if not isinstance(error, StorageError) or is_remote(output) or _UNWRITTEN not in str(error):
        return None
    return OutputError(f"{error} Then run again with {flag}.")


def reject_another_run(output: str, manifest: Manifest) -> None:
    """Raise OutputError if another run has completed a different dataset in a folder since this one began, or has left shards that
    `manifest` does not list.
    """
    storage = storage_for(output)
    reject_strays(output, manifest.shard_names())
    if storage.stat(storage.join(output, MANIFEST_NAME)) is None:
        return
    if not equals_stored_manifest(manifest, read_manifest(output)):
        raise OutputError(
            f"{output}: another run has completed a dataset there since this one began, from a different input or with different"
            " options. Run one at a time, or name another folder."
        )


def equals_stored_manifest(manifest: Manifest, stored_manifest: Manifest) -> bool:
    """Return whether a stored manifest equals `manifest`, except for the two fields that only `write_metadata` sets."""
    return manifest == dataclasses.replace(stored_manifest, labels_crc32c=manifest.labels_crc32c, tfds=manifest.tfds)


def _offer_append(can_append: bool) -> str:
    return ", --append to add what is new" if can_append else ""


def _counts_as_empty(entry: Entry) -> bool:
    """Return whether a folder may have an entry and count as empty: an unfinished file, or a folder with nothing else."""
    if entry.is_folder:
        return all(_counts_as_empty(inner) for inner in storage_for(entry.path).list(entry.path))
    return entry.name.startswith(TEMPORARY_PREFIX)


def _is_written_by_conversions(name: str) -> bool:
    """Return whether a conversion may have written the file or folder of this name in its output folder."""
    names = (*_METADATA, MANIFEST_NAME, INDEX_FOLDER, REJECTS_FOLDER)
    return name in names or is_tokenizer_name(name) or is_shard_name(name) or name.endswith(tfds.LABELS_SUFFIX)
