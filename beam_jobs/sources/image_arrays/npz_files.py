"""NumPy archives of images and labels: Keras's MNIST, MedMNIST, and others whose arrays are named like theirs.

    mnist.npz                x_train  y_train  x_test  y_test
    pathmnist.npz            train_images  train_labels  val_images  val_labels  test_images  test_labels

One word of an array's name is `images` or `labels` or the like; other words, if any, name the split. Images are uint8
[N, height, width] or [N, height, width, channels]; labels integers [N] or [N, 1], or [N, classes] of zeros and ones. Only the
headers of the arrays are read before the images, and nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import re
import zipfile
from collections.abc import Iterator
from typing import IO, NamedTuple

import numpy as np

from beam_jobs.compression.decompressors import DECOMPRESSION_ERRORS
from beam_jobs.image_records.pixels import Pixels
from beam_jobs.sources.idx_pairs.file import check_shape
from beam_jobs.sources.image_arrays.image_set import ImageRow, ImageSet
from beam_jobs.sources.image_arrays.pieces import PieceReader, read_numbers
from beam_jobs.sources.named_splits import find_named_split
from beam_jobs.sources.zips import ENCRYPTED, find_content_offset, open_zip
from tpudata.console.tables import count_text
from tpudata.error_text.lines import one_line
from tpudata.errors import CorruptionError, SourceError

# Words for the two kinds in names of arrays.
_IMAGES = ("x", "images", "image", "imgs", "data")
_LABELS = ("y", "labels", "label", "targets", "target")
_ENDING = ".npy"
_MAX_HEADER_BYTES = 10_000
# Operators in a row, such as `--`, `-[` or `**`.
_NESTED_OPERATORS = re.compile(rb"[-+~*][-+~*\[]")
_MAX_NUMBERS = 2**63 - 1
_PIECE_BYTES = 1 << 20
# Functions that read the header of an array, by the version of its format.
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class _Array(NamedTuple):
    """An array of an archive.

    Attributes:
        name: its name, without ending.
        shape: its sizes.
        form: format of a number with its byte order, in the notation of `struct`; empty if it is not an integer or bool.
        header: number of bytes before the first number.
        is_stored: whether its numbers are not compressed.
        offset: offset of the first number in the file, if it is stored.
        is_fortran: whether the first axis is the fastest.
    """

    name: str
    shape: tuple[int, ...]
    form: str
    # The name stays `header`: files in rejects/ are named by hashes of the repr, which includes names of fields.
    header: int
    is_stored: bool
    offset: int
    is_fortran: bool

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[PieceReader]:
        """Yield a reader positioned at the first number."""
        with open_zip(path) as (_, archive), archive.open(f"{self.name}{_ENDING}") as file:
            reader = PieceReader(_read_pieces(file, path), path, self.offset)
            # Skip the bytes before the first number.
            reader.take(self.header)
            yield reader


@dataclasses.dataclass(frozen=True)
class NpzSet(ImageSet):
    """Images and labels of an archive.

    Attributes:
        path: the archive.
        name: name of the archive, a slash, and the name of the array of images.
        split: split that the names of the arrays stand for; empty if there is none.
        images: the array of images.
        labels: the array of labels.
    """

    path: str
    name: str
    split: str
    images: _Array
    labels: _Array

    @property
    def payload(self) -> Pixels:
        """Kind of the images' bytes."""
        return Pixels(self.images.shape[1:])

    @property
    def has_several_labels(self) -> bool:
        """Whether an image may have any number of classes."""
        return math.prod(self.labels.shape[1:]) > 1

    def rows(self) -> Iterator[ImageRow]:
        """Yield the images in order."""
        size = math.prod(self.images.shape[1:])
        with contextlib.ExitStack() as stack:
            # Images of an uncompressed array are read when they are converted.
            images = None if self.images.is_stored else stack.enter_context(self.images.open(self.path))
            labels = stack.enter_context(self.labels.open(self.path))
            for index, row_labels in enumerate(self._read_labels(labels)):
                data = b"" if images is None else images.take(size)
                # `offset` is that of the array's first number in the file; it has no meaning if `data` has the image.
                yield ImageRow(self.images.offset + index * size, row_labels, data)

    def _read_labels(self, reader: PieceReader) -> Iterator[tuple[str, ...]]:
        """Yield the labels of each image: its number or, if images have several labels, the indices of the columns that are 1.

        Raises:
            SourceError: images have several labels, and a mark of a class is neither 0 nor 1.
        """
        column_count = math.prod(self.labels.shape[1:])
        numbers = read_numbers(reader, self.labels.form, self.labels.shape[0] * column_count)
        if not self.has_several_labels:
            yield from ((str(int(number)),) for number in numbers)
            return
        for row in range(self.labels.shape[0]):
            marks = [next(numbers) for _ in range(column_count)]
            if not {*marks} <= {0, 1}:
                raise SourceError(
                    f"{self.path}: row {row} of {self.labels.name} has numbers other than 0 and 1, which mark the classes of an"
                    " image. Save its images as files."
                )
            yield tuple(str(label) for label, mark in enumerate(marks) if mark)


