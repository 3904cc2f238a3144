"""Class folders: a folder whose subfolders are classes, optionally under split folders.

    ROOT/CLASS/**/FILE              or    ROOT/{train,validation,test}/CLASS/**/FILE

`val`, `dev`, `training` and the like stand for these splits too. Labels count the class names in sorted order, unless a file
gives the order. Hidden files and those that operating systems leave behind are ignored.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator
from typing import NamedTuple

from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from beam_jobs.sources.classes import read_labels
from beam_jobs.sources.names import is_left_behind, splits_of
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.source import Reject, make_reference, raise_rejection
from tpudata.console.nearest import did_you_mean
from tpudata.errors import SourceError
from tpudata.format import Feature
from tpudata.storage import Entry, Range, files_below, folder_ranges, lazy_entries


class ClassFolder(NamedTuple):
    """One folder of one class.

    Attributes:
        path: the folder.
        key: its path below the input, with `/`.
        split: the split that its parent stands for, or empty.
        label: name of the class.
    """

    path: str
    key: str
    split: str
    label: str


class SplitFolder(NamedTuple):
    """A folder whose subfolders are classes.

    Attributes:
        path: the folder.
        key: stands before the names of its subfolders in keys: empty, or its name with a `/`.
        split: the split that it stands for, or empty.
    """

    path: str
    key: str
    split: str


class ClassFiles(NamedTuple):
    """Files of one class that are listed together.

    Attributes:
        folder: of the class.
        files: a range of it.
    """

    folder: ClassFolder
    files: Range


@dataclasses.dataclass(frozen=True)
class ClassFolders:
    """The class folders of an input: a Source whose parts are folders, and whose units are ranges of their files.

    Attributes:
        options: deal out splits and seed the order.
        tops: the folders whose subfolders are classes.
        labels: the classes, those of empty folders too.
    """

    options: ConvertOptions
    tops: tuple[SplitFolder, ...]
    labels: Labels
    has_classes: bool = True
    several_labels: bool = False
    integer_labels: bool = False
    extra: tuple[Feature, ...] = ()

    @classmethod
    def find(cls, options: ConvertOptions, source_options: SourceOptions) -> ClassFolders:
        """Find splits and classes of an input; lists folders, not the files in them.

        Args:
            options: of the conversion.
            source_options: the file of class names, or none.

        Raises:
            SourceError: the input has no subfolders, files lie where only folders may, or a folder is none of the classes that
                a file lists.
            UsageError: the options deal out splits, but the input has split folders.
        """
        found = _subfolders(options.input)
        names = [entry.name for entry in found]
        splits = splits_of(names, options.input)
        if splits:
            reject_split_flag(options, f"{options.input} has split folders already ({', '.join(names)})")
            tops = tuple(SplitFolder(entry.path, f"{entry.name}/", splits[entry.name]) for entry in found)
        else:
            tops = (SplitFolder(options.input, "", ""),)
        if source_options.labels_file is None:
            classes = {entry.name for top in tops for entry in _subfolders(top.path)} if splits else set(names)
            return cls(options, tops, Labels(tuple(sorted(classes))))
        labels = read_labels(source_options.labels_file)
        known = set(labels.names)
        for top in tops:
            for entry in _subfolders(top.path):
                if entry.name not in known:
                    raise SourceError(
                        f"{entry.path}: --labels {source_options.labels_file} has no class {entry.name!r}."
                        f"{did_you_mean(entry.name, labels.names)} Add it to the file, or rename or remove the folder."
                    )
        return cls(options, tops, labels)

    def parts(self) -> Iterator[ClassFolder]:
        """Yield the class folders.

        Raises:
            SourceError: a folder is of no known class: it was made since the job began.
        """
        known = set(self.labels.names)
        for top in self.tops:
            for entry in _subfolders(top.path):
                if entry.name not in known:
                    raise SourceError(
                        f"{entry.path} was made after the job had begun. Run again when the input is complete."
                    )
                yield ClassFolder(entry.path, f"{top.key}{entry.name}", top.split, entry.name)

    def units(self, part: ClassFolder, ignored: list[str]) -> Iterator[ClassFiles]:
        """Yield ranges of the files of a class folder and of the folders in it."""
        del ignored
        for files in folder_ranges(part.path, deep=True):
            yield ClassFiles(part, files)

    def references(self, unit: ClassFiles, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference to every file of a range.

        Args:
            unit: one of `units`.
            ignored: gets the path of each file and folder that is skipped by its name.
            reject: never called: a file that was just listed is there, and its folder is one of the classes.
        """
        del reject
        folder = unit.folder
        for entry, below in files_below(unit.files, is_left_behind):
            if is_left_behind(entry.name):
                ignored.append(entry.path)
                continue
            yield make_reference(
                self.options,
                f"{folder.key}/{below}",
                path=entry.path,
                size=entry.size,
                split=folder.split,
                labels=(folder.label,),
            )


def _subfolders(folder: str) -> list[Entry]:
    """Return the folders in a folder, sorted by name: there are as many as classes.

    Raises:
        SourceError: it has files, or nothing.
    """
    found = []
    for entry in lazy_entries(folder):
        if is_left_behind(entry.name):
            continue
        if not entry.is_folder:
            raise SourceError(
                f"{folder} has files next to its subfolders, such as {entry.name}, which belong to no class. Move them into a"
                " folder named after their class, or out of the input."
            )
        found.append(entry)
    if not found:
        raise SourceError(
            f"{folder} has no subfolders. Put the images of each class into a folder named after the class."
        )
    # A listing has `a-b/` before `a/`.
    return sorted(found, key=operator.attrgetter("name"))
