"""SVHN: MATLAB files with the variables `X`, images, and `y`, their labels (http://ufldl.stanford.edu/housenumbers/).

    train_32x32.mat  test_32x32.mat  extra_32x32.mat        X uint8 [32, 32, 3, N], y [N, 1] from 1 to 10

The label of the digit 0 is 10 in the file, and 0 here. MATLAB's first axis is the fastest: an image is stored channel by channel,
and a channel column by column. N comes last, so images can be read one by one; scipy.io would hold a whole file, 1.6 GB of `extra`.

A file of version 5 ("MAT-File Format", MathWorks) has a header of 128 bytes and then variables. Each is an element: 4 bytes of type
and 4 of size, the content, and zeros to a multiple of 8. A compressed element holds another one as a stream of zlib. The content of
a variable is four elements: flags with the class, sizes, name, numbers.
"""

from __future__ import annotations

import dataclasses
import math
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from beam_jobs.compression.decompressors import decompress_zlib
from beam_jobs.image_records.pixels import COLUMNS_FIRST, Pixels
from beam_jobs.references.ranged_file import file_size
from beam_jobs.sources.idx_pairs.file import check_shape
from beam_jobs.sources.image_arrays.image_set import ImageRow, ImageSet
from beam_jobs.sources.image_arrays.pieces import PieceReader, read_numbers, read_pieces
from beam_jobs.sources.named_splits import find_named_split
from tpudata.errors import CorruptionError, SourceError
from tpudata.storage import storage_for

_HEADER_BYTES = 128
# Offset in the header of the two bytes that show the byte order.
_ENDIAN_OFFSET = 126
_TAG_BYTES = 8
# Codes of types of elements: a variable, a compressed variable, and numbers that are uint8.
_MATRIX, _COMPRESSED, _UINT8 = 14, 15, 2
# Code of the class of a variable that is an array of uint8.
_UINT8_CLASS = 9
# Format of `struct`, by type of the numbers.
_STRUCT_FORMATS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
# Maximum number of bytes of each of the flags, the sizes and the name of a variable; of an uncompressed one, also of all of them.
_MAX_HEADER_BYTES = 1 << 12
_EXTRA = "extra"
_LABEL_OF_ZERO = 10


class _Variable(NamedTuple):
    """A variable of a file.

    Attributes:
        name: its name.
        shape: its sizes.
        kind: code of its class.
        numbers: code of the type in which its numbers are stored.
        start: offset of its first number in the content of its element, once that is decompressed.
        element: offset of the content of its element in the file.
        size: size of that content in bytes.
        is_compressed: whether that content is a stream of zlib.
        order: byte order, in the notation of `struct`.
    """

    # The names of these fields stay: files in rejects/ are named by hashes of a unit's `repr`, which includes them.
    name: str
    shape: tuple[int, ...]
    kind: int
    numbers: int
    start: int
    element: int
    size: int
    is_compressed: bool
    order: str

    @property
    def is_uint8_array(self) -> bool:
        """Whether it is an array of uint8 that is also stored as uint8: stored numbers may have a narrower type than the array."""
        return (self.kind, self.numbers) == (_UINT8_CLASS, _UINT8)

    @property
    def first_number_offset(self) -> int:
        """Offset of the first number in the file; without meaning for a compressed variable."""
        return self.element + self.start

    @property
    def number_format(self) -> str:
        """Format of a stored number with its byte order, in the notation of `struct`; empty if there is none for its type."""
        code = _STRUCT_FORMATS.get(self.numbers)
        return f"{self.order}{code}" if code else ""

    def open(self, path: str) -> PieceReader:
        """Return a reader positioned at the first number."""
        pieces = read_pieces(path, self.element, self.size)
        reader = PieceReader(decompress_zlib(pieces) if self.is_compressed else pieces, path, self.element)
        # Skip what comes before the numbers: tags, flags, sizes and name.
        reader.take(self.start)
        return reader


@dataclasses.dataclass(frozen=True)
class MatFile(ImageSet):
    """A file of SVHN.

    Attributes:
        path: the file.
        name: its name.
        split: train, test, extra, or an empty string.
        images: the variable X.
        labels: the variable y.
    """

    path: str
    name: str
    split: str
    images: _Variable
    labels: _Variable

    @property
    def payload(self) -> Pixels:
        """Kind of the images' bytes."""
        return Pixels(self.images.shape[:3], COLUMNS_FIRST)

    def rows(self) -> Iterator[ImageRow]:
        """Yield the images in order; CorruptionError if a label is not an integer, or the file is truncated or damaged."""
        size = math.prod(self.images.shape[:3])
        count = self.images.shape[3]
        # Images of an uncompressed variable are read when they are converted.
        reader = self.images.open(self.path) if self.images.is_compressed else None
        for index, label in enumerate(read_numbers(self.labels.open(self.path), self.labels.number_format, count)):
            # NaN and infinity, for which int() below would raise, are not integers either.
            if not float(label).is_integer():
                raise CorruptionError(self.path, self.labels.element, f"label {index} is not a whole number: {label}")
            digit = 0 if label == _LABEL_OF_ZERO else int(label)
            data = reader.take(size) if reader is not None else b""
            yield ImageRow(self.images.first_number_offset + index * size, (str(digit),), data)


