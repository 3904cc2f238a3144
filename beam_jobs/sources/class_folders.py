"""Class folders: a folder whose subfolders are classes, optionally under split folders.

    ROOT/CLASS/**/FILE              or    ROOT/{train,validation,test}/CLASS/**/FILE

`val`, `dev`, `training` and the like stand for these splits too. Labels count the class names in sorted order, unless a file
gives the order. Hidden files and those that operating systems leave behind are passed over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from beam_jobs.sources.classes import read_labels
from beam_jobs.sources.names import is_left_behind, splits_of
from beam_jobs.sources.options import SourceOptions, refuse_split_flag
from beam_jobs.sources.source import Refuse, make_reference, raise_refusal
from tpudata.console.nearest import suggestion
from tpudata.errors import SourceError
from tpudata.format import Feature
from tpudata.storage import Entry, storage_for


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
    several_labels: bool = False
    integer_labels: bool = False
    extra: tuple[Feature, ...] = ()

    @classmethod
    def find(cls, options: ConvertOptions, source_options: SourceOptions) -> ClassFolders:
        """Finds splits and classes of an input; lists folders, not the files in them.

        Raises:
            SourceError: the input has no subfolders, files lie where only folders may, or a folder is none of the classes that
                a file lists.
            UsageError: the options deal out splits, but the input has split folders.
        """
        tops = _subfolders(options.input)
        splits = splits_of([top.name for top in tops], options.input)
        if splits:
            refuse_split_flag(
                options, f"{options.input} has split folders already ({', '.join(top.name for top in tops)})"
            )
            folders = tuple(
                ClassFolder(entry.path, f"{top.name}/{entry.name}", splits[top.name], entry.name)
                for top in tops
                for entry in _subfolders(top.path)
            )
        else:
            folders = tuple(ClassFolder(entry.path, entry.name, "", entry.name) for entry in tops)
        if source_options.labels_file is None:
            return cls(options, folders, Labels(tuple(sorted({folder.label for folder in folders}))))
        labels = read_labels(source_options.labels_file)
        for folder in folders:
            if folder.label not in labels.names:
                near = suggestion(folder.label, labels.names)
                raise SourceError(
                    f"{folder.path}: --labels {source_options.labels_file} has no {folder.label!r}{near}."
                )
        return cls(options, folders, labels)

    def units(self) -> Sequence[ClassFolder]:
        """The class folders."""
        return self.folders

    def references(self, unit: ClassFolder, ignored: list[str], refuse: Refuse = raise_refusal) -> Iterator[Reference]:
        """Yields a reference to every file of a class folder and of the folders in it."""
        del refuse  # A file that was just listed is there, and its folder is one of the classes.
        for entry, key in _files(unit.path, unit.key, ignored):
            yield make_reference(
                self.options, key, path=entry.path, size=entry.size, split=unit.split, labels=(unit.label,)
            )


def _subfolders(folder: str) -> list[Entry]:
    entries = [entry for entry in storage_for(folder).list(folder) if not is_left_behind(entry.name)]
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
    for entry in storage_for(folder).scan(folder):
        if is_left_behind(entry.name):
            ignored.append(entry.path)
        elif entry.is_folder:
            yield from _files(entry.path, f"{key}/{entry.name}", ignored)
        else:
            yield entry, f"{key}/{entry.name}"
