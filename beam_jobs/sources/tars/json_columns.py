"""Columns of samples: the keys of their JSON, as in a JSONL list, but with kinds that the first samples determine."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from beam_jobs.sources.lists.columns import ColumnReader, make_features
from beam_jobs.sources.lists.place import RowPlace
from beam_jobs.sources.lists.roles import Roles
from beam_jobs.sources.tars.samples import LABEL, MemberContent, parse_json_object
from beam_jobs.values.column_kinds import INT, LIST_KINDS, STR, ColumnKind, get_item_kind
from tpudata.errors import BadRecordError
from tpudata.format import Feature


class JsonColumns(NamedTuple):
    """The columns in the JSON of samples.

    Attributes:
        kinds: name and kind of each column.
    """

    kinds: tuple[tuple[str, ColumnKind], ...] = ()

    @classmethod
    def infer(cls, contents: Iterable[MemberContent], declared: Mapping[str, ColumnKind], path: str) -> JsonColumns:
        """Return the columns in the JSON of some samples: all keys except the label and keys with nested values.

        Args:
            contents: the JSON of the samples.
            declared: kinds by column, which take precedence.
            path: path of the tar, for messages.

        Raises:
            SourceError: no kind stores all values of a column unchanged, or a value does not fit its declared kind.
            UsageError: there is no column of a declared name.
        """
        # Declared kinds of lists are not checked here: a record with other values is rejected when it is converted.
        declared_scalars = {
            name: column_kind for name, column_kind in declared.items() if column_kind.kind not in LIST_KINDS
        }
        # The label is not a column. Samples have no keys for a path or a split.
        reader = ColumnReader(declared_scalars, Roles(path="", label=LABEL, split=None), has_types=True)
        nested_names: set[str] = set()
        for index, content in enumerate(contents):
            try:
                values = parse_json_object(content, path)
            except BadRecordError:
                # The listing rejects this sample.
                continue
            nested_names |= {name for name, value in values.items() if not _is_flat(value)}
            flat_values = {name: value for name, value in values.items() if name not in nested_names}
            # The sample's index stands in for a line: it decides which of two places is earlier.
            reader.add(flat_values, _SamplePlace(list_index=0, line=index, path=f"{path}/{content.member.name}"))
        # Remove columns that had flat values in samples before their first nested value.
        for name in nested_names:
            reader.facts.columns.pop(name, None)
        return cls(tuple(reader.facts.find_kinds(declared).items()))

    @property
    def features(self) -> tuple[Feature, ...]:
        """Schema of the columns."""
        return make_features(dict(self.kinds))

    def select(self, names: Iterable[str]) -> JsonColumns:
        """Return the columns of these names."""
        selected_names = set(names)
        return JsonColumns(tuple((name, kind) for name, kind in self.kinds if name in selected_names))

    def read(self, values: Mapping[str, Any], origin: str) -> dict[str, Any]:
        """Return the value of each column in a sample; converters check that values are of the columns' kinds.

        Raises:
            BadRecordError: an integer is missing.
        """
        return {name: _convert_value(name, column_kind, values.get(name), origin) for name, column_kind in self.kinds}


class _SamplePlace(RowPlace):
    """Place of a sample; `path` is the path of its JSON in the tar."""

    def __str__(self) -> str:
        return self.path


NO_COLUMNS = JsonColumns()


def _is_flat(value: Any) -> bool:
    """Return whether a value is a scalar or null, or a list of scalars without null."""
    if isinstance(value, list):
        return all(element is not None and _is_scalar_or_null(element) for element in value)
    return _is_scalar_or_null(value)


def _is_scalar_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _convert_value(name: str, column_kind: ColumnKind, value: Any, origin: str) -> Any:
    """Return what a column stores for a value of a sample's JSON; BadRecordError if an integer is missing.

    Args:
        name: name of the column, for the message.
        column_kind: kind of the column or, for an item of a list, of the items.
        value: the value; None or an empty string if it is missing.
        origin: the sample, for the message.
    """
    if column_kind.kind in LIST_KINDS:
        if not isinstance(value, list):
            # The converter rejects a scalar, also 0 and false.
            return [] if value is None or value == "" else value
        # A null among numbers becomes an empty string, which the converter rejects.
        item_kind = ColumnKind(get_item_kind(column_kind.kind), missing="")
        return [_convert_value(name, item_kind, item, origin) for item in value]
    if value is None or value == "":
        if column_kind.missing is not None:
            return column_kind.missing
        if column_kind.kind == INT:
            raise BadRecordError(
                origin,
                f"column {name!r} has no value; pass --column-types {name}=int=0 to store 0 there, or another number",
            )
        return "" if column_kind.kind == STR else math.nan
    if column_kind.kind == STR and not isinstance(value, str) and _is_scalar_or_null(value):
        return json.dumps(value)
    # true and false are 1 and 0, as in lists.
    return int(value) if isinstance(value, bool) else value
