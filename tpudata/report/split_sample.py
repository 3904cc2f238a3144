"""Report data of a split."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import NamedTuple, TypeAlias

from tpudata.format.manifest.annotation_features import Box


class SamplePart(NamedTuple):
    """A part of a document: a text, or token ids.

    Attributes:
        content: the text, or the ids.
        is_learned: whether the weights of this part's tokens let the loss count it, unlike the inputs of a pair or the user's turns
            of a chat; False without weights.
        side: name of the side of a pair, or of the field, that begins here; empty for the other parts of the side, and if there is
            only one side.
    """

    content: str | list[int]
    is_learned: bool = False
    side: str = ""


# The documents of a record, each of one part or several.
Text: TypeAlias = "list[list[SamplePart]]"


@dataclasses.dataclass(frozen=True)
class SamplePicture:
    """A picture of a record as a thumbnail, with its annotations.

    Attributes:
        png: the thumbnail, a PNG file.
        width: its width in pixels.
        height: its height in pixels.
        maps: label maps in colours, PNG files of the same size.
        objects: class and box of each object; the class is empty without classes.
        captions: the captions.
        classes: classes of the whole picture.
    """

    png: bytes
    width: int
    height: int
    maps: tuple[bytes, ...] = ()
    objects: tuple[tuple[str, Box], ...] = ()
    captions: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


class ClassedText(NamedTuple):
    """A text of a record with its classes."""

    text: Text
    classes: tuple[str, ...] = ()


@dataclasses.dataclass
class SplitSample:
    """Statistics from some records of a split.

    Attributes:
        record_count: number of records of the split.
        read_count: number of records that were read.
        record_bytes: size of each read record in bytes.
        classes: number of records by class name, or by label without names; empty without classes.
        object_classes: number of objects by class name.
        object_counts: number of objects of each record; empty without objects.
        sizes: (height, width) of each picture in pixels.
        misfit_count: number of records that do not match the manifest; the other statistics have only their size, and whether they
            are duplicates.
        unreadable_count: number of pictures that cannot be decoded.
        pictures: the pictures that are shown, by their first class (`""` without classes).
        texts: the texts that are shown, by their first class (`""` without classes).
        lengths: length of each text in characters, or in tokens without padding, by feature.
        token_position_count: number of token positions in the sequences, padding included.
        tokens: number of occurrences by id, without padding.
        duplicate_count: number of records with the same picture, text or tokens as an earlier record of the split, without those in
            `shared`.
        near_duplicate_count: number of pictures with nearly the outline of an earlier picture, or of texts that differ from an
            earlier text only in case and spaces; without duplicates and those in `shared`.
        shared: number of records with the same picture, text or tokens as a record of an earlier split, by that split.
    """

    record_count: int
    read_count: int = 0
    record_bytes: list[int] = dataclasses.field(default_factory=list)
    classes: Counter[str] = dataclasses.field(default_factory=Counter)
    object_classes: Counter[str] = dataclasses.field(default_factory=Counter)
    object_counts: list[int] = dataclasses.field(default_factory=list)
    sizes: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    misfit_count: int = 0
    unreadable_count: int = 0
    pictures: dict[str, list[SamplePicture]] = dataclasses.field(default_factory=dict)
    texts: dict[str, list[ClassedText]] = dataclasses.field(default_factory=dict)
    lengths: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    token_position_count: int = 0
    tokens: Counter[int] = dataclasses.field(default_factory=Counter)
    duplicate_count: int = 0
    near_duplicate_count: int = 0
    shared: Counter[str] = dataclasses.field(default_factory=Counter)
