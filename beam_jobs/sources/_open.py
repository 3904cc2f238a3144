"""Which source an input is: decided by what is there and what it holds, not by what it is called.

folder    ImageNet's raw files, IDX pairs, tar files, or class folders; with --unlabelled, all files below it
file      a tar, one of an IDX pair, or a list
pattern   files of one of these forms, or images
"""

from __future__ import annotations

from beam_jobs.options import ConvertOptions
from beam_jobs.sources._list_rows import UTF16_BOMS
from beam_jobs.sources._names import is_left_behind
from beam_jobs.sources._options import SourceOptions
from beam_jobs.sources._source import Source
from beam_jobs.sources._tar_file import first_bytes, is_gzip, is_tar
from beam_jobs.sources._tar_members import is_tar_header
from beam_jobs.sources.class_folders import ClassFolders
from beam_jobs.sources.idx import IdxPairs, is_idx_name
from beam_jobs.sources.imagenet import ImageNet
from beam_jobs.sources.lists import Lists
from beam_jobs.sources.matched_images import MatchedImages
from beam_jobs.sources.tars import Tars
from tpudata.errors import SourceError
from tpudata.storage import Entry, expand, is_pattern, split_pattern, storage_for

_TAR, _IDX, _LIST, _IMAGE = "a tar", "an IDX file", "a list", "an image"
_IMAGE_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"II*\0", b"MM\0*")
# Forms that people do have, with what to do about them.
_OTHER = {
    b"PK\x03\x04": "a zip archive. Unpack it, and name the folder",
    b"BZh": "compressed with bzip2. Unpack it, or pack it with gzip",
    b"\xfd7zXZ\0": "compressed with xz. Unpack it, or pack it with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd. Unpack it, or pack it with gzip",
    b"7z\xbc\xaf": "a 7z archive. Unpack it, and name the folder",
    b"PAR1": "a Parquet file, which is not read for images. Write paths and labels as a CSV list",
}
_FORMS = "a folder whose subfolders are classes, a CSV or JSONL list, tar files, IDX files, or a pattern such as 'DIR/*/*.jpg'"


def open_source(options: ConvertOptions, source_options: SourceOptions | None = None) -> Source:
    """The source that `options.input` is.

    Args:
        options: of the conversion.
        source_options: what is said of the input beyond where it is; nothing where None.

    Raises:
        SourceError: there is nothing at that path, or nothing that is read; says what is.
        CorruptionError: a file that is looked at is damaged.
        UsageError: the options do not fit the input.
    """
    said = source_options or SourceOptions()
    # A name that is there is taken as it is, also where it has a bracket in it.
    found = storage_for(options.input).stat(options.input)
    if found is None:
        if is_pattern(options.input):
            return _open_pattern(options, said)
        raise SourceError(f"{options.input} is not there. Name {_FORMS}.")
    if found.is_folder:
        said.refuse_list_flags(f"{options.input} is a folder")
        return _open_folder(options, said)
    form = _form(options.input)
    if form == _IMAGE:
        raise SourceError(f"{options.input} is one image. Name {_FORMS}.")
    return _open_files(options, said, form, [(options.input, found.name)])


def _open_folder(options: ConvertOptions, said: SourceOptions) -> Source:
    entries = [entry for entry in storage_for(options.input).list(options.input) if not is_left_behind(entry.name)]
    files = [entry for entry in entries if not entry.is_folder]
    imagenet = ImageNet.find(options, said) if not said.unlabelled else None
    if imagenet is not None:
        return imagenet
    idx = [entry.path for entry in files if is_idx_name(entry.name)]
    if idx:
        return IdxPairs.find(options, said, idx)
    if files and len(files) == len(entries) and is_tar(files[0].path):
        return Tars.find(options, said, [(entry.path, entry.name) for entry in files])
    if said.unlabelled:
        return MatchedImages.find(options, said, options.input, ("**", "*"))
    return ClassFolders.find(options, said)


def _open_pattern(options: ConvertOptions, said: SourceOptions) -> Source:
    folder, _ = split_pattern(options.input)
    if storage_for(folder).stat(folder) is None:
        raise SourceError(f"{options.input}: there is no folder {folder}.")
    first: Entry | None = None
    for entry, _ in expand(options.input):
        if not entry.is_folder and not is_left_behind(entry.name):
            first = entry
            break
    if first is None:
        raise SourceError(
            f"{options.input} matches no file. A folder's files are matched by FOLDER/*, all below it by FOLDER/**."
        )
    form = _form(first.path)
    if form == _IMAGE:
        said.refuse_list_flags(f"{options.input} matches images")
        return MatchedImages.find(options, said, *split_pattern(options.input))
    files = [(entry.path, below) for entry, below in expand(options.input) if not entry.is_folder]
    return _open_files(options, said, form, [(path, below) for path, below in files if not is_left_behind(below)])


def _open_files(options: ConvertOptions, said: SourceOptions, form: str, files: list[tuple[str, str]]) -> Source:
    if form == _LIST:
        return Lists.find(options, said, [path for path, _ in files])
    said.refuse_list_flags(f"{files[0][0]} is {form}")
    if form == _IDX:
        return IdxPairs.find(options, said, [path for path, _ in files])
    return Tars.find(options, said, files)


def _form(path: str) -> str:
    """What a file is, by its first bytes."""
    head = first_bytes(path)
    if is_tar_header(head):
        return _TAR
    if head[:3] == b"\0\0\x08":
        return _IDX
    for magic, what in _OTHER.items():
        if head.startswith(magic):
            raise SourceError(f"{path} is {what}.")
    is_bmp = head[:2] == b"BM" and head[6:10] == b"\0\0\0\0"
    is_webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    if head.startswith(_IMAGE_MAGIC) or is_bmp or is_webp:
        return _IMAGE
    if is_gzip(path):
        raise SourceError(f"{path} is compressed with gzip, and neither a tar nor an IDX file inside. Unpack it.")
    if not head:
        raise SourceError(f"{path} is empty.")
    if b"\0" in head and not head.startswith(UTF16_BOMS):
        raise SourceError(f"{path} is of no known form: it begins with {head[:8].hex(' ')}. Name {_FORMS}.")
    return _LIST
