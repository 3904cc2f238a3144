"""The members of a tar, from its headers.

A tar is blocks of 512 bytes: a header, then the member's bytes filled up to whole blocks, and so on; two blocks of zeros end it.
The fields of a header that are read here (POSIX.1-1988 "ustar", GNU tar manual "Basic Tar Format"):

    at     bytes   what
    0      100     name
    124    12      size: octal digits, or with the first bit set a big-endian number (GNU)
    148    8       checksum: sum of the header's bytes with this field as spaces, octal
    156    1       type: file 0, hard link 1, symbolic link 2, folder 5, pax header x and g, GNU long name L and K, GNU sparse S
    257    8       "ustar\\0" and version; GNU writes "ustar  \\0", and has no prefix
    345    155     prefix: stands before the name, with a slash

Python's tarfile is not used because it takes a damaged header, and a file that is cut between members, for the end of the tar.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from tpudata.errors import CorruptionError, SourceError

BLOCK = 512
_ZEROS = bytes(BLOCK)
_FILE_TYPES = b"0\07"
_LINK_TYPES = b"12"
_CHUNK = 1 << 16
# Of a long name, or of all that a pax header says. Systems have names of 4096 bytes at most.
_MOST_NAME_BYTES = 1 << 20


class Member(NamedTuple):
    """One member of a tar that is not a folder.

    Attributes:
        name: its path in the tar, without a leading "./".
        offset: byte offset of its content in the tar's file (in the unpacked stream of a compressed one).
        size: bytes of its content.
        is_file: whether it is a file; otherwise a device or the like, without content.
        link: what it points to where it is a link, else nothing.
    """

    name: str
    offset: int
    size: int
    is_file: bool
    link: str


def is_tar_header(block: bytes) -> bool:
    """Whether 512 bytes are the header of a tar's member."""
    return len(block) == BLOCK and block != _ZEROS and _checksum_fits(block)


def tar_members(file: BinaryIO, path: str, start: int = 0, end: int | None = None) -> Iterator[Member]:
    """Yields the members of a tar in their order; folders are left out.

    Between two members the caller may read from `file`. Memory holds one header.

    Args:
        file: can seek, forward at least.
        path: names the tar in messages.
        start: where the tar begins in the file.
        end: where it ends; None where that is not known before it is read.

    Raises:
        CorruptionError: a header is damaged, or the tar is cut; names file and offset.
        SourceError: it has members in a form that is not read (GNU sparse files).
    """
    offset = start
    long_name: str | None = None
    pax: dict[str, str] = {}
    while True:
        header = _read(file, path, offset, BLOCK, end, "where the next member or the end mark should be")
        if header == _ZEROS:
            _check_rest(file, path, offset + BLOCK, end)
            return
        if not _checksum_fits(header):
            raise CorruptionError(path, offset, "no tar header where one is due: its checksum does not fit")
        kind = header[156:157]
        content = offset + BLOCK
        size = int(pax["size"]) if "size" in pax else _number(header[124:136], path, offset)
        if size < 0:
            raise CorruptionError(path, offset, f"a tar header with the size {size}")
        if end is not None and content + size > end:
            raise CorruptionError(path, offset, f"the tar is cut inside a member of {size} bytes")
        if kind in b"LKxg":
            if size > _MOST_NAME_BYTES:
                raise CorruptionError(
                    path, offset, f"a tar header of {size} bytes, where {_MOST_NAME_BYTES} are the most"
                )
            body = _read(file, path, content, size, end, "inside a long name")
            if kind == b"L":
                long_name = _text(body)
            elif kind == b"x":
                pax = _pax(body, path, offset)
        else:
            name = pax.get("path") or long_name or _name(header)
            if kind == b"S" or any(key.startswith("GNU.sparse.") for key in pax):
                raise SourceError(
                    f"{path} at byte {offset}: {name} is a sparse file. Pack the tar again without --sparse."
                )
            if kind in _LINK_TYPES:
                size = 0
            # Before there was a type for folders, a slash at the end said so.
            if kind != b"5" and not (kind == b"\0" and name.endswith("/")):
                link = (pax.get("linkpath") or _text(header[157:257])) if kind in _LINK_TYPES else ""
                yield Member(name.removeprefix("./"), content, size, kind in _FILE_TYPES, link)
            long_name, pax = None, {}
        offset = content + (size + BLOCK - 1) // BLOCK * BLOCK


def _read(file: BinaryIO, path: str, offset: int, size: int, end: int | None, where: str) -> bytes:
    if end is not None and offset + size > end:
        raise CorruptionError(path, offset, f"the tar is cut {where}")
    file.seek(offset)
    data = file.read(size)
    if len(data) < size:
        raise CorruptionError(path, offset, f"the tar is cut {where}")
    return data


def _check_rest(file: BinaryIO, path: str, offset: int, end: int | None) -> None:
    """Behind the end mark are zeros alone; anything else is a second tar, which other readers would leave out silently."""
    file.seek(offset)
    while data := file.read(_CHUNK if end is None else max(0, min(_CHUNK, end - offset))):
        if data.strip(b"\0"):
            raise CorruptionError(
                path, offset, "there are bytes behind the tar's end mark; are these several tars in one file?"
            )
        offset += len(data)


def _checksum_fits(header: bytes) -> bool:
    digits = header[148:156].strip(b" \0")
    try:
        return sum(header) - sum(header[148:156]) + 8 * ord(" ") == int(digits, 8)
    except ValueError:
        return False


def _number(field: bytes, path: str, offset: int) -> int:
    if field[0] & 0x80:
        return int.from_bytes(bytes((field[0] & 0x7F,)) + field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise CorruptionError(path, offset, f"a tar header with the size {field!r}") from None


def _name(header: bytes) -> str:
    name = _text(header[:100])
    if header[257:263] == b"ustar\0" and header[345]:
        return f"{_text(header[345:500])}/{name}"
    return name


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _pax(body: bytes, path: str, offset: int) -> dict[str, str]:
    """The records of a pax header, each `LENGTH KEY=VALUE\\n` where LENGTH counts the whole record (POSIX.1-2001)."""
    records: dict[str, str] = {}
    position = 0
    try:
        while position < len(body) and body[position]:
            space = body.index(b" ", position)
            following = position + int(body[position:space])
            key, equals, value = body[space + 1 : following - 1].partition(b"=")
            if following <= space or following > len(body) or not equals:
                raise ValueError
            records[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
            position = following
        if "size" in records:
            int(records["size"])
    except ValueError:
        raise CorruptionError(path, offset, "a damaged pax header") from None
    return records
