"""IDX pairs, as MNIST and Fashion-MNIST come: PREFIX-images-idx3-ubyte and PREFIX-labels-idx1-ubyte, with gzip or without.

The prefix says the split: train-* is train, t10k-* and test-* are test; any other says none. A key is IMAGES/NUMBER: the name of
the images file without .gz, and the image's number from 0 in eight digits. The layout (yann.lecun.com/exdb/mnist, "THE IDX FILE
FORMAT"):

    bytes       what
    2           zero
    1           type of the values: 8 is unsigned byte, the only one read here
    1           number of dimensions: 3 for images, 4 where there are channels, 1 for labels
    4 each      sizes, big-endian
    ...         the values, the last dimension fastest
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from beam_jobs.image_records.codecs.header import MAX_PIXELS
from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from beam_jobs.sources.classes import Classes
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.source import Reject, make_reference, raise_rejection, with_key
from beam_jobs.sources.tars.file import file_size, first_bytes, open_packed, packing
from tpudata.console.tables import counted
from tpudata.errors import BadRecordError, CorruptionError, SourceError
from tpudata.format import Feature
from tpudata.storage import storage_for

# Images per unit; a million images are a hundred units.
UNIT_IMAGES = 10_000
_NAME = re.compile(r"(?P<prefix>.*[-_.]|)(?P<what>images|labels)[-.]idx\d-ubyte(?:\.gz)?")
_SPLITS = {"train": "train", "t10k": "test", "test": "test", "validation": "validation"}
_MAGIC, _UNSIGNED_BYTE = 4, 8
_PIECE_BYTES = 1 << 20
# Labels that are read at once.
_LABELS = 1 << 16
_TOO_SHORT = "the file ends before the last record that its header counts"
_FIX = "Download it again, or remove it from the input."


class IdxUnit(NamedTuple):
    """A run of images of a pair.

    Attributes:
        images, labels: paths.
        name: stands before the numbers in keys.
        split: or nothing.
        shape: of one image: height, width, and channels if there are any.
        first, length: which images.
        header: bytes before the first image of the file.
    """

    images: str
    labels: str
    name: str
    split: str
    shape: tuple[int, ...]
    first: int
    length: int
    header: int


def is_idx_name(name: str) -> bool:
    """Return whether a file is named as one of an IDX pair."""
    return _NAME.fullmatch(name) is not None


@dataclasses.dataclass(frozen=True)
class IdxPairs:
    """IDX pairs: a Source whose units are runs of images, or whole pairs where they are compressed.

    Attributes:
        options: deal out splits and seed the order.
        runs: to be listed.
        classes: names of the labels, which are whole numbers.
        has_classes: False where records are unlabelled.
    """

    options: ConvertOptions
    runs: tuple[IdxUnit, ...]
    classes: Classes
    has_classes: bool = True
    several_labels: bool = False
    extra: tuple[Feature, ...] = ()

    @classmethod
    def find(cls, options: ConvertOptions, source_options: SourceOptions, paths: Iterable[str]) -> IdxPairs:
        """Pair up the files and read their headers.

        Args:
            options: of the conversion.
            source_options: labels, or none.
            paths: images and labels files; the partner of each is looked for next to it.

        Raises:
            SourceError: a partner is missing, a header says something else than unsigned bytes, or counts differ.
            CorruptionError: a file's size is not what its header says.
            UsageError: the options deal out splits, but the pairs are of several splits already.
        """
        pairs = [_partners(path) for path in paths]
        # Of MNIST alone there are two pairs, and --split would mix what has been apart for decades; one pair may be dealt out.
        splits = sorted({split for _, _, _, split in pairs if split})
        if len(splits) > 1:
            reject_split_flag(options, f"{options.input} has splits already ({', '.join(splits)})")
        runs: list[IdxUnit] = []
        for images, labels, name, split in sorted(set(pairs)):
            runs.extend(_runs(images, labels, name, "" if options.split else split))
        return cls(options, tuple(runs), Classes.open(source_options, integers=True), not source_options.unlabelled)

    @property
    def labels(self) -> Labels | None:
        """Those of `--labels FILE`."""
        return self.classes.labels

    @property
    def integer_labels(self) -> bool:
        """Labels are whole numbers, unless a file names them."""
        return self.classes.collects_integers

    def parts(self) -> Sequence[IdxUnit]:
        """Return the runs of images."""
        return self.runs

    def units(self, part: IdxUnit, ignored: list[str]) -> Sequence[IdxUnit]:
        """Return a run of images."""
        del ignored
        return (part,)

    def references(self, unit: IdxUnit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference to every image of a run; its `form` is `idx:HEIGHTxWIDTH[xCHANNELS]`."""
        del ignored
        size = math.prod(unit.shape)
        form = "idx:" + "x".join(map(str, unit.shape))
        with open_packed(unit.images) if packing(unit.images) else contextlib.nullcontext() as images:
            if images is not None:
                images.seek(unit.header)
            for number, label in enumerate(itertools.chain.from_iterable(_label_pieces(unit)), unit.first):
                key = f"{unit.name}/{number:08d}"
                data = b"" if images is None else _exactly(images, size, unit.images)
                try:
                    name = self.classes.name(str(label), f"{unit.labels}, label {number}")
                except BadRecordError as error:
                    reject(with_key(error, key))
                    continue
                yield make_reference(
                    self.options,
                    key,
                    path=unit.images,
                    offset=unit.header + number * size,
                    size=size,
                    split=unit.split,
                    labels=(name,) if self.has_classes else (),
                    form=form,
                    data=data,
                )
            if images is not None:
                _reject_more(images, unit.images)


