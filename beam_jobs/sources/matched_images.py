"""Image files that a glob pattern matches.

A file's class is the folder it lies in, and its split the folder above where that is named train, validation or test and is matched
by the pattern. A key is the path below the folder before the first wildcard.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from beam_jobs.sources.classes import Classes
from beam_jobs.sources.names import class_and_split, folder_split, is_left_behind
from beam_jobs.sources.options import SourceOptions, refuse_split_flag
from beam_jobs.sources.source import Refuse, make_reference, raise_refusal, with_key
from tpudata.errors import BadRecordError
from tpudata.format import Feature
from tpudata.storage import expand_below


class MatchedFolder(NamedTuple):
    """One folder in which files are matched.

    Attributes:
        path: the folder.
        below: its path below the pattern's fixed folder, with a slash at the end, or nothing.
    """

    path: str
    below: str


@dataclasses.dataclass(frozen=True)
class MatchedImages:
    """The images that a pattern matches: a Source whose units are folders.

    Attributes:
        options: deal out splits and seed the order.
        folders: in which files are matched.
        pattern: of the files' names.
        classes: how folder names become class names.
        has_classes: False where records are unlabelled.
    """

    options: ConvertOptions
    folders: tuple[MatchedFolder, ...]
    pattern: str
    classes: Classes
    has_classes: bool = True
    several_labels: bool = False
    integer_labels: bool = False
    extra: tuple[Feature, ...] = ()

    @classmethod
    def find(
        cls, options: ConvertOptions, source_options: SourceOptions, fixed: str, parts: tuple[str, ...]
    ) -> MatchedImages:
        """Expands a pattern as far as folders.

        Args:
            options: of the conversion.
            source_options: labels, or none.
            fixed: the folder before the pattern's first wildcard.
            parts: of the pattern from there on; see `split_pattern`.

        Raises:
            SourceError: the fixed folder is not there.
            UsageError: the options deal out splits, but the folders are splits already.
        """
        upper = parts[:-1]
        # `**` also stands for no folder at all.
        folders = [MatchedFolder(fixed, "")] if all(part == "**" for part in upper) else []
        if upper:
            found = expand_below(fixed, upper)
            folders.extend(MatchedFolder(entry.path, f"{below}/") for entry, below in found if entry.is_folder)
        labelled = not source_options.unlabelled
        source = cls(options, tuple(folders), parts[-1], Classes.open(source_options), labelled)
        splits = sorted({split for folder in folders if (split := source.split_of(folder))})
        if splits:
            refuse_split_flag(options, f"{options.input} has split folders already ({', '.join(splits)})")
        return source

    def split_of(self, folder: MatchedFolder) -> str:
        """The split that a folder's place says, or nothing."""
        names = folder.below.split("/")[:-1]
        # Where no folder is a class, the outermost is what may be a split.
        names = names[-2:-1] if self.has_classes else names[:1]
        return folder_split(names[0]) if names else ""

    @property
    def labels(self) -> Labels | None:
        """Those of `--labels FILE`."""
        return self.classes.labels

    def units(self) -> Sequence[MatchedFolder]:
        """The folders."""
        return self.folders

    def references(
        self, unit: MatchedFolder, ignored: list[str], refuse: Refuse = raise_refusal
    ) -> Iterator[Reference]:
        """Yields a reference to every matched file of a folder; not of the folders in it."""
        labels: tuple[str, ...] = ()
        split = self.split_of(unit)
        for entry, name in expand_below(unit.path, (self.pattern,)):
            key = f"{unit.below}{name}"
            if entry.is_folder:
                continue
            if any(map(is_left_behind, key.split("/"))):
                ignored.append(entry.path)
                continue
            if self.has_classes and not labels:
                folders = unit.below.split("/")[:-1] or [unit.path.rpartition("/")[2]]
                try:
                    labels = (self.classes.name(class_and_split(folders, entry.path)[0], entry.path),)
                except BadRecordError as error:
                    refuse(with_key(error, key))
                    continue
            yield make_reference(self.options, key, path=entry.path, size=entry.size, split=split, labels=labels)