def open_npz_file(path: str) -> list[NpzSet]:
    """Return the sets of images of an archive, sorted by the words that tell their arrays apart.

    Raises:
        SourceError: the archive has no images, or images without labels of the same number, and the message names its arrays; or an
            array is encrypted.
        CorruptionError: the archive is truncated or damaged.
    """
    file_name = path.rpartition("/")[2]
    arrays = _list_arrays(path)
    # By the words in their names besides the one for the kind.
    images_by_words = _group_arrays(arrays, _IMAGES, path)
    labels_by_words = _group_arrays(arrays, _LABELS, path)
    if not images_by_words or images_by_words.keys() != labels_by_words.keys():
        raise SourceError(
            f"{path}: a NumPy archive with {', '.join(array.name for array in arrays) or 'no arrays'} (expected pairs such as"
            " x_train and y_train, or train_images and train_labels). Rename the arrays, or save the images as files."
        )
    sets = []
    for other_words, image_array in sorted(images_by_words.items()):
        label_array = labels_by_words[other_words]
        _check_pair(path, image_array, label_array)
        split = next(filter(None, map(find_named_split, other_words.split("_"))), "")
        sets.append(NpzSet(path, f"{file_name}/{image_array.name}", split, image_array, label_array))
    return sets


def _group_arrays(arrays: list[_Array], kind_words: tuple[str, ...], path: str) -> dict[str, _Array]:
    """Return the arrays of a kind by the other words in their names; SourceError if two arrays have the same other words.

    Args:
        arrays: all arrays of the archive.
        kind_words: words for the kind; the name of an array must have exactly one of them.
        path: path of the archive.
    """
    arrays_by_other_words: dict[str, _Array] = {}
    for array in arrays:
        words = re.split(r"[-_. ]", array.name.lower())
        if sum(word in kind_words for word in words) == 1:
            other_words = "_".join(word for word in words if word not in kind_words)
            if other_words in arrays_by_other_words:
                raise SourceError(
                    f"{path}: {arrays_by_other_words[other_words].name} and {array.name} have one meaning. Rename one of them."
                )
            arrays_by_other_words[other_words] = array
    return arrays_by_other_words


