"""The form of an input file, detected from its first bytes or the ending of its name."""

from __future__ import annotations

import re

from beam_jobs import file_kinds
from beam_jobs.compression.files import read_compression, read_head, strip_compression
from beam_jobs.sources.image_arrays.source import is_array_file
from beam_jobs.sources.tars.members import BLOCK, is_tar_header
from beam_jobs.sources.tars.samples import IMAGE_FIELDS
from tpudata.errors import SourceError
from tpudata.images.image_format import BMP, PPM, detect_format

TAR, IDX, LIST, IMAGE, UNSUPPORTED = "a tar", "an IDX file", "a list", "an image", "of a form that is not read"
ZIP, PARQUET, ARRAYS = "a zip archive", "a Parquet file", "a file of arrays"
# The forms that are read, for messages.
FORMS = (
    "a folder whose subfolders are classes, a CSV or JSONL list, tar, zip, Parquet or IDX files, files of arrays (CIFAR, SVHN,"
    " .npz), or a pattern such as 'DIR/*/*.jpg'"
)
# Form by the ending of a name, before an ending such as .gz.
_FORM_OF_ENDING = {
    **dict.fromkeys(("tar", "tgz", "tbz2", "txz", "tzst"), TAR),
    "zip": ZIP,
    "parquet": PARQUET,
    **dict.fromkeys(("csv", "tsv", "json", "jsonl"), LIST),
    **dict.fromkeys(("npz", "mat"), ARRAYS),
    **dict.fromkeys(("7z", "npy", "h5", "hdf5"), UNSUPPORTED),
    **dict.fromkeys(IMAGE_FIELDS, IMAGE),
}
# The signature, and a number or comment after it: the first column of a list may be called P3.
_PPM_START = re.compile(rb"P[1-6]\s*[\d#]")
_SAVE = "Save its images as files, or write records with WriteTFRecordShards"
# Form by the kind of the first bytes.
_FORM_OF_KIND = {
    file_kinds.ZIP: ZIP,
    file_kinds.PARQUET: PARQUET,
    file_kinds.IDX: IDX,
    **dict.fromkeys((file_kinds.NPZ, file_kinds.MAT, file_kinds.PICKLE), ARRAYS),
}
# Description and fix of kinds that are not read.
_UNREAD_KINDS = {
    file_kinds.MAT_73: "a MATLAB file of version 7.3. Save it with -v7, or its images as files",
    file_kinds.NPY: f"a NumPy array (.npy). {_SAVE}",
    file_kinds.HDF5: f"an HDF5 file. {_SAVE}",
    file_kinds.DAMAGED_BZIP2: "compressed with bzip2, and damaged. Restore it, or pack it again",
}


def find_form_of_ending(name: str) -> str | None:
    """Return the form that the ending of a name indicates; None if it indicates none."""
    lower_name = name.lower()
    plain_name = strip_compression(lower_name)
    _, dot, ending = plain_name.rpartition(".")
    form = _FORM_OF_ENDING.get(ending) if dot else None
    is_compressed = plain_name != lower_name
    # A compressed file of another form is not supported. With .gz it may be an IDX file, whose name need not have an ending.
    if form is None and is_compressed and not lower_name.endswith(".gz"):
        return UNSUPPORTED
    return form


def find_form_of_start(path: str) -> str | None:
    """Return `TAR`, `IDX`, `ZIP`, `PARQUET` or `ARRAYS` if a file begins like one; else None."""
    return _find_form_of_head(read_head(path, BLOCK))


def find_form_of_file(path: str) -> str:
    """Return the form of a file from its first bytes, and of CIFAR's binary files from their names; `LIST` for any text.

    Raises:
        SourceError: the file is empty, or of no form that is read; the message says what it is.
    """
    head = read_head(path, BLOCK)
    form = ARRAYS if is_array_file(path, head) else _find_form_of_head(head)
    if form is not None:
        return form
    kind = file_kinds.detect_file_kind(head)
    if kind in _UNREAD_KINDS:
        raise SourceError(f"{path} is {_UNREAD_KINDS[kind]}.")
    file_kinds.reject_unread(path, kind)
    if _is_image(head):
        return IMAGE
    compression = read_compression(path)
    if compression:
        raise SourceError(
            f"{path} is compressed with {compression}, and neither a tar nor an IDX file inside. Unpack it."
        )
    if not head:
        raise SourceError(f"{path} is empty. Restore it, or remove it from the input.")
    if b"\0" in head and not head.startswith(file_kinds.UTF16_BOMS):
        raise SourceError(f"{path} is of no known form: it begins with {head[:8].hex(' ')}. Name {FORMS}.")
    return LIST


def _find_form_of_head(head: bytes) -> str | None:
    return TAR if is_tar_header(head) else _FORM_OF_KIND.get(file_kinds.detect_file_kind(head))


def _is_image(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of an image."""
    try:
        detected_format = detect_format(head)
    except ValueError:
        return False
    # A list may begin with the signatures of BMP and PPM: its first column may be called BMI or P3.
    if detected_format == BMP:
        return b"\0" in head
    return detected_format != PPM or _PPM_START.match(head) is not None
