"""Opening the source of an input: the content of a folder or file decides, for a pattern the names that it matches.

folder    ImageNet's raw files, IDX pairs, files of arrays, tar, zip or Parquet files, or class folders; with --unlabelled, all
          files below it
file      a tar, a zip, a Parquet file, a file of an IDX pair, a file of arrays, or a list
pattern   files of one of these forms, or images: all files whose names do not indicate another form
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from beam_jobs.file_names import is_ignored_name, is_ignored_path
from beam_jobs.options import ConvertOptions
from beam_jobs.sources.annotated.source import AnnotatedImages
from beam_jobs.sources.folders.class_folders import ClassFolders
from beam_jobs.sources.folders.imagenet import ImageNet
from beam_jobs.sources.folders.matched_images import MatchedImages
from beam_jobs.sources.idx_pairs.source import IdxPairs, is_idx_name
from beam_jobs.sources.image_arrays.source import ImageArrays, find_array_files, is_array_name
from beam_jobs.sources.input_files import InputFiles
from beam_jobs.sources.input_form import (
    ARRAYS,
    FORMS,
    IDX,
    IMAGE,
    LIST,
    PARQUET,
    TAR,
    UNSUPPORTED,
    ZIP,
    find_form_of_ending,
    find_form_of_file,
    find_form_of_start,
)
from beam_jobs.sources.lists.lists import Lists
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.parquet.source import ParquetImages
from beam_jobs.sources.source import Source
from beam_jobs.sources.source_table import SOURCES, find_opener
from beam_jobs.sources.tars.file import is_tar
from beam_jobs.sources.tars.tars import Tars
from beam_jobs.sources.zips import Zips
from tpudata.errors import SourceError, UsageError
from tpudata.storage import Entry, expand, is_pattern, lazy_entries, split_pattern, storage_for

# Maximum number of names that decide the form of a folder or a pattern, which may have millions.
_MAX_NAMES = 10_000
# The last character of a wildcard, such as `*` or `[0-9]`.
_WILDCARD_END = re.compile(r"[*?\]]")


def open_source(options: ConvertOptions, source_options: SourceOptions | None = None) -> Source:
    """Open the source for `options.input`.

    Args:
        options: options of the conversion.
        source_options: options of reading the input; None for the defaults.

    Raises:
        SourceError: the path does not exist, or has nothing of a supported form; the message names the content.
        CorruptionError: a file that decides the form is damaged.
        UsageError: the options do not fit the input.
    """
    source_options = source_options or SourceOptions()
    if source_options.is_annotated:
        return AnnotatedImages.open(options, source_options)
    source = (
        _open_detected_source(options, source_options)
        if source_options.source is None
        else _open_named(options, source_options, source_options.source)
    )
    if source_options.label_type is not None and not source.takes_label_type:
        raise UsageError(
            "--label-type is for labels in lists, WebDataset tars and paths and for folders of classes, and"
            f" {options.input} is none of these. Omit the flag."
        )
    if source_options.label_from is not None and not source.takes_label_from:
        raise UsageError(
            f"--label-from is for the paths of pictures in folders, patterns, zips and tars, and {options.input} is none of"
            " these. Omit the flag."
        )
    if options.label_offset and not source.has_classes:
        raise UsageError(
            f"--label-offset is {options.label_offset}, and the images have no classes to count. Omit the flag."
        )
    return source


def _open_named(options: ConvertOptions, source_options: SourceOptions, name: str) -> Source:
    """Open the source that --source names; raise UsageError if a flag does not fit it."""
    if name in SOURCES:
        # Lists take these flags, and `ParquetImages.open` rejects some itself; tars take --column-types for columns of their JSON.
        if name not in ("list", "parquet"):
            source_options.reject_list_flags(f"--source is {name}", has_columns=name == "tar")
        if source_options.unlabelled and name in ("folders", "imagenet"):
            raise UsageError(
                f"--unlabelled: --source={name} takes classes from folders. Use --source=files, or omit the flag."
            )
    return find_opener(name)(options, source_options)


def _open_detected_source(options: ConvertOptions, source_options: SourceOptions) -> Source:
    """Open the source that the input's content and names show, without --source; SourceError if the input does not exist."""
    # An existing file is not a pattern, even if its name has a bracket.
    entry = storage_for(options.input).stat(options.input)
    if entry is None:
        if is_pattern(options.input):
            return _open_pattern(options, source_options)
        raise SourceError(f"{options.input} does not exist. Name {FORMS}.")
    if entry.is_folder:
        return _open_folder(options, source_options)
    return _open_files(options, source_options, options.input)


