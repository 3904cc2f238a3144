"""The form of an input file, by its first bytes or the end of its name."""

from __future__ import annotations

import re

from beam_jobs.compression.recognition import reject_unread
from beam_jobs.image_records.codecs.image_format import BMP, PPM, image_format
from beam_jobs.parquet_files.footer import is_parquet
from beam_jobs.sources.lists.rows import UTF16_BOMS
from beam_jobs.sources.tars.file import first_bytes, packing, unpacked_name
from beam_jobs.sources.tars.members import is_tar_header
from beam_jobs.sources.tars.samples import IMAGE_FIELDS
from beam_jobs.sources.zips import ZIP_MAGIC
from tpudata.errors import SourceError

TAR, IDX, LIST, IMAGE, PACKED = "a tar", "an IDX file", "a list", "an image", "of a form that is not read"
ZIP, PARQUET = "a zip archive", "a Parquet file"
# The forms that are read, for messages.
FORMS = (
    "a folder whose subfolders are classes, a CSV or JSONL list, tar, zip, Parquet or IDX files, or a pattern such as"
    " 'DIR/*/*.jpg'"
)
# By the end of a name, without a .gz or the like after it.
_FORM_OF_ENDING = {
    **dict.fromkeys(("tar", "tgz", "tbz2", "txz", "tzst"), TAR),
    "zip": ZIP,
    "parquet": PARQUET,
    **dict.fromkeys(("csv", "tsv", "json", "jsonl"), LIST),
    **dict.fromkeys(("7z", "npy", "npz", "h5", "hdf5"), PACKED),
    **dict.fromkeys(IMAGE_FIELDS, IMAGE),
}
# A first column of a list may well be called BMI or P3.
_PPM_START = re.compile(rb"P[1-6]\s*[\d#]")
# Forms that people do have, with what to do about them.
_SAVE = "Save its images as files, or write records with WriteTFRecordShards"
_OTHER = {
    b"\x93NUMPY": f"a NumPy array (.npy). {_SAVE}",
    b"\x89HDF": f"an HDF5 file. {_SAVE}",
    b"BZh": "compressed with bzip2, and damaged. Restore it, or pack it again",
}


def form_of_ending(name: str) -> str | None:
    """Return what the end of a name says; None if it says nothing."""
    lower = name.lower()
    plain = unpacked_name(lower)
    _, dot, ending = plain.rpartition(".")
    form = _FORM_OF_ENDING.get(ending) if dot else None
    return PACKED if form is None and plain != lower and not lower.endswith(".gz") else form


def form_of_magic(head: bytes) -> str | None:
    """Return `ZIP` or `PARQUET`, if these are the first bytes of one; else None."""
    if head.startswith(ZIP_MAGIC):
        return ZIP
    return PARQUET if is_parquet(head) else None


def form_of(path: str) -> str:
    """Return what a file is, by its first bytes."""
    head = first_bytes(path)
    if is_tar_header(head):
        return TAR
    if head[:3] == b"\0\0\x08":
        return IDX
    if _is_npz(head):
        raise SourceError(f"{path} is a NumPy archive (.npz). {_SAVE}.")
    form = form_of_magic(head)
    if form is not None:
        return form
    for magic, what in _OTHER.items():
        if head.startswith(magic):
            raise SourceError(f"{path} is {what}.")
    reject_unread(path, head)
    if _is_image(head):
        return IMAGE
    if packing(path):
        raise SourceError(
            f"{path} is compressed with {packing(path)}, and neither a tar nor an IDX file inside. Unpack it."
        )
    if not head:
        raise SourceError(f"{path} is empty. Restore it, or remove it from the input.")
    if b"\0" in head and not head.startswith(UTF16_BOMS):
        raise SourceError(f"{path} is of no known form: it begins with {head[:8].hex(' ')}. Name {FORMS}.")
    return LIST


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
