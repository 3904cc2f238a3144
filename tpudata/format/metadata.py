"""Writing what stands beside the shards. The manifest comes last: with it the dataset is complete."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import google_crc32c

from tpudata.errors import DatasetError
from tpudata.format import tfds
from tpudata.format.layout import LABELS_NAME
from tpudata.format.manifest import MANIFEST_NAME, Manifest
from tpudata.storage import for_each, storage_for
from tpudata.tables import counted


def metadata_names(compression: str | None, *, labelled: bool) -> tuple[str, ...]:
    """Names of the files that stand beside the shards and the manifest of a dataset.

    Args:
        compression: of its shards.
        labelled: whether it has classes.
    """
    return (*((LABELS_NAME,) if labelled else ()), *tfds.names(compression))


def write_metadata(folder: str, manifest: Manifest, labels: Sequence[str] | None = None) -> None:
    """Writes labels.txt (where there are classes), the TFDS metadata (where it reads the shards), and then the manifest.

    Args:
        folder: the dataset's folder, which holds the manifest's shards already.
        manifest: what is in the dataset; the checksum of labels.txt is filled in.
        labels: class names in the order of their labels; as many as `manifest.labels` says.

    Raises:
        DatasetError: labels and manifest differ, or a class name has a line break.
        StorageError: a file could not be written.
    """
    if (None if labels is None else len(labels)) != manifest.labels:
        raise DatasetError(
            f"{folder}: {len(labels or ())} class names for a manifest of {counted(manifest.labels or 0, 'class', 'classes')}."
        )
    files = {}
    if labels is not None:
        broken = [name for name in labels if name.splitlines() != [name]]
        if broken:
            raise DatasetError(
                f"Class name {broken[0]!r} is empty or has a line break, which {LABELS_NAME} cannot hold. Rename it."
            )
        files[LABELS_NAME] = "".join(f"{name}\n" for name in labels).encode()
    files.update(tfds.metadata(manifest))
    crc32c = None if labels is None else google_crc32c.value(files[LABELS_NAME])
    storage = storage_for(folder)

    def write(named: tuple[str, bytes]) -> None:
        name, data = named
        with storage.create(storage.join(folder, name)) as file:
            file.write(data)

    for_each(folder, write, files.items())
    write((MANIFEST_NAME, dataclasses.replace(manifest, labels_crc32c=crc32c).to_bytes()))
