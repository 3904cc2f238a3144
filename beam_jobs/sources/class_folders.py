"""Class folders: a folder whose subfolders are classes, optionally under split folders.

    ROOT/CLASS/**/FILE              or    ROOT/{train,validation,test}/CLASS/**/FILE

Labels count the class names in sorted order. Hidden files and those that operating systems leave behind are passed over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from beam_jobs.options import DEFAULT_SPLIT, ConvertOptions
from beam_jobs.reference import WHOLE_FILE, Reference, shuffled_position
from tpudata.errors import SourceError, UsageError
from tpudata.storage import Entry, storage_for

SPLIT_FOLDERS = ("train", "validation", "test")
_LEFT_BEHIND = ("Thumbs.db", "desktop.ini", "__MACOSX")


@dataclasses.dataclass(frozen=True)
class ClassFolder:
    """One folder of one class.

    Attributes:
        path: the folder.
        key: its path below the input, with `/`.
        split: the split that its parent stands for, or nothing.
        label: the class, counted from 0.
    """

    path: str
    key: str
    split: str
    label: int


@dataclasses.dataclass(frozen=True)
class ClassFolders:
    """The class folders of an input.

    Attributes:
        folders: to be listed for files.
        labels: class names in the order of their labels.
    """

    folders: tuple[ClassFolder, ...]
    labels: tuple[str, ...]


def find_class_folders(options: ConvertOptions) -> ClassFolders:
    """Finds splits and classes of an input; lists folders, not the files in them.

    Raises:
        SourceError: there is no such folder, it has no subfolders, or files lie where only folders may.
        UsageError: the options deal out splits, but the input has split folders.
    """
    root = options.input
    storage = storage_for(root)
    found = storage.stat(root)
    if found is None or not found.is_folder:
        raise SourceError(
            f"{root} is {'not a folder' if found else 'not there'}. Name a folder whose subfolders are classes."
        )
    tops = _subfolders(root)
    named_as_splits = bool(tops) and all(top.name in SPLIT_FOLDERS for top in tops)
    inner = [(top, _subfolders(top.path)) for top in tops] if named_as_splits else []
    if named_as_splits and all(classes for _, classes in inner):
        if options.split:
            names = ", ".join(top.name for top in tops)
            raise UsageError(f"--split: {root} has split folders already ({names}). Leave the flag out.")
        found_folders = [(entry, f"{top.name}/{entry.name}", top.name) for top, classes in inner for entry in classes]
    else:
        found_folders = [(entry, entry.name, "") for entry in tops]
    labels = tuple(sorted({entry.name for entry, _, _ in found_folders}))
    numbers = {name: number for number, name in enumerate(labels)}
    folders = tuple(ClassFolder(entry.path, key, split, numbers[entry.name]) for entry, key, split in found_folders)
    return ClassFolders(folders, labels)


def list_references(folder: ClassFolder, options: ConvertOptions, ignored: list[str]) -> Iterator[Reference]:
    """Yields a reference to every file of a class folder and of the folders in it.

    Args:
        folder: to be listed.
        options: deal out splits and seed the order.
        ignored: gets the path of everything that was passed over by its name.
    """
    for entry, key in _files(folder.path, folder.key, ignored):
        split = folder.split or (options.split.split_of(key) if options.split else DEFAULT_SPLIT)
        position = shuffled_position(key, options.seed)
        yield Reference(position, key, split, folder.label, entry.path, WHOLE_FILE, entry.size)


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
