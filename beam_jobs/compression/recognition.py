"""Recognition of compressed files by their first bytes: those that are read, and those that are not."""

from __future__ import annotations

from beam_jobs.compression.decompressors import BZIP2, GZIP, XZ, ZSTD
from tpudata.errors import SourceError

# Bytes that recognition needs.
HEAD_BYTES = 16
# Suffixes of compressed files, after the name of the content.
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst", ".xz")
_UNPACK = "Unpack it, or pack it with gzip, bzip2, xz or zstd"
# Compressed files and archives that are not read, with the fix.
_UNREAD = (
    (b"\x1f\x9d", f"compressed with compress (.Z). {_UNPACK}"),
    (b"\x1f\xa0", f"compressed with compress (.Z). {_UNPACK}"),
    (b"\x1f\x1e", f"compressed with pack (.z). {_UNPACK}"),
    (b"\x04\x22\x4d\x18", f"compressed with LZ4. {_UNPACK}"),
    (b"\x02\x21\x4c\x18", f"compressed with LZ4. {_UNPACK}"),
    (b"LZIP", f"compressed with lzip. {_UNPACK}"),
    (b"\x89LZO\0\r\n\x1a\n", f"compressed with lzop. {_UNPACK}"),
    (b"\xff\x06\0\0sNaPpY", f"compressed with Snappy. {_UNPACK}"),
    (b"\x5d\0\0\x80\0", f"compressed with lzma, the form before xz. {_UNPACK}"),
    (b"\x5d\0\0\0\x04", f"compressed with lzma, the form before xz. {_UNPACK}"),
    (b"7z\xbc\xaf", "a 7z archive. Unpack it, and pass the folder"),
    (b"Rar!\x1a\x07", "a RAR archive. Unpack it, and pass the folder"),
)


def find_compression(head: bytes) -> str:
    """Return the compression of a file, by its first 16 bytes: `"gzip"`, `"bzip2"`, `"zstd"`, `"xz"` or an empty string."""
    if head.startswith(b"\x1f\x8b"):
        return GZIP
    # Text may begin with BZh; the magic of a block, or of the end of an empty stream, follows in bzip2.
    if head.startswith(b"BZh") and head[4:10] in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"):
        return BZIP2
    if head.startswith(b"\xfd7zXZ\0"):
        return XZ
    # A frame, or a skippable one.
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5):
        return ZSTD
    return ""


def reject_unread(path: str, head: bytes) -> None:
    """Raise SourceError, with the fix, for a file whose first 16 bytes are of a compression or an archive that is not read."""
    for magic, what in _UNREAD:
        # A text may begin with LZIP; a version follows.
        if head.startswith(magic) and (magic != b"LZIP" or head[4:5] in (b"\0", b"\1")):
            raise SourceError(f"{path} is {what}.")
