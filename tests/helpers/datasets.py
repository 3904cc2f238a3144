"""Small real datasets on disk for tests: written with the public writers, pictures through Pillow."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tpudata.format import (
    Feature,
    Manifest,
    Shard,
    ShardIndex,
    Source,
    Split,
    encode_example,
    index_name,
    shard_name,
    write_metadata,
    write_shard,
)

LABEL = Feature("image/class/label", "int64", "int64", num_classes=10)
FILENAME = Feature("image/filename", "bytes", "string", encoding="utf8")


@dataclasses.dataclass(frozen=True)
class Written:
    """A dataset and what was put into it, by split in the dataset's order."""

    path: str
    images: Mapping[str, list[npt.NDArray[np.uint8]]]
    labels: Mapping[str, list[int]]


def encode_image(pixels: npt.NDArray[np.uint8], file_format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(buffer, file_format)
    return buffer.getvalue()


def write_dataset(
    folder: str,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    features: Sequence[Feature],
    *,
    layout: str,
    shards: int = 3,
    classes: int | None = None,
    compression: str | None = None,
) -> str:
    """Writes records, as evenly as they go, into `shards` shards per split."""
    written = {}
    for name, records in splits.items():
        bounds = [round(i * len(records) / shards) for i in range(shards + 1)]
        parts = [
            write_shard(
                folder,
                shard_name(name, number, shards),
                [encode_example(record) for record in records[bounds[number] : bounds[number + 1]]],
                compression=compression,
            )
            for number in range(shards)
        ]
        written[name] = Split(tuple(parts))
    count = sum(len(records) for records in splits.values())
    manifest = Manifest(
        layout=layout,
        splits=written,
        features=tuple(features),
        source=Source("memory", count, 0, "0"),
        created_by="tests",
        labels=classes,
        compression=compression,
    )
    write_metadata(folder, manifest, None if classes is None else [f"class {i}" for i in range(classes)])
    return folder


def write_sparse_shards(folder: Path, shards: Sequence[npt.NDArray[np.int64]]) -> None:
    """Write a split "train" of strings "x" whose shards are sparse files, with indexes for records of these sizes."""
    written = []
    for number, sizes in enumerate(shards):
        offsets = np.append(0, np.cumsum(sizes)).astype(np.uint64)
        shard = Shard(shard_name("train", number, len(shards)), len(sizes), int(offsets[-1]), 0)
        blocks = np.zeros(-(-len(sizes) // 64), np.uint32)
        path = folder / index_name(shard.name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(ShardIndex(offsets, blocks, 64, shard.bytes, 0, None, {}).to_bytes())
        (folder / shard.name).touch()
        os.truncate(folder / shard.name, shard.bytes)
        written.append(shard)
    splits, features = {"train": Split(tuple(written))}, (Feature("x", "bytes", "string"),)
    write_metadata(str(folder), Manifest("", splits, features, Source("", 0, 0, ""), "tests"))


def write_images(
    folder: str,
    images: Mapping[str, Sequence[npt.NDArray[np.uint8]]],
    labels: Mapping[str, Sequence[int]],
    *,
    shape: tuple[int | None, int | None, int],
    layout: str = "imagenet",
    shards: int = 3,
    compression: str | None = None,
) -> Written:
    """Writes pictures as PNG in the layout imagenet, or as raw bytes."""
    if layout == "imagenet":
        features = [Feature("image/encoded", "bytes", "uint8", shape, "image"), LABEL, FILENAME]
    else:
        features = [
            Feature("image_raw", "bytes", "uint8", shape, "raw"),
            Feature("label", "int64", "int64", num_classes=10),
        ]

    def record(split: str, number: int) -> dict[str, Any]:
        pixels, label = images[split][number], int(labels[split][number])
        if layout == "imagenet":
            name = f"{split}/{number}.png"
            return {"image/encoded": encode_image(pixels), "image/class/label": label, "image/filename": name}
        return {"image_raw": pixels.tobytes(), "label": label}

    records = {split: [record(split, number) for number in range(len(images[split]))] for split in images}
    write_dataset(folder, records, features, layout=layout, shards=shards, classes=10, compression=compression)
    return Written(folder, {k: list(v) for k, v in images.items()}, {k: [int(x) for x in v] for k, v in labels.items()})


def write_undecodable(folder: str) -> str:
    """A split "train" of 24 pictures, of which one has a changed byte in its pixels: the records are whole, the PNG is not."""
    random = np.random.default_rng(0)
    pictures = [encode_image(random.integers(0, 256, (28, 28, 1), np.uint8)) for _ in range(24)]
    at = len(pictures[17]) // 2
    pictures[17] = pictures[17][:at] + bytes([pictures[17][at] ^ 255]) + pictures[17][at + 1 :]
    records = [{"image/encoded": data, "image/class/label": number % 10} for number, data in enumerate(pictures)]
    features = [Feature("image/encoded", "bytes", "uint8", (28, 28, 1), "image"), LABEL]
    return write_dataset(folder, {"train": records}, features, layout="imagenet", shards=2, classes=10)


def copy_with_damage(dataset: str, folder: Path) -> tuple[str, str]:
    """Copy a dataset, and flip a bit of the first record of the second shard of `test`; return the copy and the shard."""
    shutil.copytree(dataset, folder)
    shard = sorted(folder.glob("test-00001*"))[0]
    data = bytearray(shard.read_bytes())
    data[30] ^= 1
    shard.write_bytes(data)
    return str(folder), str(shard)