def open_mat_file(path: str) -> MatFile:
    """Return the images of a MATLAB file.

    Raises:
        SourceError: the file does not have the variables of SVHN, or their shapes or types do not fit.
        CorruptionError: the file is truncated or damaged.
    """
    variables = {variable.name: variable for variable in _list_variables(path)}
    images, labels = variables.get("X"), variables.get("y")
    if images is None or labels is None:
        raise SourceError(
            f"{path}: a MATLAB file with {', '.join(sorted(variables)) or 'no variables'} (expected X and y, as in SVHN)."
            " Save its images as files."
        )
    # Sizes are signed numbers in the file.
    is_image_array = images.is_uint8_array and len(images.shape) == 4 and min(images.shape) >= 0
    if not is_image_array or math.prod(labels.shape) != images.shape[3] or not labels.number_format:
        raise SourceError(
            f"{path}: X is {list(images.shape)} and y {list(labels.shape)} (expected X of uint8 [height, width, channels, N] and N"
            " labels). Save its images as files."
        )
    check_shape(path, images.shape[:3])
    name = path.rpartition("/")[2]
    first_word = re.split(r"[-_.]", name)[0]
    split = _EXTRA if first_word == _EXTRA else find_named_split(first_word)
    return MatFile(path, name, split, images, labels)


def _list_variables(path: str) -> Iterator[_Variable]:
    """Yield the variables of a MATLAB file, without reading their numbers; CorruptionError if it is truncated or damaged."""
    size = file_size(path)
    header = storage_for(path).read_range(path, 0, _HEADER_BYTES)
    # The last two bytes of the header are the letters MI, written as a number of 16 bits in the file's byte order.
    order = {b"IM": "<", b"MI": ">"}.get(header[_ENDIAN_OFFSET:])
    if order is None:
        raise CorruptionError(path, _ENDIAN_OFFSET, "no byte order in the header of a MATLAB file")
    offset = _HEADER_BYTES
    while offset < size:
        tag = storage_for(path).read_range(path, offset, _TAG_BYTES)
        if len(tag) < _TAG_BYTES:
            raise CorruptionError(path, offset, "the MATLAB file is truncated inside a tag")
        element_type, length = struct.unpack(f"{order}II", tag)
        is_compressed = element_type == _COMPRESSED
        offset += _TAG_BYTES
        if length > size - offset:
            raise CorruptionError(path, offset, f"the MATLAB file is truncated: a variable has {length:,} bytes")
        if is_compressed or element_type == _MATRIX:
            yield _read_variable(path, offset, length, order, is_compressed=is_compressed)
        # Compressed elements are not padded.
        offset += length if is_compressed else _pad_size(length)


def _read_variable(
    path: str, content_offset: int, content_bytes: int, byte_order: str, *, is_compressed: bool
) -> _Variable:
    """Return a variable, described by its flags, sizes and name, without reading its numbers.

    Args:
        path: path of the file.
        content_offset: offset of the content of the variable's element.
        content_bytes: size of that content.
        byte_order: byte order, in the notation of `struct`.
        is_compressed: whether that content is a stream of zlib with the variable's element.

    Raises:
        CorruptionError: the variable is truncated or damaged.
    """
    pieces = read_pieces(
        path, content_offset, content_bytes if is_compressed else min(content_bytes, _MAX_HEADER_BYTES)
    )
    content = PieceReader(decompress_zlib(pieces) if is_compressed else pieces, path, content_offset)
    reader = _ElementReader(content, byte_order)
    if is_compressed:
        element_type, _ = reader.read_tag()
        if element_type != _MATRIX:
            raise CorruptionError(path, content_offset, "a compressed element of a MATLAB file that is not a variable")
    flags, sizes, name = reader.read_element(), reader.read_element(), reader.read_element()
    if len(flags) < 4 or len(sizes) % 4:
        raise CorruptionError(path, content_offset, "a variable of a MATLAB file without class or sizes")
    (flag_bits,) = struct.unpack(f"{byte_order}I", flags[:4])
    shape = struct.unpack(f"{byte_order}{len(sizes) // 4}i", sizes)
    # A cell or a struct has other elements here; the type of the next one is then meaningless, and not used.
    number_type, _ = reader.read_tag()
    # The lowest byte of the flags is the code of the class.
    kind = flag_bits & 0xFF
    return _Variable(
        name.decode("latin-1"),
        shape,
        kind,
        number_type,
        reader.position,
        content_offset,
        content_bytes,
        is_compressed,
        byte_order,
    )


def _pad_size(size: int) -> int:
    """Return the size of an element's content, padded to a multiple of 8 bytes."""
    return (size + 7) // 8 * 8


class _ElementReader:
    """Reader of the elements of a variable.

    Args:
        reader: reader at the start of the first element.
        byte_order: byte order, in the notation of `struct`.

    Attributes:
        position: number of bytes read.
    """

    def __init__(self, reader: PieceReader, byte_order: str) -> None:
        self._reader = reader
        self._byte_order = byte_order
        self.position = 0

    def read_tag(self) -> tuple[int, int]:
        """Return type and size of the next element.

        The tag of an element of up to 4 bytes has 2 bytes each for size and type; its content follows in place of the size.
        """
        (element_type,) = struct.unpack(f"{self._byte_order}I", self._take(4))
        if element_type >> 16:
            return element_type & 0xFFFF, element_type >> 16
        (size,) = struct.unpack(f"{self._byte_order}I", self._take(4))
        return element_type, size

    def read_element(self) -> bytes:
        """Return the content of the next element; CorruptionError if it is too large for the header of a variable."""
        tag_start = self.position
        _, size = self.read_tag()
        if size > _MAX_HEADER_BYTES:
            raise self._reader.make_error("a variable of a MATLAB file with a large header")
        # A small element has a tag of 4 bytes and 4 bytes of content.
        is_small = self.position - tag_start == 4
        content = self._take(4 if is_small else _pad_size(size))
        return content[:size]

    def _take(self, size: int) -> bytes:
        self.position += size
        return self._reader.take(size)
