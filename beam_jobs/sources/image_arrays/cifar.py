"""CIFAR-10 and CIFAR-100, as Python's pickles and as binary files (https://www.cs.toronto.edu/~kriz/cifar.html).

    cifar-10-batches-py     data_batch_1 ... data_batch_5, test_batch, batches.meta
    cifar-100-python        train, test, meta
    cifar-10-batches-bin    data_batch_1.bin ..., test_batch.bin, batches.meta.txt
    cifar-100-binary        train.bin, test.bin, fine_label_names.txt, coarse_label_names.txt

An image is 3,072 bytes: its rows of red, then of green, then of blue. In a binary file its label, a byte, precedes it; in CIFAR-100
two bytes do, the coarse and the fine label. The class of an image of CIFAR-100 is the fine label; the extra feature `coarse_label`
has the coarse one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from beam_jobs.image_records.pixels import CHANNELS_FIRST, Pixels
from beam_jobs.references.ranged_file import file_size
from beam_jobs.references.reference import NO_FEATURES
from beam_jobs.sources.image_arrays.image_set import ImageRow, ImageSet
from beam_jobs.sources.image_arrays.pickles import BytesPlace, PickledArray, read_pickle
from tpudata.console.tables import count_text
from tpudata.errors import CorruptionError, SourceError
from tpudata.format import Feature
from tpudata.storage import storage_for

COARSE_LABEL = Feature("coarse_label", "int64", "int64")
_PIXELS = Pixels((32, 32, 3), CHANNELS_FIRST)
_IMAGE_BYTES = 3 * 32 * 32
_NAME = re.compile(r"(data_batch_\d+|test_batch|train|test)(\.bin)?")
# Names of the files of CIFAR-100, without ending.
_CIFAR100_NAMES = ("train", "test")
# Files with class names, and the key of the names in a pickle; None for text files.
_NAME_FILES = {
    "batches.meta": b"label_names",
    "meta": b"fine_label_names",
    "batches.meta.txt": None,
    "fine_label_names.txt": None,
}
# Files without images that CIFAR's archives have.
OTHER_FILES = (*_NAME_FILES, "coarse_label_names.txt", "readme.html", "readme.txt", "file.txt~")
# Number of records that are read together.
_RECORDS_PER_READ = 1000
_MAX_NAMES_BYTES = 1 << 16


def is_cifar_name(name: str) -> bool:
    """Return whether a file is named like one of CIFAR's files of images."""
    return _NAME.fullmatch(name) is not None


def is_cifar_batch_name(name: str) -> bool:
    """Return whether a file name is unmistakably CIFAR-10's: other datasets have files called `train` and `test`, too."""
    return is_cifar_name(name) and not _is_cifar100_name(name)


def _is_cifar100_name(name: str) -> bool:
    return name.removesuffix(".bin") in _CIFAR100_NAMES


def read_cifar_names(folder: str) -> tuple[tuple[str, ...], str] | None:
    """Return (class names, path of the file that has them) for a folder of CIFAR; None if the folder has no such file.

    Raises:
        CorruptionError: the file is truncated or damaged, or is a pickle without a list of names.
        SourceError: the file is a pickle that is not a dict, or that has objects of types that are not read.
    """
    storage = storage_for(folder)
    for name, key in _NAME_FILES.items():
        path = storage.join(folder, name)
        entry = storage.stat(path)
        if entry is None or entry.is_folder:
            continue
        if key is None:
            # A text file, a name a line.
            lines = storage.read_range(path, 0, _MAX_NAMES_BYTES).decode(errors="replace").split("\n")
            return tuple(line.strip() for line in lines if line.strip()), path
        values = _decode_keys(read_pickle(path), path)
        names = values.get(key.decode())
        if not isinstance(names, list):
            raise CorruptionError(path, 0, f"no {key.decode()}")
        return tuple(_decode_text(name_bytes) for name_bytes in names), path
    return None


