"""The pictures below a folder, found by the names that annotation files have for them.

A worker lists the folder once in a run. A picture takes its path and 32 bytes of memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from beam_jobs.annotations.pictures import is_picture_name, is_same_picture, is_whole_path, make_match_key
from beam_jobs.file_names import is_left_behind
from beam_jobs.references.reference import key_bytes, key_digest
from tpudata.storage import Range, files_below, folder_ranges


class Picture(NamedTuple):
    """A file below the folder.

    Attributes:
        key: its path below the folder.
        size: bytes.
    """

    key: str
    size: int


class PictureIndex:
    """The pictures below a folder.

    Args:
        folder: the folder.
        omitted: paths below it that hold no pictures, such as that of label maps, each with a slash at its end.
    """

    def __init__(self, folder: str, omitted: tuple[str, ...]) -> None:
        digests, ends, sizes, texts = [], [0], [], bytearray()
        for files in folder_ranges(folder, deep=True):
            for picture in list_pictures(files, omitted):
                texts += key_bytes(picture.key)
                ends.append(len(texts))
                sizes.append(picture.size)
                digests.append(_digest(make_match_key(picture.key)))
        digest_array = np.array(digests, np.uint64)
        self._rows = np.argsort(digest_array, kind="stable")
        self._digests = digest_array[self._rows]
        self._texts, self._ends, self._sizes = bytes(texts), np.array(ends, np.int64), np.array(sizes, np.int64)

    def find(self, name: str) -> list[Picture]:
        """Return the pictures for which a name in an annotation file can stand."""
        digest = np.uint64(_digest(make_match_key(name)))
        first, stop = (int(np.searchsorted(self._digests, digest, side)) for side in ("left", "right"))
        candidates = map(self._make_picture, self._rows[first:stop].tolist())
        pictures = [picture for picture in candidates if is_same_picture(name, picture.key)]
        return [picture for picture in pictures if is_whole_path(name, picture.key)] or pictures

    def _make_picture(self, row: int) -> Picture:
        begin, end = self._ends[row : row + 2].tolist()
        return Picture(self._texts[begin:end].decode("utf-8", "surrogateescape"), int(self._sizes[row]))


@functools.lru_cache(maxsize=1)
def load_index(folder: str, omitted: tuple[str, ...], run: str) -> PictureIndex:
    """Return the index of a folder; `run` is part of the cache's key, so that a process makes it once a run."""
    del run
    return PictureIndex(folder, omitted)


def list_pictures(files: Range, omitted: tuple[str, ...]) -> Iterator[Picture]:
    """Yield the pictures of a range of `folder_ranges`, by the extensions of their names, in order."""
    for entry, below in files_below(files, is_left_behind):
        is_picture = not entry.is_folder and is_picture_name(below) and not is_left_behind(entry.name)
        if is_picture and not below.startswith(omitted):
            yield Picture(below, entry.size)


def below_folder(folder: str, path: str) -> str:
    """Return a path relative to a folder; an empty string if it is outside."""
    start = f"{folder.rstrip('/')}/"
    return path.removeprefix(start).rstrip("/") if path.startswith(start) else ""


def _digest(text: str) -> int:
    return key_digest(text) >> 64
