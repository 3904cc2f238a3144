"""Files of arrays of images: CIFAR, SVHN and NumPy archives, compared with what other programs read.

Tests read pickles directly, because they damage one at every byte.
"""

from __future__ import annotations

import io
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import loadmat, savemat

from beam_jobs.images import run
from beam_jobs.sources import SourceOptions
from beam_jobs.sources.image_arrays.pickles import BytesPlace, PickledArray, read_pickle
from beam_jobs.sources.image_arrays.source import ImageArrays
from tests.beam_jobs.arrays import (
    Images,
    images,
    planes,
    python2_pickle,
    write_cifar10,
    write_cifar10_binary,
    write_cifar100,
    write_cifar100_binary,
    write_keras_mnist,
    write_medmnist,
    write_svhn,
)
from tests.beam_jobs.sources.inputs import jpeg, listed, opened, write_files
from tests.helpers.processes import ROOT
from tpudata.errors import CorruptionError, SourceError, UsageError
from tpudata.format import open_dataset

DIGITS = [str(number) for number in range(10)]
# By name: what writes it, class names of the dataset, and labels of the first split in order.
FORMS: dict[str, tuple[Callable[[Path], Images], list[str] | None, list[int]]] = {
    "cifar10": (write_cifar10, [f"class {number}" for number in range(10)], [0, 1, 2, 3, 1, 2, 3, 4]),
    "cifar10 binary": (write_cifar10_binary, [f"class {number}" for number in range(10)], [0, 1, 2, 3]),
    "cifar100": (write_cifar100, [f"fine {number}" for number in range(100)], [0, 10, 20, 30]),
    "cifar100 binary": (write_cifar100_binary, [f"fine {number}" for number in range(100)], [0, 10, 20, 30]),
    "svhn": (write_svhn, DIGITS, [0, 9, 8, 7]),
    "svhn plain": (lambda root: write_svhn(root, do_compression=False), DIGITS, [0, 9, 8, 7]),
    "keras": (write_keras_mnist, None, [0, 1, 2, 3]),
    "keras stored": (lambda root: write_keras_mnist(root, compressed=False), None, [0, 1, 2, 3]),
    "medmnist": (write_medmnist, None, [0, 1, 2, 3]),
}


def rows(dataset: Path, split: str) -> list[dict[str, Any]]:
    """The records of a split by their keys."""
    return sorted(open_dataset(str(dataset)).examples(split), key=lambda row: row["image/filename"][0])


def pixels(row: dict[str, Any]) -> Images:
    return np.asarray(Image.open(io.BytesIO(row["image/encoded"][0])))


