"""The form of a tar, by its first members."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple, cast

from beam_jobs.compression.files import read_compression
from beam_jobs.file_kinds import find_compression
from beam_jobs.references.reading import MOST_INPUT_BYTES
from beam_jobs.sources.tars.file import open_tar
from beam_jobs.sources.tars.members import BLOCK, Member, is_tar_header, tar_members
from beam_jobs.sources.tars.samples import IMAGE_FIELDS, LABEL_FIELDS, TEXT, field_labels, label_field, samples
from beam_jobs.sources.tars.unit import TarUnit, is_record
from tpudata.errors import BadRecordError, SourceError

CLASSES, TARS, PAIRS = "classes", "tars", "pairs"
# Of a compressed tar, whose members can only be skipped by unpacking them. That takes a second or two.
MOST_LOOKED_AT = 1 << 29
# Samples in which a label is looked for, and names among which the rest of a sample is.
_MOST_SAMPLES, _MOST_NAMES = 1000, 100_000


class TarForm(NamedTuple):
    """Form of a tar, by its first members.

    Attributes:
        form: `CLASSES`, `TARS` or `PAIRS`.
        labels: of pairs, those of the first one.
        several: whether these are a list.
        has_captions: whether samples have captions: a text that is not their class.
    """

    form: str
    labels: tuple[str, ...] = ()
    several: bool = False
    has_captions: bool = False


def tar_form(unit: TarUnit, *, labelled: bool, most_looked_at: int = MOST_LOOKED_AT) -> TarForm:
    """Return the form of a tar.

    Args:
        unit: the tar.
        labelled: whether the labels of samples are read.
        most_looked_at: number of first bytes of a compressed tar that are unpacked to learn its form.

    Raises:
        SourceError: it is a compressed tar of tars, or its first members are too large to say.
    """
    compression = read_compression(unit.path)
    with _open_start(unit.path, compression, most_looked_at) as (file, size):
        first = next((member for member in tar_members(file, unit.path, 0, size) if is_record(member)), None)
        if first is None:
            return TarForm(CLASSES)
        if is_tar_header(_head(file, first)):
            if compression:
                raise SourceError(f"{unit.path} is a compressed tar of tars, in which nothing can be found. Unpack it.")
            return TarForm(TARS)
    # Again from the start, since a compressed file does not seek back.
    with _open_start(unit.path, compression, most_looked_at) as (file, size):
        members = tar_members(file, unit.path, 0, size)
        # One that is too large is rejected when it is listed.
        files = (member for member in members if is_record(member) and member.size <= MOST_INPUT_BYTES)
        first_samples = (fields for _, fields in samples(file, unit.path, files, read_images=False))
        fields = next(first_samples, {})
        if len(fields) < 2 or not any(name in IMAGE_FIELDS for name in fields):
            return TarForm(CLASSES)
        has_captions = TEXT in fields and (not labelled or label_field(fields) != TEXT)
        if not labelled:
            return TarForm(PAIRS, has_captions=has_captions)
        for sample in itertools.islice(itertools.chain((fields,), first_samples), _MOST_SAMPLES):
            field = label_field(sample)
            # A sample without a label is a bad record, and says nothing about the others.
            with contextlib.suppress(BadRecordError):
                if field is not None:
                    return TarForm(PAIRS, *field_labels(sample[field], field, unit.path), has_captions)
    return TarForm(PAIRS, has_captions=has_captions)


def first_paths(units: Iterable[TarUnit]) -> Iterator[str]:
    """Yield the paths of the members of tars that may be pictures; of a compressed tar, those in its first 512 MiB."""
    for unit in units:
        compression = read_compression(unit.path)
        with open_tar(unit.path, compression) as (file, size):
            for member in tar_members(file, unit.path, 0, size):
                if is_record(member):
                    yield member.name
                if compression and member.offset + member.size > MOST_LOOKED_AT:
                    break


def check_is_no_sample(unit: TarUnit, name: str) -> None:
    """Raise SourceError if a member in no folder belongs to a sample of a WebDataset that cannot be read as one.

    Args:
        unit: the tar.
        name: of the member.
    """
    stem, _, ending = name.rpartition(".")
    if ending.lower() not in (*IMAGE_FIELDS, *LABEL_FIELDS):
        return
    with open_tar(unit.path, read_compression(unit.path)) as (file, size):
        members = itertools.islice(
            tar_members(file, unit.path, unit.start, size if unit.end < 0 else unit.end), _MOST_NAMES
        )
        names = [member.name for member in members if is_record(member)]
    partner = next((other for other in names if other != name and other.rpartition(".")[0] == stem), None)
    if partner is None:
        return
    if "." in stem.rpartition("/")[2]:
        raise SourceError(
            f"{unit.path}: members {name} and {partner} are no WebDataset sample, whose name ends at the first dot. Rename the"
            " members, such as to 0001.jpg and 0001.cls."
        )
    raise SourceError(
        f"{unit.path}: members {name} and {partner} are a WebDataset sample, and do not follow each other. Pack the tar again"
        " with --sort=name."
    )


def inner_tars(outer: TarUnit) -> Iterator[TarUnit]:
    """Yield the tars in a tar of tars, each named by its class; SourceError if there is another file or a link among them."""
    with open_tar(outer.path, "") as (file, size):
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
            end = member.offset + member.size
            yield TarUnit(outer.path, outer.key(member.name), member.offset, end, label, outer.split)


class _FirstBytes:
    """The first bytes of a compressed tar; what reads or seeks beyond them raises a SourceError before anything is unpacked."""

    def __init__(self, file: BinaryIO, path: str, most: int) -> None:
        self._file = file
        self._path = path
        self._most = most

    def seek(self, offset: int) -> int:
        self._check(offset)
        return self._file.seek(offset)

    def read(self, length: int) -> bytes:
        self._check(self._file.tell() + length)
        return self._file.read(length)

    def _check(self, end: int) -> None:
        if end > self._most:
            raise SourceError(
                f"{self._path} is compressed, and its first {self._most >> 20} MiB do not say what it holds. Unpack"
                " it, or leave the large file at its beginning out."
            )


@contextlib.contextmanager
def _open_start(path: str, compression: str, most: int) -> Iterator[tuple[BinaryIO, int | None]]:
    with open_tar(path, compression) as (file, size):
        yield (cast(BinaryIO, _FirstBytes(file, path, most)) if compression else file), size


def _head(file: BinaryIO, member: Member) -> bytes:
    file.seek(member.offset)
    return file.read(min(BLOCK, member.size))
