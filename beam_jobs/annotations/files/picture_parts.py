"""Parts of annotations, grouped by picture: a file of millions of rows in any order takes little memory.

The parts wait in a temporary file; memory holds the keys of the pictures, and about 30 bytes for each part while they are grouped.
"""

from __future__ import annotations

import array
import itertools
import pickle
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from types import TracebackType

import numpy as np

from beam_jobs.annotations.annotation import Annotated
from tpudata.errors import BadRecordError


class PictureParts:
    """Parts of the annotations of many pictures: a context manager, which deletes its temporary file at the end."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._indices: dict[Hashable, int] = {}
        # The index of each part's picture, and byte offsets in the file: the pickle of part n spans `_offsets[n]` to
        # `_offsets[n + 1]`.
        self._picture_indices = array.array("i")
        self._offsets = array.array("q", [0])

    def __enter__(self) -> PictureParts:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, picture: Hashable, part: Annotated) -> None:
        """Add a part.

        Args:
            picture: key that all parts of a picture share, and no other picture has.
            part: a part of the picture's annotation, or the error of a part.
        """
        pickled_part = pickle.dumps(part, pickle.HIGHEST_PROTOCOL)
        self._file.write(pickled_part)
        self._picture_indices.append(self.assign_index(picture))
        self._offsets.append(self._offsets[-1] + len(pickled_part))

    def assign_index(self, picture: Hashable) -> int:
        """Return the index of a picture; a new picture gets the next index."""
        return self._indices.setdefault(picture, len(self._indices))

    def read_groups(self) -> Iterator[tuple[int, list[Annotated]]]:
        """Yield the index of each picture that has parts, ascending, with its parts in the order in which they were added."""
        picture_indices = np.frombuffer(self._picture_indices, np.int32)
        # Indices of the parts, sorted by picture.
        order = np.argsort(picture_indices, kind="stable").astype(np.int32)
        # No picture has the index -1, so the first part begins a group.
        group_starts = np.flatnonzero(np.diff(picture_indices[order], prepend=-1)).tolist()
        for start, end in itertools.pairwise([*group_starts, len(order)]):
            part_indices = order[start:end].tolist()
            yield int(picture_indices[part_indices[0]]), [self._unpickle_part(index) for index in part_indices]

    def _unpickle_part(self, index: int) -> Annotated:
        """Return the part that was added as number `index`, counted from 0."""
        start, end = self._offsets[index], self._offsets[index + 1]
        self._file.seek(start)
        part: Annotated = pickle.loads(self._file.read(end - start))
        return part


def join_parts(parts: Iterable[Annotated]) -> Annotated:
    """Return the annotation of a picture from its parts, or the first error among them."""
    annotations = []
    for part in parts:
        if isinstance(part, BadRecordError):
            return part
        annotations.append(part)
    return annotations[0].join(annotations[1:])


def group_parts(parts: Iterable[tuple[Hashable, Annotated]]) -> Iterator[Annotated]:
    """Yield the annotation of each picture, or its first error, in the order of the pictures' first parts.

    Args:
        parts: (picture, part) pairs. If a row has no readable picture, its error comes with a key that no other row has.
    """
    with PictureParts() as stored_parts:
        for picture, part in parts:
            stored_parts.add(picture, part)
        for _, parts_of_picture in stored_parts.read_groups():
            yield join_parts(parts_of_picture)
