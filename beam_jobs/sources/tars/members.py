"""The members of a tar, from its headers.

A tar is blocks of 512 bytes: a header, then the member's bytes filled up to whole blocks, and so on; two blocks of zeros end it.
The fields of a header that are read here (POSIX.1-1988 "ustar", GNU tar manual "Basic Tar Format"):

    at     bytes   what
    0      100     name
    124    12      size: octal digits, or with the first bit set a big-endian number (GNU)
    148    8       checksum: sum of the header's bytes with this field as spaces, octal
    156    1       type, one of:
                   0, NUL, 7        file; NUL in tars of v7, 7 for a "contiguous" file
                   5, D             folder; D with a list of its files, from an incremental backup
                   1, 2, 3, 4, 6    hard link, symbolic link, devices, pipe: no data follows, whatever the size says
                   x, X, g          pax header of the next member, the same of Solaris, pax header of all members
                   L, K, V          GNU: long name, long link target, label of the volume
                   S, M, N          GNU: sparse file, rest of a file of the volume before, names of an old form
    257    8       "ustar\\0" and version; GNU writes "ustar  \\0", and has no prefix
    345    155     prefix: stands before the name, with a slash

Python's tarfile is not used. It takes a damaged header, and the end of a file that is truncated between members, for the end of the
tar. In Python 3.11.7 it skips the rest of a damaged pax header, so that a member gets a name truncated to 100 bytes, and another
class. It takes the access times in GNU's incremental tars for a prefix of names. And a member costs it 26 us of CPU instead of 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from beam_jobs.file_names import is_ignored_path, resolve_member_path
from tpudata.errors import CorruptionError, SourceError

BLOCK = 512
_ZEROS = bytes(BLOCK)
_FILE_TYPES = (b"0", b"\0", b"7")
_FOLDER_TYPES = (b"5", b"D")
_LINK_TYPES = (b"1", b"2")
_DEVICE_TYPES = (b"3", b"4", b"6")
_DATALESS_TYPES = (b"1", b"2", b"3", b"4", b"5", b"6")
_PAX_TYPES = (b"x", b"X")
_HEADER_TYPES = (*_PAX_TYPES, b"g", b"L", b"K")
_REJECTED_TYPES = {
    b"S": "a sparse file. Pack the tar again without --sparse",
    b"M": "the rest of a file that begins in another volume. Pack the tar again without --multi-volume",
    b"N": "a list of names as tars had it before 1990. Pack the tar again",
}
# Keys of pax headers that describe a member, and beginnings of the keys that describe sparse files.
_PAX_KEYS = ("path", "linkpath", "size")
_SPARSE_KEYS = ("GNU.sparse.", "SCHILY.realsize")
_CHUNK_BYTES = 1 << 16
# Reason to reject a member whose path leads out of the archive.
OUTSIDE = "outside the archive by its path; pack the archive again from the folder that holds it"
# Maximum size of a long name or a pax header; operating systems allow names of 4096 bytes.
_MAX_NAME_BYTES = 1 << 20
# Largest offset in a file, an int64; a header can claim up to 2^95 bytes.
_MAX_BYTES = (1 << 63) - 1


class Member(NamedTuple):
    """One member of a tar that is not a folder.

    Attributes:
        name: its path in the tar, without `.` and `..`.
        offset: byte offset of its content in the tar's file (in the unpacked stream of a compressed one).
        size: bytes of its content.
        is_file: whether it is a valid file; otherwise a link or device without content, or a member with a `problem`.
        link: target of a link; otherwise empty.
        problem: reason to reject the member; empty if there is none.
    """

    name: str
    offset: int
    size: int
    is_file: bool
    link: str = ""
    problem: str = ""


def is_tar_header(block: bytes) -> bool:
    """Return whether 512 bytes are the header of a tar's member."""
    return len(block) == BLOCK and block != _ZEROS and _checksum_fits(block)


