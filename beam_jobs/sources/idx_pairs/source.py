"""IDX pairs, as MNIST and Fashion-MNIST come: PREFIX-images-idx3-ubyte and PREFIX-labels-idx1-ubyte, with gzip or without.

The last word of the prefix names the split: t10k-* is test, and other words are those of `find_named_split`, such as train-*,
val-* and test-*; any other word names no split. A key is IMAGES/NUMBER: the name of the images file without .gz, and the image's
number from 0 in eight digits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from beam_jobs.compression.files import open_decompressed, read_compression
from beam_jobs.image_records.pixels import Pixels
from beam_jobs.options import DEFAULT_SPLIT, ConvertOptions
from beam_jobs.references.notes import IDX_SETS, Note, ignore_note
from beam_jobs.references.reference import Reference
from beam_jobs.references.rejection import Reject, add_key, raise_rejection
from beam_jobs.sources.classes import Classes, ClassifiedSource
from beam_jobs.sources.idx_pairs.file import (
    check_shape,
    read_exactly,
    read_header,
    read_label_pieces,
    reject_trailing_bytes,
)
from beam_jobs.sources.named_splits import find_named_split
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.source import make_reference
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, SourceError
from tpudata.storage import storage_for

# Images per unit; a million images are a hundred units.
_UNIT_IMAGES = 10_000
# Names such as train-images-idx3-ubyte.gz.
_NAME = re.compile(r"(?P<prefix>.*[-_.]|)(?P<kind>images|labels)[-.]idx\d-ubyte(?:\.gz)?")
_T10K = "t10k"


class IdxUnit(NamedTuple):
    """A run of images of a pair.

    Attributes:
        images, labels: paths.
        name: prefix of the indices in keys.
        split: split of the images, or empty.
        shape: shape of one image: height, width, and channels if the file has that dimension.
        first, length: index of the first image, and number of images.
        header: number of bytes before the first image of the file.
    """

    images: str
    labels: str
    name: str
    split: str
    shape: tuple[int, ...]
    first: int
    length: int
    # The name stays `header`: files in rejects/ are named by hashes of the repr, which includes names of fields.
    header: int


class _Pair(NamedTuple):
    """A file of images and the file of their labels.

    Attributes:
        images, labels: paths.
        name: prefix of the indices in keys.
        split: split that the files are named after, or empty.
    """

    images: str
    labels: str
    name: str
    split: str


def is_idx_name(name: str) -> bool:
    """Return whether a file is named like the images or the labels of an IDX pair."""
    return _NAME.fullmatch(name) is not None


@dataclasses.dataclass(frozen=True)
class IdxPairs(ClassifiedSource):
    """IDX pairs: a Source whose units are runs of images, or whole pairs if they are compressed.

    Attributes:
        options: options with the splits and the seed of the order.
        runs: the units.
        classes: mapping from labels, which are integers, to class names.
        has_classes: False if records are unlabelled.
        named_splits: splits in the names of the files; empty with --split.
        note: called with the kind of a note and an example: a pair of files, as SPLIT/NAME.
    """

    options: ConvertOptions
    runs: tuple[IdxUnit, ...]
    classes: Classes
    has_classes: bool = True
    named_splits: frozenset[str] = frozenset()
    note: Note = ignore_note

    def noting(self, note: Note) -> IdxPairs:
        """Return the source that calls `note` with the split and the name of each pair."""
        return dataclasses.replace(self, note=note)

    @classmethod
    def open(cls, options: ConvertOptions, source_options: SourceOptions, paths: Iterable[str]) -> IdxPairs:
        """Open the source, after pairing up the files and reading their headers.

        Args:
            options: options of the conversion.
            source_options: options of labels.
            paths: images and labels files; the partner of each is looked for next to it.

        Raises:
            SourceError: a file is not named like an IDX file, a partner is missing, values are not unsigned bytes, images have an
                unsupported shape, the counts of images and labels differ, or the file of `--labels` is invalid.
            CorruptionError: a header is truncated, or a file's size differs from its header.
            UsageError: the options assign splits, but the pairs are of several splits already.
        """
        pairs = sorted({_find_pair(path) for path in paths})
        # MNIST has two pairs, training and test, which --split would mix; a single pair may be split.
        splits = sorted({pair.split for pair in pairs if pair.split})
        if len(splits) > 1:
            reject_split_flag(options, f"{options.input} has splits already ({', '.join(splits)})")
        runs: list[IdxUnit] = []
        for pair in pairs:
            runs.extend(_divide_into_runs(pair._replace(split="") if options.split else pair))
        classes = Classes.open(source_options, has_integers=True)
        has_classes = not source_options.unlabelled
        named_splits = frozenset() if options.split else frozenset(splits)
        return cls(options, tuple(runs), classes, has_classes, named_splits=named_splits)

    def parts(self) -> Sequence[IdxUnit]:
        """Return the runs of images."""
        return self.runs

    def units(self, part: IdxUnit, ignored: list[str]) -> Sequence[IdxUnit]:
        """Return the part, which is one run of images; note its pair."""
        del ignored
        self.note(IDX_SETS, f"{part.split or DEFAULT_SPLIT}/{part.name}")
        return (part,)

    def references(self, unit: IdxUnit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference, with the payload `Pixels`, to every image of a run.

        Raises:
            CorruptionError: a file is truncated, or a compressed one is damaged or has more records than its header counts.
        """
        del ignored
        image_bytes = math.prod(unit.shape)
        payload = Pixels(tuple(unit.shape))
        compression = read_compression(unit.images)
        with open_decompressed(unit.images, compression) if compression else contextlib.nullcontext() as stream:
            if stream is not None:
                # Skip the header. A compressed pair is a single unit, whose `first` is 0, so the first image follows.
                stream.seek(unit.header)
            labels = itertools.chain.from_iterable(read_label_pieces(unit.labels, unit.first, unit.length))
            for index, label in enumerate(labels, unit.first):
                key = f"{unit.name}/{index:08d}"
                # Only a compressed file is read here: otherwise, references point into the file.
                data = b"" if stream is None else read_exactly(stream, image_bytes, unit.images)
                try:
                    name = self.classes.resolve(str(label), f"{unit.labels}, label {index}")
                except BadRecordError as error:
                    reject(add_key(error, key))
                    continue
                yield make_reference(
                    self.options,
                    key,
                    path=unit.images,
                    # For a compressed file, this is the offset in the unpacked stream, and `data` has the bytes.
                    offset=unit.header + index * image_bytes,
                    size=image_bytes,
                    split=unit.split,
                    labels=(name,) if self.has_classes else (),
                    payload=payload,
                    data=data,
                )
            # The size of an uncompressed file was checked when its header was read.
            if stream is not None:
                reject_trailing_bytes(stream, unit.images)


