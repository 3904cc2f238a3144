"""Tar files, compressed with gzip or not, in three forms:

    classes   [.../][SPLIT/]CLASS/FILE        a file's class is the folder it lies in
    tars      CLASS.tar, holding FILE         a tar of tars, as ImageNet comes: an inner tar's name is the class
    pairs     KEY.jpg with KEY.cls, KEY.json or KEY.txt, one behind the other, as WebDataset writes

The first members of the first tar say which. A key is TAR/MEMBER, where TAR is the tar's file name without .gz (the path below the
folder, where there are several). Of an uncompressed tar only the headers and labels are read, and references say where in it an
image lies; images of a compressed tar travel themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from beam_jobs.labels import Labels
from beam_jobs.options import ConvertOptions
from beam_jobs.reference import Reference
from beam_jobs.sources._classes import Classes, is_integer_label
from beam_jobs.sources._names import class_and_split, folder_split, is_left_behind
from beam_jobs.sources._options import SourceOptions, refuse_split_flag
from beam_jobs.sources._source import Refuse, make_reference, raise_refusal
from beam_jobs.sources._tar_file import GZIP_MAGIC, is_gzip, open_tar
from beam_jobs.sources._tar_members import BLOCK, Member, is_tar_header, tar_members
from beam_jobs.sources._tar_samples import IMAGE_FIELDS, LABEL_FIELDS, Content, field_labels, read_content, samples
from tpudata.errors import BadRecordError, SourceError
from tpudata.format import Feature

CLASSES, TARS, PAIRS = "classes", "tars", "pairs"


class TarUnit(NamedTuple):
    """A tar, or a tar in a tar.

    Attributes:
        path: the file.
        name: stands before the members' names in keys.
        start, end: of the inner tar in the file; 0 and -1 for the file as a whole.
        label: class of all members, or nothing.
    """

    path: str
    name: str
    start: int = 0
    end: int = -1
    label: str = ""


@dataclasses.dataclass(frozen=True)
class Tars:
    """Tar files of one form: a Source whose units are tars.

    Attributes:
        options: deal out splits and seed the order.
        tars: to be listed.
        form: `CLASSES`, `TARS` or `PAIRS`.
        classes: how labels become names.
        has_classes: False where records are unlabelled.
        several_labels: whether samples have lists of labels.
    """

    options: ConvertOptions
    tars: tuple[TarUnit, ...]
    form: str
    classes: Classes
    has_classes: bool = True
    several_labels: bool = False
    extra: tuple[Feature, ...] = ()

    @classmethod
    def find(cls, options: ConvertOptions, source_options: SourceOptions, tars: Sequence[tuple[str, str]]) -> Tars:
        """Looks at the first members of the first tar, and lists the inner tars of tars of tars.

        Args:
            options: of the conversion.
            source_options: labels, or none.
            tars: path of each, and its name in keys.

        Raises:
            SourceError: a tar of tars is compressed, or has other files in it.
            CorruptionError: a header is damaged or a tar is cut.
        """
        units = [TarUnit(path, name.removesuffix(".gz")) for path, name in tars]
        form, labels, several = _look(units[0])
        if form == TARS:
            units = [inner for unit in units for inner in _inner_tars(unit)]
        integers = bool(labels) and all(map(is_integer_label, labels))
        classes = Classes.open(source_options, integers=integers)
        labelled = not source_options.unlabelled
        return cls(options, tuple(units), form, classes, labelled, labelled and several)

    @property
    def labels(self) -> Labels | None:
        """Those of `--labels FILE`."""
        return self.classes.labels

    @property
    def integer_labels(self) -> bool:
        """Whether the labels of pairs are whole numbers."""
        return self.classes.collects_integers

    def units(self) -> Sequence[TarUnit]:
        """The tars, or the inner tars of tars of tars."""
        return self.tars

    def references(self, unit: TarUnit, ignored: list[str], refuse: Refuse = raise_refusal) -> Iterator[Reference]:
        """Yields a reference to every image of a tar."""
        compressed = is_gzip(unit.path)
        with open_tar(unit.path, compressed) as (file, size):
            members = tar_files(file, unit, size, ignored, refuse)
            if self.form == PAIRS:
                records = self._pairs(file, unit, compressed, members, ignored, refuse)
            else:
                records = self._classes(file, unit, compressed, members)
            for content, split, labels in records:
                try:
                    names = tuple(self.classes.name(label, f"{unit.path}/{content.member.name}") for label in labels)
                except BadRecordError as error:
                    refuse(error)
                    continue
                yield make_reference(
                    self.options,
                    f"{unit.name}/{content.member.name}",
                    path=unit.path,
                    # Also of a compressed tar, where the bytes travel: an empty member must not be taken for the whole file.
                    offset=content.member.offset,
                    size=content.member.size,
                    split=split,
                    labels=names,
                    data=content.data,
                )

    def _classes(
        self, file: BinaryIO, unit: TarUnit, compressed: bool, members: Iterable[Member]
    ) -> Iterator[tuple[Content, str, tuple[str, ...]]]:
        for member in members:
            folders = member.name.split("/")[:-1]
            split = ""
            labels: tuple[str, ...] = (unit.label,)
            if not self.has_classes:
                # Where no folder is a class, the outermost is what may be a split.
                split, labels = folder_split(folders[0]) if folders else "", ()
            elif not unit.label:
                name, split = class_and_split(folders, f"{unit.path}: member {member.name}")
                labels = (name,)
            if split:
                refuse_split_flag(self.options, f"{unit.path} has split folders already ({split})")
            yield Content(member, read_content(file, unit.path, member) if compressed else b""), split, labels

    def _pairs(
        self,
        file: BinaryIO,
        unit: TarUnit,
        compressed: bool,
        members: Iterable[Member],
        ignored: list[str],
        refuse: Refuse,
    ) -> Iterator[tuple[Content, str, tuple[str, ...]]]:
        for key, fields in samples(file, unit.path, members, compressed):
            where = f"{unit.path}/{key}"
            images = [name for name in fields if name in IMAGE_FIELDS]
            sources = [name for name in LABEL_FIELDS if name in fields]
            try:
                if len(images) != 1:
                    raise BadRecordError(where, f"a sample needs one image; it has {', '.join(fields)}")
                labels: tuple[str, ...] = ()
                if self.has_classes:
                    if not sources:
                        got = fields[images[0]].member.name
                        raise BadRecordError(where, f"{got} has no partner .cls, .json or .txt behind or before it")
                    written, several = field_labels(fields[sources[0]], sources[0], unit.path)
                    if several and not self.several_labels:
                        raise BadRecordError(where, "it has a list of labels, and the first sample has not")
                    labels = written
            except BadRecordError as error:
                refuse(error)
                continue
            used = {images[0], *sources[: len(labels)]}
            ignored.extend(f"{unit.path}/{fields[name].member.name}" for name in fields if name not in used)
            yield fields[images[0]], "", labels


def _look(unit: TarUnit) -> tuple[str, tuple[str, ...], bool]:
    """The form of a tar, and of its first pair the labels and whether they are a list."""
    with open_tar(unit.path, compressed := is_gzip(unit.path)) as (file, size):
        members = tar_members(file, unit.path, 0, size)
        first = next((member for member in members if _is_record(member)), None)
        if first is None:
            return CLASSES, (), False
        head = _head(file, first)
        if is_tar_header(head):
            if compressed:
                raise SourceError(
                    f"{unit.path} is a compressed tar of tars, in which nothing can be found. Unpack it with gunzip."
                )
            return TARS, (), False
    # Again from the start, since a compressed file does not seek back.
    with open_tar(unit.path, compressed) as (file, size):
        members = (member for member in tar_members(file, unit.path, 0, size) if _is_record(member))
        _, fields = next(samples(file, unit.path, members, compressed))
    if len(fields) < 2 or not any(name in IMAGE_FIELDS for name in fields):
        return CLASSES, (), False
    field = next((name for name in LABEL_FIELDS if name in fields), None)
    if field is None:
        return PAIRS, (), False
    return PAIRS, *field_labels(fields[field], field, unit.path)


def _is_record(member: Member) -> bool:
    return member.is_file and not any(is_left_behind(part) for part in member.name.split("/"))


def tar_files(file: BinaryIO, unit: TarUnit, size: int | None, ignored: list[str], refuse: Refuse) -> Iterator[Member]:
    """Yields the files of a tar that may be records."""
    for member in tar_members(file, unit.path, unit.start, size if unit.end < 0 else unit.end):
        if member.link:
            where = f"{unit.path}/{member.name}"
            refuse(
                BadRecordError(
                    where, f"a link to {member.link}; pack the tar again with --dereference --hard-dereference"
                )
            )
        elif _is_record(member):
            yield member
        else:
            ignored.append(f"{unit.path}/{member.name}")


def _inner_tars(outer: TarUnit) -> Iterator[TarUnit]:
    with open_tar(outer.path, compressed=False) as (file, size):
        for member in tar_members(file, outer.path, 0, size):
            if not _is_record(member):
                continue
            head = _head(file, member)
            if not is_tar_header(head):
                packed = " It is compressed; unpack it." if head.startswith(GZIP_MAGIC) else ""
                raise SourceError(
                    f"{outer.path}: member {member.name} is not a tar, and the first member is one.{packed}"
                )
            label = member.name.rsplit("/", 1)[-1].removesuffix(".tar")
            name = f"{outer.name}/{member.name}"
            yield TarUnit(outer.path, name, member.offset, member.offset + member.size, label)


def _head(file: BinaryIO, member: Member) -> bytes:
    file.seek(member.offset)
    return file.read(min(BLOCK, member.size))