def _check_pair(path: str, images: _Array, labels: _Array) -> None:
    """Raise SourceError if two arrays are not images and their labels."""
    # `<B` is the form of uint8.
    if images.form != "<B" or len(images.shape) not in (3, 4) or images.is_fortran:
        raise SourceError(
            f"{path}: {images.name} is not an array of images (got {list(images.shape)}, expected uint8 [N, height, width] or [N,"
            " height, width, channels] in C order). Save its images as files."
        )
    # The form of numbers other than integers and bools is empty.
    is_label_array = labels.form != "" and 1 <= len(labels.shape) <= 2 and not labels.is_fortran
    if not is_label_array or labels.shape[0] != images.shape[0] or 0 in labels.shape[1:]:
        raise SourceError(
            f"{path}: {labels.name} are not the labels of {count_text(images.shape[0], 'image')} (got {list(labels.shape)},"
            " expected whole numbers [N], [N, 1] or [N, classes]). Save its images as files."
        )
    check_shape(path, images.shape[1:])


def _list_arrays(path: str) -> list[_Array]:
    """Return the arrays of an archive, described by their headers.

    Raises:
        CorruptionError: the archive or a header is damaged.
        SourceError: an array is encrypted.
    """
    arrays = []
    with open_zip(path) as (file, archive):
        for member in archive.infolist():
            if not member.filename.endswith(_ENDING):
                continue
            if member.flag_bits & ENCRYPTED:
                raise SourceError(f"{path}: {member.filename} is encrypted. Save the archive without a password.")
            offset = find_content_offset(file, member, path)
            with archive.open(member) as content:
                header = io.BytesIO(_read_member(content, _MAX_HEADER_BYTES, path))
            try:
                shape, is_fortran, dtype = _HEADER_READERS[np.lib.format.read_magic(header)](header)
                if min(shape, default=0) < 0:
                    raise ValueError(f"a size below 0 in the shape {shape}")
                if math.prod(shape) > _MAX_NUMBERS:
                    raise ValueError("a shape with more numbers than a file can have")
            # numpy evaluates a header as Python, so a damaged one may raise any error, even MemoryError: Python's parser raises it
            # for thousands of nested operators, such as `-` before `-`.
            except Exception as error:
                if isinstance(error, MemoryError) and not _NESTED_OPERATORS.search(header.getvalue()):
                    raise
                raise CorruptionError(path, offset, f"{member.filename} is not an array: {one_line(error)}") from None
            header_bytes = header.tell()
            size = header_bytes + math.prod(shape) * dtype.itemsize
            # Objects are pickled, in any number of bytes.
            if size != member.file_size and not dtype.hasobject:
                raise CorruptionError(
                    path, offset, f"{member.filename} has {member.file_size:,} bytes (expected {size:,} by its header)"
                )
            # If at most one axis is longer than 1, both orders are the same.
            is_fortran = is_fortran and sum(side > 1 for side in shape) > 1
            name = member.filename.removesuffix(_ENDING)
            number_format = _find_struct_format(dtype)
            is_stored = member.compress_type == zipfile.ZIP_STORED
            arrays.append(
                _Array(name, shape, number_format, header_bytes, is_stored, offset + header_bytes, is_fortran)
            )
    return arrays


def _find_struct_format(dtype: np.dtype[np.generic]) -> str:
    """Return a type of integers or bools in the notation of `struct`; an empty string for other types."""
    if dtype.kind not in "biu" or dtype.itemsize > 8:
        return ""
    order = ">" if dtype.str.startswith(">") else "<"
    # b, h, i and q are integers of 1, 2, 4 and 8 bytes.
    code = "?" if dtype.kind == "b" else "bhiq"[dtype.itemsize.bit_length() - 1]
    return order + (code.upper() if dtype.kind == "u" else code)


def _read_pieces(file: IO[bytes], path: str) -> Iterator[bytes]:
    while piece := _read_member(file, _PIECE_BYTES, path):
        yield piece


def _read_member(file: IO[bytes], size: int, path: str) -> bytes:
    """Return the next `size` bytes of an archive's member, fewer at its end; CorruptionError if it is damaged."""
    try:
        return file.read(size)
    except (*DECOMPRESSION_ERRORS, zipfile.BadZipFile) as error:
        raise CorruptionError(path, 0, f"{file.name} is cut or damaged: {error}") from None
