"""Samples of a WebDataset as records: an image with its class, a caption if there is a text that is not the class, its label map,
and the keys of its JSON as columns.
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
    caption,
    describe_image_problem,
    field_labels,
    find_label_map_field,
    json_object,
    label_field,
    samples,
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
        split: the split that names say, or empty.
        labels: its classes, as written.
        columns: extra features.
    """

    content: MemberContent
    split: str
    labels: tuple[str, ...]
    columns: Mapping[str, Any] = NO_FEATURES


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The way from samples to records.

    Attributes:
        has_classes: whether records have classes.
        several_labels: whether samples have lists of labels.
        has_captions: whether samples have captions.
        has_maps: whether samples have label maps.
        columns: those of the JSON of samples.
        note: gets fields that are not stored, and classes in files of text.
    """

    has_classes: bool
    several_labels: bool
    has_captions: bool
    has_maps: bool
    columns: JsonColumns
    note: Note

    def records(
        self,
        file: BinaryIO,
        unit: TarUnit,
        members: Iterable[Member],
        ignored: list[str],
        reject: Reject,
        *,
        compressed: bool,
    ) -> Iterator[TarRecord]:
        """Yield the image of each sample.

        Args:
            file: the tar.
            unit: its tar.
            members: its files.
            ignored: gets the fields that are not stored.
            reject: called with the error of a sample that is not a record.
            compressed: whether images are read here.
        """
        for key, fields in samples(file, unit.path, members, compressed):
            origin = f"{unit.path}/{key}"
            images = [name for name in fields if name in IMAGE_FIELDS]
            source = label_field(fields) if self.has_classes else None
            columns: dict[str, Any] = {}
            try:
                if len(images) != 1:
                    raise BadRecordError(origin, describe_image_problem(fields))
                labels: tuple[str, ...] = ()
                if self.has_classes:
                    if source is None:
                        image_name = fields[images[0]].member.name
                        raise BadRecordError(
                            origin,
                            f"no .cls, .json or .txt follows or precedes it: {image_name}; pack the tar again with --sort=name",
                        )
                    labels_as_written, several = field_labels(fields[source], source, unit.path)
                    if several and not self.several_labels:
                        raise BadRecordError(origin, "it has a list of labels, and the first sample has not")
                    labels = labels_as_written
                if self.has_captions:
                    has_caption = TEXT in fields and source != TEXT
                    columns[CAPTION.name] = [caption(fields[TEXT], unit.path)] if has_caption else []
                if self.has_maps:
                    columns[LABEL_MAP] = _label_map(fields, unit, origin, compressed=compressed)
                values = json_object(fields[JSON], unit.path) if JSON in fields else {}
                columns |= self.columns.read(values, origin)
            except BadRecordError as error:
                reject(add_key(error, unit.key(key)))
                continue
            used_fields = {images[0], *([source] if source else ()), *([TEXT] if self.has_captions else ())}
            used_fields |= {find_label_map_field(fields)} if self.has_maps else set()
            used_fields |= {JSON} if self.columns.kinds else set()
            if source == TEXT:
                self.note(TEXT_CLASSES, TEXT)
            self._note_fields(fields, used_fields, values)
            ignored.extend(f"{unit.path}/{fields[name].member.name}" for name in fields if name not in used_fields)
            yield TarRecord(fields[images[0]], unit.split, labels, columns or NO_FEATURES)

    def _note_fields(
        self, fields: Iterable[str], used_fields: Collection[str | None], values: Mapping[str, Any]
    ) -> None:
        """Note the fields and JSON keys of a sample that are not stored; `values` is its JSON."""
        for name in fields:
            if name not in used_fields:
                self.note(SAMPLE_FIELDS, name)
        if JSON in used_fields:
            for key in values.keys() - dict(self.columns.kinds).keys() - {LABEL}:
                self.note(SAMPLE_FIELDS, f"{key} in {JSON}")


def _label_map(fields: Mapping[str, MemberContent], unit: TarUnit, origin: str, *, compressed: bool) -> RangedMap:
    """Return the file range of a sample's label map; BadRecordError if it has none, or the tar is compressed."""
    name = find_label_map_field(fields)
    if name is None:
        raise BadRecordError(origin, "no label map, and the first sample has one")
    if compressed:
        raise BadRecordError(
            origin, "its label map is in a compressed tar, and the first tar is not compressed; unpack it"
        )
    member = fields[name].member
    return RangedMap(unit.path, member.offset, member.size)