def _open_folder(options: ConvertOptions, source_options: SourceOptions) -> Source:
    """Open the source of a folder, chosen from its first names and the content of its files."""
    first_entries = itertools.islice(lazy_entries(options.input), _MAX_NAMES)
    entries = [entry for entry in first_entries if not is_ignored_name(entry.name)]
    files = [entry for entry in entries if not entry.is_folder]
    has_only_files = len(files) == len(entries)
    source = _open_parquet_or_zips(options, source_options, entries)
    if source is not None:
        return source
    source_options.reject_list_flags(f"{options.input} is a folder")
    imagenet = ImageNet.detect(options, source_options) if source_options.folders_are_classes else None
    if imagenet is not None:
        return imagenet
    # Only IDX files are named so. Other files may lie next to them.
    idx_paths = [entry.path for entry in files if is_idx_name(entry.name)]
    if idx_paths:
        return IdxPairs.open(options, source_options, idx_paths)
    array_paths = find_array_files({entry.path: entry.name for entry in files}) if has_only_files else []
    if array_paths:
        return ImageArrays.open(options, source_options, array_paths)
    data_files = [entry for entry in files if not _is_markdown(entry.name)]
    if data_files and has_only_files and is_tar(data_files[0].path):
        return Tars.open(options, source_options, InputFiles(options.input, rejects_folders=True, skips_markdown=True))
    if not source_options.folders_are_classes:
        return MatchedImages.open(options, source_options, options.input, ("**", "*"))
    if files and has_only_files:
        _reject_other_files(options.input, files)
    return ClassFolders.open(options, source_options)


def _reject_other_files(folder: str, files: Sequence[Entry]) -> None:
    """Raise SourceError if the files of a folder without subfolders are not images, judging by one, if possible not Markdown."""
    data_files = [entry for entry in files if not _is_markdown(entry.name)] or files
    # Prefer a file with an ending: any text counts as a list, such as a LICENSE next to tars.
    first = next((entry for entry in data_files if "." in entry.name), data_files[0])
    form = find_form_of_file(first.path)
    if form != IMAGE:
        ending = first.name.rpartition(".")[2]
        choice = first.path if form == LIST else f"'{folder}/*.{ending}'"
        raise SourceError(f"{folder} has no folders of classes, and {first.name} is {form}. Pass --input {choice}.")


def _open_parquet_or_zips(
    options: ConvertOptions, source_options: SourceOptions, entries: Sequence[Entry]
) -> Source | None:
    """Return the source of a folder that has only Parquet files or only zips, Markdown files aside; None for other folders."""
    data_entries = [entry for entry in entries if not _is_markdown(entry.name)]
    if not data_entries or any(entry.is_folder for entry in data_entries):
        return None
    form = find_form_of_start(data_entries[0].path)
    if form not in (ZIP, PARQUET) or any(find_form_of_ending(entry.name) != form for entry in data_entries):
        return None
    return _open_files(options, source_options, data_entries[0].path)


def _is_markdown(name: str) -> bool:
    """Return whether a file is about the data, like the README.md of Hugging Face's repositories."""
    return name.lower().endswith(".md")


