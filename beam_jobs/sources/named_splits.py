"""The splits that names of folders and files stand for, the same for every source."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence

from beam_jobs.options import ConvertOptions
from beam_jobs.sources.options import reject_split_flag
from tpudata.errors import SourceError

# Folder names that stand for splits, as people write them.
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
_SPLITS = {name: split for split, names in _SPLIT_NAMES.items() for name in names}
# Number of names that decide whether names are splits; an input may have 100 million.
LOOKED_AT = 10_000
_BETWEEN_WORDS = re.compile(r"[-_.]")
_WORD = re.compile(r"([A-Za-z]+)[0-9]*")
# From the name of a file below the input to a split, or an empty string.
SplitOf = Callable[[str], str]


def folder_split(name: str) -> str:
    """Return the split that a folder's name stands for, whatever its case: train, validation, test, or an empty string."""
    return _SPLITS.get(name.lower(), "")


def find_listed_split(name: str) -> str:
    """Return the split that a name in a list stands for; a name that is not a folder's split name is a split itself."""
    return folder_split(name) or name


def find_splits(names: Sequence[str], origin: str) -> dict[str, str]:
    """Return the splits that the folders of an input stand for: each name's, or none at all if they are classes.

    A single class may be called `train` by chance; two names of splits are deliberate.

    Raises:
        SourceError: two folders stand for one split, or some names are splits and some are not.
    """
    splits = {name: folder_split(name) for name in names}
    split_names = [name for name in names if splits[name]]
    others = [name for name in names if not splits[name]]
    if len(split_names) < 2 and others:
        return {}
    if others:
        raise SourceError(
            f"{origin} has {', '.join(split_names)}, which look like splits, next to {others[0]}, which does not. Put classes below"
            " splits, or classes alone into the input."
        )
    if len({splits[name] for name in names}) < len(names):
        raise SourceError(
            f"{origin} has two folders for one split among {', '.join(split_names)}. Merge them, or rename one."
        )
    return splits


def class_and_split(folders: Sequence[str], record: str) -> tuple[str, str]:
    """Return the class and the split of a record by the folders that it lies in: CLASS, or SPLIT/CLASS, at the end.

    Args:
        folders: names, outermost first.
        record: the record, for the message.

    Returns:
        The class, and the split or an empty string.

    Raises:
        SourceError: there is no folder, or the innermost is named after a split, so the class is unknown.
    """
    if not folders or folder_split(folders[-1]) or folders[-1] in ("", ".", ".."):
        raise SourceError(
            f"{record} lies in no folder of its class. Put the images of each class into a folder named after the class, or pass"
            " --unlabelled."
        )
    return folders[-1], folder_split(folders[-2]) if len(folders) > 1 else ""


def top_split(name: str) -> str:
    """Return the split that the outermost folder, or a file without one, is named after: `train/a.txt`, `train-00.jsonl`."""
    return folder_split(name.split("/")[0].split(".")[0].split("-")[0])


def file_split(name: str) -> str:
    """Return the split that a file or its folder is named after: `train-00000-of-00002.tar`, `data/test.tar`, `test/0000.tar`."""
    *folders, file = name.split("/")
    split = folder_split(file.partition(".")[0].partition("-")[0])
    return split or (folder_split(folders[-1]) if folders else "")


def split_in_top_name(name: str) -> str:
    """Return the one split among the words of the outermost folder, or of a file without one: `wiki.train.tokens`."""
    return _split_in(name.split("/")[0])


def split_in_file_name(name: str) -> str:
    """Return the one split among the words of a file's name: `imagenet-train-000000.tar`."""
    return _split_in(name.rpartition("/")[2])


def split_in_path(name: str) -> str:
    """Return the first split of the words in a path, the last name first: `train/x`, `x-validation-00001`, `val2017.tfrecord`."""
    words = (word for part in reversed(name.split("/")) for word in _BETWEEN_WORDS.split(part))
    splits = (folder_split(match[1]) for word in words if (match := _WORD.fullmatch(word)))
    return next(filter(None, splits), "")


def _split_in(name: str) -> str:
    splits = {split for word in _BETWEEN_WORDS.split(name) if (split := folder_split(word))}
    return splits.pop() if len(splits) == 1 else ""


