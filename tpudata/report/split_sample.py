"""Report data of a split."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TypeAlias

# A text, or the ids of the tokens of each document of a row.
Text: TypeAlias = "str | list[list[int]]"


@dataclasses.dataclass
class SplitSample:
    """Statistics from some records of a split.

    Attributes:
        total: number of records of the split.
        read: number of them that were read.
        record_bytes: size of each in bytes.
        classes: number of records by class name; empty without classes.
        sizes: (height, width) of each picture in pixels.
        misfits: records that do not match the manifest, which are in no other statistics but their size.
        unreadable: pictures that cannot be decoded.
        pictures: thumbnails by class (`""` without classes), as PNG files.
        texts: some texts, or the ids of the documents of a row, by class.
        lengths: length of each text in characters, or in tokens without padding.
        places: number of tokens including padding.
        tokens: number of occurrences by id, without padding.
        duplicates: records with the same picture, text or tokens as an earlier one of the split.
        near_duplicates: pictures with the outline of an earlier one, but other bytes; texts that differ in case and spaces alone.
        shared: records with the same picture, text or tokens as one of an earlier split, by that split.
    """

    total: int
    read: int = 0
    record_bytes: list[int] = dataclasses.field(default_factory=list)
    classes: Counter[str] = dataclasses.field(default_factory=Counter)
    sizes: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    misfits: int = 0
    unreadable: int = 0
    pictures: dict[str, list[bytes]] = dataclasses.field(default_factory=dict)
    texts: dict[str, list[Text]] = dataclasses.field(default_factory=dict)
    lengths: list[int] = dataclasses.field(default_factory=list)
    places: int = 0
    tokens: Counter[int] = dataclasses.field(default_factory=Counter)
    duplicates: int = 0
    near_duplicates: int = 0
    shared: Counter[str] = dataclasses.field(default_factory=Counter)
