"""Samples of a WebDataset as records: an image with its class, and a caption if there is a text that is not the class."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from beam_jobs.references.notes import SAMPLE_FIELDS, TEXT_CLASSES, Note
from beam_jobs.references.reference import NO_FEATURES
from beam_jobs.references.rejection import Reject, with_key
from beam_jobs.sources.tars.members import Member
from beam_jobs.sources.tars.samples import (
    IMAGE_FIELDS,
    JSON,
    TEXT,
    Content,
    caption,
    field_labels,
    further_keys,
    image_problem,
    label_field,
    samples,
)
from beam_jobs.sources.tars.unit import TarUnit
from tpudata.errors import BadRecordError
from tpudata.format import Feature

CAPTION = Feature("image/caption", "bytes", "string", (None,), encoding="utf8")


class TarRecord(NamedTuple):
    """An image of a tar.

    Attributes:
        content: its member.
        split: the split that names say, or empty.
        labels: its classes, as they are written.
        columns: further features.
    """

    content: Content
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
        note: gets fields that are not stored, and classes in files of text.
    """

    has_classes: bool
    several_labels: bool
    has_captions: bool
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
            unit: where it is.
            members: its files.
            ignored: gets the fields that are not stored.
            reject: called with the error of a sample that is no record.
            compressed: whether images are read here.
        """
        for number, (key, fields) in enumerate(samples(file, unit.path, members, compressed)):
            where = f"{unit.path}/{key}"
            images = [name for name in fields if name in IMAGE_FIELDS]
            source = label_field(fields) if self.has_classes else None
            columns: Mapping[str, Any] = NO_FEATURES
            try:
                if len(images) != 1:
                    raise BadRecordError(where, image_problem(fields))
                labels: tuple[str, ...] = ()
                if self.has_classes:
                    if source is None:
                        got = fields[images[0]].member.name
                        raise BadRecordError(
                            where,
                            f"no .cls, .json or .txt follows or precedes it: {got}; pack the tar again with --sort=name",
                        )
                    written, several = field_labels(fields[source], source, unit.path)
                    if several and not self.several_labels:
                        raise BadRecordError(where, "it has a list of labels, and the first sample has not")
                    labels = written
                if self.has_captions:
                    has_caption = TEXT in fields and source != TEXT
                    columns = {CAPTION.name: [caption(fields[TEXT], unit.path)] if has_caption else []}
            except BadRecordError as error:
                reject(with_key(error, unit.key(key)))
                continue
            used = {images[0], *([source] if source else ()), *([TEXT] if self.has_captions else ())}
            if source == TEXT:
                self.note(TEXT_CLASSES, TEXT)
            self._note_fields(fields, used, reads_keys=number == 0)
            ignored.extend(f"{unit.path}/{fields[name].member.name}" for name in fields if name not in used)
            yield TarRecord(fields[images[0]], unit.split, labels, columns)

    def _note_fields(self, fields: Mapping[str, Content], used: Collection[str], *, reads_keys: bool) -> None:
        """Note what is not stored of a sample."""
        for name, content in fields.items():
            if name not in used:
                self.note(SAMPLE_FIELDS, name)
            elif name == JSON and reads_keys:
                for key in further_keys(content):
                    self.note(SAMPLE_FIELDS, f"{key} in {name}")