@pytest.mark.parametrize("form", FORMS)
def test_stores_pixels_classes_and_splits_of_each_format(tmp_path: Path, form: str) -> None:
    write, names, labels = FORMS[form]
    every = write(tmp_path / "in")
    assert run(["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]) == 0
    manifest = open_dataset(str(tmp_path / "out")).manifest
    splits = ["train", *(["validation"] if form == "medmnist" else []), "test"]
    assert sorted(manifest.splits) == sorted(splits)
    found = [row for split in splits for row in rows(tmp_path / "out", split)]
    np.testing.assert_array_equal([pixels(row) for row in found], every)
    train = rows(tmp_path / "out", "train")
    assert [row["image/class/label"][0] for row in train] == labels
    written = Path(tmp_path, "out", "labels.txt").read_text().splitlines()
    assert written == (names or DIGITS[: len(written)])
    assert manifest.feature("image/class/label").num_classes == len(written)
    assert [row.get("coarse_label") for row in train] == (
        [[0], [1], [2], [3]] if "100" in form else [None] * len(train)
    )


@pytest.mark.parametrize("form", ["cifar10", "cifar10 binary", "svhn plain", "keras stored"])
def test_references_point_to_pixels_in_the_files(tmp_path: Path, form: str) -> None:
    every = FORMS[form][0](tmp_path / "in")
    source = opened(tmp_path / "in")
    assert isinstance(source, ImageArrays)
    first = min(listed(source), key=lambda reference: ("test" in reference.key, reference.key))
    assert first.data == b""
    data = Path(first.path).read_bytes()[first.offset : first.offset + first.size]
    assert first.payload.arrange_in_rows(data) == every[0].tobytes()  # type: ignore[attr-defined]


def test_leaves_large_arrays_of_a_pickle_in_the_file(tmp_path: Path) -> None:
    values = {"labels": [7] * 400, "data": planes(images(400))}
    (tmp_path / "data_batch_1").write_bytes(python2_pickle(values))
    found = read_pickle(str(tmp_path / "data_batch_1"))[b"data"]
    expected = pickle.loads((tmp_path / "data_batch_1").read_bytes(), encoding="bytes")[b"data"]
    assert isinstance(found.data, BytesPlace)
    data = (tmp_path / "data_batch_1").read_bytes()[found.data.offset : found.data.offset + found.data.size]
    np.testing.assert_array_equal(np.frombuffer(data, found.dtype).reshape(found.shape), expected)
    assert len(listed(opened(tmp_path))) == 400


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_reads_pickles_of_python_3(tmp_path: Path, protocol: int) -> None:
    values = {"text": "é", "numbers": [1, -2, 300, 2**40], "data": planes(images(2)), "none": (None, True, ())}
    (tmp_path / "a").write_bytes(pickle.dumps(values, protocol))
    found = read_pickle(str(tmp_path / "a"))
    array = found.pop("data")
    assert found == {name: value for name, value in values.items() if name != "data"}
    assert isinstance(array, PickledArray)
    assert isinstance(array.data, BytesPlace)
    data = (tmp_path / "a").read_bytes()[array.data.offset : array.data.offset + array.data.size]
    assert (array.shape, array.dtype, data) == ((2, 3072), "u1", planes(images(2)).tobytes())


class Harm:
    """A pickle of it would run a command."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch harm",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_runs_no_code(tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "data_batch_1").write_bytes(pickle.dumps({"data": Harm()}, protocol))
    with pytest.raises(SourceError, match=r"a pickle with posix\.system .*unpickling may run any code"):
        listed(opened(tmp_path / "in"))
    assert not (tmp_path / "harm").exists()


def test_damaged_pickles_raise_only_corruption_or_source_errors(tmp_path: Path) -> None:
    data = python2_pickle({"labels": [1, 2], "data": np.zeros((2, 12), np.uint8), "x": {"a": []}})
    for place in range(len(data)):
        (tmp_path / "a").write_bytes(data[:place])
        with pytest.raises(CorruptionError):
            read_pickle(str(tmp_path / "a"))
        for byte in (0, 0x28, 0x62, 0x75, 0xFF):
            (tmp_path / "a").write_bytes(data[:place] + bytes([byte]) + data[place + 1 :])
            try:
                read_pickle(str(tmp_path / "a"))
            except (CorruptionError, SourceError):
                continue


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": planes(images(2))}, "a pickle with data .expected data and labels"),
        ({"labels": [1], "data": planes(images(2))}, r"images of u1 \[2, 3072\] and 1 label"),
        ({"labels": [1, 2], "data": planes(images(2)).astype(np.int16)}, r"images of i2 \[2, 3072\]"),
    ],
)
def test_rejects_pickles_of_other_values(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    (tmp_path / "data_batch_1").write_bytes(python2_pickle(values))
    with pytest.raises(SourceError, match=message):
        listed(opened(tmp_path))


def test_rejects_binary_files_of_another_size(tmp_path: Path) -> None:
    write_cifar10_binary(tmp_path / "in")
    path = tmp_path / "in" / "data_batch_1.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        CorruptionError, match=r"at byte 9219: 12,291 bytes, which are not whole records of 3,073 bytes"
    ):
        listed(opened(tmp_path / "in"))


def test_reads_svhn_as_scipy_does(tmp_path: Path) -> None:
    write_svhn(tmp_path / "in", 7)
    expected = loadmat(tmp_path / "in" / "train_32x32.mat")
    found = [reference for reference in listed(opened(tmp_path / "in")) if reference.split == "train"]
    assert [int(reference.labels[0]) for reference in found] == [int(label) % 10 for (label,) in expected["y"]]
    for number, reference in enumerate(found):
        turned = reference.payload.arrange_in_rows(reference.data)  # type: ignore[attr-defined]
        assert turned == expected["X"][..., number].tobytes()


def test_rejects_truncated_and_damaged_matlab_files(tmp_path: Path) -> None:
    write_svhn(tmp_path / "in")
    path = tmp_path / "in" / "train_32x32.mat"
    data = path.read_bytes()
    for cut in (len(data) - 1, 3000, 200, 130, 128, 100):
        path.write_bytes(data[:cut])
        with pytest.raises((CorruptionError, SourceError), match="train_32x32"):
            listed(opened(tmp_path / "in"))
    # A byte inside of the stream of the pixels.
    path.write_bytes(data[:4000] + bytes([data[4000] ^ 0xFF]) + data[4001:])
    with pytest.raises(CorruptionError, match="cut or damaged"):
        listed(opened(tmp_path / "in"))


@pytest.mark.parametrize("label", [np.nan, np.inf, -np.inf, 1.5])
def test_rejects_labels_of_svhn_that_are_not_whole_numbers(tmp_path: Path, label: float) -> None:
    savemat(tmp_path / "a.mat", {"X": images(2).transpose(1, 2, 3, 0), "y": np.array([[1.0], [label]])})
    with pytest.raises(CorruptionError, match=rf"label 1 is not a whole number: {label}"):
        listed(opened(tmp_path / "a.mat"))


def test_rejects_sizes_below_0_in_matlab_files(tmp_path: Path) -> None:
    savemat(tmp_path / "a.mat", {"X": images(2).transpose(1, 2, 3, 0), "y": np.ones((2, 1))})
    data = (tmp_path / "a.mat").read_bytes()
    (tmp_path / "a.mat").write_bytes(
        data.replace(struct.pack("<4i", 32, 32, 3, 2), struct.pack("<4i", 32, 32, 3, -2)).replace(
            struct.pack("<2i", 2, 1), struct.pack("<2i", -2, 1)
        )
    )
    with pytest.raises(SourceError, match=r"X is \[32, 32, 3, -2\] and y \[-2, 1\]"):
        listed(opened(tmp_path / "a.mat"))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(128, b"\0"), r"of version 7\.3. Save it with -v7"),
        (b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 256) + b"IM", "with no variables .expected X and y"),
    ],
)
def test_rejects_unsupported_matlab_files(tmp_path: Path, head: bytes, message: str) -> None:
    (tmp_path / "a.mat").write_bytes(head + b"\0" * 8)
    with pytest.raises(SourceError, match=message):
        opened(tmp_path / "a.mat")


def test_reads_several_classes_of_an_archive(tmp_path: Path) -> None:
    write_medmnist(tmp_path / "in", "chestmnist.npz", classes=3)
    source = opened(tmp_path / "in" / "chestmnist.npz")
    assert source.several_labels
    labels = [reference.labels for reference in listed(source) if reference.split == "train"]
    assert labels == [(), ("0",), ("1",), ("0", "1")]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 4, 4), np.uint8)}, "with x .expected pairs such as x_train"),
        ({"arr_0": np.zeros((2, 4, 4), np.uint8)}, "with arr_0 .expected pairs"),
        ({"x": np.zeros((2, 4, 4), np.float32), "y": np.zeros(2, np.int64)}, "x is not an array of images"),
        ({"x": np.zeros((2, 4, 4, 7), np.uint8), "y": np.zeros(2, np.int64)}, "unsupported size of images"),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": np.zeros(3, np.int64)}, "y are not the labels of 2 images"),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": np.zeros((2, 0), np.int64)}, "y are not the labels of 2 images"),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": np.array(["a", "b"])}, "y are not the labels"),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": np.array([{}, {}])}, "y are not the labels"),
    ],
)
def test_rejects_archives_of_other_arrays(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(SourceError, match=message):
        listed(opened(tmp_path / "a.npz"))


def test_names_two_sets_with_different_kinds_of_classes(tmp_path: Path) -> None:
    images, several = np.zeros((2, 4, 4), np.uint8), np.zeros((2, 3), np.uint8)
    for name, labels in (("a", [0, 1]), ("b", several), ("c", [1, 0])):
        np.savez(tmp_path / f"{name}.npz", x=images, y=np.array(labels))
    with pytest.raises(
        SourceError, match=r"sets with different kinds of classes, a\.npz/x and b\.npz/x\. Convert them"
    ):
        listed(opened(tmp_path))


def write_npz_header(path: Path, header: bytes, data: bytes = b"") -> None:
    """Write an archive of one array `x`, given the text of its header and its numbers."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (3, 4, }",
        b"{'descr': '|01', 'fortran_order': False, 'shape': (3, 4)}",
        b"{'descr': (), 'fortran_order': False, 'shape': (3, 4)}",
        b"{[]: 1}",
        b"-" * 9000,
        b"-[" * 190,
        b"1**" * 3000,
        b"1+" * 3000,
        b"{'descr': '|u1', 'fortran_order': False, 'shape': (-3, -4)}",
    ],
    ids=lambda header: header[:60].decode(),
)
def test_rejects_a_damaged_header_of_an_array(tmp_path: Path, header: bytes) -> None:
    write_npz_header(tmp_path / "a.npz", header, bytes(12))
    with pytest.raises(CorruptionError, match=r"a\.npz at byte \d+: x\.npy is not an array"):
        opened(tmp_path / "a.npz")


