"""Finding the source of an input: a folder or a file by what is there and what it holds, a pattern by the names that it matches.

folder    ImageNet's raw files, IDX pairs, tar, zip or Parquet files, or class folders; with --unlabelled, all files below it
file      a tar, a zip, a Parquet file, one of an IDX pair, or a list
pattern   files of one of these forms, or images: whatever has not the name of another form
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from beam_jobs.image_records.codecs.image_format import BMP, PPM, image_format
from beam_jobs.options import ConvertOptions
from beam_jobs.sources.folders.class_folders import ClassFolders
from beam_jobs.sources.folders.imagenet import ImageNet
from beam_jobs.sources.folders.matched_images import MatchedImages
from beam_jobs.sources.idx import IdxPairs, is_idx_name
from beam_jobs.sources.input_files import InputFiles
from beam_jobs.sources.lists.lists import Lists
from beam_jobs.sources.lists.rows import UTF16_BOMS
from beam_jobs.sources.names import is_left_behind, is_path_left_behind
from beam_jobs.sources.options import SourceOptions
from beam_jobs.sources.parquet.source import PARQUET_MAGIC, ParquetImages
from beam_jobs.sources.source import Source
from beam_jobs.sources.table import SOURCES, source_opener
from beam_jobs.sources.tars.file import first_bytes, is_tar, packing, unpacked_name
from beam_jobs.sources.tars.members import is_tar_header
from beam_jobs.sources.tars.samples import IMAGE_FIELDS
from beam_jobs.sources.tars.tars import Tars
from beam_jobs.sources.zips import ZIP_MAGIC, Zips
from tpudata.errors import SourceError, UsageError
from tpudata.storage import Entry, expand, is_pattern, lazy_entries, split_pattern, storage_for

# Names by which a folder or a pattern is known, and no more: it may have millions.
_LOOKED_AT = 10_000
_TAR, _IDX, _LIST, _IMAGE, _PACKED = "a tar", "an IDX file", "a list", "an image", "of a form that is not read"
_ZIP, _PARQUET = "a zip archive", "a Parquet file"
# By the end of a name, without a .gz or the like after it.
_FORM_OF_ENDING = {
    **dict.fromkeys(("tar", "tgz", "tbz2", "txz", "tzst"), _TAR),
    "zip": _ZIP,
    "parquet": _PARQUET,
    **dict.fromkeys(("csv", "tsv", "json", "jsonl"), _LIST),
    **dict.fromkeys(("7z", "npy", "npz", "h5", "hdf5"), _PACKED),
    **dict.fromkeys(IMAGE_FIELDS, _IMAGE),
}
_MAGIC = {_ZIP: ZIP_MAGIC, _PARQUET: PARQUET_MAGIC}
_WILDCARD_END = re.compile(r"[*?\]]")
# A first column of a list may well be called BMI or P3.
_PPM_START = re.compile(rb"P[1-6]\s*[\d#]")
# Forms that people do have, with what to do about them.
_SAVE = "Save its images as files, or write records with WriteTFRecordShards"
_OTHER = {
    b"PARE": "an encrypted Parquet file. Decrypt it",
    b"\x93NUMPY": f"a NumPy array (.npy). {_SAVE}",
    b"\x89HDF": f"an HDF5 file. {_SAVE}",
    b"BZh": "compressed with bzip2, and damaged. Restore it, or pack it again",
    b"7z\xbc\xaf": "a 7z archive. Unpack it, and name the folder",
}
_FORMS = (
    "a folder whose subfolders are classes, a CSV or JSONL list, tar, zip, Parquet or IDX files, or a pattern such as"
    " 'DIR/*/*.jpg'"
)


def open_source(options: ConvertOptions, source_options: SourceOptions | None = None) -> Source:
    """Open the source that `options.input` is.

    Args:
        options: of the conversion.
        source_options: how the input is read; None for the defaults.

    Raises:
        SourceError: there is nothing at that path, or nothing that is read; names what is there.
        CorruptionError: a file that is looked at is damaged.
        UsageError: the options do not fit the input.
    """
    source_options = source_options or SourceOptions()
    source = (
        _open(options, source_options)
        if source_options.source is None
        else _named(options, source_options, source_options.source)
    )
    if source_options.label_type is not None and not getattr(source, "takes_label_type", False):
        raise UsageError(
            "--label-type is for labels in lists and WebDataset tars and for folders of classes, and"
            f" {options.input} is none of these. Omit the flag."
        )
    if options.label_offset and not source.has_classes:
        raise UsageError(
            f"--label-offset is {options.label_offset}, and the images have no classes to count. Omit the flag."
        )
    return source


def _named(options: ConvertOptions, source_options: SourceOptions, name: str) -> Source:
    if name in SOURCES:
        if name not in ("list", "parquet"):
            source_options.reject_list_flags(f"--source is {name}")
        if source_options.unlabelled and name in ("folders", "imagenet"):
            raise UsageError(
                f"--unlabelled: --source={name} takes classes from folders. Use --source=files, or omit the flag."
            )
    return source_opener(name)(options, source_options)


def _open(options: ConvertOptions, source_options: SourceOptions) -> Source:
    # A name that is there is taken as it is, also where it has a bracket in it.
    found = storage_for(options.input).stat(options.input)
    if found is None:
        if is_pattern(options.input):
            return _open_pattern(options, source_options)
        raise SourceError(f"{options.input} is not there. Name {_FORMS}.")
    if found.is_folder:
        return _open_folder(options, source_options)
    return _open_files(options, source_options, options.input)


def _open_folder(options: ConvertOptions, source_options: SourceOptions) -> Source:
    first = itertools.islice(lazy_entries(options.input), _LOOKED_AT)
    entries = [entry for entry in first if not is_left_behind(entry.name)]
    files = [entry for entry in entries if not entry.is_folder]
    source = _open_parquet_or_zips(options, source_options, entries)
    if source is not None:
        return source
    source_options.reject_list_flags(f"{options.input} is a folder")
    imagenet = ImageNet.find(options, source_options) if not source_options.unlabelled else None
    if imagenet is not None:
        return imagenet
    idx = [entry.path for entry in files if is_idx_name(entry.name)]
    if idx:
        return IdxPairs.find(options, source_options, idx)
    data = [entry for entry in files if not _is_note(entry.name)]
    if data and len(files) == len(entries) and is_tar(data[0].path):
        return Tars.find(options, source_options, InputFiles(options.input, only_files=True, omits_notes=True))
    if source_options.unlabelled:
        return MatchedImages.find(options, source_options, options.input, ("**", "*"))
    if files and len(files) == len(entries):
        _reject_other_files(options.input, files)
    return ClassFolders.find(options, source_options)


def _reject_other_files(folder: str, files: Sequence[Entry]) -> None:
    """Raise SourceError if a folder without folders has files that are no images; going by the first that is no README."""
    data = [entry for entry in files if not _is_note(entry.name)] or files
    # Any text is a list for all that its bytes show, such as a LICENSE next to tars.
    first = next((entry for entry in data if "." in entry.name), data[0])
    form = _form(first.path)
    if form != _IMAGE:
        ending = first.name.rpartition(".")[2]
        what = first.path if form == _LIST else f"'{folder}/*.{ending}'"
        raise SourceError(f"{folder} has no folders of classes, and {first.name} is {form}. Pass --input {what}.")


def _open_parquet_or_zips(
    options: ConvertOptions, source_options: SourceOptions, entries: Sequence[Entry]
) -> Source | None:
    """Return the source of a folder with nothing but Parquet files or zips, and perhaps a README; None for other folders."""
    rest = [entry for entry in entries if not _is_note(entry.name)]
    if not rest or any(entry.is_folder for entry in rest):
        return None
    form = next((form for form, magic in _MAGIC.items() if first_bytes(rest[0].path).startswith(magic)), None)
    if form is None or any(_form_of_ending(entry.name) != form for entry in rest):
        return None
    return _open_files(options, source_options, rest[0].path)


def _is_note(name: str) -> bool:
    """Return whether a file is about the data, as the README.md of Hugging Face's repositories."""
    return name.lower().endswith(".md")


