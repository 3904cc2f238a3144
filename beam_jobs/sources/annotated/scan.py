"""Scans of annotation files: each is read once, from start to end, for its pictures and the contents of their annotations."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from beam_jobs.annotations.annotation import ImageAnnotation
from beam_jobs.annotations.contents import Contents
from beam_jobs.annotations.form import AnnotationForm
from beam_jobs.references.reference import key_digests
from beam_jobs.references.rejection import add_key
from beam_jobs.references.repeated_keys import KeyRows, make_key_rows
from beam_jobs.sources.annotated.picture_index import Picture, find_path_below
from beam_jobs.sources.source import sum_blocks_before
from tpudata.errors import BadRecordError
from tpudata.storage import Range, folder_ranges

# A block ends once it has this many pictures or objects; it is listed together.
_MAX_BLOCK_PICTURES, _MAX_BLOCK_OBJECTS = 1000, 20_000


class AnnotatedPicture(NamedTuple):
    """A picture with its annotation."""

    picture: Picture
    annotation: ImageAnnotation


class Block(NamedTuple):
    """Some pictures of an annotation file, and rejections of annotations among them.

    Attributes:
        data: pickle of the pictures and rejections, which takes half of their memory: a process may hold all blocks of an input.
    """

    data: bytes

    @classmethod
    def from_pictures(cls, pictures: Sequence[AnnotatedPicture | BadRecordError]) -> Block:
        """Return the block of some pictures and rejections."""
        return cls(pickle.dumps(pictures, pickle.HIGHEST_PROTOCOL))

    def load_pictures(self) -> Sequence[AnnotatedPicture | BadRecordError]:
        """Return the pictures and rejections, in the order of the file."""
        pictures: Sequence[AnnotatedPicture | BadRecordError] = pickle.loads(self.data)
        return pictures


@dataclasses.dataclass
class AnnotationFacts:
    """Facts about annotation files.

    Attributes:
        contents: values and classes that the annotations have.
        files: by index of the part, the path of the file and its number of blocks or, for the folder of pictures, of ranges.
        digests: high halves of the digests of the keys of pictures with an annotation, even a bad one, uint64 [n] as bytes.
        missing_picture: a name in an annotation for which the input has no picture; empty if all have one.
    """

    contents: Contents = dataclasses.field(default_factory=Contents)
    files: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    digests: bytearray = dataclasses.field(default_factory=bytearray)
    missing_picture: str = ""

    def merge(self, other: AnnotationFacts) -> None:
        """Add the facts about other files."""
        self.contents.merge(other.contents)
        self.files.update(other.files)
        self.digests += other.digests
        # The first by name, so that the order of merging does not matter.
        self.missing_picture = min(filter(None, (self.missing_picture, other.missing_picture)), default="")

    def add_annotated(self, keys: Sequence[str]) -> None:
        """Record that the pictures with these keys have an annotation."""
        # Column 0 has the high halves.
        self.digests += key_digests(keys)[:, 0].tobytes()

    def first_blocks(self) -> dict[int, int]:
        """Return the index of each part's first block (or range) among those of all parts, by index of the part."""
        return sum_blocks_before(self.files)

    def sort_digests(self) -> npt.NDArray[np.uint64]:
        """Return the digests of all annotated pictures, uint64 [n], ascending."""
        return np.sort(np.frombuffer(bytes(self.digests), np.uint64))


