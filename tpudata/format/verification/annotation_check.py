"""Check of the annotations of a record: boxes inside of the picture, and lists that belong together equally long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tpudata.console.tables import count_text
from tpudata.format.example.wire import Value
from tpudata.format.manifest.annotation_features import Box, ObjectTable, entries, object_tables
from tpudata.format.manifest.features import Feature
from tpudata.format.verification.defect import BOXES, LISTS, Problem

# Classes of a picture: numbers and names.
_CLASSES = "image/class/"


class AnnotationCheck:
    """Checks the annotations of records whose features have the kinds and shapes of the schema.

    Attributes:
        has_any: whether records have annotations to check.

    Args:
        features: the schema.
    """

    def __init__(self, features: Iterable[Feature]) -> None:
        features = tuple(features)
        self._tables = object_tables(features)
        classes = tuple(f for f in features if f.name.startswith(_CLASSES) and f.shape == (None,))
        groups = [*((table.prefix, table.columns) for table in self._tables), (_CLASSES.rstrip("/"), classes)]
        self._groups = [(prefix, columns) for prefix, columns in groups if len(columns) > 1]
        self.has_any = bool(self._groups or self._tables)

    def problems(self, example: Mapping[str, Value]) -> Iterator[Problem]:
        """Yield the problems of a record."""
        differing = set()
        for prefix, columns in self._groups:
            sizes = {feature.name: entries(feature, example.get(feature.name, ())) for feature in columns}
            if len({*sizes.values()}) > 1:
                differing.add(prefix)
                yield Problem(_describe_lengths(prefix, sizes), LISTS)
        for table in self._tables:
            if table.prefix not in differing:
                yield from _find_box_problems(table, example)


def _describe_lengths(prefix: str, sizes: Mapping[str, int]) -> str:
    """Describe lists that differ in length by the first two."""
    (first, size), *others = sizes.items()
    other, different = next(name_and_size for name_and_size in others if name_and_size[1] != size)
    table = f" of {prefix!r}" if prefix else ""
    return f"lists{table} that belong together differ in length: {first!r} has {size}, {other!r} has {different}"


def _find_box_problems(table: ObjectTable, example: Mapping[str, Value]) -> Iterator[Problem]:
    """Yield a problem if boxes have no area or are not inside the picture."""
    boxes = table.boxes(example)
    bad = [index for index, box in enumerate(boxes) if not _is_inside(box)]
    if bad:
        name = "/".join(filter(None, (table.prefix, "bbox")))
        edges = "ymin {:g}, xmin {:g}, ymax {:g}, xmax {:g}".format(*boxes[bad[0]])
        more = f", and {count_text(len(bad) - 1, 'more box', 'more boxes')}" if len(bad) > 1 else ""
        yield Problem(
            f"box {bad[0]} of {name!r} is {edges}{more} (expected edges from 0 to 1, ymin below ymax, xmin below xmax)",
            BOXES,
        )


def _is_inside(box: Box) -> bool:
    ymin, xmin, ymax, xmax = box
    return 0 <= ymin < ymax <= 1 and 0 <= xmin < xmax <= 1
