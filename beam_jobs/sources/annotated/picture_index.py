"""The pictures below a folder, found by the names that annotation files use for pictures.

A worker lists the folder once in a run. Each picture takes 32 bytes of memory and its path.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from beam_jobs.annotations.pictures import is_picture_name, is_same_picture, is_whole_path, make_match_key
from beam_jobs.file_names import is_ignored_name
from beam_jobs.references.reference import key_bytes, key_digest
from tpudata.storage import Range, files_below, folder_ranges


class Picture(NamedTuple):
    """A picture below the folder.

    Attributes:
        key: its path below the folder.
        size: its size in bytes.
    """

    key: str
    size: int


class PictureIndex:
    """Index of the pictures below a folder.

    Args:
        folder: path of the folder, which is listed when the index is made.
        omitted_folders: paths below `folder`, with a slash at the end, of folders without pictures, such as folders of label maps.
    """

    def __init__(self, folder: str, omitted_folders: tuple[str, ...]) -> None:
        digests: list[int] = []
        sizes: list[int] = []
        # All keys joined; the key of picture i is keys[key_ends[i]:key_ends[i + 1]].
        keys = bytearray()
        key_ends = [0]
        for files in folder_ranges(folder, deep=True):
            for picture in list_pictures(files, omitted_folders):
                keys += key_bytes(picture.key)
                key_ends.append(len(keys))
                sizes.append(picture.size)
                digests.append(_hash_match_key(make_match_key(picture.key)))
        digest_array = np.array(digests, np.uint64)
        # Indices of the pictures in the order of their digests.
        self._sorted_indices = np.argsort(digest_array, kind="stable")
        self._digests = digest_array[self._sorted_indices]
        self._keys = bytes(keys)
        self._key_ends = np.array(key_ends, np.int64)
        self._sizes = np.array(sizes, np.int64)

    def find(self, name: str) -> list[Picture]:
        """Return the pictures that a name in an annotation file may refer to."""
        digest = np.uint64(_hash_match_key(make_match_key(name)))
        first, stop = (int(np.searchsorted(self._digests, digest, side)) for side in ("left", "right"))
        # Pictures with the digest of the name's match key; the name itself may fit only some of them.
        candidates = map(self._make_picture, self._sorted_indices[first:stop].tolist())
        pictures = [picture for picture in candidates if is_same_picture(name, picture.key)]
        # If the name is a path, pictures at that path take precedence over others of the same file name.
        return [picture for picture in pictures if is_whole_path(name, picture.key)] or pictures

    def _make_picture(self, index: int) -> Picture:
        """Return a picture by its index in the order of the listing."""
        start, stop = self._key_ends[index : index + 2].tolist()
        return Picture(self._keys[start:stop].decode("utf-8", "surrogateescape"), int(self._sizes[index]))


@functools.lru_cache(maxsize=1)
def load_index(folder: str, omitted_folders: tuple[str, ...], run: str) -> PictureIndex:
    """Return the index of a folder. A process makes it once in each run: the cache's key includes `run`."""
    del run
    return PictureIndex(folder, omitted_folders)


def list_pictures(files: Range, omitted_folders: tuple[str, ...]) -> Iterator[Picture]:
    """Yield the files of a range that have extensions of pictures, in order, except files below omitted folders.

    Args:
        files: the range, one of `folder_ranges`.
        omitted_folders: paths of folders below the input that end with `/`.
    """
    for entry, key in files_below(files, is_ignored_name):
        is_picture = not entry.is_folder and is_picture_name(key) and not is_ignored_name(entry.name)
        if is_picture and not key.startswith(omitted_folders):
            yield Picture(key, entry.size)


def find_path_below(folder: str, path: str) -> str:
    """Return a path relative to a folder; an empty string if the path is not below it. Path and folder may end with `/`."""
    prefix = f"{folder.rstrip('/')}/"
    return path.removeprefix(prefix).rstrip("/") if path.startswith(prefix) else ""


def _hash_match_key(match_key: str) -> int:
    """Return the high 64 bits of a match key's digest."""
    return key_digest(match_key) >> 64
