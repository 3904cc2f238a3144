"""Lists of the pictures of each split, which some datasets have next to their annotations."""

from __future__ import annotations

import dataclasses
import functools
import re
import uuid
from collections.abc import Mapping, Sequence

from beam_jobs.annotations.files.rows import read_text_lines
from beam_jobs.annotations.pictures import drop_extension
from tpudata.errors import SourceError

# Splits by the second column of CelebA's list.
_SPLITS_BY_NUMBER = {"0": "train", "1": "validation", "2": "test"}
_SEPARATOR = re.compile(r"[\s,]+")
# First cell of the CSV's row of columns.
_HEADER = "image_id"


@dataclasses.dataclass(frozen=True)
class SplitLists:
    """The splits of pictures, from lists with a picture's name in each line.

    Attributes:
        files: (path, split) of each list. If the split is empty, the second column of the list gives its number.
        run: id of the call of `open`, since the same paths may have held other lists in an earlier run of the process.
    """

    files: tuple[tuple[str, str], ...] = ()
    run: str = ""

    @classmethod
    def open(cls, files: Sequence[tuple[str, str]]) -> SplitLists:
        """Return the lists after reading them, so that a damaged list is an error before the job starts.

        Args:
            files: (path, split) of each list, as in the attribute `files`.

        Raises:
            SourceError: a picture is in the lists of two splits, a list is not UTF-8, or a line has no split.
        """
        # A new id per call: `_read_lists` caches by it, so it reads files again that have changed since an earlier run.
        lists = cls(tuple(files), uuid.uuid4().hex)
        lists._read_splits()
        return lists

    @property
    def splits(self) -> frozenset[str]:
        """The splits that have pictures; empty if there are no lists."""
        return frozenset(self._read_splits().values() if self.files else ())

    def find_split(self, picture: str) -> str | None:
        """Return the split of the picture at a path; empty if there are no lists, None if no list contains the picture."""
        return self._read_splits().get(_find_stem(picture)) if self.files else ""

    def _read_splits(self) -> Mapping[str, str]:
        return _read_lists(self.files, self.run)


NO_LISTS = SplitLists()


def _find_stem(path: str) -> str:
    """Return the name of a file, without folder and extension."""
    return drop_extension(path.rpartition("/")[2])


@functools.lru_cache(maxsize=1)
def _read_lists(files: tuple[tuple[str, str], ...], run: str) -> Mapping[str, str]:
    """Return {name of a picture without folder and extension: its split}.

    Args:
        files: (path, split) of each list; with an empty split, the second column of the list gives its number.
        run: id from `SplitLists.open`, only a part of the cache's key: a process reads the lists once a run.

    Raises:
        SourceError: a line is invalid, or a picture is in the lists of two splits.
    """
    del run
    splits_by_name: dict[str, str] = {}
    # The first list of each split, for messages: a path for each picture would take memory.
    first_paths_by_split: dict[str, str] = {}
    for path, split_of_list in files:
        for place, text in read_text_lines(path):
            name, *other_cells = _SEPARATOR.split(text)
            # This skips comments, and the row of the columns' names, which only lists with a column of splits have.
            if name.startswith("#") or (not split_of_list and name == _HEADER):
                continue
            number = other_cells[0] if other_cells else ""
            split = split_of_list or _SPLITS_BY_NUMBER.get(number, "")
            if not split:
                raise SourceError(
                    f"{path} line {place.line}: not a picture with its split, 0, 1 or 2: {text[:80]!r}. Fix it."
                )
            name = _find_stem(name)
            first_split = splits_by_name.setdefault(name, split)
            if first_split != split:
                raise SourceError(
                    f"{path} line {place.line}: {name!r} is in {first_paths_by_split[first_split]}, too. Remove it from one of the"
                    " two."
                )
            first_paths_by_split.setdefault(split, path)
    return splits_by_name