@dataclasses.dataclass(frozen=True)
class NamedSplits:
    """The splits that names below an input stand for: `train/...`, `train.txt`, `train-00.jsonl`.

    Names are splits if two of them are, or all; other names next to them are an error. Names that cannot be accidental, such as
    `validation-00000-of-00001.parquet`, are splits if one of them is, unless it is `train`, which all others are anyway. If none
    begins with a split, all have one in the middle, and there are several, these count.

    Attributes:
        input: the input's path.
        are_splits: whether each name is one.
        splits: the splits among the names that were looked at.
        are_all: whether these were all names.
        split_of: returns the split that a name is, or an empty string.
    """

    input: str
    are_splits: bool
    splits: frozenset[str]
    are_all: bool
    split_of: SplitOf = top_split

    @classmethod
    def find(
        cls,
        options: ConvertOptions,
        names: Iterable[str],
        split_of: SplitOf = top_split,
        split_inside: SplitOf = split_in_top_name,
        *,
        accidental: bool = True,
    ) -> NamedSplits:
        """Decide by the first names of an input.

        Args:
            options: options of the conversion.
            names: the first `LOOKED_AT` names and one more, or all if there are fewer.
            split_of: returns the split that a name begins with, or an empty string; a function of a module.
            split_inside: returns the split that a name has anywhere, or an empty string; a function of a module.
            accidental: whether a single name may be that of a split by accident.

        Raises:
            SourceError: some are splits, and some are not.
            UsageError: the options assign splits, but the names are splits.
        """
        splits = {name: split_of(name) for name in names}
        inner_splits = {name: split_inside(name) for name in splits} if not any(splits.values()) else {}
        if len({*inner_splits.values()}) > 1 and all(inner_splits.values()):
            splits, split_of = inner_splits, split_inside
        split_names = frozenset(split for split in splits.values() if split)
        others = [name for name, split in splits.items() if not split]
        are_splits = bool(split_names) and (
            not others or len(split_names) > 1 or not (accidental or split_names == {"train"})
        )
        if are_splits and others:
            first, *more = (name for name, split in splits.items() if split)
            examples = (
                f"{first} and {more[0]}, which look like splits," if more else f"{first}, which looks like a split,"
            )
            raise SourceError(
                f"{options.input} has {examples} next to {others[0]}, which does not. Move it out of the input, or name the files"
                " by a pattern."
            )
        if are_splits and (len(split_names) > 1 or split_names != {"train"}):
            reject_split_flag(options, f"{options.input} has splits already ({', '.join(sorted(split_names))})")
        elif options.split:
            are_splits = False
        return cls(options.input, are_splits, split_names, len(splits) <= LOOKED_AT, split_of)

    @property
    def named(self) -> frozenset[str]:
        """The splits that the names stand for; empty if they are not splits."""
        return self.splits if self.are_splits else frozenset()

    def split_of_member(self, archive: str, member: str, origin: str) -> str:
        """Return the split of a member of an archive.

        Args:
            archive: the split that the archive's name stands for, or an empty string.
            member: the split that the member's folder stands for, or an empty string.
            origin: the member, for the message.

        Raises:
            SourceError: they differ. An archive that is called `train`, with no archive of another split next to it, may have all.
        """
        if member and archive not in ("", member) and self.splits != {"train"}:
            raise SourceError(
                f"{origin} lies in a folder of the split {member}, and its archive is named after {archive}. Rename one of them."
            )
        return member or archive

    def of(self, name: str) -> str:
        """Return the split of a file, or an empty string if its name says none.

        Args:
            name: its path below the input.

        Raises:
            SourceError: the name does not go with those that were looked at.
        """
        if not self.are_splits and self.are_all:
            return ""
        split = self.split_of(name)
        if not self.are_all and (not split if self.are_splits else bool(split) and split not in self.splits):
            difference = (
                "does not look like a split, as the names"
                if self.are_splits
                else "looks like a split, unlike the names"
            )
            raise SourceError(
                f"{self.input} has {name}, which {difference} before it do. Rename it, or name the files by a pattern."
            )
        return split if self.are_splits else ""
