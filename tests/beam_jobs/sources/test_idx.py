from __future__ import annotations

import gzip
import io
import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from beam_jobs.references.labels import Labels
from beam_jobs.sources import SourceOptions
from tests.beam_jobs.sources.inputs import converted, data_of, listed, opened, units
from tpudata.errors import CorruptionError, SourceError, UsageError

GZ = pytest.mark.parametrize("gz", [False, True])


def idx_bytes(values: npt.NDArray[np.uint8]) -> bytes:
    """An IDX file, by the format's description."""
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_pair(
    folder: Path, count: int = 25, prefix: str = "train-", gz: bool = False, shape: tuple[int, ...] = (4, 3)
) -> None:
    images = np.arange(count * int(np.prod(shape)), dtype=np.uint32).astype(np.uint8).reshape(count, *shape)
    labels = (np.arange(count) % 10).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in ((f"{prefix}images-idx{images.ndim}-ubyte", images), (f"{prefix}labels-idx1-ubyte", labels)):
        data = idx_bytes(values)
        (folder / (name + ".gz" * gz)).write_bytes(gzip.compress(data) if gz else data)


@GZ
@pytest.mark.parametrize("shape", [(4, 3), (2, 5, 3)])
def test_lists_every_image_once(tmp_path: Path, gz: bool, shape: tuple[int, ...]) -> None:
    write_pair(tmp_path, 25, gz=gz, shape=shape)
    source = opened(tmp_path)
    references = listed(source)
    size = int(np.prod(shape))
    stream = np.arange(25 * size, dtype=np.uint32).astype(np.uint8).tobytes()
    assert [data_of(reference) for reference in references] == [stream[i * size : (i + 1) * size] for i in range(25)]
    assert [reference.labels for reference in references] == [(str(i % 10),) for i in range(25)]
    assert references[7].key == f"train-images-idx{len(shape) + 1}-ubyte/00000007"
    assert {(reference.split, reference.size) for reference in references} == {("train", size)}
    assert (source.has_classes, source.integer_labels, source.labels) == (True, True, None)


@GZ
def test_lists_each_image_once_in_units_of_ten_thousand(tmp_path: Path, gz: bool) -> None:
    write_pair(tmp_path, 25_000, gz=gz, shape=(1, 1))
    source = opened(tmp_path)
    assert [unit.length for unit in units(source)] == ([25_000] if gz else [10_000, 10_000, 5_000])
    assert [reference.key for reference in listed(source)] == [
        f"train-images-idx3-ubyte/{n:08d}" for n in range(25_000)
    ]


@GZ
def test_takes_the_splits_of_mnist_from_file_names(tmp_path: Path, gz: bool) -> None:
    write_pair(tmp_path, 6, "train-", gz)
    write_pair(tmp_path, 4, "t10k-", gz)
    splits = [reference.split for reference in listed(opened(tmp_path))]
    assert (splits.count("train"), splits.count("test")) == (6, 4)
    assert [reference.split for reference in listed(opened(f"{tmp_path}/*idx*"))] == splits
    with pytest.raises(UsageError, match=r"--split: .* has splits already \(test, train\)"):
        opened(tmp_path, split="train=0.5,test=0.5")
    # One file names its pair, and a pair alone may be dealt out.
    path = tmp_path / ("t10k-labels-idx1-ubyte" + ".gz" * gz)
    assert {reference.split for reference in listed(opened(path))} == {"test"}
    dealt = listed(opened(path, split="a=0.5,b=0.5"))
    assert len(dealt) == 4
    assert {reference.split for reference in dealt} <= {"a", "b"}


def test_accepts_names_with_a_dot_and_half_compressed_pairs(tmp_path: Path) -> None:
    write_pair(tmp_path, 5)
    images = tmp_path / "train-images-idx3-ubyte"
    (tmp_path / "train-images.idx3-ubyte.gz").write_bytes(gzip.compress(images.read_bytes()))
    images.unlink()
    assert len(listed(opened(tmp_path))) == 5


