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
        # The index of each part's picture, and the offsets in the file: the pickle of part n spans `_ends[n]` to `_ends[n + 1]`.
        self._pictures = array.array("i")
        self._ends = array.array("q", [0])

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
        data = pickle.dumps(part, pickle.HIGHEST_PROTOCOL)
        self._file.write(data)
        self._pictures.append(self.assign_index(picture))
        self._ends.append(self._ends[-1] + len(data))

    def assign_index(self, picture: Hashable) -> int:
        """Return the index of a picture; a new picture gets the next index."""
        return self._indices.setdefault(picture, len(self._indices))

    def read_groups(self) -> Iterator[tuple[int, list[Annotated]]]:
        """Yield the index of each picture that has parts, ascending, with its parts in the order in which they were added."""
        pictures = np.frombuffer(self._pictures, np.int32)
        order = np.argsort(pictures, kind="stable").astype(np.int32)
        group_begins = np.flatnonzero(np.diff(pictures[order], prepend=-1)).tolist()
        for begin, end in itertools.pairwise([*group_begins, len(order)]):
            rows = order[begin:end].tolist()
            yield int(pictures[rows[0]]), [self._unpickle_part(row) for row in rows]

    def _unpickle_part(self, row: int) -> Annotated:
        """Read the part that was added as number `row`, counted from 0."""
        begin, end = self._ends[row], self._ends[row + 1]
        self._file.seek(begin)
        part: Annotated = pickle.loads(self._file.read(end - begin))
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
    """Yield the annotation of each picture, or its first error, in the order in which the pictures come first in the parts.

    Args:
        parts: (picture, part). An error of a row without a readable picture comes with a key that no other row has.
    """
    with PictureParts() as stored_parts:
        for picture, part in parts:
            stored_parts.add(picture, part)
        for _, parts_of_picture in stored_parts.read_groups():
            yield join_parts(parts_of_picture)
