"""The form of a tar, by its first members."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, cast

from beam_jobs.compression.recognition import find_compression
from beam_jobs.references.reading import MOST_INPUT_BYTES
from beam_jobs.sources.tars.file import open_tar, packing
from beam_jobs.sources.tars.members import BLOCK, Member, is_tar_header, tar_members
from beam_jobs.sources.tars.samples import IMAGE_FIELDS, LABEL_FIELDS, field_labels, samples
from beam_jobs.sources.tars.unit import TarUnit, is_record
from tpudata.errors import SourceError

CLASSES, TARS, PAIRS = "classes", "tars", "pairs"
# Of a compressed tar, whose members can only be skipped by unpacking them. That takes a second or two.
_MOST_LOOKED_AT = 1 << 29


class TarForm(NamedTuple):
    """Form of a tar, by its first members.

    Attributes:
        form: `CLASSES`, `TARS` or `PAIRS`.
        labels: of pairs, those of the first one.
        several: whether these are a list.
    """

    form: str
    labels: tuple[str, ...] = ()
    several: bool = False


def tar_form(unit: TarUnit) -> TarForm:
    """Return the form of a tar; SourceError if it is a compressed tar of tars, or its first members are too large to say."""
    compressed = bool(packing(unit.path))
    with _opened(unit.path, compressed) as (file, size):
        first = next((member for member in tar_members(file, unit.path, 0, size) if is_record(member)), None)
        if first is None:
            return TarForm(CLASSES)
        if is_tar_header(_head(file, first)):
            if compressed:
                raise SourceError(f"{unit.path} is a compressed tar of tars, in which nothing can be found. Unpack it.")
            return TarForm(TARS)
    # Again from the start, since a compressed file does not seek back.
    with _opened(unit.path, compressed) as (file, size):
        members = tar_members(file, unit.path, 0, size)
        # One that is too large is rejected when it is listed.
        files = (member for member in members if is_record(member) and member.size <= MOST_INPUT_BYTES)
        _, fields = next(samples(file, unit.path, files, read_images=False), ("", {}))
    if len(fields) < 2 or not any(name in IMAGE_FIELDS for name in fields):
        return TarForm(CLASSES)
    field = next((name for name in LABEL_FIELDS if name in fields), None)
    if field is None:
        return TarForm(PAIRS)
    return TarForm(PAIRS, *field_labels(fields[field], field, unit.path))


def inner_tars(outer: TarUnit) -> Iterator[TarUnit]:
    """Yield the tars in a tar of tars, each named by its class; SourceError if there is another file or a link among them."""
    with open_tar(outer.path, compressed=False) as (file, size):
        for member in tar_members(file, outer.path, 0, size):
            if member.link or member.problem:
                problem = member.problem or f"a link to {member.link}; pack the tar again with --dereference"
                raise SourceError(f"{outer.path}: member {member.name} is {problem}.")
            if not is_record(member):
                continue
            head = _head(file, member)
            if not is_tar_header(head):
                fix = "It is compressed: unpack it." if find_compression(head) else "Remove it."
                raise SourceError(
                    f"{outer.path}: member {member.name} is not a tar, and the first member is one. {fix}"
                )
            label = member.name.rsplit("/", 1)[-1].removesuffix(".tar")
            yield TarUnit(outer.path, outer.key(member.name), member.offset, member.offset + member.size, label)


class _FirstBytes:
    """The first bytes of a compressed tar; what reads or seeks beyond them raises a SourceError before anything is unpacked."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path

    def seek(self, offset: int) -> int:
        self._check(offset)
        return self._file.seek(offset)

    def read(self, length: int) -> bytes:
        self._check(self._file.tell() + length)
        return self._file.read(length)

    def _check(self, end: int) -> None:
        if end > _MOST_LOOKED_AT:
            raise SourceError(
                f"{self._path} is compressed, and its first {_MOST_LOOKED_AT >> 20} MiB do not say what it holds. Unpack"
                " it, or leave the large file at its beginning out."
            )


@contextlib.contextmanager
def _opened(path: str, compressed: bool) -> Iterator[tuple[BinaryIO, int | None]]:
    with open_tar(path, compressed) as (file, size):
        yield (cast(BinaryIO, _FirstBytes(file, path)) if compressed else file), size


def _head(file: BinaryIO, member: Member) -> bytes:
    file.seek(member.offset)
    return file.read(min(BLOCK, member.size))