class AnnotationScan:
    """Scan of one annotation file.

    Args:
        form: form of the file.
        part: path of the file.
        file_index: index of the file among all.
        find_pictures: function from a name in the file to the pictures that it may refer to.
        folder: folder of the pictures.

    Attributes:
        facts: facts about the pictures so far.
    """

    def __init__(
        self,
        form: AnnotationForm,
        part: str,
        file_index: int,
        find_pictures: Callable[[str], list[Picture]],
        folder: str,
    ) -> None:
        self.facts = AnnotationFacts()
        self._form = form
        self._part = part
        self._file_index = file_index
        self._find_pictures = find_pictures
        self._folder = folder
        # Keys of the pictures since the last call of `take_rows`, and the number of all pictures so far.
        self._keys: list[str] = []
        self._picture_count = 0

    @property
    def held(self) -> int:
        """Number of pictures that `take_rows` would return."""
        return len(self._keys)

    def take_rows(self) -> KeyRows:
        """Return the digests of the keys of the pictures read since the last call; add the keys to `facts`.

        A picture's index among the matched ones of the file takes the place of a line number.
        """
        lines = range(self._picture_count - len(self._keys), self._picture_count)
        rows = make_key_rows(self._keys, lines, self._file_index)
        self.facts.add_annotated(self._keys)
        self._keys.clear()
        return rows

    def parts(self) -> Iterator[Block]:
        """Read the file, and yield its blocks.

        Raises:
            SourceError: the file is damaged, or annotations in it do not fit together.
        """
        pictures: list[AnnotatedPicture | BadRecordError] = []
        block_count = object_count = 0
        # `read` fills `names` with the names that the file lists.
        for annotation in self._form.read(self._part, self.facts.contents.names):
            picture = self._match_picture(annotation)
            pictures.append(picture)
            if not isinstance(picture, BadRecordError):
                object_count += len(picture.annotation.objects)
            if len(pictures) >= _MAX_BLOCK_PICTURES or object_count >= _MAX_BLOCK_OBJECTS:
                yield Block.from_pictures(pictures)
                pictures, object_count = [], 0
                block_count += 1
        if pictures:
            yield Block.from_pictures(pictures)
            block_count += 1
        self.facts.files[self._file_index] = self._part, block_count

    def _match_picture(self, annotation: ImageAnnotation | BadRecordError) -> AnnotatedPicture | BadRecordError:
        """Return an annotation with its picture, or its error if it is invalid or has no or several pictures; update the facts."""
        if isinstance(annotation, BadRecordError):
            return self._reject_annotation(annotation, self._find_pictures(annotation.key) if annotation.key else [])
        pictures = self._find_pictures(annotation.picture)
        if not pictures:
            self.facts.missing_picture = self.facts.missing_picture or annotation.picture
            return annotation.place.make_error("no such picture in the input", annotation.picture)
        if len(pictures) > 1:
            names = " and ".join(picture.key for picture in pictures[:2])
            return self._reject_annotation(
                annotation.place.make_error(f"its name matches several pictures, {names}", annotation.picture), pictures
            )
        self.facts.contents.add(annotation)
        if annotation.map_file is not None and (map_key := find_path_below(self._folder, annotation.map_file.path)):
            # A PNG of segments among the pictures needs no annotation itself.
            self.facts.add_annotated([map_key])
        self._keys.append(pictures[0].key)
        self._picture_count += 1
        return AnnotatedPicture(pictures[0], annotation)

    def _reject_annotation(self, error: BadRecordError, pictures: Sequence[Picture]) -> BadRecordError:
        """Return an annotation's error, with the key of its picture if there is exactly one; count the pictures as annotated.

        Otherwise the listing would report them again, as pictures without annotation.
        """
        self.facts.add_annotated([picture.key for picture in pictures])
        return add_key(error, pictures[0].key) if len(pictures) == 1 else error


class PictureScan:
    """Scan of the folder of pictures: only divides it into ranges, in which the listing looks for pictures without annotation.

    Args:
        folder: folder of the pictures.
        part_index: index of this part among all.
    """

    def __init__(self, folder: str, part_index: int) -> None:
        self.facts = AnnotationFacts()
        self._folder = folder
        self._part_index = part_index

    @property
    def held(self) -> int:
        """Number of rows: always 0."""
        return 0

    def take_rows(self) -> KeyRows:
        """Return no rows."""
        return make_key_rows([], [], self._part_index)

    def parts(self) -> Iterator[Range]:
        """Yield the ranges of the folder; then `facts` has their number."""
        ranges = list(folder_ranges(self._folder, deep=True))
        yield from ranges
        self.facts.files[self._part_index] = self._folder, len(ranges)