def _open_pattern(options: ConvertOptions, source_options: SourceOptions) -> Source:
    """Open the source of the files that a pattern matches, chosen from their names and the content of the first.

    Raises:
        SourceError: the folder before the wildcards does not exist, no file matches, or the files that match are of several forms.
    """
    folder, _ = split_pattern(options.input)
    if storage_for(folder).stat(folder) is None:
        raise SourceError(f"{options.input}: there is no folder {folder}. Check the path.")
    if _find_form(options.input) == IMAGE:
        source_options.reject_list_flags(f"{options.input} matches images")
        return MatchedImages.open(options, source_options, *split_pattern(options.input))
    # There is one: `_find_form` raises if no file matches.
    first_file = next(_match_files(options.input))
    return _open_files(options, source_options, first_file.path)


def _match_files(pattern: str) -> Iterator[Entry]:
    """Yield the files that a pattern matches, except those with a name to ignore."""
    return (
        entry for entry, relative_path in expand(pattern) if not entry.is_folder and not is_ignored_path(relative_path)
    )


def _find_form(pattern: str) -> str:
    """Return the form of the files that a pattern matches, judging by the names of the first `_MAX_NAMES`.

    Raises:
        SourceError: no file matches, or the files are of several forms.
    """
    name_pattern = split_pattern(pattern)[1][-1]
    text_after_wildcards = _WILDCARD_END.split(name_pattern)[-1]
    # All matches of `*.jpg` have one form, so the first decides.
    fixes_ending = find_form_of_ending(text_after_wildcards) is not None
    first_paths_by_form: dict[str, str] = {}
    for entry in itertools.islice(_match_files(pattern), _MAX_NAMES):
        form = _find_form_of_name(entry.name)
        first_paths_by_form.setdefault(form, entry.path)
        if fixes_ending:
            break
    if not first_paths_by_form:
        raise SourceError(
            f"{pattern} matches no file. A folder's files are matched by FOLDER/*, all below it by FOLDER/**."
        )
    if IMAGE in first_paths_by_form:
        # Files of these forms among images become bad records. Tars, lists and IDX files are an error: one may be the input.
        for form in (UNSUPPORTED, ZIP, PARQUET, ARRAYS):
            first_paths_by_form.pop(form, None)
    if len(first_paths_by_form) > 1:
        (form_name, path), (other_form, other_path) = sorted(first_paths_by_form.items())[:2]
        raise SourceError(
            f"{pattern} matches files of several forms: {path} is {form_name}, and {other_path} is {other_form}, going by their"
            " names (other names are images). Match only one form, such as 'DIR/*/*.jpg'."
        )
    return next(iter(first_paths_by_form))


def _find_form_of_name(name: str) -> str:
    """Return the form that a file's name indicates; IMAGE if it indicates none."""
    if is_idx_name(name):
        return IDX
    if is_array_name(name):
        return ARRAYS
    return find_form_of_ending(name) or IMAGE


def _open_files(options: ConvertOptions, source_options: SourceOptions, path: str) -> Source:
    """Return the source for the form of the file at `path`, which all files of the input must have; SourceError for an image."""
    form = find_form_of_file(path)
    if form == IMAGE:
        raise SourceError(f"{path} is one image. Name {FORMS}.")
    files = InputFiles(options.input)
    if form == LIST:
        return Lists.open(options, source_options, files)
    # Hugging Face's repositories have a README.md next to Parquet files and zips.
    if form == PARQUET:
        return ParquetImages.open(options, source_options, InputFiles(options.input, skips_markdown=True))
    source_options.reject_list_flags(f"{path} is {form}", has_columns=form == TAR)
    if form == IDX:
        return IdxPairs.open(options, source_options, [file_path for file_path, _ in files])
    if form == ARRAYS:
        return ImageArrays.open(options, source_options, [file_path for file_path, _ in files])
    if form == ZIP:
        return Zips.open(options, source_options, InputFiles(options.input, skips_markdown=True))
    return Tars.open(options, source_options, files)
