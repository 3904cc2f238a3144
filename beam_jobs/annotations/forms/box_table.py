"""A CSV with a row for each box, as many tutorials and tools write it.

    filename,width,height,class,xmin,ymin,xmax,ymax
    raccoon-1.jpg,650,417,raccoon,81,88,522,408

Coordinates are pixels: the edges of the box. The columns `width` and `height` may be missing. A row whose class and coordinates
are all empty is a picture without objects. Columns of other names are ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from beam_jobs.annotations.annotation import Annotated, ImageAnnotation, ObjectAnnotation
from beam_jobs.annotations.files.picture_parts import group_parts
from beam_jobs.annotations.files.rows import TableRow, parse_table_columns, read_table_rows
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from tpudata.errors import BadRecordError

_EDGES = ("ymin", "xmin", "ymax", "xmax")
# Names of the columns of pictures and classes, in order of precedence.
_PICTURE_COLUMNS = ("filename", "file_name", "image", "image_path", "path")
_CLASS_COLUMNS = ("class", "label", "category", "class_name", "name")


@dataclasses.dataclass(frozen=True)
class BoxTableForm(AnnotationForm):
    """A CSV of boxes.

    Attributes:
        path: path of the CSV.
        picture_column: column of the picture's name.
        class_column: column of the class.
    """

    path: str
    picture_column: str
    class_column: str
    title = "CSV of boxes (filename, class, xmin, ymin, xmax, ymax)"

    @classmethod
    def detect_file(cls, path: str, head: bytes) -> BoxTableForm | None:
        """Return the form if the CSV has columns for the picture, the class and the four edges, else None."""
        columns = {*parse_table_columns(head)}
        picture_column = next((column for column in _PICTURE_COLUMNS if column in columns), "")
        class_column = next((column for column in _CLASS_COLUMNS if column in columns), "")
        if not (picture_column and class_column and {*_EDGES} <= columns):
            return None
        return cls(path, picture_column, class_column)

    def list_parts(self) -> Iterable[str]:
        """Return the file, the only part."""
        return (self.path,)

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield the boxes of each picture, in the order of first appearance."""
        del names
        return group_parts(self._read_annotations(part))

    def _read_annotations(self, path: str) -> Iterator[tuple[str, Annotated]]:
        """Yield (picture, annotation) for each row, with one box or none, or (picture or unique key, error) for a bad row."""
        for row in read_table_rows(path):
            if isinstance(row, BadRecordError):
                # The message names the line, so no other row has this key.
                yield str(row), row
                continue
            picture = row.cells[self.picture_column]
            try:
                yield picture, self._parse_annotation(row)
            except (ValueError, OverflowError) as error:
                yield picture, row.place.make_error(str(error), picture)

    def _parse_annotation(self, row: TableRow) -> ImageAnnotation:
        """Return the annotation of a row; ValueError if it is invalid, OverflowError if a side is infinite."""
        width, height = (int(row.read_number(side)) if row.cells.get(side) else 0 for side in ("width", "height"))
        annotation = ImageAnnotation(row.cells[self.picture_column], row.place, width, height)
        # A row without class and edges is a picture without objects.
        if not any(row.cells[column] for column in (self.class_column, *_EDGES)):
            return annotation
        if not row.cells[self.class_column]:
            raise ValueError("a box without class")
        ymin, xmin, ymax, xmax = map(row.read_number, _EDGES)
        # A box of pixels is never a part of the first pixel.
        if max(ymax, xmax) <= 1 and not all(edge.is_integer() for edge in (ymin, xmin, ymax, xmax)):
            raise ValueError("edges from 0 to 1 (expected pixels); multiply fractions by the width and the height")
        return annotation._replace(objects=(ObjectAnnotation((ymin, xmin, ymax, xmax), row.cells[self.class_column]),))
