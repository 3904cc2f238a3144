"""Tar files, compressed with gzip or not, in three forms:

    classes   [.../][SPLIT/]CLASS/FILE        a file's class is the folder it lies in
    tars      CLASS.tar, holding FILE         a tar of tars, as ImageNet comes: an inner tar's name is the class
    pairs     KEY.jpg with KEY.cls, KEY.json or KEY.txt, one after the other, as WebDataset writes

The first members of the first tar say which. A key is TAR/MEMBER, where TAR is the tar's file name without .gz (the path below the
folder, where there are several). Of an uncompressed tar only the headers and labels are read, and references say where in it an
image lies; images of a compressed tar travel themselves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from beam_jobs.options import ConvertOptions
from beam_jobs.references.labels import Labels
from beam_jobs.references.reference import Reference
from beam_jobs.sources.classes import Classes, is_integer_label
from beam_jobs.sources.input_files import InputFiles
from beam_jobs.sources.names import class_and_split, folder_split
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.source import Reject, make_reference, raise_rejection, with_key
from beam_jobs.sources.tars.file import open_tar, packing, unpacked_name
from beam_jobs.sources.tars.form import PAIRS, TARS, inner_tars, tar_form
from beam_jobs.sources.tars.members import Member
from beam_jobs.sources.tars.samples import IMAGE_FIELDS, LABEL_FIELDS, Content, field_labels, read_content, samples
from beam_jobs.sources.tars.unit import TarUnit, tar_files
from beam_jobs.values.column_kinds import INT
from tpudata.errors import BadRecordError
from tpudata.format import Feature


@dataclasses.dataclass(frozen=True)
class Tars:
    """Tar files of one form: a Source whose parts are tars, and whose units are the same or the tars in them.

    Attributes:
        options: deal out splits and seed the order.
        files: the tars.
        form: `CLASSES`, `TARS` or `PAIRS`.
        classes: how labels become names.
        has_classes: False where records are unlabelled.
        several_labels: whether samples have lists of labels.
    """

    options: ConvertOptions
    files: InputFiles
    form: str
    classes: Classes
    has_classes: bool = True
    several_labels: bool = False
    extra: tuple[Feature, ...] = ()

    @classmethod
    def find(cls, options: ConvertOptions, source_options: SourceOptions, files: InputFiles) -> Tars:
        """Look at the first members of the first tar.

        Args:
            options: of the conversion.
            source_options: labels, or none.
            files: the tars.

        Raises:
            SourceError: a tar of tars is compressed; or the first members of a compressed tar are too large to say what it is.
            CorruptionError: a header is damaged or a tar is cut.
        """
        form, labels, several = tar_form(_tar_unit(*next(iter(files))))
        label_type = source_options.label_type
        integers = label_type == INT or (label_type is None and bool(labels) and all(map(is_integer_label, labels)))
        # Folders named after numbers are names like any others.
        unmixed = form == PAIRS and label_type is None and not integers
        classes = Classes.open(source_options, integers=integers, unmixed=unmixed)
        labelled = not source_options.unlabelled
        return cls(options, files, form, classes, labelled, labelled and several)

    @property
    def labels(self) -> Labels | None:
        """Those of `--labels FILE`."""
        return self.classes.labels

    @property
    def integer_labels(self) -> bool:
        """Whether the labels of pairs are whole numbers."""
        return self.classes.collects_integers

    @property
    def has_label_fields(self) -> bool:
        """Whether labels are values whose type `--label-type` may say."""
        return self.form == PAIRS

    def parts(self) -> Iterator[TarUnit]:
        """Yield the tars."""
        return (_tar_unit(path, name) for path, name in self.files)

    def units(self, part: TarUnit, ignored: list[str]) -> Iterable[TarUnit]:
        """Return a tar, or the tars in a tar of tars.

        Args:
            part: one of `parts()`.
            ignored: nothing is ignored here.

        Raises:
            SourceError: a tar of tars has other files in it.
        """
        del ignored
        return inner_tars(part) if self.form == TARS else (part,)

    def references(self, unit: TarUnit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference to every image of a tar.

        Args:
            unit: one of `units`.
            ignored: gets the names of members that are no records.
            reject: called with the error of a member that cannot be referred to.
        """
        compressed = bool(packing(unit.path))
        with open_tar(unit.path, compressed) as (file, size):
            members = tar_files(file, unit, size, ignored, reject)
            if self.form == PAIRS:
                records = self._pairs(file, unit, compressed, members, ignored, reject)
            else:
                records = self._classes(file, unit, compressed, members)
            for content, split, labels in records:
                key = unit.key(content.member.name)
                try:
                    names = tuple(self.classes.name(label, f"{unit.path}/{content.member.name}") for label in labels)
                except BadRecordError as error:
                    reject(with_key(error, key))
                    continue
                yield make_reference(
                    self.options,
                    key,
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
                reject_split_flag(self.options, f"{unit.path} has split folders already ({split})")
            yield Content(member, read_content(file, unit.path, member) if compressed else b""), split, labels

    def _pairs(
        self,
        file: BinaryIO,
        unit: TarUnit,
        compressed: bool,
        members: Iterable[Member],
        ignored: list[str],
        reject: Reject,
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
                        raise BadRecordError(where, f"no partner .cls, .json or .txt next to it: {got}")
                    written, several = field_labels(fields[sources[0]], sources[0], unit.path)
                    if several and not self.several_labels:
                        raise BadRecordError(where, "it has a list of labels, and the first sample has not")
                    labels = written
            except BadRecordError as error:
                reject(with_key(error, unit.key(key)))
                continue
            used = {images[0], *sources[: len(labels)]}
            ignored.extend(f"{unit.path}/{fields[name].member.name}" for name in fields if name not in used)
            yield fields[images[0]], "", labels


def _tar_unit(path: str, name: str) -> TarUnit:
    return TarUnit(path, unpacked_name(name))
