"""Verification of a whole dataset: every byte, checksum, count and record, and missing or unexpected files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator

import google_crc32c

from tpudata.console.tables import count_text
from tpudata.errors import CorruptionError, DatasetError
from tpudata.format import tfds
from tpudata.format.checksums import checksum_fits
from tpudata.format.dataset import open_dataset
from tpudata.format.layout import (
    INDEX_FOLDER,
    LABELS_NAME,
    REJECTS_FOLDER,
    SHARD_SUFFIXES,
    dali_index_name,
    index_name,
    keys_name,
)
from tpudata.format.manifest.manifest import MANIFEST_NAME, Manifest, Shard, list_shards
from tpudata.format.metadata import metadata_names
from tpudata.format.quarantine import QUARANTINE_NAME, read_quarantine
from tpudata.format.reject_lines import list_reject_files, scan_reject_lines
from tpudata.format.shards.keys import ShardKeys
from tpudata.format.tokenizer_file import tokenizer_files
from tpudata.format.verification.defect import Defect
from tpudata.format.verification.shard_check import ExampleCheck, ShardCheck
from tpudata.format.verification.verify_shards import find_shard_defects
from tpudata.storage import storage_for

__all__ = ["Defect", "ExampleCheck", "verify"]

# Prefix of temporary files, which no glob such as `train-*` finds.
_HIDDEN = "."


def verify(
    folder: str,
    *,
    example_check: ExampleCheck | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Defect]:
    """Read a dataset again and yield every defect in it: first in the files next to the shards, then in each shard.

    Defects are any changed bit in a shard, an index, the manifest, labels.txt, the tokenizer's files or the TFDS metadata; a
    shard or index that is truncated, missing, unexpected, or of another shard; counts and checksums that differ from the
    manifest; records that are not Examples with the manifest's features, kinds, shapes and labels; files of rejected inputs
    whose number of lines differs from the manifest's count. If the manifest itself is damaged, nothing else is checked, since
    everything is compared with it.

    Memory holds one record (one block of records for a compressed shard) and one index per worker; with several workers, also the
    defects of shards that are checked ahead of their turn.

    Args:
        folder: the dataset's folder: a local path, or a URL such as gs://BUCKET/FOLDER.
        example_check: called with the manifest and each decoded record whose checksum matches; yields its problems, as strings or
            `Problem`s. With several workers it must be picklable, such as a function of a module. None for no such check.
        workers: number of processes among which the shards are divided; 1 is this process.
        progress: called with the number of bytes read since the last call, and the number in all shards.

    Raises:
        DatasetError: the folder has no manifest.
        StorageError: the folder cannot be listed, or a file next to the shards cannot be read.
    """
    storage = storage_for(folder)
    manifest_path = storage.join(folder, MANIFEST_NAME)
    if storage.stat(manifest_path) is None:
        # Raises the error for a missing manifest.
        open_dataset(folder)
    manifest = yield from _read_manifest(manifest_path)
    if manifest is None:
        return
    shards = list_shards(manifest)
    yield from _find_tokenizer_defects(folder, manifest)
    yield from _find_tfds_defects(folder, manifest)
    yield from _find_label_defects(folder, manifest)
    yield from _find_unlisted_files(folder, manifest, shards)
    yield from _find_reject_defects(folder, manifest)
    yield from _find_quarantine_defects(folder, manifest, shards)
    if manifest.keys:
        yield from _find_key_defects(folder, manifest, shards)
    yield from find_shard_defects(ShardCheck(folder, manifest, example_check), shards, workers, progress)


def _read_manifest(path: str) -> Generator[Defect, None, Manifest | None]:
    """Yield the defects of the manifest; return it if the rest can be compared with it."""
    data = storage_for(path).read(path)
    has_right_checksum = checksum_fits(data)
    if has_right_checksum is False:
        yield Defect(path, 0, "the checksum of the manifest does not match, so nothing else can be checked. Restore it")
        return None
    if has_right_checksum is None:
        yield Defect(path, 0, "the manifest has no checksum, so changes of it cannot be found")
    try:
        return Manifest.from_bytes(data, path)
    except DatasetError as error:
        # For example a damaged manifest without a checksum. The message begins with the path, which a defect has already.
        yield Defect(path, 0, str(error).removeprefix(f"{path}: "))
        return None


def _find_tokenizer_defects(folder: str, manifest: Manifest) -> Iterator[Defect]:
    """Yield the defects of the tokenizer's files."""
    storage = storage_for(folder)
    for file in tokenizer_files(manifest):
        path = storage.join(folder, file.name)
        if storage.stat(path) is None:
            yield Defect(path, None, "is missing; the manifest names it as the tokenizer's file")
        elif hashlib.sha256(storage.read(path)).hexdigest() != file.sha256:
            yield Defect(path, 0, "the SHA-256 of the tokenizer's file differs from the manifest's")


def _find_tfds_defects(folder: str, manifest: Manifest) -> Iterator[Defect]:
    """Yield the defects of the TFDS metadata."""
    storage = storage_for(folder)
    class_names = _read_intact_labels(folder, manifest)
    contents_by_name = tfds.encode_files(manifest, class_names)
    # `_find_label_defects` checks labels.txt. If that file is damaged, TFDS's copy of the names cannot be compared with it.
    names = {*tfds.NAMES, *(metadata_names(manifest) if class_names is not None else ())} - {LABELS_NAME}
    for name in sorted(names):
        path, content = storage.join(folder, name), contents_by_name.get(name)
        if storage.stat(path) is None:
            if content is not None:
                yield Defect(path, None, "is missing")
        elif content is None:
            yield Defect(
                path, None, "should not be there: TFDS does not read compressed shards, or not these class names"
            )
        elif (stored_content := storage.read(path)) != content:
            yield Defect(path, _find_first_difference(stored_content, content), "differs from the manifest")