def list_tar_members(file: BinaryIO, path: str, start: int = 0, end: int | None = None) -> Iterator[Member]:
    """Yield the members of a tar in order, except folders.

    Between two members the caller may read from `file`. Memory holds one header.

    Args:
        file: file that can seek, at least forward.
        path: path of the tar, for messages.
        start: byte of the file at which the tar begins.
        end: byte at which it ends; None if that is unknown before it is read.

    Raises:
        CorruptionError: a header is damaged, or the tar is truncated; the message names file and offset.
        SourceError: the tar has members that are not read (parts of files, GNU sparse files, links with data); the message names
            the first of them.
    """
    offset = start
    long_name = long_link = ""
    pax: dict[str, str] = {}
    # Name of the previous member if its type has no data, but its header gives a size.
    dataless_name = ""
    while True:
        header = _read(file, path, offset, BLOCK, end, "where the next member or the end mark should be")
        if header == _ZEROS:
            _check_only_zeros(file, path, offset + BLOCK, end)
            return
        if not _checksum_fits(header):
            if dataless_name:
                raise SourceError(
                    f"{path} at byte {offset}: {dataless_name} is a link, folder or device that has data in the tar, which is not"
                    " read. Pack the tar again with tar."
                )
            raise CorruptionError(path, offset, "no tar header where one is expected: its checksum does not match")
        kind = header[156:157]
        content_start = offset + BLOCK
        size = int(pax["size"]) if pax.get("size") else _parse_size(header[124:136], path, offset)
        if not 0 <= size <= _MAX_BYTES - content_start:
            raise CorruptionError(path, offset, f"a tar header with the size {size}")
        stated_size = size
        if kind in _DATALESS_TYPES:
            size = 0
        if end is not None and content_start + size > end:
            raise CorruptionError(path, offset, f"the tar is cut inside a member of {size} bytes")
        if kind in _HEADER_TYPES:
            if size > _MAX_NAME_BYTES:
                raise CorruptionError(
                    path, offset, f"a tar header of {size} bytes, where {_MAX_NAME_BYTES} are the most"
                )
            body = _read(file, path, content_start, size, end, "inside a long name")
            if kind == b"L":
                long_name = _decode_text(body)
            elif kind == b"K":
                long_link = _decode_text(body)
            elif kind == b"g":
                _check_global_header(_parse_pax(body, path, offset), path, offset)
            else:
                pax = _parse_pax(body, path, offset)
        # A volume label (V) is skipped.
        elif kind != b"V":
            # A sparse file of format 1.0 has its name under a separate key, and an artificial path.
            name = pax.get("GNU.sparse.name") or pax.get("path") or long_name or _parse_name(header)
            # `safe_path` is None if the name leads out of the archive.
            safe_path = resolve_member_path(name)
            if any(key.startswith(_SPARSE_KEYS) for key in pax):
                # Its header gives the type of an ordinary file; S is the type of GNU's sparse files, which are rejected.
                kind = b"S"
            if kind in _REJECTED_TYPES:
                raise SourceError(f"{path} at byte {offset}: {safe_path or name} is {_REJECTED_TYPES[kind]}.")
            # Old tars have no type for folders; a slash at the end of the name marks them.
            is_old_folder = kind in _FILE_TYPES and not size and name.endswith("/")
            if kind not in _FOLDER_TYPES and not is_old_folder:
                link = (
                    (pax.get("linkpath") or long_link or _decode_text(header[157:257])) if kind in _LINK_TYPES else ""
                )
                problem = _find_problem(kind, name, size)
                if safe_path is None and kind in _FILE_TYPES and not is_ignored_path(name):
                    problem = problem or OUTSIDE
                yield Member(safe_path or name, content_start, size, kind in _FILE_TYPES and not problem, link, problem)
            dataless_name = (safe_path or name) if stated_size > size else ""
            long_name = long_link = ""
            pax = {}
        offset = content_start + (size + BLOCK - 1) // BLOCK * BLOCK


def _find_problem(kind: bytes, name: str, size: int) -> str:
    """Return the reason to reject a member for its type, or a file for its name; an empty string for a valid one."""
    if kind in _FILE_TYPES:
        return f"a folder by its name that has content: {size} bytes; rename it" if name.endswith("/") else ""
    if kind in _LINK_TYPES or kind in _DEVICE_TYPES:
        return ""
    return f"a tar member of the unknown type {kind.decode('latin-1')!r}; pack the tar again with tar"


