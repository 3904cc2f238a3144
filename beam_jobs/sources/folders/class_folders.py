"""Class folders: a folder whose subfolders are classes, optionally under split folders.

    ROOT/CLASS/**/FILE              or    ROOT/{train,validation,test}/CLASS/**/FILE

`val`, `dev`, `training` and the like stand for these splits too. Labels count the class names in sorted order, unless a file
gives the order. Hidden files and files that operating systems leave behind are ignored.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from beam_jobs.file_names import is_ignored_name
from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels, check_classes, make_integer_labels
from beam_jobs.references.reference import Reference
from beam_jobs.references.rejection import Reject, raise_rejection
from beam_jobs.sources.classes import Classes
from beam_jobs.sources.named_splits import find_splits
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.source import Source, make_reference
from beam_jobs.values.column_kinds import INT
from tpudata.console.nearest import did_you_mean
from tpudata.errors import BadRecordError, SourceError
from tpudata.storage import Entry, Range, files_below, folder_ranges, lazy_entries

# Number of names among which a folder is looked for if the input also has files; it improves the message.
_MAX_NAMES = 10_000
# Endings of files that hold many images and can be named by a pattern.
_CONTAINER_ENDINGS = ("parquet", "tar", "zip")


class ClassFolder(NamedTuple):
    """One folder of one class.

    Attributes:
        path: the folder.
        key: its path below the input, with `/`.
        split: split that its parent stands for; empty if there is none.
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
        key: prefix of the names of its subfolders in keys: empty, or its name with a `/`.
        split: the split that it stands for, or empty.
    """

    path: str
    key: str
    split: str


class ClassFiles(NamedTuple):
    """Files of one class that are listed together.

    Attributes:
        folder: folder of the class.
        files: a range of it.
    """

    folder: ClassFolder
    files: Range


@dataclasses.dataclass(frozen=True)
class ClassFolders(Source):
    """The class folders of an input: a Source whose parts are folders, and whose units are ranges of their files.

    Attributes:
        options: options with the splits and the seed of the order.
        tops: the folders whose subfolders are classes.
        folder_labels: the classes, including classes whose folders are empty.
        classes: mapping from folder names to class names.
    """

    options: ConvertOptions
    tops: tuple[SplitFolder, ...]
    folder_labels: Labels
    classes: Classes
    has_classes: bool = True
    # Names of folders are classes or, with --label-type=int, integer labels.
    folder_classes: bool = True
    takes_label_type: bool = True

    @classmethod
    def open(cls, options: ConvertOptions, source_options: SourceOptions) -> ClassFolders:
        """Open the source, after listing the folders of splits and classes, but not the files in them.

        Args:
            options: options of the conversion.
            source_options: options of labels.

        Raises:
            SourceError: the input has no subfolders, files lie where only folders may, several folders are named after splits
                and others are not, the file of `--labels` is invalid, or a folder's name is not a class of this file, a label of
                `--label-type int`, or a valid class name.
            UsageError: the options assign splits, but the input has split folders.
        """
        subfolders = _list_subfolders(options.input)
        names = [entry.name for entry in subfolders]
        splits_by_name = find_splits(names, options.input)
        if splits_by_name:
            reject_split_flag(options, f"{options.input} has split folders already ({', '.join(names)})")
            tops = tuple(SplitFolder(entry.path, f"{entry.name}/", splits_by_name[entry.name]) for entry in subfolders)
        else:
            tops = (SplitFolder(options.input, "", ""),)
        classes = Classes.open(source_options, has_integers=source_options.label_type == INT)
        # Without split folders, the subfolders of the input are the class folders.
        folders = subfolders if not splits_by_name else [entry for top in tops for entry in _list_subfolders(top.path)]
        if classes.labels is None and not classes.has_integers:
            return cls(options, tops, Labels(tuple(sorted({entry.name for entry in folders}))), classes)
        for entry in folders:
            try:
                classes.resolve(entry.name, entry.path)
            except BadRecordError as error:
                raise _make_no_class_error(entry, classes, error) from None
        if classes.labels is not None:
            return cls(options, tops, classes.labels, classes)
        largest_folder = max(folders, key=lambda entry: int(entry.name))
        numbers = {entry.name for entry in folders}
        # With --append, the dataset may have the classes whose numbers are missing here.
        if not options.append:
            check_classes(int(largest_folder.name), len(numbers), largest_folder.path)
        return cls(options, tops, make_integer_labels(numbers), classes)

    @property
    def labels(self) -> Labels:
        """The classes."""
        return self.folder_labels

    @property
    def integer_labels(self) -> bool:
        """Whether the names of folders are the labels themselves, with `--label-type int`."""
        return self.classes.collects_integers

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that folders stand for."""
        return frozenset(top.split for top in self.tops) - {""}

    def parts(self) -> Iterator[ClassFolder]:
        """Yield the class folders.

        Raises:
            SourceError: a folder was made after the job began, and its class is not among the classes that were listed then.
        """
        class_names = set(self.labels.names)
        for top in self.tops:
            for entry in _list_subfolders(top.path):
                try:
                    class_name = self.classes.resolve(entry.name, entry.path)
                except BadRecordError:
                    # No class has this name, so the check below fails.
                    class_name = ""
                if class_name not in class_names:
                    raise SourceError(
                        f"{entry.path} was made after the job had begun. Run again when the input is complete."
                    )
                yield ClassFolder(entry.path, f"{top.key}{entry.name}", top.split, class_name)

    def units(self, part: ClassFolder, ignored: list[str]) -> Iterator[ClassFiles]:
        """Yield ranges of the files of a class folder and of the folders in it; nothing is ignored here."""
        del ignored
        for files in folder_ranges(part.path, deep=True):
            yield ClassFiles(part, files)

    def references(self, unit: ClassFiles, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference to every file of a range.

        Args:
            unit: one of `units`.
            ignored: list to which this method appends the path of each file and folder that it skips because of its name.
            reject: never called: the file was just listed, and its folder is a class.
        """
        del reject
        folder = unit.folder
        for entry, path_in_class in files_below(unit.files, is_ignored_name):
            if is_ignored_name(entry.name):
                ignored.append(entry.path)
                continue
            yield make_reference(
                self.options,
                f"{folder.key}/{path_in_class}",
                path=entry.path,
                size=entry.size,
                split=folder.split,
                labels=(folder.label,),
            )


def _make_no_class_error(entry: Entry, classes: Classes, error: BadRecordError) -> SourceError:
    """Return the error of a folder whose name is not a class."""
    if classes.labels is None:
        return SourceError(f"{entry.path}: with --label-type int, {error.reason}.")
    return SourceError(
        f"{entry.path}: --labels {classes.path} has no class {entry.name!r}."
        f"{did_you_mean(entry.name, classes.labels.names)} Add it to the file, or rename or remove the folder."
    )


def _list_subfolders(folder: str) -> list[Entry]:
    """Return the folders in a folder, sorted by name. They fit in memory: each is a class or a split.

    Raises:
        SourceError: the folder has files, or no folders.
    """
    subfolders: list[Entry] = []
    first_file: Entry | None = None
    entries = (entry for entry in lazy_entries(folder) if not is_ignored_name(entry.name))
    for index, entry in enumerate(entries):
        if entry.is_folder:
            subfolders.append(entry)
        else:
            first_file = first_file or entry
        # A file is an error in any case; a folder among the first names improves its message.
        if first_file is not None and (subfolders or index >= _MAX_NAMES):
            break
    if first_file is not None:
        raise SourceError(_describe_loose_files(folder, first_file, subfolders))
    if not subfolders:
        raise SourceError(
            f"{folder} has no subfolders. Put the images of each class into a folder named after the class."
        )
    # A listing of an object store has `a-b/` before `a/`.
    return sorted(subfolders, key=operator.attrgetter("name"))


def _describe_loose_files(folder: str, file: Entry, folders: Sequence[Entry]) -> str:
    """Return the message about a folder in which a file lies where only folders of classes may."""
    if not folders:
        return (
            f"{folder} has files, such as {file.name}, and no folders of classes. Put the images of each class into a folder"
            " named after the class, pass --label-from if the names of the files hold it, pass --unlabelled if they have no"
            " classes, or pass a list of the files."
        )
    first_entry = next((entry for entry in lazy_entries(folders[0].path) if not is_ignored_name(entry.name)), None)
    ending = "" if first_entry is None or first_entry.is_folder else first_entry.name.rpartition(".")[2].lower()
    pattern = f"'{folder}/*/*.{ending}'" if ending in _CONTAINER_ENDINGS else f"'{folder}/*/*'"
    return (
        f"{folder} has {file.name} next to its folders, which is of no class. Move it out of the input, name the other files by a"
        f" pattern, such as --input {pattern}, or pass --unlabelled if the images have no classes."
    )
