"""Tar files, compressed or not, in three forms:

    classes   [.../][SPLIT/]CLASS/FILE        a file's class is the folder it lies in
    tars      CLASS.tar, holding FILE         a tar of tars, such as ImageNet's: an inner tar's name is the class
    pairs     KEY.jpg with KEY.cls, KEY.json or KEY.txt, one after the other, as WebDataset writes; a text that is not the class
              is a caption, KEY.seg.png a label map, and keys of JSON are columns

The first members of the first tar determine the form. With `--label-from`, a file's path in the tar gives its class. A key is
TAR/MEMBER, where TAR is the tar's path below the input's folder without an ending such as .gz. References point into uncompressed
tars, of which only headers, labels, captions and JSON are read; references to images of a compressed tar hold their bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from beam_jobs.compression.files import read_compression, strip_compression
from beam_jobs.options import ConvertOptions
from beam_jobs.references.notes import Note, ignore_note
from beam_jobs.references.reference import Reference
from beam_jobs.references.rejection import Reject, add_key, raise_rejection
from beam_jobs.sources.classes import Classes, ClassifiedSource, are_integer_labels
from beam_jobs.sources.input_files import InputFiles
from beam_jobs.sources.named_splits import (
    NamedSplits,
    find_class_and_split,
    find_file_split,
    find_named_split,
    find_split_in_file_name,
    take_first_names,
)
from beam_jobs.sources.options import SourceOptions, reject_split_flag
from beam_jobs.sources.path_labels import PathLabels
from beam_jobs.sources.source import make_reference
from beam_jobs.sources.tars.file import open_tar
from beam_jobs.sources.tars.form import (
    CLASSES,
    FORMS,
    PAIRS,
    TARS,
    detect_tar_form,
    list_inner_tars,
    list_member_paths,
    reject_broken_sample,
)
from beam_jobs.sources.tars.json_columns import NO_COLUMNS, JsonColumns
from beam_jobs.sources.tars.members import Member
from beam_jobs.sources.tars.pairs import CAPTION, LABEL_MAP, Pairs, TarRecord
from beam_jobs.sources.tars.samples import (
    MemberContent,
    read_content,
)
from beam_jobs.sources.tars.unit import TarUnit, list_tar_files
from tpudata.errors import BadRecordError
from tpudata.format import Feature


@dataclasses.dataclass(frozen=True)
class Tars(ClassifiedSource):
    """Tar files of one form: a Source whose parts are tars, and whose units are the tars or, for a tar of tars, its inner tars.

    Attributes:
        options: options with the splits and the seed of the order.
        files: the tars.
        splits: splits that the names of the tars stand for.
        form: `CLASSES`, `TARS` or `PAIRS`.
        classes: mapping from labels to class names.
        has_classes: False if records are unlabelled.
        several_labels: whether samples have lists of labels.
        note: called with the kind of a note and an example: a field of a sample that is not stored, or a class in a file of text.
        path_labels: rule for classes and columns in paths; None without `--label-from`.
        has_captions: whether samples have captions.
        map_dtype: dtype of the label maps of samples; empty if they have none.
        columns: columns in the JSON of samples.
    """

    options: ConvertOptions
    files: InputFiles
    splits: NamedSplits
    form: str
    classes: Classes
    has_classes: bool = True
    several_labels: bool = False
    note: Note = ignore_note
    path_labels: PathLabels | None = None
    has_captions: bool = False
    map_dtype: str = ""
    columns: JsonColumns = NO_COLUMNS
    takes_label_from: bool = True
    # --label-type applies to labels of samples and to names of folders.
    takes_label_type: bool = True

    def noting(self, note: Note) -> Tars:
        """Return the source that calls `note` with fields that are not stored, and classes in files of text."""
        return dataclasses.replace(self, note=note)

    @classmethod
    def open(cls, options: ConvertOptions, source_options: SourceOptions, files: InputFiles) -> Tars:
        """Open the source, after a look at the first members of the first tar or, for `--label-from`, at the first members' paths.

        Args:
            options: options of the conversion.
            source_options: options of labels and columns.
            files: the tars.

        Raises:
            SourceError: there is no tar, only some of their names stand for splits, `detect_tar_form` rejects the first tar, or the
                file of `--labels` is invalid.
            CorruptionError: a header is damaged or a tar is truncated.
            UsageError: the options assign splits, but the names of the tars stand for splits; `--label-from` does not fit the first
                paths, see `PathLabels.infer`; there is no column of a declared name; or a flag is for lists.
        """
        first_files = take_first_names(files)
        splits = NamedSplits.infer(options, [name for _, name in first_files], find_file_split, find_split_in_file_name)
        path_labels = PathLabels.infer(source_options, list_member_paths(_make_tar_unit(*file) for file in first_files))
        if path_labels is not None:
            has_classes = path_labels.has_classes
            # Every file is then a separate image, as in tars of the form `CLASSES`, so the form is not detected.
            return cls(
                options, files, splits, CLASSES, path_labels.classes, has_classes=has_classes, path_labels=path_labels
            )
        first_tar = _make_tar_unit(*first_files[0])
        has_classes = not source_options.unlabelled
        first_form = detect_tar_form(first_tar, reads_labels=has_classes, column_kinds=source_options.column_kinds)
        form, labels = first_form.form, first_form.labels
        if form != PAIRS:
            source_options.reject_list_flags(f"{first_tar.path} is {FORMS[form]}")
        has_integers = are_integer_labels(labels, source_options.label_type)
        # Numbers are rejected only as labels of pairs: a folder's name may be a number among names, unless --label-type is passed.
        rejects_numbers = form == PAIRS and source_options.label_type is None and not has_integers
        classes = Classes.open(source_options, has_integers=has_integers, rejects_numbers=rejects_numbers)
        return cls(
            options,
            files,
            splits,
            form,
            classes,
            has_classes=has_classes,
            several_labels=has_classes and first_form.has_several_labels,
            has_captions=first_form.has_captions,
            map_dtype=first_form.map_dtype,
            columns=first_form.columns,
        )

    def select_features(self, names: Iterable[str]) -> Tars:
        """Return the source with only those captions, label maps and columns whose features have these names."""
        selected_names = set(names)
        return dataclasses.replace(
            self,
            has_captions=self.has_captions and CAPTION.name in selected_names,
            map_dtype=self.map_dtype if LABEL_MAP in selected_names else "",
            columns=self.columns.select(selected_names),
        )

    @property
    def folder_classes(self) -> bool:
        """Whether classes are names of folders, or of the tars in a tar of tars."""
        return self.form != PAIRS and self.path_labels is None

    @property
    def features(self) -> tuple[Feature, ...]:
        """With `--label-from`, the columns in paths; otherwise captions, label maps and columns of JSON."""
        if self.path_labels is not None:
            return self.path_labels.features
        captions = (CAPTION,) if self.has_captions else ()
        shape = (None, None, 1)
        maps = (Feature(LABEL_MAP, "bytes", self.map_dtype, shape, "label_map"),) if self.map_dtype else ()
        return (*captions, *maps, *self.columns.features)

    @property
    def named_splits(self) -> frozenset[str]:
        """The splits that the names of the tars stand for."""
        return self.splits.named

    def parts(self) -> Iterator[TarUnit]:
        """Yield the tars."""
        return (_make_tar_unit(path, name, self.splits.find_split(name)) for path, name in self.files)

    def units(self, part: TarUnit, ignored: list[str]) -> Iterable[TarUnit]:
        """Return the tar, which is its only unit, or yield the tars in a tar of tars.

        Args:
            part: one of `parts()`.
            ignored: nothing is ignored here.

        Raises:
            SourceError: a tar of tars contains other files.
        """
        del ignored
        return list_inner_tars(part) if self.form == TARS else (part,)

    def references(self, unit: TarUnit, ignored: list[str], reject: Reject = raise_rejection) -> Iterator[Reference]:
        """Yield a reference to every image of a tar.

        Args:
            unit: one of `units`.
            ignored: list to which this method appends TAR/MEMBER for each member that it skips because of its name, or that is not
                stored with its sample.
            reject: called with the error of a member that gets no reference.

        Raises:
            CorruptionError: a header is damaged, or the tar is truncated.
            SourceError: the tar has members that are not read, a member is in no folder of its class, or its folder and its tar are
                of different splits.
            UsageError: the options assign splits, but a folder in the tar stands for a split.
        """
        compression = read_compression(unit.path)
        is_compressed = bool(compression)
        with open_tar(unit.path, compression) as (file, size):
            members = list_tar_files(file, unit, size, ignored, reject)
            if self.form == PAIRS:
                pairs = Pairs(
                    has_classes=self.has_classes,
                    has_several_labels=self.several_labels,
                    has_captions=self.has_captions,
                    has_maps=bool(self.map_dtype),
                    columns=self.columns,
                    note=self.note,
                )
                records = pairs.list_records(file, unit, members, ignored, reject, is_compressed=is_compressed)
            else:
                records = self._list_records(file, unit, members, is_compressed=is_compressed)
            for content, split, labels, columns in records:
                key = unit.make_key(content.member.name)
                origin = f"{unit.path}/{content.member.name}"
                try:
                    if self.path_labels is None:
                        class_names = tuple(self.classes.resolve(label, origin) for label in labels)
                    else:
                        class_names, columns = self.path_labels.read(content.member.name, origin)
                except BadRecordError as error:
                    reject(add_key(error, key))
                    continue
                yield make_reference(
                    self.options,
                    key,
                    path=unit.path,
                    # A compressed tar needs the offset too, although `data` has the bytes: those of an empty member are empty, and
                    # a reference with neither data nor an offset stands for the whole file.
                    offset=content.member.offset,
                    size=content.member.size,
                    split=split,
                    labels=class_names,
                    features=columns,
                    data=content.data,
                )

    def _list_records(
        self, file: BinaryIO, unit: TarUnit, members: Iterable[Member], *, is_compressed: bool
    ) -> Iterator[TarRecord]:
        """Yield the records of a tar of images, with the classes and splits of their folders or of the tar.

        Args:
            file: the opened tar.
            unit: the tar.
            members: files of the tar.
            is_compressed: whether the tar is compressed; if so, images are read here.
        """
        for member in members:
            folders = member.name.split("/")[:-1]
            split = ""
            labels: tuple[str, ...] = ()
            if not self.has_classes or self.path_labels is not None:
                # If folders are not classes, the outermost may be a split. --label-from reads labels from the whole path later.
                split = find_named_split(folders[0]) if folders else ""
            elif unit.label:
                # The class of an inner tar.
                labels = (unit.label,)
            else:
                if not folders:
                    reject_broken_sample(unit, member.name)
                class_name, split = find_class_and_split(folders, f"{unit.path}: member {member.name}")
                labels = (class_name,)
            if split:
                reject_split_flag(self.options, f"{unit.path} has split folders already ({split})")
            split = self.splits.find_member_split(unit.split, split, f"{unit.path}: member {member.name}")
            content = MemberContent(member, read_content(file, unit.path, member) if is_compressed else b"")
            yield TarRecord(content, split, labels)


def _make_tar_unit(path: str, name: str, split: str = "") -> TarUnit:
    return TarUnit(path, strip_compression(name), split=split)
