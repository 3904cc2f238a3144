"""The splits that names of folders and files stand for, the same for every source."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

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
# Maximum number of names that decide whether names stand for splits; an input may have 100 million.
MAX_EXAMINED_NAMES = 10_000
_BETWEEN_WORDS = re.compile(r"[-_.]")
# A word, perhaps with a number, such as val2017.
_WORD = re.compile(r"([A-Za-z]+)[0-9]*")
_Name = TypeVar("_Name")
# Function from the path of a file below the input to a split, or an empty string.
SplitOf = Callable[[str], str]


def find_named_split(name: str) -> str:
    """Return the split that a word stands for, whatever its case: train, validation, test, or an empty string."""
    return _SPLITS.get(name.lower(), "")


def find_listed_split(name: str) -> str:
    """Return the split that a name in a list stands for: train, validation, test or, for other names, the name itself."""
    return find_named_split(name) or name


def take_first_names(names: Iterable[_Name]) -> list[_Name]:
    """Return the first `MAX_EXAMINED_NAMES` + 1 names, or all if there are fewer.

    The last one tells `NamedSplits.infer` that there are more.

    Args:
        names: names of an input's files or folders, or (path, name) pairs.
    """
    return list(itertools.islice(names, MAX_EXAMINED_NAMES + 1))


def find_splits(names: Sequence[str], origin: str) -> dict[str, str]:
    """Return the split that each folder of an input stands for, by name; empty if the folders are classes.

    One class may be called `train` by chance, so a single name of a split among other names is a class.

    Raises:
        SourceError: two folders stand for one split, or several names are splits and others are not.
    """
    splits_by_name = {name: find_named_split(name) for name in names}
    split_names = [name for name in names if splits_by_name[name]]
    others = [name for name in names if not splits_by_name[name]]
    if len(split_names) < 2 and others:
        return {}
    if others:
        raise SourceError(
            f"{origin} has {', '.join(split_names)}, which look like splits, next to {others[0]}, which does not. Put classes below"
            " splits, or only classes into the input."
        )
    if len({splits_by_name[name] for name in names}) < len(names):
        raise SourceError(
            f"{origin} has two folders for one split among {', '.join(split_names)}. Merge them, or rename one."
        )
    return splits_by_name


def find_class_and_split(folders: Sequence[str], record: str) -> tuple[str, str]:
    """Return the class and the split of a record, which its innermost folders name: CLASS, or SPLIT/CLASS.

    Args:
        folders: names of the folders, outermost first.
        record: the record, for the message.

    Returns:
        (class, split), with an empty string for no split.

    Raises:
        SourceError: the record has no class: there is no folder, or the innermost is named after a split, or is empty, `.` or `..`.
    """
    if not folders or find_named_split(folders[-1]) or folders[-1] in ("", ".", ".."):
        raise SourceError(
            f"{record} lies in no folder of its class. Put the images of each class into a folder named after the class, or pass"
            " --unlabelled."
        )
    split = find_named_split(folders[-2]) if len(folders) > 1 else ""
    return folders[-1], split


def find_top_split(relative_path: str) -> str:
    """Return the split that the outermost folder, or a file in no folder, is named after: `train/a.txt`, `train-00.jsonl`.

    Args:
        relative_path: path of the file, or of a folder, below the input's folder.

    Returns:
        train, validation, test or, if the name is not that of a split, an empty string.
    """
    return find_named_split(relative_path.split("/")[0].split(".")[0].split("-")[0])


def find_file_split(relative_path: str) -> str:
    """Return the split that a file or its folder is named after: `train-00000-of-00002.tar`, `data/test.tar`, `test/0000.tar`.

    The result is an empty string if neither is named after a split.
    """
    *folders, file = relative_path.split("/")
    split = find_named_split(file.partition(".")[0].partition("-")[0])
    return split or (find_named_split(folders[-1]) if folders else "")


def find_split_in_top_name(relative_path: str) -> str:
    """Return the one split among the words of the outermost folder, or of a file in no folder: `wiki.train.tokens`.

    The result is an empty string if there is no split or several.
    """
    return _find_only_split(relative_path.split("/")[0])


def find_split_in_file_name(relative_path: str) -> str:
    """Return the one split among the words of a file's name: `imagenet-train-000000.tar`.

    The result is an empty string if there is no split or several.
    """
    return _find_only_split(relative_path.rpartition("/")[2])


def find_split_in_path(relative_path: str) -> str:
    """Return the first split among the words of a path, last name first: `train/x`, `x-validation-00001`, `val2017.tfrecord`.

    The result is an empty string if no word is a split.
    """
    words = (word for part in reversed(relative_path.split("/")) for word in _BETWEEN_WORDS.split(part))
    splits = (find_named_split(match[1]) for word in words if (match := _WORD.fullmatch(word)))
    return next(filter(None, splits), "")


def _find_only_split(name: str) -> str:
    """Return the split among the words of a name; an empty string if there is no split or several."""
    splits = {split for word in _BETWEEN_WORDS.split(name) if (split := find_named_split(word))}
    return splits.pop() if len(splits) == 1 else ""


@dataclasses.dataclass(frozen=True)
class NamedSplits:
    """The splits that names below an input stand for: `train/...`, `train.txt`, `train-00.jsonl`.

    Names stand for splits if all of them do, or if two different splits are among them; a name without a split is then an error.
    If names cannot be accidental, such as `validation-00000-of-00001.parquet`, one split is enough, unless it is `train`, the
    split of all other names anyway. If no name begins with a split, splits within names count, provided that every name has one
    and that at least two splits differ.

    Attributes:
        input_path: the input's path.
        names_are_splits: whether names stand for splits.
        splits: the splits among the first names.
        saw_all_names: whether the decision saw every name of the input.
        split_of: function that returns the split that a name stands for, or an empty string.
    """

    input_path: str
    names_are_splits: bool
    splits: frozenset[str]
    saw_all_names: bool
    split_of: SplitOf = find_top_split

    @classmethod
    def infer(
        cls,
        options: ConvertOptions,
        names: Iterable[str],
        split_of: SplitOf = find_top_split,
        split_inside: SplitOf = find_split_in_top_name,
        *,
        may_be_accidental: bool = True,
    ) -> NamedSplits:
        """Decide from the first names of an input whether names stand for splits.

        Args:
            options: options of the conversion.
            names: names of files or folders, or their paths below the input: the result of `take_first_names`.
            split_of: function that returns the split that a name begins with, or an empty string; can be pickled.
            split_inside: function that returns the split that a name has anywhere, or an empty string; can be pickled.
            may_be_accidental: whether a single name may be that of a split by accident.

        Raises:
            SourceError: names stand for splits by the rules of the class, and one of them has no split.
            UsageError: the options assign splits, but the names stand for splits, and not only for `train`.
        """
        splits_by_name = {name: split_of(name) for name in names}
        inner_splits = {}
        if not any(splits_by_name.values()):
            inner_splits = {name: split_inside(name) for name in splits_by_name}
        # Splits inside names count only if every name has one and at least two differ: a single word may be a split by chance.
        if len({*inner_splits.values()}) > 1 and all(inner_splits.values()):
            splits_by_name, split_of = inner_splits, split_inside
        splits = frozenset(split for split in splits_by_name.values() if split)
        others = [name for name, split in splits_by_name.items() if not split]
        # Two splits are no accident; nor is one if names cannot be accidental, unless it is `train`, the split of all other names.
        is_deliberate = len(splits) > 1 or not (may_be_accidental or splits == {"train"})
        names_are_splits = bool(splits) and (not others or is_deliberate)
        if names_are_splits and others:
            first, *more = (name for name, split in splits_by_name.items() if split)
            examples = (
                f"{first} and {more[0]}, which look like splits," if more else f"{first}, which looks like a split,"
            )
            raise SourceError(
                f"{options.input} has {examples} next to {others[0]}, which does not. Move it out of the input, or name the files"
                " by a pattern."
            )
        if names_are_splits and splits != {"train"}:
            reject_split_flag(options, f"{options.input} has splits already ({', '.join(sorted(splits))})")
        elif options.split:
            # --split divides an input whose names are all `train`.
            names_are_splits = False
        saw_all_names = len(splits_by_name) <= MAX_EXAMINED_NAMES
        return cls(options.input, names_are_splits, splits, saw_all_names, split_of)

    @property
    def named(self) -> frozenset[str]:
        """The splits that the names stand for; empty if they stand for none."""
        return self.splits if self.names_are_splits else frozenset()

    def find_member_split(self, archive_split: str, member_split: str, origin: str) -> str:
        """Return the split of a member of an archive, or an empty string.

        Args:
            archive_split: the split that the archive's name stands for, or an empty string.
            member_split: the split that the member's folder stands for, or an empty string.
            origin: the member, for the message.

        Raises:
            SourceError: the two splits differ, unless all archives are called `train`: they may have members of all splits.
        """
        if member_split and archive_split not in ("", member_split) and self.splits != {"train"}:
            raise SourceError(
                f"{origin} lies in a folder of the split {member_split}, and its archive is named after {archive_split}. Rename one"
                " of them."
            )
        return member_split or archive_split

    def find_split(self, relative_path: str) -> str:
        """Return the split of a file, or an empty string if names do not stand for splits.

        Args:
            relative_path: path of the file below the input.

        Raises:
            SourceError: the name was not among the first names, and contradicts the decision that they led to.
        """
        # Every name was seen, so none can contradict the decision.
        if not self.names_are_splits and self.saw_all_names:
            return ""
        split = self.split_of(relative_path)
        if not self.saw_all_names:
            if self.names_are_splits and not split:
                raise SourceError(
                    f"{self.input_path} has {relative_path}, which does not look like a split, as the names before it do. Rename"
                    " it, or name the files by a pattern."
                )
            # Names with these splits were seen when it was decided that names are no splits.
            if not self.names_are_splits and split and split not in self.splits:
                raise SourceError(
                    f"{self.input_path} has {relative_path}, which looks like a split, unlike the names before it. Rename it, or"
                    " name the files by a pattern."
                )
        return split if self.names_are_splits else ""
