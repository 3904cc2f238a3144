"""Removal of what runs have written to an output folder: unfinished files, claims, and a dataset that is replaced."""

from __future__ import annotations

from beam_jobs.output.rejects import rejects_name
from tpudata.format import Manifest, index_name
from tpudata.format.layout import INDEX_FOLDER, REJECTS_FOLDER, dali_index_name, keys_name
from tpudata.format.manifest.manifest import MANIFEST_NAME
from tpudata.format.metadata import metadata_names
from tpudata.format.tokenizer_file import tokenizer_files
from tpudata.storage import for_each, storage_for
from tpudata.storage.claims.claim import CLAIM_NAME, Claim, find_own_claim, has_claim
from tpudata.storage.claims.hold import drop_claim, drop_pipeline_claim
from tpudata.storage.local.local_storage import TEMPORARY_PREFIX


def give_up(output: str, claim: Claim | None) -> None:
    """Remove the unfinished files of a run that has failed for good.

    If its claim is a pipeline's, also remove the claim: the last step, which would do so, will not run. Does nothing if another run
    has taken over the output.

    Args:
        output: path of the output folder.
        claim: claim of the run on it; None for a run without a claim.
    """
    if claim is not None and not has_claim(output, claim):
        return
    remove_temporary_files(output)
    drop_pipeline_claim(output, claim)


def end_run(output: str) -> None:
    """Remove the unfinished files and the claim of this process's run, if it holds a claim on the output."""
    claim = find_own_claim(output)
    if claim is not None:
        remove_temporary_files(output)
        drop_claim(output, claim)


def remove_temporary_files(output: str) -> None:
    """Remove the unfinished files of killed workers, but not the claim. Only for the run that holds the claim on the output."""
    storage = storage_for(output)
    for folder in (output, storage.join(output, INDEX_FOLDER), storage.join(output, REJECTS_FOLDER)):
        if storage.stat(folder) is None:
            continue
        for entry in storage.list(folder):
            if entry.name.startswith(TEMPORARY_PREFIX) and entry.name != CLAIM_NAME:
                storage.delete(entry.path)


def remove_dataset(output: str) -> None:
    """Remove the files of the dataset that a folder's manifest describes, the manifest first, and no other files."""
    storage = storage_for(output)
    manifest = read_manifest(output)
    # The manifest is removed first: without it, the folder does not count as complete.
    storage.delete(storage.join(output, MANIFEST_NAME))
    paths = []
    for split in manifest.splits.values():
        for shard in split.shards:
            paths.append(storage.join(output, index_name(shard.name)))
            if manifest.keys:
                paths.append(storage.join(output, keys_name(shard.name)))
            if manifest.dali_index:
                paths.append(storage.join(output, dali_index_name(shard.name)))
            # The manifest does not say which shards have rejects; `delete` ignores a missing file.
            paths.append(storage.join(output, rejects_name(shard.name)))
            paths.append(storage.join(output, shard.name))
    paths += [storage.join(output, REJECTS_FOLDER, name) for name in manifest.rejects]
    paths += [storage.join(output, name) for name in list_metadata(manifest)]
    for_each(output, storage.delete, paths)


def read_manifest(output: str) -> Manifest:
    """Return the manifest in a folder; StorageError if it is missing, DatasetError if it is damaged."""
    storage = storage_for(output)
    path = storage.join(output, MANIFEST_NAME)
    return Manifest.from_bytes(storage.read(path), path)


def list_metadata(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of a dataset's metadata and tokenizer files, without the manifest."""
    return (*metadata_names(manifest), *(file.name for file in tokenizer_files(manifest)))
