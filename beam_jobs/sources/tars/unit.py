"""A tar, or a tar in a tar, as a unit of listing, and its members that may be records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from beam_jobs.file_names import is_ignored_path
from beam_jobs.references.reading import MAX_INPUT_BYTES, make_too_large_error
from beam_jobs.references.rejection import Reject, add_key
from beam_jobs.sources.tars.members import Member, list_tar_members
from tpudata.errors import BadRecordError


class TarUnit(NamedTuple):
    """A tar, or a tar in a tar.

    Attributes:
        path: the file.
        name: prefix of the members' names in keys.
        start, end: byte range of the inner tar in the file; 0 and -1 for the file as a whole.
        label: class of all members, or empty.
        split: split that the file's name stands for, or empty.
    """

    path: str
    name: str
    start: int = 0
    end: int = -1
    label: str = ""
    split: str = ""

    def make_key(self, member: str) -> str:
        """Return the key of a member, given its name, or of a sample, given the common part of its members' names."""
        return f"{self.name}/{member}"

    def find_end(self, file_size: int | None) -> int | None:
        """Return the offset in the file at which the tar ends; None if the whole file is the tar, and `file_size` is None."""
        return file_size if self.end < 0 else self.end


def may_belong_to_record(member: Member) -> bool:
    """Return whether a member may be a record or belong to one: a file whose name is not ignored."""
    return member.is_file and not is_ignored_path(member.name)


def list_tar_files(
    file: BinaryIO,
    unit: TarUnit,
    size: int | None,
    ignored: list[str],
    reject: Reject,
    *,
    max_bytes: int = MAX_INPUT_BYTES,
) -> Iterator[Member]:
    """Yield the files of a tar that may be records or belong to records.

    Args:
        file: the opened tar.
        unit: the tar.
        size: size of the file in bytes; None if it is compressed.
        ignored: list to which this function appends TAR/MEMBER for each member that it ignores because of its name.
        reject: called with the error of a member that cannot be a record.
        max_bytes: size of the largest member that may be a record.
    """
    for member in list_tar_members(file, unit.path, unit.start, unit.find_end(size)):
        origin, key = f"{unit.path}/{member.name}", unit.make_key(member.name)
        if member.link:
            reason = f"a link (to {member.link}); pack the tar again with --dereference --hard-dereference"
            reject(BadRecordError(origin, reason, key=key))
        elif member.problem:
            reject(BadRecordError(origin, member.problem, key=key))
        elif not may_belong_to_record(member):
            ignored.append(origin)
        elif member.size > max_bytes:
            # The member is rejected here, since the bytes of a compressed tar's members are read while they are listed.
            reject(add_key(make_too_large_error(origin, member.size), key))
        else:
            yield member
