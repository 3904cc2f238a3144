"""The form of a tar, detected from its first members."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import BinaryIO, NamedTuple, cast

from beam_jobs.compression.files import read_compression
from beam_jobs.file_kinds import find_compression
from beam_jobs.references.reading import MAX_INPUT_BYTES
from beam_jobs.sources.tars.file import open_tar
from beam_jobs.sources.tars.json_columns import NO_COLUMNS, JsonColumns
from beam_jobs.sources.tars.members import BLOCK, Member, is_tar_header, list_tar_members
from beam_jobs.sources.tars.samples import (
    IMAGE_FIELDS,
    JSON,
    LABEL_FIELDS,
    TEXT,
    MemberContent,
    find_label_field,
    find_label_map_field,
    parse_field_labels,
    read_samples,
)
from beam_jobs.sources.tars.unit import TarUnit, may_belong_to_record
from beam_jobs.values.column_kinds import ColumnKind
from tpudata.errors import BadRecordError, SourceError
from tpudata.format.label_map import GREY, MAP_BITS, PALETTE, png_kind

CLASSES, TARS, PAIRS = "classes", "tars", "pairs"
# Descriptions of the forms, for messages.
FORMS = {CLASSES: "a tar of images in folders", TARS: "a tar of tars", PAIRS: "a tar of samples"}
# Number of bytes of a compressed tar that are searched for its form; unpacking them takes a second or two.
MAX_EXAMINED_BYTES = 1 << 29
# Number of samples that are searched for a label.
_MAX_SAMPLES = 1000
# Number of members that are searched for the rest of a sample, which only an error needs.
_MAX_NAMES = 100_000
# Number of samples whose JSON decides the columns.
_COLUMN_SAMPLES = 100


class TarForm(NamedTuple):
    """Form of a tar, detected from its first members.

    Attributes:
        form: `CLASSES`, `TARS` or `PAIRS`.
        labels: labels of the first sample that has some, as written; empty for other forms.
        has_several_labels: whether `labels` are a list in the sample.
        has_captions: whether the first sample has a caption: a text that is not its class.
        map_dtype: dtype of the label map of the first sample; empty if it has none.
        columns: columns in the JSON of samples.
    """

    form: str
    labels: tuple[str, ...] = ()
    has_several_labels: bool = False
    has_captions: bool = False
    map_dtype: str = ""
    columns: JsonColumns = NO_COLUMNS


def detect_tar_form(
    unit: TarUnit,
    *,
    reads_labels: bool,
    column_kinds: Mapping[str, ColumnKind] = MappingProxyType({}),
    max_examined_bytes: int = MAX_EXAMINED_BYTES,
) -> TarForm:
    """Return the form of a tar, detected from its first members.

    Args:
        unit: the tar.
        reads_labels: whether to read the labels of samples.
        column_kinds: declared kinds of columns.
        max_examined_bytes: number of bytes of a compressed tar that may be unpacked.

    Raises:
        SourceError: it is a compressed tar of tars, or one whose first members are larger than `max_examined_bytes`; or values of a
            column differ in kind.
        CorruptionError: a header is damaged, or the tar is truncated.
        UsageError: there is no column of a declared name.
    """
    compression = read_compression(unit.path)
    with _open_start(unit.path, compression, max_examined_bytes) as (file, size):
        members = list_tar_members(file, unit.path, start=0, end=size)
        first_member = next((member for member in members if may_belong_to_record(member)), None)
        if first_member is None:
            return TarForm(CLASSES)
        if is_tar_header(_read_head(file, first_member)):
            if compression:
                raise SourceError(f"{unit.path} is a compressed tar of tars, in which nothing can be found. Unpack it.")
            return TarForm(TARS)
    # The tar is opened again, since a compressed file does not seek back.
    with _open_start(unit.path, compression, max_examined_bytes) as (file, size):
        # There are no fields if every member is too large.
        _, fields = next(_read_samples(file, unit, size), ("", {}))
        # A sample is a picture and at least one other file of the same name.
        if len(fields) < 2 or not any(name in IMAGE_FIELDS for name in fields):
            return TarForm(CLASSES)
        # A text that is not the class is a caption.
        has_captions = TEXT in fields and (not reads_labels or find_label_field(fields) != TEXT)
        # Label maps are read from their byte ranges in the file, which members of a compressed tar do not have.
        map_dtype = "" if compression else _find_map_dtype(file, fields)
    columns = _find_columns(unit, fields, column_kinds)
    form = TarForm(PAIRS, has_captions=has_captions, map_dtype=map_dtype, columns=columns)
    if not reads_labels:
        return form
    with _open_start(unit.path, compression, max_examined_bytes) as (file, size):
        for _, sample in itertools.islice(_read_samples(file, unit, size), _MAX_SAMPLES):
            field = find_label_field(sample)
            # A sample without a valid label is a bad record, and does not decide.
            with contextlib.suppress(BadRecordError):
                if field is not None:
                    labels, is_list = parse_field_labels(sample[field], field, unit.path)
                    return form._replace(labels=labels, has_several_labels=is_list)
    return form


def _read_samples(file: BinaryIO, unit: TarUnit, size: int | None) -> Iterator[tuple[str, dict[str, MemberContent]]]:
    """Yield the samples of a tar without the content of images, see `read_samples`."""
    members = list_tar_members(file, unit.path, start=0, end=size)
    # The listing rejects a member that is too large.
    files = (member for member in members if may_belong_to_record(member) and member.size <= MAX_INPUT_BYTES)
    return read_samples(file, unit.path, files, reads_images=False)


def _find_map_dtype(file: BinaryIO, fields: Mapping[str, MemberContent]) -> str:
    """Return the dtype of a sample's label map; empty if there is none, and for a picture whose values are not classes."""
    name = find_label_map_field(fields)
    bits_and_color = None if name is None else png_kind(_read_head(file, fields[name].member))
    if bits_and_color is None:
        return ""
    bits, color = bits_and_color
    if color not in (GREY, PALETTE):
        return ""
    return "uint16" if bits == MAP_BITS["uint16"] else "uint8"


