"""Check of the annotations of a record: boxes lie inside the picture, and lists that belong together are equally long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tpudata.console.tables import count_text
from tpudata.format.example.wire import Value
from tpudata.format.manifest.annotation_features import Box, ObjectTable, count_entries, object_tables
from tpudata.format.manifest.features import Feature
from tpudata.format.verification.defect import BOXES, LISTS, Problem

# Classes of a picture: numbers and names.
_CLASSES = "image/class/"


class AnnotationCheck:
    """Checks the annotations of records whose features have the kinds and shapes of the schema.

    Args:
        features: the schema.

    Attributes:
        is_needed: whether records have annotations to check.
    """

    def __init__(self, features: Iterable[Feature]) -> None:
        features = tuple(features)
        self._tables = object_tables(features)
        picture_classes = tuple(f for f in features if f.name.startswith(_CLASSES) and f.shape == (None,))
        # Lists that must be equally long: the lists of each table, and the lists of a picture's classes.
        groups = [*((table.prefix, table.columns) for table in self._tables), (_CLASSES.rstrip("/"), picture_classes)]
        # A single list has no other list to be compared with.
        self._groups = [(prefix, columns) for prefix, columns in groups if len(columns) > 1]
        self.is_needed = bool(self._groups or self._tables)

    def find_problems(self, example: Mapping[str, Value]) -> Iterator[Problem]:
        """Yield the problems of a record's annotations."""
        uneven_prefixes = set()
        for prefix, columns in self._groups:
            lengths_by_name = {
                feature.name: count_entries(feature, example.get(feature.name, ())) for feature in columns
            }
            if len({*lengths_by_name.values()}) > 1:
                uneven_prefixes.add(prefix)
                yield Problem(_describe_lengths(prefix, lengths_by_name), LISTS)
        for table in self._tables:
            # `boxes` needs lists of one length.
            if table.prefix not in uneven_prefixes:
                yield from _find_box_problems(table, example)


def _describe_lengths(prefix: str, lengths_by_name: Mapping[str, int]) -> str:
    """Return the problem of lists of different lengths, in words: the first list, and the first one that differs from it.

    Args:
        prefix: common beginning of the lists' names, such as `image/object`; may be empty.
        lengths_by_name: number of entries of each list.
    """
    (first_name, first_length), *others = lengths_by_name.items()
    other_name, other_length = next((name, length) for name, length in others if length != first_length)
    prefix_text = f" of {prefix!r}" if prefix else ""
    difference = f"{first_name!r} has {first_length}, {other_name!r} has {other_length}"
    return f"lists{prefix_text} that belong together differ in length: {difference}"


def _find_box_problems(table: ObjectTable, example: Mapping[str, Value]) -> Iterator[Problem]:
    """Yield at most one problem, for all boxes that have no area or are not inside the picture, with the edges of the first one."""
    boxes = table.boxes(example)
    wrong_indices = [index for index, box in enumerate(boxes) if not _is_inside(box)]
    if wrong_indices:
        first_index = wrong_indices[0]
        name = "/".join(filter(None, (table.prefix, "bbox")))
        edges = "ymin {:g}, xmin {:g}, ymax {:g}, xmax {:g}".format(*boxes[first_index])
        more = f", and {count_text(len(wrong_indices) - 1, 'more box', 'more boxes')}" if len(wrong_indices) > 1 else ""
        yield Problem(
            f"box {first_index} of {name!r} is {edges}{more} (expected edges from 0 to 1, ymin below ymax, xmin below xmax)",
            BOXES,
        )


def _is_inside(box: Box) -> bool:
    """Return whether a box, in fractions of the picture's sides, has an area and lies inside the picture."""
    ymin, xmin, ymax, xmax = box
    return 0 <= ymin < ymax <= 1 and 0 <= xmin < xmax <= 1
