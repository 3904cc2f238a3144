"""Tables of padded columns, and the columns among them that are boxes and points of an image, by their names.

Boxes are four columns of floats, `PREFIX/bbox/ymin`, `xmin`, `ymax` and `xmax`, or one, `PREFIX/bbox`, of entries (ymin, xmin,
ymax, xmax); points are two, `PREFIX/keypoint/y` and `x`, of one or several points an entry. All are shares of the image's sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tpudata.errors import UsageError
from tpudata.input.dataset.fields import Field, Fields

BOX = ("ymin", "xmin", "ymax", "xmax")
POINT = ("y", "x")
# Last parts of the names of features with positions in the image.
_BOX_NAME, _POINT_NAME = "bbox", "keypoint"


class _Coordinates(NamedTuple):
    """Boxes or points: the common part of the names of their columns, and the last part of each.

    Attributes:
        name: name of the boxes or points, such as `PREFIX/bbox`.
        parts: `BOX` or `POINT`, or ("bbox",) for boxes of one column.
    """

    name: str
    parts: tuple[str, ...]

    @property
    def are_points(self) -> bool:
        """Whether the columns are points; otherwise they are boxes."""
        return self.parts == POINT


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns that are padded by one key: entry i of each column belongs to object i.

    Attributes:
        count_name: name of the field with the number of its entries.
        columns: its columns.
        boxes: names of the columns of boxes, four or one; empty without boxes.
        points: names of the columns (y, x) of points.
    """

    count_name: str
    columns: tuple[Field, ...]
    boxes: tuple[str, ...]
    points: tuple[tuple[str, str], ...]

    @property
    def length(self) -> int:
        """Number of entries with padding."""
        return self.columns[0].shape[0]


def find_tables(fields: Fields) -> tuple[Table, ...]:
    """Return the tables that have boxes or points; `check_movable` has raised no error for the fields."""
    groups = _group_columns(fields.inputs)
    tables = []
    # Each table has one field with the number of its entries.
    for count_field in (field for field in fields.inputs if field.counted_key is not None):
        columns = tuple(
            field
            for field in fields.inputs
            if field.padding is not None and field.padding.key == count_field.counted_key
        )
        names = {field.name for field in columns}
        boxes: list[str] = []
        points: list[tuple[str, str]] = []
        for coordinates, group in groups.items():
            # `check_movable` found all columns of a group in one table.
            if names.isdisjoint(field.name for field in group.values()):
                continue
            if coordinates.are_points:
                points.append((group["y"].name, group["x"].name))
            else:
                boxes += [group[part].name for part in coordinates.parts]
        if boxes or points:
            tables.append(Table(count_field.name, columns, tuple(boxes), tuple(points)))
    return tuple(tables)


def check_movable(fields: Fields, option: str) -> None:
    """Check that all boxes and points can move with the image.

    Args:
        fields: fields that are read of each record.
        option: name of the option that moves pixels, for the message.

    Raises:
        UsageError: columns of boxes or points are missing, not padded together, not floats or the label; a table has several sets
            of boxes; or masks are not padded together with their boxes.
    """
    # Name of the boxes by the key of their table.
    boxes_by_table: dict[str, str] = {}
    for coordinates, columns in _group_columns(fields.all).items():
        name, parts = coordinates
        kind = "points" if coordinates.are_points else "boxes"
        # The keys of `pad`; None for a column that is not padded.
        table_keys = {None if field.padding is None else field.padding.key for field in columns.values()}
        shapes = {field.shape for field in columns.values()}
        is_complete = len(columns) == len(parts) and len(shapes) == 1
        # A column for each side of a box has one number an entry; points may have several.
        is_flat = parts != BOX or all(len(shape) == 1 for shape in shapes)
        are_padded_together = len(table_keys) == 1 and None not in table_keys
        # Labels do not move.
        has_label = fields.label in columns.values()
        if not (is_complete and is_flat and are_padded_together) or has_label:
            got = ", ".join(field.name for field in columns.values())
            extra = "" if len(parts) == 1 else f", {', '.join(parts)} of one shape"
            raise UsageError(
                f"{option}: the {kind} {name!r} move with the image if they are lists in one table of pad{extra} (got {got})."
                f" Pass pad={{{_suggest_pattern(coordinates)!r}: N}} for all columns that belong to them, or omit {option}."
            )
        for field in columns.values():
            if field.dtype != "float32":
                raise UsageError(
                    f"{option}: the {kind} {field.name!r} are {field.dtype} (expected float32, shares of the image's height and"
                    f" width). Convert them, or omit {option}."
                )
        (table_key,) = table_keys
        assert table_key is not None
        if coordinates.are_points:
            continue
        if table_key in boxes_by_table:
            raise UsageError(
                f"{option}: the table {table_key!r} of pad has two kinds of boxes, {boxes_by_table[table_key]!r} and {name!r}. Pad"
                " them by separate patterns."
            )
        boxes_by_table[table_key] = name
    # The masks PREFIX/mask belong to the boxes PREFIX/bbox.
    for field in fields.masks:
        prefix = field.name.rpartition("/")[0]
        boxes_name = f"{prefix}/{_BOX_NAME}" if prefix else _BOX_NAME
        mask_key = None if field.padding is None else field.padding.key
        if boxes_name in boxes_by_table.values() and (mask_key is None or boxes_by_table.get(mask_key) != boxes_name):
            pattern = f"{prefix}/*" if prefix else "*"
            raise UsageError(
                f"{option}: the masks {field.name!r} are in another table of pad than the boxes {boxes_name!r}, which are dropped"
                f" with their entries when they leave the image. Pass pad={{{pattern!r}: N}} for both, or omit the masks."
            )


def has_annotations(fields: Fields) -> bool:
    """Return whether there are boxes, points or masks among the fields."""
    return bool(_group_columns(fields.all) or fields.masks)


def _group_columns(fields: Sequence[Field]) -> Mapping[_Coordinates, dict[str, Field]]:
    """Return the columns of each set of boxes or points, by the last part of the column's name, such as "ymin"."""
    groups: dict[_Coordinates, dict[str, Field]] = {}
    for field in fields:
        name = field.feature.name
        parent, _, part = name.rpartition("/")
        # One column of whole boxes.
        if part == _BOX_NAME and field.feature.shape[-1:] == (len(BOX),):
            groups[_Coordinates(name, (_BOX_NAME,))] = {_BOX_NAME: field}
        # A column of one coordinate, such as PREFIX/bbox/ymin.
        for parent_name, parts in ((_BOX_NAME, BOX), (_POINT_NAME, POINT)):
            if parent.rpartition("/")[2] == parent_name and part in parts:
                groups.setdefault(_Coordinates(parent, parts), {})[part] = field
    return groups


def _suggest_pattern(coordinates: _Coordinates) -> str:
    """Return a pattern of `pad` for the columns of boxes or points; with a prefix, it also matches the objects' other columns."""
    prefix = coordinates.name.rpartition("/")[0]
    if prefix:
        return f"{prefix}/*"
    return coordinates.name if len(coordinates.parts) == 1 else f"{coordinates.name}/*"
