"""Files of arrays of images, in the layouts in which CIFAR, SVHN, MNIST and MedMNIST come, a few images each."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]


def images(count: int, height: int = 32, width: int = 32, channels: int = 3, seed: int = 0) -> Images:
    """Noise: uint8 [count, height, width, channels]."""
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, channels), np.uint8)


def planes(pixels: Images) -> npt.NDArray[np.uint8]:
    """The same as CIFAR has it: uint8 [count, 3072], channel after channel."""
    flat: npt.NDArray[np.uint8] = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    return flat


def python2_pickle(value: Any) -> bytes:
    """A pickle as Python 2 writes it by protocol 2, in which texts are bytes."""
    return b"\x80\x02" + _pickled(value) + b"."


def _pickled(value: Any) -> bytes:
    if isinstance(value, Mapping):
        return b"}(" + b"".join(_pickled(key) + _pickled(item) for key, item in value.items()) + b"u"
    if isinstance(value, np.ndarray):
        dtype = (
            b"cnumpy\ndtype\n"
            + _pickled(value.dtype.str[1:])
            + b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        )
        make = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        shape = b"(" + b"".join(map(_pickled, value.shape)) + b"t"
        return make + b"(K\x01" + shape + dtype + b"\x89" + _pickled(value.tobytes()) + b"tb"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return b"](" + b"".join(map(_pickled, value)) + b"e"
    if isinstance(value, int):
        return b"K%c" % value if value < 256 else b"J" + struct.pack("<i", value)
    data = value.encode() if isinstance(value, str) else value
    return (b"U%c" % len(data) if len(data) < 256 else b"T" + struct.pack("<i", len(data))) + data


def write_cifar10(root: Path, batches: int = 2, count: int = 4) -> Images:
    """CIFAR-10 as pickles: the images of the batches and of the test batch, all in one array."""
    root.mkdir(parents=True)
    every = images(count * (batches + 1))
    names = [*(f"data_batch_{number}" for number in range(1, batches + 1)), "test_batch"]
    for number, name in enumerate(names):
        part = every[number * count : (number + 1) * count]
        labels = [(number + place) % 10 for place in range(count)]
        batch = {"batch_label": name, "labels": labels, "data": planes(part), "filenames": ["a.png"] * count}
        (root / name).write_bytes(python2_pickle(batch))
    meta = {"num_cases_per_batch": count, "label_names": [f"class {number}" for number in range(10)], "num_vis": 3072}
    (root / "batches.meta").write_bytes(python2_pickle(meta))
    (root / "readme.html").write_text("<html>")
    return every


def write_cifar100(root: Path, count: int = 4) -> Images:
    """CIFAR-100 as pickles: the images of train and test."""
    root.mkdir(parents=True)
    every = images(2 * count)
    for number, name in enumerate(("train", "test")):
        batch = {
            "filenames": ["a.png"] * count,
            "batch_label": name,
            "fine_labels": [10 * place + number for place in range(count)],
            "coarse_labels": list(range(count)),
            "data": planes(every[number * count : (number + 1) * count]),
        }
        (root / name).write_bytes(python2_pickle(batch))
    meta = {
        "fine_label_names": [f"fine {number}" for number in range(100)],
        "coarse_label_names": [f"coarse {number}" for number in range(20)],
    }
    (root / "meta").write_bytes(python2_pickle(meta))
    (root / "file.txt~").write_text("")
    return every


def write_cifar10_binary(root: Path, count: int = 4) -> Images:
    """CIFAR-10 as binary files."""
    root.mkdir(parents=True)
    every = images(2 * count)
    for number, name in enumerate(("data_batch_1.bin", "test_batch.bin")):
        rows = planes(every[number * count : (number + 1) * count])
        (root / name).write_bytes(b"".join(bytes([place]) + row.tobytes() for place, row in enumerate(rows)))
    (root / "batches.meta.txt").write_text("".join(f"class {number}\n" for number in range(10)) + "\n")
    (root / "readme.html").write_text("<html>")
    return every


def write_cifar100_binary(root: Path, count: int = 4) -> Images:
    """CIFAR-100 as binary files."""
    root.mkdir(parents=True)
    every = images(2 * count)
    for number, name in enumerate(("train.bin", "test.bin")):
        rows = planes(every[number * count : (number + 1) * count])
        (root / name).write_bytes(
            b"".join(bytes([place, 10 * place]) + row.tobytes() for place, row in enumerate(rows))
        )
    (root / "fine_label_names.txt").write_text("".join(f"fine {number}\n" for number in range(100)))
    (root / "coarse_label_names.txt").write_text("".join(f"coarse {number}\n" for number in range(20)))
    return every


def write_svhn(root: Path, count: int = 4, **options: Any) -> Images:
    """SVHN's cropped digits: the images of train and test."""
    from scipy.io import savemat

    root.mkdir(parents=True)
    every = images(2 * count)
    for number, name in enumerate(("train_32x32.mat", "test_32x32.mat")):
        part = every[number * count : (number + 1) * count]
        labels = np.array([[10 - place] for place in range(count)], np.float64)
        savemat(root / name, {"X": part.transpose(1, 2, 3, 0), "y": labels}, **({"do_compression": True} | options))
    return every


def write_keras_mnist(root: Path, count: int = 4, *, compressed: bool = True) -> Images:
    """mnist.npz of Keras: the images of train and test."""
    root.mkdir(parents=True, exist_ok=True)
    every = images(2 * count, 28, 28, 1)[..., 0]
    labels = (np.arange(2 * count) % 10).astype(np.uint8)
    save = np.savez_compressed if compressed else np.savez
    save(root / "mnist.npz", x_test=every[count:], x_train=every[:count], y_train=labels[:count], y_test=labels[count:])
    return every


def write_medmnist(root: Path, name: str = "pathmnist.npz", count: int = 4, classes: int = 1) -> Images:
    """A MedMNIST archive: the images of train, val and test. With more than one class, labels mark several of them."""
    root.mkdir(parents=True, exist_ok=True)
    every = images(3 * count, 28, 28, 3)
    arrays: dict[str, Any] = {}
    for number, split in enumerate(("train", "val", "test")):
        labels = np.arange(count).reshape(-1, 1) % 9
        if classes > 1:
            labels = (np.arange(count).reshape(-1, 1) >> np.arange(classes)) & 1
        arrays[f"{split}_images"] = every[number * count : (number + 1) * count]
        arrays[f"{split}_labels"] = labels.astype(np.uint8)
    np.savez_compressed(root / name, **arrays)
    return every