def _find_columns(
    unit: TarUnit, first_sample: Mapping[str, MemberContent], declared: Mapping[str, ColumnKind]
) -> JsonColumns:
    """Return the columns in the JSON of the first samples; of a compressed tar only the first counts, to unpack no more of it.

    Args:
        unit: the tar.
        first_sample: the members of its first sample, by field.
        declared: declared kinds of columns, by name.
    """
    # If the first sample has no JSON, there are no columns, and `infer` rejects all declared ones.
    if JSON not in first_sample or read_compression(unit.path):
        return JsonColumns.infer([first_sample[JSON]] if JSON in first_sample else [], declared, unit.path)
    with open_tar(unit.path, "") as (file, size):
        samples = itertools.islice(_read_samples(file, unit, size), _COLUMN_SAMPLES)
        return JsonColumns.infer((fields[JSON] for _, fields in samples if JSON in fields), declared, unit.path)


def list_member_paths(units: Iterable[TarUnit]) -> Iterator[str]:
    """Yield the path, in its tar, of each member that may be a picture; in a compressed tar, only of those in its first 512 MiB."""
    for unit in units:
        compression = read_compression(unit.path)
        with open_tar(unit.path, compression) as (file, size):
            for member in list_tar_members(file, unit.path, start=0, end=size):
                if may_belong_to_record(member):
                    yield member.name
                if compression and member.offset + member.size > MAX_EXAMINED_BYTES:
                    break


def reject_broken_sample(unit: TarUnit, name: str) -> None:
    """Raise SourceError if a member in no folder belongs to a WebDataset sample that breaks the rules for samples.

    Args:
        unit: the tar.
        name: name of the member.
    """
    stem, _, ending = name.rpartition(".")
    if ending.lower() not in (*IMAGE_FIELDS, *LABEL_FIELDS):
        return
    with open_tar(unit.path, read_compression(unit.path)) as (file, size):
        members = itertools.islice(list_tar_members(file, unit.path, unit.start, unit.find_end(size)), _MAX_NAMES)
        names = [member.name for member in members if may_belong_to_record(member)]
    partner = next((other for other in names if other != name and other.rpartition(".")[0] == stem), None)
    if partner is None:
        return
    if "." in stem.rpartition("/")[2]:
        raise SourceError(
            f"{unit.path}: members {name} and {partner} are not a WebDataset sample, whose name ends at the first dot. Rename the"
            " members, such as to 0001.jpg and 0001.cls."
        )
    raise SourceError(
        f"{unit.path}: members {name} and {partner} are a WebDataset sample, and do not follow each other. Pack the tar again"
        " with --sort=name."
    )


def list_inner_tars(outer: TarUnit) -> Iterator[TarUnit]:
    """Yield the tars in a tar of tars, which are named after their classes; SourceError if another file or a link is among them."""
    with open_tar(outer.path, "") as (file, size):
        for member in list_tar_members(file, outer.path, start=0, end=size):
            if member.link or member.problem:
                problem = member.problem or f"a link to {member.link}; pack the tar again with --dereference"
                raise SourceError(f"{outer.path}: member {member.name} is {problem}.")
            if not may_belong_to_record(member):
                continue
            head = _read_head(file, member)
            if not is_tar_header(head):
                fix = "It is compressed: unpack it." if find_compression(head) else "Remove it."
                raise SourceError(
                    f"{outer.path}: member {member.name} is not a tar, and the first member is one. {fix}"
                )
            label = member.name.rsplit("/", 1)[-1].removesuffix(".tar")
            end = member.offset + member.size
            yield TarUnit(outer.path, outer.make_key(member.name), member.offset, end, label, outer.split)


class _FirstBytes:
    """The first bytes of a compressed tar; a read or seek beyond them raises SourceError instead of unpacking more.

    It has only those methods of a file that reading members needs.
    """

    def __init__(self, file: BinaryIO, path: str, max_bytes: int) -> None:
        self._file = file
        self._path = path
        self._max_bytes = max_bytes

    def seek(self, offset: int) -> int:
        self._check_end(offset)
        return self._file.seek(offset)

    def read(self, length: int) -> bytes:
        self._check_end(self._file.tell() + length)
        return self._file.read(length)

    def _check_end(self, end: int) -> None:
        """Raise SourceError if `end`, the offset up to which a caller reads or seeks, is beyond the first bytes."""
        if end > self._max_bytes:
            raise SourceError(
                f"{self._path} is compressed, and its first {self._max_bytes >> 20} MiB do not show what it holds. Unpack it, or"
                " omit the large file at its beginning."
            )


@contextlib.contextmanager
def _open_start(path: str, compression: str, max_examined_bytes: int) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open a tar as a file that can seek forward; reading a compressed one beyond `max_examined_bytes` raises SourceError.

    Yields:
        (file, its size in bytes); None for the size of a compressed tar.
    """
    with open_tar(path, compression) as (file, size):
        yield (cast(BinaryIO, _FirstBytes(file, path, max_examined_bytes)) if compression else file), size


def _read_head(file: BinaryIO, member: Member) -> bytes:
    file.seek(member.offset)
    return file.read(min(BLOCK, member.size))