def _open_pattern(options: ConvertOptions, source_options: SourceOptions) -> Source:
    folder, _ = split_pattern(options.input)
    if storage_for(folder).stat(folder) is None:
        raise SourceError(f"{options.input}: there is no folder {folder}. Check the path.")
    if _matched_form(options.input) == _IMAGE:
        source_options.reject_list_flags(f"{options.input} matches images")
        return MatchedImages.find(options, source_options, *split_pattern(options.input))
    first, _ = next(_matched_files(options.input))
    return _open_files(options, source_options, first.path)


def _matched_files(pattern: str) -> Iterator[tuple[Entry, str]]:
    for entry, below in expand(pattern):
        if not entry.is_folder and not is_path_left_behind(below):
            yield entry, below


def _matched_form(pattern: str) -> str:
    """Return what the files are that a pattern matches, by the names of the first of them: a single one may be the bad one."""
    last = split_pattern(pattern)[1][-1]
    same_ending = _form_of_ending(_WILDCARD_END.split(last)[-1]) is not None
    found: dict[str, str] = {}
    for entry, _ in itertools.islice(_matched_files(pattern), _LOOKED_AT):
        form = _IDX if is_idx_name(entry.name) else _form_of_ending(entry.name) or _IMAGE
        found.setdefault(form, entry.path)
        if same_ending:
            break
    if not found:
        raise SourceError(
            f"{pattern} matches no file. A folder's files are matched by FOLDER/*, all below it by FOLDER/**."
        )
    if _IMAGE in found:
        # Such a file among images is a bad record.
        for form in (_PACKED, _ZIP, _PARQUET):
            found.pop(form, None)
    if len(found) > 1:
        (one, path), (other, other_path) = sorted(found.items())[:2]
        raise SourceError(
            f"{pattern} matches files of several forms: {path} is {one}, and {other_path} is {other}, going by their names (what"
            " has no other form's name is an image). Match one form alone, such as 'DIR/*/*.jpg'."
        )
    return next(iter(found))