def _partners(path: str) -> tuple[str, str, str, str]:
    """Return the paths of images and labels, the name in keys, and the split of a pair, given one of its files."""
    folder, slash, name = path.rpartition("/")
    match = _NAME.fullmatch(name)
    if match is None:
        raise SourceError(f"{path} is an IDX file. Name it PREFIX-images-idx3-ubyte or PREFIX-labels-idx1-ubyte.")
    found = {match["what"]: path}
    (other,) = {"images", "labels"} - {match["what"]}
    other_name = f"{match['prefix']}{other}"
    # What follows is a dash or a dot.
    for entry in storage_for(path).scan(folder or slash or ".", start=other_name, stop=f"{other_name}~"):
        theirs = _NAME.fullmatch(entry.name)
        if theirs and (theirs["prefix"], theirs["what"]) == (match["prefix"], other):
            found.setdefault(other, f"{folder}{slash}{entry.name}")
    if other not in found:
        raise SourceError(
            f"{path} has no {other} file next to it. Both come in a pair: {match['prefix']}{other}-idx..."
        )
    key = found["images"].rpartition("/")[2].removesuffix(".gz")
    words = re.split(r"[-_.]", match["prefix"].rstrip("-_."))
    return found["images"], found["labels"], key, _SPLITS.get(words[-1], "")


def _runs(images: str, labels: str, name: str, split: str) -> Iterator[IdxUnit]:
    sizes, header = _header(images, (3, 4))
    counts, _ = _header(labels, (1,))
    if sizes[0] != counts[0]:
        raise SourceError(
            f"{images} has {counted(sizes[0], 'image')}, and {labels} has {counted(counts[0], 'label')}. Download them again."
        )
    _check_shape(images, sizes[1:])
    step = sizes[0] if packing(images) or packing(labels) else UNIT_IMAGES
    for first in range(0, sizes[0], step or 1):
        yield IdxUnit(images, labels, name, split, sizes[1:], first, min(step, sizes[0] - first), header)


def _header(path: str, dimensions: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Return the sizes of an IDX file, and the bytes of its header; checks its size if it is not compressed."""
    head = first_bytes(path, _MAGIC + 4 * 4)
    if len(head) < _MAGIC or head[:2] != b"\0\0" or head[3] not in dimensions:
        raise SourceError(
            f"{path} is not an IDX file of {' or '.join(map(str, dimensions))} dimensions: it begins with {head[:4]!r}. {_FIX}"
        )
    if head[2] != _UNSIGNED_BYTE:
        raise SourceError(f"{path} has values of IDX type 0x{head[2]:02x} (expected 0x08, unsigned bytes). {_FIX}")
    length = _MAGIC + 4 * head[3]
    if len(head) < length:
        raise CorruptionError(path, 0, f"the file ends inside its header ({len(head)} of {length} bytes)")
    sizes = struct.unpack(f">{head[3]}I", head[_MAGIC:length])
    if not packing(path) and file_size(path) != length + math.prod(sizes):
        shape = " x ".join(map(str, sizes))
        raise CorruptionError(
            path,
            min(file_size(path), length + math.prod(sizes)),
            f"{file_size(path)} bytes, where its header says {shape}",
        )
    return sizes, length


def _check_shape(path: str, shape: tuple[int, ...]) -> None:
    """Raise SourceError if no image of the shape that a header says is converted: before memory is taken for one."""
    height, width, channels = (*shape, 1)[:3]
    if not 0 < height * width <= MAX_PIXELS or channels not in (1, 3):
        raise SourceError(
            f"{path}: unsupported size of images (got {' x '.join(map(str, shape))}, expected at most {MAX_PIXELS:,} pixels of 1"
            f" or 3 channels). {_FIX}"
        )


def _label_pieces(unit: IdxUnit) -> Iterator[bytes]:
    """Yield the labels of a run, a byte each, in pieces: a header may claim billions."""
    start = _MAGIC + 4
    sizes = (min(_LABELS, unit.length - first) for first in range(0, unit.length, _LABELS))
    if not packing(unit.labels):
        start += unit.first
        for size in sizes:
            labels = storage_for(unit.labels).read_range(unit.labels, start, size)
            start += len(labels)
            if len(labels) < size:
                raise CorruptionError(unit.labels, start, _TOO_SHORT)
            yield labels
        return
    # A compressed pair is one run.
    with open_packed(unit.labels) as file:
        file.seek(start)
        for size in sizes:
            yield _exactly(file, size, unit.labels)
        _reject_more(file, unit.labels)


def _exactly(file: BinaryIO, size: int, path: str) -> bytes:
    # Reading takes memory for all that is asked for, and the file may have less.
    pieces, left = [], size
    while left and (piece := file.read(min(left, _PIECE_BYTES))):
        pieces.append(piece)
        left -= len(piece)
    if left:
        raise CorruptionError(path, file.tell(), _TOO_SHORT)
    return b"".join(pieces)


def _reject_more(file: BinaryIO, path: str) -> None:
    if file.read(1):
        raise CorruptionError(path, file.tell() - 1, "there are bytes after the last record that the header counts")