def test_takes_class_names_from_a_labels_file(tmp_path: Path) -> None:
    write_pair(tmp_path / "in", 10)
    names = tmp_path / "names.txt"
    names.write_text("\n".join("abcdefghij"))
    source = opened(tmp_path / "in", SourceOptions(labels_file=str(names)))
    assert [reference.labels for reference in listed(source)] == [(name,) for name in "abcdefghij"]
    assert source.labels == Labels(tuple("abcdefghij"))
    names.write_text("a\nb\n")
    with pytest.raises(SourceError, match=r"labels-idx1-ubyte, label 2: rejected: unknown label: '2'"):
        listed(opened(tmp_path / "in", SourceOptions(labels_file=str(names))))


def change(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train-labels-idx1-ubyte", idx_bytes(np.zeros(24, np.uint8)), "25 images, and .* 24 labels"),
        (
            "train-images-idx3-ubyte",
            idx_bytes(np.zeros((25, 4, 3), np.uint8))[:-1],
            "at byte 315: 315 bytes, but its header says 25 x 4 x 3",
        ),
        ("train-images-idx3-ubyte", idx_bytes(np.zeros((25, 4, 3), np.uint8)) + b"x", "at byte 316: 317 bytes"),
        ("train-images-idx3-ubyte", b"\0\0\x0d\3" + bytes(12), "IDX type 0x0d"),
        ("train-images-idx3-ubyte", b"\0\0\x08\3" + bytes(4), "ends inside its header"),
        ("train-images-idx3-ubyte", b"hello", "not an IDX file of 3 or 4 dimensions"),
    ],
)
def test_rejects_damaged_files(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    write_pair(tmp_path)
    change(tmp_path, name, data)
    with pytest.raises((SourceError, CorruptionError), match=message):
        opened(tmp_path)


@pytest.mark.parametrize("what", ["images-idx3", "labels-idx1"])
@pytest.mark.parametrize(("cut", "message"), [(-1, "ends before the last record"), (1, "bytes after the last record")])
def test_rejects_a_compressed_file_of_another_size(tmp_path: Path, what: str, cut: int, message: str) -> None:
    write_pair(tmp_path, gz=True)
    path = tmp_path / f"train-{what}-ubyte.gz"
    data = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(data[:cut] if cut < 0 else data + b"x"))
    with pytest.raises(CorruptionError, match=message):
        listed(opened(tmp_path))


@pytest.mark.parametrize(("gz", "shape"), [(False, (4, 3)), (True, (2, 5, 3))])
def test_converts_pairs(tmp_path: Path, gz: bool, shape: tuple[int, ...]) -> None:
    write_pair(tmp_path / "in", 12, "t10k-", gz, shape)
    found = converted(tmp_path / "in", tmp_path / "out")
    pixels = np.arange(12 * math.prod(shape), dtype=np.uint32).astype(np.uint8).reshape(12, *shape)
    assert set(found) == {"test"}
    assert len(found["test"]) == 12
    for key, (label, image) in found["test"].items():
        number = int(key.rpartition(b"/")[2])
        assert label == number % 10
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(image))), pixels[number])


def test_names_a_missing_partner(tmp_path: Path) -> None:
    write_pair(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(SourceError, match="train-images-idx3-ubyte has no labels file next to it"):
        opened(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").rename(tmp_path / "pictures")
    with pytest.raises(SourceError, match="Name it PREFIX-images-idx3-ubyte"):
        opened(tmp_path / "pictures")


def test_rejects_labels_truncated_during_a_run(tmp_path: Path) -> None:
    write_pair(tmp_path, 5)
    source, labels = opened(tmp_path), tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-2])
    with pytest.raises(CorruptionError, match="the file ends before the last record") as error:
        listed(source)
    assert error.value.offset == 8 + 3