def _form_of_ending(name: str) -> str | None:
    """Return what the end of a name says; None if it says nothing."""
    lower = name.lower()
    plain = unpacked_name(lower)
    _, dot, ending = plain.rpartition(".")
    form = _FORM_OF_ENDING.get(ending) if dot else None
    return _PACKED if form is None and plain != lower and not lower.endswith(".gz") else form


def _open_files(options: ConvertOptions, source_options: SourceOptions, first: str) -> Source:
    """Open the files of an input as what the first of them is."""
    form = _form(first)
    if form == _IMAGE:
        raise SourceError(f"{first} is one image. Name {_FORMS}.")
    files = InputFiles(options.input)
    if form == _LIST:
        return Lists.find(options, source_options, files)
    if form == _PARQUET:
        return ParquetImages.find(options, source_options, InputFiles(options.input, omits_notes=True))
    source_options.reject_list_flags(f"{first} is {form}")
    if form == _IDX:
        return IdxPairs.find(options, source_options, [path for path, _ in files])
    if form == _ZIP:
        return Zips.find(options, source_options, InputFiles(options.input, omits_notes=True))
    return Tars.find(options, source_options, files)


def _form(path: str) -> str:
    """Return what a file is, by its first bytes."""
    head = first_bytes(path)
    if is_tar_header(head):
        return _TAR
    if head[:3] == b"\0\0\x08":
        return _IDX
    if _is_npz(head):
        raise SourceError(f"{path} is a NumPy archive (.npz). {_SAVE}.")
    for form, magic in _MAGIC.items():
        if head.startswith(magic):
            return form
    for magic, what in _OTHER.items():
        if head.startswith(magic):
            raise SourceError(f"{path} is {what}.")
    if _is_image(head):
        return _IMAGE
    if packing(path):
        raise SourceError(
            f"{path} is compressed with {packing(path)}, and neither a tar nor an IDX file inside. Unpack it."
        )
    if not head:
        raise SourceError(f"{path} is empty. Restore it, or remove it from the input.")
    if b"\0" in head and not head.startswith(UTF16_BOMS):
        raise SourceError(f"{path} is of no known form: it begins with {head[:8].hex(' ')}. Name {_FORMS}.")
    return _LIST


def _is_npz(head: bytes) -> bool:
    """Return whether these are the first bytes of a zip whose first member is a NumPy array."""
    # The length of the name is at byte 26, and the name at byte 30 (APPNOTE.TXT, 4.3.7).
    return head.startswith(ZIP_MAGIC) and head[30 : 30 + int.from_bytes(head[26:28], "little")].endswith(b".npy")


def _is_image(head: bytes) -> bool:
    try:
        name = image_format(head)
    except ValueError:
        return False
    # These two have signatures that a list may begin with.
    if name == BMP:
        return b"\0" in head
    return name != PPM or _PPM_START.match(head) is not None
