"""Reading an annotation file from start to end, once: its pictures, and what their annotations have."""

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
from beam_jobs.references.repeated_keys import KeyRows, key_rows
from beam_jobs.sources.annotated.picture_index import Picture, below_folder
from tpudata.errors import BadRecordError
from tpudata.storage import Range, folder_ranges

# Size of a block, whose pictures are listed together.
_BLOCK_PICTURES, _BLOCK_OBJECTS = 1000, 20_000


class AnnotatedPicture(NamedTuple):
    """A picture with its annotation."""

    picture: Picture
    annotation: ImageAnnotation


class Block(NamedTuple):
    """Some pictures of an annotation file, and the rejections among them.

    Attributes:
        data: their pickle, with half of the memory of the objects: a process may hold all blocks of an input.
    """

    data: bytes

    @classmethod
    def of(cls, pictures: Sequence[AnnotatedPicture | BadRecordError]) -> Block:
        """Return the block of some pictures."""
        return cls(pickle.dumps(pictures, pickle.HIGHEST_PROTOCOL))

    def pictures(self) -> Sequence[AnnotatedPicture | BadRecordError]:
        """Return the pictures."""
        unpickled: Sequence[AnnotatedPicture | BadRecordError] = pickle.loads(self.data)
        return unpickled


@dataclasses.dataclass
class AnnotationFacts:
    """Facts about annotation files.

    Attributes:
        contents: values and classes that the annotations have.
        files: by index of the file, its path and its number of blocks.
        digests: high halves of the digests of the pictures' keys, uint64 [n] as bytes: of pictures with a bad annotation, too.
        missing: a name for which the input has no picture; empty without one.
    """

    contents: Contents = dataclasses.field(default_factory=Contents)
    files: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    digests: bytearray = dataclasses.field(default_factory=bytearray)
    missing: str = ""

    def merge(self, other: AnnotationFacts) -> None:
        """Add the facts about other files."""
        self.contents.merge(other.contents)
        self.files.update(other.files)
        self.digests += other.digests
        self.missing = min(filter(None, (self.missing, other.missing)), default="")

    def add_annotated(self, keys: Sequence[str]) -> None:
        """Add pictures that have an annotation, by their keys."""
        self.digests += key_digests(keys)[:, 0].tobytes()

    def first_blocks(self) -> dict[int, int]:
        """Return, by index of a file, the number of blocks of the files before it."""
        before, firsts = 0, {}
        for number, (_, blocks) in sorted(self.files.items()):
            firsts[number] = before
            before += blocks
        return firsts

    def sort_digests(self) -> npt.NDArray[np.uint64]:
        """Return the digests of all pictures that have annotations, ascending."""
        return np.sort(np.frombuffer(bytes(self.digests), np.uint64))


class AnnotationScan:
    """An annotation file that is read.

    Args:
        form: form of the file.
        part: the file.
        file_index: index of the file among all.
        find: function from the name of a picture to the pictures for which it can stand.
        folder: folder of the pictures.

    Attributes:
        facts: facts about the pictures so far.
    """

    def __init__(
        self, form: AnnotationForm, part: str, file_index: int, find: Callable[[str], list[Picture]], folder: str
    ) -> None:
        self.facts = AnnotationFacts()
        self._form = form
        self._part = part
        self._file_index = file_index
        self._find = find
        self._folder = folder
        self._keys: list[str] = []
        self._read = 0

    @property
    def held(self) -> int:
        """Number of pictures that `take_rows` would return."""
        return len(self._keys)

    def take_rows(self) -> KeyRows:
        """Return the pictures since the last call by their keys, each with its index in the file."""
        lines = range(self._read - len(self._keys), self._read)
        rows = key_rows(self._keys, lines, self._file_index)
        self.facts.add_annotated(self._keys)
        self._keys.clear()
        return rows

    def parts(self) -> Iterator[Block]:
        """Read the file, and yield its blocks.

        Raises:
            SourceError: the file is damaged, or annotations in it do not fit together.
        """
        pictures: list[AnnotatedPicture | BadRecordError] = []
        blocks = objects = 0
        for annotation in self._form.read(self._part, self.facts.contents.names):
            picture = self._place(annotation)
            pictures.append(picture)
            if not isinstance(picture, BadRecordError):
                objects += len(picture.annotation.objects)
            if len(pictures) >= _BLOCK_PICTURES or objects >= _BLOCK_OBJECTS:
                yield Block.of(pictures)
                pictures, objects, blocks = [], 0, blocks + 1
        if pictures:
            yield Block.of(pictures)
            blocks += 1
        self.facts.files[self._file_index] = self._part, blocks

    def _place(self, annotation: ImageAnnotation | BadRecordError) -> AnnotatedPicture | BadRecordError:
        """Return the picture of an annotation, and add the annotation to the facts; an error if it has not exactly one picture."""
        if isinstance(annotation, BadRecordError):
            return self._reject(annotation, self._find(annotation.key) if annotation.key else [])
        pictures = self._find(annotation.picture)
        if not pictures:
            self.facts.missing = self.facts.missing or annotation.picture
            return annotation.place.make_error("no such picture in the input", annotation.picture)
        if len(pictures) > 1:
            names = " and ".join(picture.key for picture in pictures[:2])
            return self._reject(
                annotation.place.make_error(f"it stands for several pictures, {names}", annotation.picture), pictures
            )
        self.facts.contents.add(annotation)
        if annotation.map_file is not None and (below := below_folder(self._folder, annotation.map_file.path)):
            # A PNG of segments among the pictures needs no annotation.
            self.facts.add_annotated([below])
        self._keys.append(pictures[0].key)
        self._read += 1
        return AnnotatedPicture(pictures[0], annotation)

    def _reject(self, error: BadRecordError, pictures: Sequence[Picture]) -> BadRecordError:
        """Return the rejection of an annotation; its pictures are then not stored as such that have none."""
        self.facts.add_annotated([picture.key for picture in pictures])
        return add_key(error, pictures[0].key) if len(pictures) == 1 else error


class PictureScan:
    """The input's pictures: those without annotations are listed, and nothing is read here.

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
        """Return 0: there are no rows."""
        return 0

    def take_rows(self) -> KeyRows:
        """Return no rows."""
        return key_rows([], [], self._part_index)

    def parts(self) -> Iterator[Range]:
        """Yield ranges of the files."""
        ranges = list(folder_ranges(self._folder, deep=True))
        yield from ranges
        self.facts.files[self._part_index] = self._folder, len(ranges)