def _find_label_defects(folder: str, manifest: Manifest) -> Iterator[Defect]:
    """Yield the defect of labels.txt, if it has one."""
    storage = storage_for(folder)
    path = storage.join(folder, LABELS_NAME)
    is_present = storage.stat(path) is not None
    if manifest.labels is None:
        if is_present:
            yield Defect(path, None, "should not be there: the manifest has no classes")
        return
    classes_text = count_text(manifest.labels, "class", "classes")
    if not is_present:
        yield Defect(path, None, f"is missing; the manifest counts {classes_text}")
        return
    data = storage.read(path)
    name_count = len(data.decode(errors="replace").splitlines())
    if name_count != manifest.labels:
        yield Defect(path, len(data), f"{count_text(name_count, 'name')}, the manifest counts {classes_text}")
    elif manifest.labels_crc32c is not None and google_crc32c.value(data) != manifest.labels_crc32c:
        yield Defect(path, 0, "the checksum of the class names differs from the manifest's")


def _read_intact_labels(folder: str, manifest: Manifest) -> list[str] | None:
    """Return the class names in labels.txt; None if the dataset has no classes, or if the file is missing or damaged."""
    storage = storage_for(folder)
    path = storage.join(folder, LABELS_NAME)
    if manifest.labels is None or storage.stat(path) is None:
        return None
    data = storage.read(path)
    # The manifest contains only the number of class names, in `labels`, and their checksum, which is None in manifests of earlier
    # versions.
    is_intact = manifest.labels_crc32c in (None, google_crc32c.value(data))
    names = data.decode(errors="replace").splitlines()
    return names if is_intact and len(names) == manifest.labels else None


def _find_first_difference(data: bytes, other: bytes) -> int:
    """Return the first offset at which two byte strings differ; the length of the shorter one if the longer one begins with it."""
    return next(
        (offset for offset, (a, b) in enumerate(zip(data, other, strict=False)) if a != b), min(len(data), len(other))
    )


def _find_unlisted_files(folder: str, manifest: Manifest, shards: list[Shard]) -> Iterator[Defect]:
    """Yield a defect for each file that looks like a shard, and each file in index/, that does not follow from the manifest."""
    storage = storage_for(folder)
    shard_names = {shard.name for shard in shards}
    prefixes = tuple(f"{split}-" for split in manifest.splits)
    for entry in storage.list(folder):
        looks_like_shard = entry.name.endswith(SHARD_SUFFIXES) or entry.name.startswith(prefixes)
        if looks_like_shard and entry.name not in shard_names and not entry.name.startswith(_HIDDEN):
            yield Defect(entry.path, None, "should not be there: the manifest lists no such shard")
    # Functions that return the name of a shard's file in index/.
    make_names = [index_name]
    if manifest.keys:
        make_names.append(keys_name)
    if manifest.dali_index:
        make_names.append(dali_index_name)
    index_paths = {storage.join(folder, make_name(shard.name)) for shard in shards for make_name in make_names}
    index_paths.add(storage.join(folder, QUARANTINE_NAME))
    index_folder = storage.join(folder, INDEX_FOLDER)
    if storage.stat(index_folder) is None:
        return
    for entry in storage.list(index_folder):
        if entry.path not in index_paths and not entry.name.startswith(_HIDDEN):
            yield Defect(entry.path, None, "should not be there: the manifest lists no shard of this name")


def _find_quarantine_defects(folder: str, manifest: Manifest, shards: list[Shard]) -> Iterator[Defect]:
    """Yield the defects of the list of records that readers skip."""
    path = storage_for(folder).join(folder, QUARANTINE_NAME)
    try:
        quarantine = read_quarantine(folder, manifest)
    except CorruptionError as error:
        yield Defect(path, error.offset, error.reason)
        return
    current_shards = {(shard.name, shard.crc32c) for shard in shards}
    for name, shard in quarantine.shards.items():
        if (name, shard.crc32c) not in current_shards:
            yield Defect(
                path, 0, f"{name} is not the shard in which damage was found. Run tpudata verify --quarantine again"
            )


def _find_key_defects(folder: str, manifest: Manifest, shards: list[Shard]) -> Iterator[Defect]:
    """Yield the defects of the keys of the shards."""
    storage = storage_for(folder)
    for shard in shards:
        path = storage.join(folder, keys_name(shard.name))
        if storage.stat(path) is None:
            yield Defect(path, None, "is missing")
            continue
        try:
            ShardKeys.from_bytes(storage.read(path), path).check(shard, path, is_one_to_one=manifest.is_one_to_one)
        except CorruptionError as error:
            yield Defect(path, error.offset, error.reason)


def _find_reject_defects(folder: str, manifest: Manifest) -> Iterator[Defect]:
    """Yield the defects of the files that list rejected inputs."""
    line_count = 0
    for path in list_reject_files(folder):
        for line in scan_reject_lines(path):
            line_count += 1
            if line.value is None:
                yield Defect(path, line.offset, line.problem)
    expected_count = sum(manifest.rejected.values())
    if line_count != expected_count:
        rejects_path = storage_for(folder).join(folder, REJECTS_FOLDER)
        yield Defect(rejects_path, None, f"lists {line_count} rejected inputs, the manifest counts {expected_count}")