@dataclasses.dataclass(frozen=True)
class CifarFile(ImageSet):
    """A file of CIFAR.

    Attributes:
        path: the file.
        name: its name.
    """

    path: str
    name: str
    payload: ClassVar[Pixels] = _PIXELS

    @property
    def split(self) -> str:  # type: ignore[override]
        """The split that the name of the file stands for."""
        return "test" if self.name.startswith("test") else "train"

    @property
    def is_cifar100(self) -> bool:
        """Whether the file is one of CIFAR-100."""
        return _is_cifar100_name(self.name)

    @property
    def features(self) -> tuple[Feature, ...]:
        """Schema of the coarse label of CIFAR-100; empty for CIFAR-10."""
        return (COARSE_LABEL,) if self.is_cifar100 else ()

    def rows(self) -> Iterator[ImageRow]:
        """Yield the images in order."""
        return self._read_binary() if self.name.endswith(".bin") else self._read_pickled()

    def _read_pickled(self) -> Iterator[ImageRow]:
        """Yield the images of a pickle of CIFAR's Python version.

        Raises:
            CorruptionError: the file is truncated or damaged, or the pixels are not one run of bytes of the images' size.
            SourceError: the pickle has no images and labels as in CIFAR, or objects of types that are not read.
        """
        values = _decode_keys(read_pickle(self.path), self.path)
        array = values.get("data")
        labels = values.get("fine_labels" if self.is_cifar100 else "labels")
        # CIFAR-10 has no coarse labels. Its labels are passed instead, and `_make_columns` ignores them.
        coarse_labels = values.get("coarse_labels") if self.is_cifar100 else labels
        if not (isinstance(array, PickledArray) and isinstance(labels, list) and isinstance(coarse_labels, list)):
            raise SourceError(
                f"{self.path}: a pickle with {', '.join(sorted(values)) or 'nothing'} (expected data and labels, as CIFAR has"
                " them). Save its images as files."
            )
        count = len(labels)
        has_bytes_in_order = array.dtype in ("u1", "uint8", "|u1") and not array.is_fortran
        if not has_bytes_in_order or array.shape != (count, _IMAGE_BYTES) or len(coarse_labels) != count:
            raise SourceError(
                f"{self.path}: images of {array.dtype} {list(array.shape)} and {count_text(count, 'label')} (expected u1"
                f" [{count}, {_IMAGE_BYTES}]). Download it again."
            )
        pixels = array.data
        if not isinstance(pixels, BytesPlace) or pixels.size != count * _IMAGE_BYTES:
            raise CorruptionError(
                self.path, 0, f"no {count * _IMAGE_BYTES:,} bytes of pixels for {count_text(count, 'image')}"
            )
        for index, (label, coarse_label) in enumerate(zip(labels, coarse_labels, strict=True)):
            offset = pixels.offset + index * _IMAGE_BYTES
            yield ImageRow(offset, (str(label),), columns=self._make_columns(coarse_label))

    def _read_binary(self) -> Iterator[ImageRow]:
        """Yield the images of a file of CIFAR's binary version; CorruptionError if it is truncated."""
        label_bytes = 2 if self.is_cifar100 else 1
        record_bytes = label_bytes + _IMAGE_BYTES
        block_bytes = _RECORDS_PER_READ * record_bytes
        size = file_size(self.path)
        if size % record_bytes:
            raise CorruptionError(
                self.path,
                size - size % record_bytes,
                f"{size:,} bytes, which are not whole records of {record_bytes:,} bytes",
            )
        for block_start in range(0, size, block_bytes):
            data = storage_for(self.path).read_range(self.path, block_start, min(block_bytes, size - block_start))
            if len(data) % record_bytes:
                raise CorruptionError(self.path, block_start + len(data), "the file was cut during the run")
            for record_start in range(0, len(data), record_bytes):
                # In CIFAR-10, both labels are the same byte.
                coarse_label, label = data[record_start], data[record_start + label_bytes - 1]
                offset = block_start + record_start + label_bytes
                yield ImageRow(offset, (str(label),), columns=self._make_columns(coarse_label))

    def _make_columns(self, coarse_label: Any) -> Mapping[str, Any]:
        return {COARSE_LABEL.name: coarse_label} if self.is_cifar100 else NO_FEATURES


def _decode_keys(value: Any, path: str) -> dict[str, Any]:
    """Return a pickled dict with its keys as strings, since pickles of Python 2 have bytes; SourceError if it is not a dict."""
    if not isinstance(value, dict):
        raise SourceError(f"{path}: a pickle of {type(value).__name__} (expected a dict, as CIFAR has). Remove it.")
    return {_decode_text(key): entry for key, entry in value.items()}


def _decode_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
