"""Image files that a glob pattern matches.

A file's class is the folder it lies in, and its split the folder above, if that is named train, validation or test and is matched
by the pattern. With `--label-from`, its path gives the class, and the outermost folder may be a split. A key is the path below the
folder before the first wildcard.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from beam_jobs.file_names import is_ignored_path
from beam_jobs.options import ConvertOptions
from beam_jobs.references.reference import NO_FEATURES, Reference
from beam_jobs.references.rejection import Reject, add_key, raise_rejection
from beam_jobs.sources.classes import Classes, ClassifiedSource
from beam_jobs.sources.named_splits import find_class_and_split, find_named_split
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.path_labels import PathLabels
from beam_jobs.sources.source import make_reference
from beam_jobs.values.column_kinds import INT
from tpudata.errors import BadRecordError
from tpudata.format import Feature
from tpudata.storage import Entry, Range, expand_below, files_below, folder_ranges, matches, storage_for

# Number of matches that are searched for split folders before the job begins.
_MAX_MATCHES = 10_000


class MatchedFolder(NamedTuple):
    """A folder whose files are compared with the pattern.

    Attributes:
        path: the folder.
        below: its path below the pattern's fixed folder, with a slash at the end, or empty.
        deep: whether files in the folders below it are also compared.
    """

    path: str
    below: str
    deep: bool = False


class MatchedFiles(NamedTuple):
    """Files that are listed together.

    Attributes:
        folder: folder that has the files, directly or in its subfolders.
        files: the files, a range of the folder.
    """

    folder: MatchedFolder
    files: Range


@dataclasses.dataclass(frozen=True)
class MatchedImages(ClassifiedSource):
    """The images that a pattern matches: a Source whose parts are folders, and whose units are ranges of files.

    Attributes:
        options: options with the splits and the seed of the order.
        fixed_folder: the folder before the first wildcard.
        pattern: the parts after it, see `split_pattern`.
        classes: mapping from folder names to class names.
        has_classes: False if records are unlabelled.
        path_labels: rule for classes and columns in paths; None without `--label-from`.
        folder_classes: whether folders are classes.
    """

    options: ConvertOptions
    fixed_folder: str
    pattern: tuple[str, ...]
    classes: Classes
    has_classes: bool = True
    path_labels: PathLabels | None = None
    # Names of folders are classes or, with --label-type=int, integer labels.
    folder_classes: bool = True
    takes_label_type: bool = True
    takes_label_from: bool = True

    @classmethod
    def open(
        cls, options: ConvertOptions, source_options: SourceOptions, fixed_folder: str, pattern: tuple[str, ...]
    ) -> MatchedImages:
        """Open the source of a pattern.

        This looks at the first files for `--label-from`, and to reject `--split` if their folders are splits already.

        Args:
            options: options of the conversion.
            source_options: options of labels.
            fixed_folder: the folder before the pattern's first wildcard.
            pattern: parts of the pattern from there on; see `split_pattern`.

        Raises:
            SourceError: the file of `--labels` is invalid.
            StorageError: the fixed folder does not exist; raised only with `--label-from` or `--split`, which look at its files.
            UsageError: the options assign splits, but the folders are splits already; or `--label-from` does not fit the first
                paths, see `PathLabels.infer`.
        """
        paths = (
            key
            for entry, key in expand_below(fixed_folder, pattern)
            if not entry.is_folder and not is_ignored_path(key)
        )
        path_labels = PathLabels.infer(source_options, paths)
        if path_labels is None:
            has_classes = not source_options.unlabelled
            classes = Classes.open(source_options, has_integers=source_options.label_type == INT)
            source = cls(options, fixed_folder, pattern, classes, has_classes=has_classes, folder_classes=has_classes)
        else:
            has_classes = path_labels.has_classes
            source = cls(
                options,
                fixed_folder,
                pattern,
                path_labels.classes,
                has_classes=has_classes,
                path_labels=path_labels,
                folder_classes=False,
            )
        if options.split:
            # Fail early for the first files; all files are checked when they are listed.
            first_matches = itertools.islice(expand_below(fixed_folder, pattern), _MAX_MATCHES)
            source._reject_splits({key for entry, key in first_matches if not entry.is_folder})
        return source

    @property
    def features(self) -> tuple[Feature, ...]:
        """The extra features whose values `--label-from` takes from the paths; empty without the flag."""
        return () if self.path_labels is None else self.path_labels.features

    def _find_split(self, key: str) -> str:
        """Return the split of a file or folder, given its path below the input (a folder's ends with `/`); empty if it has none."""
        folders = key.split("/")[:-1]
        # The folder above the class; if no folder is a class, the outermost.
        split_folders = folders[-2:-1] if self.folder_classes else folders[:1]
        return find_named_split(split_folders[0]) if split_folders else ""

    def _reject_splits(self, paths: Iterable[str]) -> None:
        """Raise UsageError if --split is passed, and one of these paths has a folder that is a split."""
        splits = sorted({split for path in paths if (split := self._find_split(path))})
        if splits:
            reject_split_flag(self.options, f"{self.options.input} has split folders already ({', '.join(splits)})")

    def parts(self) -> Iterator[MatchedFolder]:
        """Yield the folders whose files may match; a single folder if it is listed with all its subfolders.

        Raises:
            UsageError: the options assign splits, but a folder is a split.
        """
        folder_pattern = self.pattern[:-1]
        # Without a shuffle, the files of a folder come before the files of its subfolders, unlike in a deep listing.
        if "**" in folder_pattern and self.options.shuffle and storage_for(self.fixed_folder).lists_deep:
            yield MatchedFolder(self.fixed_folder, "", deep=True)
            return
        # `**` also stands for no folder at all.
        if all(part == "**" for part in folder_pattern):
            yield MatchedFolder(self.fixed_folder, "")
        if folder_pattern:
            for entry, folder_key in expand_below(self.fixed_folder, folder_pattern, only_folders=True):
                self._reject_splits([f"{folder_key}/"])
                yield MatchedFolder(entry.path, f"{folder_key}/")

    def units(self, part: MatchedFolder, ignored: list[str]) -> Iterator[MatchedFiles]:
        """Yield ranges of the files of a folder; nothing is ignored here."""
        del ignored
        for files in folder_ranges(part.path, deep=part.deep):
            yield MatchedFiles(part, files)

    def references(
        self, unit: MatchedFiles, ignored: list[str], reject: Reject = raise_rejection
    ) -> Iterator[Reference]:
        """Yield a reference to every matched file of a range.

        Args:
            unit: one of `units`.
            ignored: list to which this method appends the path of each file that it skips because of its name.
            reject: called with the error of a file whose folder is not a known class, or whose path `--label-from` rejects.

        Raises:
            SourceError: a file lies in no folder of its class.
            UsageError: the options assign splits, but a file lies in a folder that is a split.
        """
        # The split and the labels of the last folder.
        last_folder: str | None = None
        split = ""
        labels: tuple[str, ...] = ()
        for entry, key in self._match_files(unit):
            if is_ignored_path(key):
                ignored.append(entry.path)
                continue
            folder = key.rpartition("/")[0]
            if folder != last_folder:
                self._reject_splits([key])
                if self.folder_classes:
                    # A file in no matched folder lies in the pattern's fixed folder.
                    folders = key.split("/")[:-1] or [self.fixed_folder.rpartition("/")[2]]
                    try:
                        labels = (self.classes.resolve(find_class_and_split(folders, entry.path)[0], entry.path),)
                    except BadRecordError as error:
                        # `last_folder` stays, so the other files of this folder are also rejected.
                        reject(add_key(error, key))
                        continue
                last_folder = folder
                split = self._find_split(key)
            columns: Mapping[str, Any] = NO_FEATURES
            if self.path_labels is not None:
                try:
                    labels, columns = self.path_labels.read(key, entry.path)
                except BadRecordError as error:
                    reject(add_key(error, key))
                    continue
            yield make_reference(
                self.options, key, path=entry.path, size=entry.size, split=split, labels=labels, features=columns
            )

    def _match_files(self, unit: MatchedFiles) -> Iterator[tuple[Entry, str]]:
        """Yield the files of a unit that match the pattern, each with its key."""
        folder, files = unit
        if folder.deep:
            # Skip hidden folders, whose names wildcards do not match.
            for entry, key in files_below(files, lambda name: name.startswith(".")):
                if not entry.is_folder and matches(key, self.pattern):
                    yield entry.checked(), key
            return
        # `parts` yields only folders that match, so only names are compared here.
        name_pattern = self.pattern[-1:]
        for entry in storage_for(files.folder).scan(files.folder, start=files.start, stop=files.stop):
            if not entry.is_folder and matches(entry.name, name_pattern):
                yield entry.checked(), f"{folder.below}{entry.name}"
