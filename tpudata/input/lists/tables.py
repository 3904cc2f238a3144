"""Tables of padded columns, and which of them are boxes and points of an image: known by their names.

Boxes are four columns of floats, `PREFIX/bbox/ymin`, `xmin`, `ymax` and `xmax`, or one, `PREFIX/bbox`, of entries (ymin, xmin,
ymax, xmax); points are two, `PREFIX/keypoint/y` and `x`, of one or several points an entry. All are shares of the image's sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tpudata.errors import UsageError
from tpudata.input.dataset.fields import Field, Fields

BOX = ("ymin", "xmin", "ymax", "xmax")
POINT = ("y", "x")
# Last parts of the names of features with positions in the image.
_BOX_NAME, _POINT_NAME = "bbox", "keypoint"


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns that are padded by one key: entry i of each of them belongs together.

    Attributes:
        count: name of the number of its entries.
        columns: its columns.
        boxes: names of the columns of boxes, four or one; empty without boxes.
        points: names of the columns (y, x) of points.
    """

    count: str
    columns: tuple[Field, ...]
    boxes: tuple[str, ...]
    points: tuple[tuple[str, str], ...]

    @property
    def length(self) -> int:
        """Number of entries with padding."""
        return self.columns[0].shape[0]


def find_tables(fields: Fields) -> tuple[Table, ...]:
    """Return the tables that have boxes or points, of fields for which `check_movable` raised no error."""
    groups = _group_columns(fields.inputs)
    tables = []
    for count in (field for field in fields.inputs if field.counts is not None):
        columns = tuple(f for f in fields.inputs if f.padding is not None and f.padding.table == count.counts)
        names = {field.name for field in columns}
        # Groups of boxes and points in this table.
        table_groups = {key: group for key, group in groups.items() if names & {field.name for field in group.values()}}
        boxes = [group[part].name for (_, parts), group in table_groups.items() if parts != POINT for part in parts]
        points = [(group["y"].name, group["x"].name) for (_, parts), group in table_groups.items() if parts == POINT]
        if boxes or points:
            tables.append(Table(count.name, columns, tuple(boxes), tuple(points)))
    return tuple(tables)


def check_movable(fields: Fields, option: str) -> None:
    """Check that all boxes and points can move with the image.

    Args:
        fields: fields that are read of each record.
        option: name of the option that moves pixels, for the message.

    Raises:
        UsageError: columns of boxes or points that are missing, not padded together or no floats; several boxes in a table; masks
            that are not padded together with their boxes.
    """
    boxes: dict[str, str] = {}
    for (parent, parts), columns in _group_columns(fields.all).items():
        kind = "points" if parts == POINT else "boxes"
        tables = {None if field.padding is None else field.padding.table for field in columns.values()}
        shapes = {field.shape for field in columns.values()}
        is_whole = len(columns) == len(parts) and len(shapes) == 1 and (parts != BOX or {*map(len, shapes)} == {1})
        if not is_whole or len(tables) > 1 or None in tables or fields.label in columns.values():
            got = ", ".join(field.name for field in columns.values())
            extra = "" if len(parts) == 1 else f", {', '.join(parts)} of one shape"
            raise UsageError(
                f"{option}: the {kind} {parent!r} move with the image if they are lists in one table of pad{extra} (got {got})."
                f" Pass pad={{{_suggest_pattern(parent, parts)!r}: N}} for all columns that belong to them, or omit {option}."
            )
        for field in columns.values():
            if field.dtype != "float32":
                raise UsageError(
                    f"{option}: the {kind} {field.name!r} are {field.dtype} (expected float32, shares of the image's height and"
                    f" width). Convert them, or omit {option}."
                )
        (table,) = tables
        if kind == "boxes" and table in boxes:
            raise UsageError(
                f"{option}: the table {table!r} of pad has two kinds of boxes, {boxes[table]!r} and {parent!r}. Pad them by"
                " separate patterns."
            )
        if kind == "boxes" and table is not None:
            boxes[table] = parent
    for field in fields.masks:
        parent = field.name.rpartition("/")[0]
        own_boxes = f"{parent}/{_BOX_NAME}" if parent else _BOX_NAME
        if own_boxes in boxes.values() and (field.padding is None or boxes.get(field.padding.table) != own_boxes):
            raise UsageError(
                f"{option}: the masks {field.name!r} are in another table of pad than the boxes {own_boxes!r}, of which those that"
                f" leave the image are dropped. Pass pad={{{_suggest_pattern(own_boxes, (_BOX_NAME,))!r}: N}} for both, or omit the"
                " masks."
            )


def has_places(fields: Fields) -> bool:
    """Return whether there are boxes, points or masks."""
    return bool(_group_columns(fields.all) or fields.masks)


def _group_columns(fields: Sequence[Field]) -> Mapping[tuple[str, tuple[str, ...]], dict[str, Field]]:
    """Return the columns of boxes and points: by their common name and the names of their parts, the columns by part."""
    groups: dict[tuple[str, tuple[str, ...]], dict[str, Field]] = {}
    for field in fields:
        name = field.feature.name
        parent, _, part = name.rpartition("/")
        if part == _BOX_NAME and field.feature.shape[-1:] == (len(BOX),):
            groups[name, (_BOX_NAME,)] = {_BOX_NAME: field}
        for kind, parts in ((_BOX_NAME, BOX), (_POINT_NAME, POINT)):
            if parent.rpartition("/")[2] == kind and part in parts:
                groups.setdefault((parent, parts), {})[part] = field
    return groups


def _suggest_pattern(parent: str, parts: tuple[str, ...]) -> str:
    """Return a pattern for boxes or points and what belongs to them."""
    above = parent.rpartition("/")[0]
    return f"{above}/*" if above else parent if len(parts) == 1 else f"{parent}/*"