def _check_global_header(pax: dict[str, str], path: str, offset: int) -> None:
    """Raise SourceError if a pax header of all members sets a key that describes a single member."""
    for key in pax:
        if key in _PAX_KEYS or key.startswith(_SPARSE_KEYS):
            raise SourceError(
                f"{path} at byte {offset}: a global pax header sets {key} of all members, which is not read. Pack the tar again."
            )


def _read(file: BinaryIO, path: str, offset: int, size: int, end: int | None, where_truncated: str) -> bytes:
    """Return bytes of a tar.

    Args:
        file: file of the tar.
        path: path of the tar, for the message.
        offset: offset of the first byte.
        size: number of bytes.
        end: byte at which the tar ends; None if that is unknown before it is read.
        where_truncated: words at the end of the message: where the tar ends if it has too few bytes.

    Raises:
        CorruptionError: the tar ends before these bytes do.
    """
    if end is not None and offset + size > end:
        raise CorruptionError(path, offset, f"the tar is cut {where_truncated}")
    file.seek(offset)
    data = file.read(size)
    if len(data) < size:
        raise CorruptionError(path, offset, f"the tar is cut {where_truncated}")
    return data


def _check_only_zeros(file: BinaryIO, path: str, offset: int, end: int | None) -> None:
    """Raise CorruptionError if anything but zeros follows the end mark: a second tar, which other readers skip in silence.

    Args:
        file: file of the tar.
        path: path of the tar, for the message.
        offset: offset of the byte after the end mark.
        end: byte at which the tar ends; None if that is unknown before it is read.
    """
    file.seek(offset)
    while data := file.read(_CHUNK_BYTES if end is None else max(0, min(_CHUNK_BYTES, end - offset))):
        if data.strip(b"\0"):
            raise CorruptionError(
                path, offset, "there are bytes after the tar's end mark; are these several tars in one file?"
            )
        offset += len(data)


def _checksum_fits(header: bytes) -> bool:
    """Return whether the checksum in a header is the sum of its bytes, unsigned or signed."""
    field = header[148:156]
    try:
        stored_checksum = int(field.strip(b" \0"), 8)
    except ValueError:
        return False
    # The field of the checksum counts as 8 blanks.
    total = sum(header) - sum(field) + 8 * ord(" ")
    # Some old programs sum signed bytes. This sum is compared last: it takes twice as long as everything else here.
    return stored_checksum == total or stored_checksum == total - 256 * sum(
        byte > 127 for byte in header[:148] + header[156:]
    )


def _parse_size(field: bytes, path: str, offset: int) -> int:
    """Parse a size: octal digits or, with the first bit set, a big-endian number; CorruptionError if it is neither."""
    if field[0] & 0x80:
        return int.from_bytes(bytes((field[0] & 0x7F,)) + field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise CorruptionError(path, offset, f"a tar header with the size {field!r}") from None


def _parse_name(header: bytes) -> str:
    """Return the name in a header; in the format ustar, a long one is split into a prefix and the name."""
    name = _decode_text(header[:100])
    if header[257:263] == b"ustar\0" and header[345]:
        return f"{_decode_text(header[345:500])}/{name}"
    return name


def _decode_text(field: bytes) -> str:
    """Return the text in a field, which ends at the first NUL byte if it has one."""
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _parse_pax(body: bytes, path: str, offset: int) -> dict[str, str]:
    """Return the records of a pax header, each `LENGTH KEY=VALUE\\n` where LENGTH counts the whole record (POSIX.1-2001).

    Raises:
        CorruptionError: the header is damaged.
    """
    records: dict[str, str] = {}
    position = 0
    try:
        # Zeros may follow the last record.
        while position < len(body) and body[position]:
            space = body.index(b" ", position)
            record_end = position + int(body[position:space])
            key, equals, value = body[space + 1 : record_end - 1].partition(b"=")
            if record_end <= space or record_end > len(body) or not equals:
                raise ValueError
            records[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
            position = record_end
        if records.get("size"):
            # `int` raises ValueError if the size is not a number.
            int(records["size"])
    except ValueError:
        raise CorruptionError(path, offset, "a damaged pax header") from None
    return records
