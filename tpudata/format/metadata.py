"""Writing of the files next to the shards. The manifest comes last: it completes the dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import google_crc32c

from tpudata.console.tables import count_text
from tpudata.errors import DatasetError
from tpudata.format import tfds
from tpudata.format.layout import LABELS_NAME
from tpudata.format.manifest.features import Feature
from tpudata.format.manifest.manifest import MANIFEST_NAME, Manifest
from tpudata.format.written_files import WrittenFile, check_written
from tpudata.storage import for_each, storage_for


def planned_metadata_names(
    compression: str | None, features: Iterable[Feature], *, has_classes: bool
) -> tuple[str, ...]:
    """Return the names of the files that `write_metadata` may write before the manifest.

    Args:
        compression: compression of the shards; TFDS has files only for shards without compression.
        features: features of the records; if exactly one has classes, TFDS may have a file of its class names.
        has_classes: whether the dataset has classes.
    """
    return (*((LABELS_NAME,) if has_classes else ()), *tfds.list_file_names(compression, features))


def metadata_names(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the files that `write_metadata` may have written before the manifest of a complete dataset."""
    # Earlier versions did not write class names for TFDS.
    features = () if manifest.tfds is None else manifest.features
    return planned_metadata_names(manifest.compression, features, has_classes=manifest.labels is not None)


def write_metadata(
    folder: str, manifest: Manifest, labels: Sequence[str] | None = None, written_files: Iterable[WrittenFile] = ()
) -> Manifest:
    """Write labels.txt (if there are classes), the TFDS metadata (if TFDS reads the shards), and then the manifest.

    Args:
        folder: the dataset's folder, which holds the manifest's shards already.
        manifest: contents of the dataset; the checksum of labels.txt and the name for TFDS are filled in.
        labels: class names in the order of their labels, as many as `manifest.labels` counts; None if that is None.
        written_files: files that were written before; these and the metadata are compared with the folder before the manifest is
            written.

    Returns:
        The manifest as written.

    Raises:
        DatasetError: labels and manifest differ, or a class name is empty or has a line break.
        OutputError: the folder does not have the files that were written.
        StorageError: a file could not be written.
    """
    if (None if labels is None else len(labels)) != manifest.labels:
        raise DatasetError(
            f"{folder}: {len(labels or ())} class names for a manifest of {count_text(manifest.labels or 0, 'class', 'classes')}."
            " Pass one for each class."
        )
    manifest = dataclasses.replace(manifest, tfds=tfds.find_tfds_name(folder) if manifest.compression is None else None)
    contents_by_name = {}
    labels_crc32c = None
    if labels is not None:
        unstorable_names = [name for name in labels if name.splitlines() != [name]]
        if unstorable_names:
            raise DatasetError(
                f"Class name {unstorable_names[0]!r} is empty or has a line break, which {LABELS_NAME} cannot hold. Rename it."
            )
        contents_by_name[LABELS_NAME] = "".join(f"{name}\n" for name in labels).encode()
        labels_crc32c = google_crc32c.value(contents_by_name[LABELS_NAME])
    contents_by_name.update(tfds.encode_files(manifest, labels))
    storage = storage_for(folder)

    def write(name_and_content: tuple[str, bytes]) -> None:
        name, content = name_and_content
        with storage.create(storage.join(folder, name)) as file:
            file.write(content)

    for_each(folder, write, contents_by_name.items())
    for name in tfds.list_file_names(manifest.compression, manifest.features):
        # If an append adds class names that TFDS cannot hold, the file of the earlier names would be wrong.
        if name not in contents_by_name:
            storage.delete(storage.join(folder, name))
    check_written(
        folder, [*written_files, *(WrittenFile.of(name, content) for name, content in contents_by_name.items())]
    )
    manifest = dataclasses.replace(manifest, labels_crc32c=labels_crc32c)
    write((MANIFEST_NAME, manifest.to_bytes()))
    return manifest