def test_lack_of_memory_is_not_reported_as_a_damaged_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 4, 4), np.uint8), y=np.zeros(2, np.uint8))

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np.lib.format, "read_magic", fail)
    with pytest.raises(MemoryError):
        opened(tmp_path / "a.npz")


def test_rejects_an_encrypted_archive(tmp_path: Path) -> None:
    write_keras_mnist(tmp_path)
    path = tmp_path / "mnist.npz"
    data = path.read_bytes()
    # The flags of the first member in the central directory.
    flags = data.index(b"PK\x01\x02") + 8
    path.write_bytes(data[:flags] + bytes([data[flags] | 1]) + data[flags + 1 :])
    with pytest.raises(SourceError, match=r"mnist\.npz: \w+\.npy is encrypted"):
        opened(path)


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore:Reading `.npy`:UserWarning")
def test_damaged_headers_raise_only_corruption_or_source_errors(tmp_path: Path) -> None:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (3, 4), }\n"
    generator = random.Random(0)
    for _ in range(500):
        damaged = bytearray(header)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(len(header))] = generator.choice(b"()[]{}',:\\\n#\"0-*e\0\xff")
        write_npz_header(tmp_path / "a.npz", bytes(damaged), bytes(12))
        with pytest.raises((CorruptionError, SourceError)):
            opened(tmp_path / "a.npz")


