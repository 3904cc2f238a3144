"""Conversion of a WebDataset's samples to records: an image with its class, its label map, a caption if the sample has a text that
is not the class, and the keys of its JSON as columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from beam_jobs.references.notes import SAMPLE_FIELDS, TEXT_CLASSES, Note
from beam_jobs.references.ranged_map import RangedMap
from beam_jobs.references.reference import NO_FEATURES
from beam_jobs.references.rejection import Reject, add_key
from beam_jobs.sources.tars.json_columns import JsonColumns
from beam_jobs.sources.tars.members import Member
from beam_jobs.sources.tars.samples import (
    IMAGE_FIELDS,
    JSON,
    LABEL,
    TEXT,
    MemberContent,
    decode_text,
    describe_image_problem,
    find_label_field,
    find_label_map_field,
    parse_field_labels,
    parse_json_object,
    read_samples,
)
from beam_jobs.sources.tars.unit import TarUnit
from tpudata.errors import BadRecordError
from tpudata.format import Feature

CAPTION = Feature("image/caption", "bytes", "string", (None,), encoding="utf8")
LABEL_MAP = "image/segmentation/class/encoded"


class TarRecord(NamedTuple):
    """An image of a tar.

    Attributes:
        content: its member.
        split: the split that names of folders and files stand for, or empty.
        labels: its labels, as written.
        columns: extra features, by name.
    """

    content: MemberContent
    split: str
    labels: tuple[str, ...]
    columns: Mapping[str, Any] = NO_FEATURES


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Rules for converting samples to records.

    Attributes:
        has_classes: whether records have classes.
        has_several_labels: whether samples have lists of labels.
        has_captions: whether samples have captions.
        has_maps: whether samples have label maps.
        columns: columns in the JSON of samples.
        note: called with the kind of a note and an example: a field that is not stored, or a class in a file of text.
    """

    has_classes: bool
    has_several_labels: bool
    has_captions: bool
    has_maps: bool
    columns: JsonColumns
    note: Note

    def list_records(
        self,
        file: BinaryIO,
        unit: TarUnit,
        members: Iterable[Member],
        ignored: list[str],
        reject: Reject,
        *,
        is_compressed: bool,
    ) -> Iterator[TarRecord]:
        """Yield the record of each sample.

        Args:
            file: the opened tar.
            unit: the tar.
            members: files of the tar.
            ignored: list to which this method appends TAR/MEMBER for each member of a sample that its record does not store.
            reject: called with the error of a sample that cannot be a record.
            is_compressed: whether the tar is compressed; if so, images are read here.
        """
        for key, fields in read_samples(file, unit.path, members, reads_images=is_compressed):
            origin = f"{unit.path}/{key}"
            image_fields = [name for name in fields if name in IMAGE_FIELDS]
            label_field = find_label_field(fields) if self.has_classes else None
            columns: dict[str, Any] = {}
            try:
                if len(image_fields) != 1:
                    raise BadRecordError(origin, describe_image_problem(fields))
                (image_field,) = image_fields
                labels: tuple[str, ...] = ()
                if self.has_classes:
                    if label_field is None:
                        image_name = fields[image_field].member.name
                        raise BadRecordError(
                            origin,
                            f"no .cls, .json or .txt follows or precedes it: {image_name}; pack the tar again with --sort=name",
                        )
                    labels, is_list = parse_field_labels(fields[label_field], label_field, unit.path)
                    if is_list and not self.has_several_labels:
                        raise BadRecordError(origin, "it has a list of labels, unlike the first sample")
                if self.has_captions:
                    has_caption = TEXT in fields and label_field != TEXT
                    columns[CAPTION.name] = [decode_text(fields[TEXT], unit.path)] if has_caption else []
                if self.has_maps:
                    columns[LABEL_MAP] = _locate_label_map(fields, unit, origin, is_compressed=is_compressed)
                json_values = parse_json_object(fields[JSON], unit.path) if JSON in fields else {}
                columns |= self.columns.read(json_values, origin)
            except BadRecordError as error:
                reject(add_key(error, unit.make_key(key)))
                continue
            # None is in the set if there is no label field; no field has this name.
            used_fields: set[str | None] = {image_field, label_field}
            if self.has_captions:
                used_fields.add(TEXT)
            if self.has_maps:
                used_fields.add(find_label_map_field(fields))
            if self.columns.kinds:
                used_fields.add(JSON)
            if label_field == TEXT:
                self.note(TEXT_CLASSES, TEXT)
            self._note_fields(fields, used_fields, json_values)
            ignored.extend(f"{unit.path}/{fields[name].member.name}" for name in fields if name not in used_fields)
            yield TarRecord(fields[image_field], unit.split, labels, columns or NO_FEATURES)

    def _note_fields(
        self, fields: Iterable[str], used_fields: Collection[str | None], json_values: Mapping[str, Any]
    ) -> None:
        """Note the fields and the keys of JSON that a sample has and its record lacks."""
        for name in fields:
            if name not in used_fields:
                self.note(SAMPLE_FIELDS, name)
        if JSON in used_fields:
            for key in json_values.keys() - dict(self.columns.kinds).keys() - {LABEL}:
                self.note(SAMPLE_FIELDS, f"{key} in {JSON}")


def _locate_label_map(
    fields: Mapping[str, MemberContent], unit: TarUnit, origin: str, *, is_compressed: bool
) -> RangedMap:
    """Return the file range of a sample's label map; BadRecordError if it has none, or the tar is compressed.

    Args:
        fields: the members of the sample, by field.
        unit: the tar.
        origin: tar and key of the sample, for the message.
        is_compressed: whether the tar is compressed.
    """
    name = find_label_map_field(fields)
    if name is None:
        raise BadRecordError(origin, "no label map, and the first sample has one")
    if is_compressed:
        raise BadRecordError(
            origin, "its label map is in a compressed tar, and the first tar is not compressed; unpack it"
        )
    member = fields[name].member
    return RangedMap(unit.path, member.offset, member.size)
