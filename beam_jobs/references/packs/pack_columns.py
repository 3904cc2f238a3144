"""The columns of a pack that are Python lists, and the operations on all of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_jobs.references.packs.columns import (
    collapse,
    collapse_features,
    join_columns,
    join_features,
    spread,
    take_values,
)
from beam_jobs.references.reference import NO_FEATURES, SELF_DESCRIBING, Payload


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PackColumns:
    """Columns of n references: each a list of n values, or of one value that all references share.

    Attributes:
        paths: path of each reference's file; [""] if `Pack.root` and the keys make the paths.
        splits: name of each reference's split.
        labels: names of the classes of each reference.
        payloads: payload of each reference: the kind of its bytes.
        crc32s: CRC-32s of the bytes, None where unknown.
        spools: files that bytes were spooled to, empty if they were not.
        feature_names: names of the features of each reference, in the order of the source.
        features: by name, a column of values; the value of a reference without that feature is meaningless.
    """

    paths: list[str] = dataclasses.field(default_factory=lambda: [""])
    splits: list[str] = dataclasses.field(default_factory=lambda: [""])
    labels: list[tuple[str, ...]] = dataclasses.field(default_factory=lambda: [()])
    payloads: list[Payload] = dataclasses.field(default_factory=lambda: [SELF_DESCRIBING])
    crc32s: list[int | None] = dataclasses.field(default_factory=lambda: [None])
    spools: list[str] = dataclasses.field(default_factory=lambda: [""])
    feature_names: list[tuple[str, ...]] = dataclasses.field(default_factory=lambda: [()])
    features: Mapping[str, list[Any]] = dataclasses.field(default_factory=dict)

    def take_fields(self, rows: npt.NDArray[np.intp]) -> dict[str, Any]:
        """Return each column's values at `rows`, by field."""
        fields = {name: getattr(self, name) for name in LIST_FIELDS}
        needs_indices = any(len(column) > 1 for column in itertools.chain(fields.values(), self.features.values()))
        # Constant columns need no indices.
        indices = rows.tolist() if needs_indices else []
        # Features mostly vary from row to row, so their columns are not compared again.
        return {name: collapse(take_values(column, indices)) for name, column in fields.items()} | {
            "features": {name: take_values(column, indices) for name, column in self.features.items()}
        }

    def classes(self) -> dict[str, set[str]]:
        """Return the class names of the references by split, omitting splits without classes."""
        if self.labels == [()]:
            return {}
        names_by_split: dict[str, set[str]] = {}
        for split, names in _zip_rows(self.splits, self.labels):
            if names:
                names_by_split.setdefault(split, set()).update(names)
        return names_by_split

    def entry_texts(self) -> list[tuple[str, tuple[str, ...], str, str]]:
        """Return (split, labels, *`Reference.entry_texts`) of each reference, or a single tuple if all references share it."""
        # A single row if all references share the features.
        features = list(self.list_feature_rows(max(map(len, (self.feature_names, *self.features.values())))))
        rows = _zip_rows(self.payloads, self.crc32s, features)
        texts = [payload.entry_texts(crc32, values) for payload, crc32, values in rows]
        return [(split, labels, *row_texts) for split, labels, row_texts in _zip_rows(self.splits, self.labels, texts)]

    def list_feature_rows(self, count: int) -> Iterator[Mapping[str, Any]]:
        """Return the features of each of `count` references, by name."""
        if self.feature_names == [()]:
            # No reference has features.
            return itertools.repeat(NO_FEATURES, count)
        all_names = tuple(self.features)
        rows = zip(*(spread(column, count) for column in self.features.values()), strict=True)
        features = (dict(zip(all_names, values, strict=True)) for values in rows)
        if self.feature_names == [all_names]:
            # All references have all features.
            return features
        rows_with_names = zip(features, spread(self.feature_names, count), strict=True)
        return ({name: row[name] for name in names} for row, names in rows_with_names)


COLUMNS = tuple(field.name for field in dataclasses.fields(PackColumns))
LIST_FIELDS = tuple(name for name in COLUMNS if name != "features")


def join_fields(packs: Sequence[PackColumns], lengths: Sequence[int]) -> dict[str, Any]:
    """Concatenate the columns of packs; return them by field.

    Args:
        packs: packs that become one, in order.
        lengths: number of references of each pack.
    """
    names = dict.fromkeys(itertools.chain.from_iterable(pack.features for pack in packs))
    features = {name: join_features([pack.features.get(name, [None]) for pack in packs], lengths) for name in names}
    return {name: join_columns([getattr(pack, name) for pack in packs], lengths) for name in LIST_FIELDS} | {
        "features": features
    }


def _zip_rows(*columns: list[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of columns; a single row if every column is one value."""
    count = max(map(len, columns))
    return zip(*(spread(column, count) for column in columns), strict=True)


def split_features(features: list[Mapping[str, Any]]) -> tuple[list[tuple[str, ...]], dict[str, list[Any]]]:
    """Split the features of references into a column of tuples of names, and by name a column of values."""
    if not any(features):
        return [()], {}
    names = collapse(list(map(tuple, features)))
    all_names = dict.fromkeys(itertools.chain.from_iterable(names))
    if len(names) == 1:
        columns = map(list, zip(*(values.values() for values in features), strict=True))
        return names, dict(zip(all_names, map(collapse_features, columns), strict=True))
    return names, {name: collapse_features([values.get(name) for values in features]) for name in all_names}