@pytest.mark.parametrize("dtype", ["u1", "i1", ">i4", "<i8", "?", ">u2"])
def test_reads_labels_of_every_kind_of_whole_numbers(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 4, 4), np.uint8), y=np.array([1, 0]).astype(dtype))
    assert [reference.labels for reference in listed(opened(tmp_path / "a.npz"))] == [("1",), ("0",)]


@pytest.mark.parametrize("compressed", [True, False])
def test_rejects_a_truncated_archive(tmp_path: Path, compressed: bool) -> None:
    write_keras_mnist(tmp_path, compressed=compressed)
    path = tmp_path / "mnist.npz"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptionError, match="cut or damaged"):
        opened(path)


def test_rejects_split_shares_for_arrays_with_splits(tmp_path: Path) -> None:
    write_keras_mnist(tmp_path)
    with pytest.raises(UsageError, match=r"--split: .* has splits already \(test, train\)"):
        opened(tmp_path, split="train=0.5,test=0.5")
    write_cifar10(tmp_path / "in")
    dealt = listed(opened(tmp_path / "in" / "test_batch", split="a=0.5,b=0.5"))
    assert {reference.split for reference in dealt} <= {"a", "b"}


def test_opens_arrays_by_pattern_and_by_source_name(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "in")
    assert len(listed(opened(f"{tmp_path}/in/data_batch_*"))) == 8
    assert len(listed(opened(tmp_path / "in", SourceOptions(source="arrays")))) == 12
    unlabelled = opened(tmp_path / "in", SourceOptions(unlabelled=True))
    assert (unlabelled.has_classes, unlabelled.labels) == (False, None)
    with pytest.raises(UsageError, match="--label-column is for CSV and JSONL lists"):
        opened(tmp_path / "in", SourceOptions(label_column="x"))


# Opens a file of CIFAR once, which imports all modules, and then as one in the root, away from the working directory.
OPEN_IN_ROOT = """
import os, sys
from tests.beam_jobs.sources.inputs import opened
opened(f"{sys.argv[1]}/data_batch_1")
os.chroot(sys.argv[1])
os.chdir("/other")
print(opened("/data_batch_1").labels.names[0], opened("data_batch_1").labels.names[0])
"""


def test_a_file_of_cifar_in_the_root_has_the_class_names_next_to_it(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "root")
    shutil.copytree(tmp_path / "root", tmp_path / "root" / "other")
    names = [f"other {number}" for number in range(10)]
    (tmp_path / "root" / "other" / "batches.meta").write_bytes(python2_pickle({"label_names": names}))
    namespace = ["unshare", "--user", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*namespace, "chroot", "/", "true"], check=False).returncode:
        pytest.skip("this system does not let a user change the root of a process")
    command = [*namespace, sys.executable, "-c", OPEN_IN_ROOT, str(tmp_path / "root")]
    result = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert result.stdout == "class 0 other 0\n", result.stderr


@pytest.mark.parametrize(("name", "source"), [("batches.meta", None), ("", "arrays")])
def test_rejects_class_names_without_images(tmp_path: Path, name: str, source: str | None) -> None:
    (tmp_path / "batches.meta").write_bytes(python2_pickle({"label_names": ["cat", "dog"]}))
    with pytest.raises(SourceError, match="has no file of arrays with images"):
        opened(tmp_path / name, SourceOptions(source=source))


def test_does_not_read_an_archive_next_to_images(tmp_path: Path) -> None:
    write_files(tmp_path / "in", {"1.jpg": jpeg(1)})
    write_keras_mnist(tmp_path / "in")
    with pytest.raises(SourceError, match="no folders of classes"):
        opened(tmp_path / "in")
