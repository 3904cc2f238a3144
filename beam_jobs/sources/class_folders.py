"""Class folders: a folder whose subfolders are classes, optionally under split folders.

    ROOT/CLASS/**/FILE              or    ROOT/{train,validation,test}/CLASS/**/FILE

Labels count the class names in sorted order. Hidden files and those that operating systems leave behind are passed over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from beam_jobs.labels import Labels
from beam_jobs.options import ConvertOptions
from beam_jobs.reference import Reference
from beam_jobs.sources._source import make_reference
from tpudata.errors import SourceError, UsageError
from tpudata.format import Feature
from tpudata.storage import Entry, storage_for

SPLIT_FOLDERS = ("train", "validation", "test")
_LEFT_BEHIND = ("Thumbs.db", "desktop.ini", "__MACOSX")


class ClassFolder(NamedTuple):
    """One folder of one class.

    Attributes:
        path: the folder.
        key: its path below the input, with `/`.
        split: the split that its parent stands for, or nothing.
        label: name of the class.
    """

    path: str
    key: str
    split: str
    label: str


@dataclasses.dataclass(frozen=True)
class ClassFolders:
    """The class folders of an input: a Source whose units are folders.

    Attributes:
        options: deal out splits and seed the order.
        folders: to be listed for files.
        labels: the classes, those of empty folders too.
    """

    options: ConvertOptions
    folders: tuple[ClassFolder, ...]
    labels: Labels
    has_classes: bool = True
    integer_labels: bool = False
    extra: tuple[Feature, ...] = ()

    @classmethod
    def find(cls, options: ConvertOptions) -> ClassFolders:
        """Finds splits and classes of an input; lists folders, not the files in them.

        Raises:
            SourceError: the input has no subfolders, or files lie where only folders may.
            UsageError: the options deal out splits, but the input has split folders.
        """
        tops = _subfolders(options.input)
        if all(top.name in SPLIT_FOLDERS for top in tops):
            if options.split:
                names = ", ".join(top.name for top in tops)
                raise UsageError(f"--split: {options.input} has split folders already ({names}). Leave the flag out.")
            folders = tuple(
                ClassFolder(entry.path, f"{top.name}/{entry.name}", top.name, entry.name)
                for top in tops
                for entry in _subfolders(top.path)
            )
        else:
            folders = tuple(ClassFolder(entry.path, entry.name, "", entry.name) for entry in tops)
        return cls(options, folders, Labels(tuple(sorted({folder.label for folder in folders}))))

    def units(self) -> Sequence[ClassFolder]:
        """The class folders."""
        return self.folders

    def references(self, unit: ClassFolder, ignored: list[str]) -> Iterator[Reference]:
        """Yields a reference to every file of a class folder and of the folders in it."""
        for entry, key in _files(unit.path, unit.key, ignored):
            yield make_reference(
                self.options, key, path=entry.path, size=entry.size, split=unit.split, labels=(unit.label,)
            )


def _subfolders(folder: str) -> list[Entry]:
    entries = [entry for entry in storage_for(folder).list(folder) if not _is_ignored(entry.name)]
    files = [entry for entry in entries if not entry.is_folder]
    if files:
        raise SourceError(
            f"{folder} has files beside its subfolders, such as {files[0].name}, which belong to no class. Move them into a folder"
            " named after their class, or out of the input."
        )
    if not entries:
        raise SourceError(
            f"{folder} has no subfolders. Put the images of each class into a folder named after the class."
        )
    return entries


def _files(folder: str, key: str, ignored: list[str]) -> Iterator[tuple[Entry, str]]:
    for entry in storage_for(folder).list(folder):
        if _is_ignored(entry.name):
            ignored.append(entry.path)
        elif entry.is_folder:
            yield from _files(entry.path, f"{key}/{entry.name}", ignored)
        else:
            yield entry, f"{key}/{entry.name}"


def _is_ignored(name: str) -> bool:
    return name.startswith(".") or name in _LEFT_BEHIND