def _find_pair(path: str) -> _Pair:
    """Return the pair that a file belongs to; SourceError if it is not named like an IDX file, or its partner is missing."""
    folder, slash, name = path.rpartition("/")
    match = _NAME.fullmatch(name)
    if match is None:
        raise SourceError(f"{path} is an IDX file. Name it PREFIX-images-idx3-ubyte or PREFIX-labels-idx1-ubyte.")
    paths_by_kind = {match["kind"]: path}
    partner_kind = "labels" if match["kind"] == "images" else "images"
    name_start = f"{match['prefix']}{partner_kind}"
    # The dash or dot that follows sorts before `~`. A path without a folder is in the working directory, or in the root.
    for entry in storage_for(path).scan(folder or slash or ".", start=name_start, stop=f"{name_start}~"):
        partner_match = _NAME.fullmatch(entry.name)
        if partner_match and (partner_match["prefix"], partner_match["kind"]) == (match["prefix"], partner_kind):
            paths_by_kind.setdefault(partner_kind, f"{folder}{slash}{entry.checked().name}")
    if partner_kind not in paths_by_kind:
        raise SourceError(f"{path} has no {partner_kind} file next to it. Both come in a pair: {name_start}-idx...")
    key_prefix = paths_by_kind["images"].rpartition("/")[2].removesuffix(".gz")
    last_word = re.split(r"[-_.]", match["prefix"].rstrip("-_."))[-1]
    split = "test" if last_word == _T10K else find_named_split(last_word)
    return _Pair(paths_by_kind["images"], paths_by_kind["labels"], key_prefix, split)


def _divide_into_runs(pair: _Pair) -> Iterator[IdxUnit]:
    """Yield the units of a pair of files: runs of images, or all images of a compressed pair. SourceError if counts differ."""
    images, labels, name, split = pair
    (count, *shape), header_bytes = read_header(images, (3, 4))
    (label_count,), _ = read_header(labels, (1,))
    if count != label_count:
        raise SourceError(
            f"{images} has {count_text(count, 'image')}, and {labels} has {count_text(label_count, 'label')}. Download them again."
        )
    check_shape(images, tuple(shape))
    run_length = count if read_compression(images) or read_compression(labels) else _UNIT_IMAGES
    # Without images, the run length of a compressed pair is 0, which `range` rejects.
    for first in range(0, count, run_length or 1):
        yield IdxUnit(images, labels, name, split, tuple(shape), first, min(run_length, count - first), header_bytes)
