"""The kinds of input files, by their first bytes: one table for images and text.

The formats of images are in tpudata/images/image_format.py. A tar has no signature that all writers agree on, so
sources/tars/members.py compares the checksum of its first header.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tpudata.errors import SourceError

GZIP, BZIP2, ZSTD, XZ = "gzip", "bzip2", "zstd", "xz"
ZIP, NPZ, PARQUET, IDX, NPY, HDF5 = "zip", "npz", "Parquet", "IDX", "npy", "HDF5"
MAT, MAT_73, PICKLE = "MATLAB 5", "MATLAB 7.3", "pickle"
DAMAGED_BZIP2 = "damaged bzip2"
UTF_16, UTF_32 = "UTF-16", "UTF-32"
ZIP_MAGIC = b"PK\x03\x04"
UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
# Kinds that are detected only to reject them, as messages name them.
_COMPRESS, _LZ4, _LZIP, _LZMA = "compress (.Z)", "LZ4", "lzip", "lzma, the form before xz"
_PACK, _LZOP, _SNAPPY = "pack (.z)", "lzop", "Snappy"
_SEVEN_Z, _RAR = "a 7z archive", "a RAR archive"
_UNREAD_COMPRESSIONS = (_COMPRESS, _LZ4, _LZIP, _LZMA, _PACK, _LZOP, _SNAPPY)
# Magic numbers that follow the 4 bytes of a stream's header: of a block, and of the end of an empty stream.
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")


class _Signature(NamedTuple):
    """First bytes of a kind of file.

    Attributes:
        magic: first bytes of the files of the kind.
        kind: name of the kind, such as `GZIP`.
        is_of_kind: additional condition on a file's first 512 bytes, or None.
    """

    magic: bytes
    kind: str
    is_of_kind: Callable[[bytes], bool] | None = None


def _is_npz(head: bytes) -> bool:
    """Return whether the first member of a zip is a NumPy array."""
    # The length of the name is at byte 26, and the name at byte 30 (APPNOTE.TXT, 4.3.7).
    return head[30 : 30 + int.from_bytes(head[26:28], "little")].endswith(b".npy")


# The first that matches decides.
_SIGNATURES = (
    _Signature(b"\x1f\x8b", GZIP),
    _Signature(b"BZh", BZIP2, lambda head: head[4:10] in _BZIP2_BLOCKS),
    _Signature(b"\xfd7zXZ\0", XZ),
    _Signature(b"\x28\xb5\x2f\xfd", ZSTD),
    *(_Signature(b"%c\x2a\x4d\x18" % byte, ZSTD) for byte in range(0x50, 0x60)),  # a skippable frame
    _Signature(ZIP_MAGIC, NPZ, _is_npz),
    _Signature(ZIP_MAGIC, ZIP),
    _Signature(b"PAR1", PARQUET),
    # Encrypted Parquet. A text may also begin with PARE, but has no zero bytes, unlike the header of an encrypted page.
    _Signature(b"PARE", PARQUET, lambda head: b"\0" in head),
    _Signature(b"\0\0\x08", IDX),
    _Signature(b"\x93NUMPY", NPY),
    _Signature(b"\x89HDF", HDF5),
    # A text may begin with these words, but has no zero bytes.
    _Signature(b"MATLAB 5.0 MAT-file", MAT, lambda head: b"\0" in head),
    _Signature(b"MATLAB 7.3 MAT-file", MAT_73, lambda head: b"\0" in head),
    *(_Signature(b"\x80%c}" % protocol, PICKLE) for protocol in (2, 3)),  # of a dict
    *(_Signature(b"\x80%c\x95" % protocol, PICKLE) for protocol in (4, 5)),
    _Signature(b"BZh", DAMAGED_BZIP2),
    # Before UTF-16: the first byte order mark of UTF-32 begins with one of UTF-16.
    _Signature(b"\xff\xfe\0\0", UTF_32),
    _Signature(b"\0\0\xfe\xff", UTF_32),
    *(_Signature(mark, UTF_16) for mark in UTF16_BOMS),
    _Signature(b"\x1f\x9d", _COMPRESS),
    _Signature(b"\x1f\xa0", _COMPRESS),
    _Signature(b"\x1f\x1e", _PACK),
    _Signature(b"\x04\x22\x4d\x18", _LZ4),
    _Signature(b"\x02\x21\x4c\x18", _LZ4),
    # A text may begin with LZIP; a version follows.
    _Signature(b"LZIP\0", _LZIP),
    _Signature(b"LZIP\1", _LZIP),
    _Signature(b"\x89LZO\0\r\n\x1a\n", _LZOP),
    _Signature(b"\xff\x06\0\0sNaPpY", _SNAPPY),
    _Signature(b"\x5d\0\0\x80\0", _LZMA),
    _Signature(b"\x5d\0\0\0\x04", _LZMA),
    _Signature(b"7z\xbc\xaf", _SEVEN_Z),
    _Signature(b"Rar!\x1a\x07", _RAR),
)


# Most files have none of these signatures; comparing all of them takes 5 us a file.
_BY_FIRST_BYTE = {
    byte: tuple(signature for signature in _SIGNATURES if signature.magic.startswith(byte))
    for byte in {signature.magic[:1] for signature in _SIGNATURES}
}


def detect_file_kind(head: bytes) -> str:
    """Return the kind of a file by its first 512 bytes: one of the constants of this module, or an empty string.

    A text may begin with BZh or PAR1, and a list of images with the byte order mark of UTF-16, so the caller decides which kinds
    count.
    """
    for magic, kind, is_of_kind in _BY_FIRST_BYTE.get(head[:1], ()):
        if head.startswith(magic) and (is_of_kind is None or is_of_kind(head)):
            return kind
    return ""


def find_compression(head: bytes) -> str:
    """Return the compression of a file by its first 16 bytes: `"gzip"`, `"bzip2"`, `"zstd"`, `"xz"` or an empty string."""
    kind = detect_file_kind(head)
    return kind if kind in (GZIP, BZIP2, ZSTD, XZ) else ""


def reject_unread(path: str, kind: str) -> None:
    """Raise SourceError, with the fix, for a file whose kind is a compression or an archive that is not read."""
    if kind in _UNREAD_COMPRESSIONS:
        raise SourceError(f"{path} is compressed with {kind}. Unpack it, or pack it with gzip, bzip2, xz or zstd.")
    if kind in (_SEVEN_Z, _RAR):
        raise SourceError(f"{path} is {kind}. Unpack it, and pass the folder.")
