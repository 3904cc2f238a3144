"""Open Images: CSV files of boxes, or of classes of whole pictures, with class-descriptions next to them.

    ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside
    000002b66c9c498e,xclick,/m/01g317,1,0.012500,0.195312,0.148438,0.587500,0,1,0,0,0

Coordinates are fractions of the picture's sides. A box of a group (IsGroupOf) is a crowd. In a file without the column XMin a row
is a class of the whole picture. It counts if its confidence is above 0; 0 means that the class was checked and is absent. The
names of classes are those of class-descriptions-boxable.csv or a similar file in the same folder (`/m/011k07,Tortoise`); without
one they are the LabelNames.
Source: https://storage.googleapis.com/openimages/web/download_v7.html.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from beam_jobs.annotations.annotation import Annotated, ImageAnnotation, ObjectAnnotation
from beam_jobs.annotations.files.folders import list_first_entries, read_start
from beam_jobs.annotations.files.picture_parts import group_parts
from beam_jobs.annotations.files.rows import TableRow, parse_table_columns, read_table_cells, read_table_rows
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from beam_jobs.file_names import find_parent
from tpudata.errors import BadRecordError, SourceError
from tpudata.storage import Entry

# Parts of the names of class-description files: of all, and of those for boxes.
_DESCRIPTIONS = "class-descriptions"
_BOXABLE = "boxable"
# IsGroupOf of a box for which it was not checked.
_UNKNOWN = "-1"


@dataclasses.dataclass(frozen=True)
class OpenImagesForm(AnnotationForm):
    """CSV files of Open Images.

    Attributes:
        paths: paths of the CSV files, which have different splits.
        descriptions_path: path of the class-description file; empty if there is none.
    """

    paths: tuple[str, ...]
    descriptions_path: str
    title = "Open Images CSV"

    @classmethod
    def detect_file(cls, path: str, head: bytes) -> OpenImagesForm | None:
        """Return the form of a CSV with the columns ImageID and LabelName; None for any other file."""
        if not _is_open_images(head):
            return None
        return cls(
            (path,), _find_descriptions(list_first_entries(find_parent(path) or "."), has_boxes=_has_boxes(head))
        )

    @classmethod
    def detect_folder(cls, path: str, entries: Sequence[Entry]) -> OpenImagesForm | None:
        """Return the form of a folder's CSVs of boxes or, if there are none, of its CSVs of classes; None without either."""
        del path
        heads_by_path = {entry.path: read_start(entry.path) for entry in entries if _is_csv(entry)}
        paths = [file for file, head in heads_by_path.items() if _is_open_images(head)]
        if not paths:
            return None
        box_paths = [file for file in paths if _has_boxes(heads_by_path[file])]
        return cls(tuple(box_paths or paths), _find_descriptions(entries, has_boxes=bool(box_paths)))

    def list_parts(self) -> Iterable[str]:
        """Return the files. Each has the pictures of a different split."""
        return self.paths

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield the annotation of each picture, whose name has no extension, in the order of first appearance; fill `names` with
        all classes of the descriptions.
        """
        names_by_label = _read_class_names(self.descriptions_path) if self.descriptions_path else {}
        has_boxes = _has_boxes(read_start(part))
        if has_boxes:
            names.objects = tuple(names_by_label.values())
        else:
            names.pictures = tuple(names_by_label.values())
        return group_parts(_read_annotations(part, names_by_label, has_boxes=has_boxes))


def _read_annotations(path: str, names_by_label: dict[str, str], *, has_boxes: bool) -> Iterator[tuple[str, Annotated]]:
    """Yield (picture, annotation) for each row, or (picture or unique key, error) for a bad row."""
    parse_row = _parse_box if has_boxes else _parse_class
    for row in read_table_rows(path):
        if isinstance(row, BadRecordError):
            # The message names the line, so no other row has this key.
            yield str(row), row
            continue
        picture = row.cells["ImageID"]
        try:
            yield picture, parse_row(row, names_by_label)
        except ValueError as error:
            yield picture, row.place.make_error(str(error), picture)


def _parse_box(row: TableRow, names_by_label: dict[str, str]) -> ImageAnnotation:
    """Return the annotation of a row of boxes: one object, a crowd if IsGroupOf is 1, with edges in fractions of the picture."""
    box = (row.read_number("YMin"), row.read_number("XMin"), row.read_number("YMax"), row.read_number("XMax"))
    is_group = row.cells.get("IsGroupOf")
    is_crowd = None if is_group in (None, _UNKNOWN) else is_group == "1"
    annotated_object = ObjectAnnotation(box, _find_class_name(row, names_by_label), is_crowd)
    return ImageAnnotation(row.cells["ImageID"], row.place, is_normalized=True, objects=(annotated_object,))


def _parse_class(row: TableRow, names_by_label: dict[str, str]) -> ImageAnnotation:
    """Return the annotation of a row of classes: one class, or none if the picture does not show it."""
    # A confidence of 0 stands for a class that was looked for and is absent.
    is_present = "Confidence" not in row.cells or row.read_number("Confidence") > 0
    return ImageAnnotation(
        row.cells["ImageID"], row.place, classes=(_find_class_name(row, names_by_label),) if is_present else ()
    )


def _find_class_name(row: TableRow, names_by_label: dict[str, str]) -> str:
    """Return the name of a row's class in the class descriptions, or without descriptions the LabelName itself.

    Raises:
        ValueError: the descriptions lack the LabelName.
    """
    label = row.cells["LabelName"]
    if names_by_label and label not in names_by_label:
        raise ValueError(f"LabelName {label!r} is not in the class descriptions")
    return names_by_label.get(label, label)


def _is_csv(entry: Entry) -> bool:
    return not entry.is_folder and entry.name.endswith(".csv")


def _is_open_images(head: bytes) -> bool:
    return {"ImageID", "LabelName"} <= {*parse_table_columns(head)}


def _has_boxes(head: bytes) -> bool:
    return "XMin" in parse_table_columns(head)


def _find_descriptions(entries: Iterable[Entry], *, has_boxes: bool) -> str:
    """Return the path of a class-description file; an empty string if there is none.

    With `has_boxes`, a file for boxes is preferred; without it, a file for whole pictures.
    """
    files = [entry for entry in entries if _DESCRIPTIONS in entry.name and _is_csv(entry)]
    preferred_files = [entry for entry in files if (_BOXABLE in entry.name) == has_boxes]
    return next((entry.path for entry in [*preferred_files, *files]), "")


def _read_class_names(path: str) -> dict[str, str]:
    """Return {LabelName: class name}, in the order of the file. Labels that share a name are named by the LabelName itself.

    Raises:
        SourceError: a row is not a label and a name, or a label has two names.
    """
    names_by_label: dict[str, str] = {}
    for place, cells in read_table_cells(path):
        if cells[0] == "LabelName":
            continue
        if len(cells) != 2 or names_by_label.get(cells[0], cells[1]) != cells[1]:
            raise SourceError(
                f"{path} line {place.line}: no label and name, or the label comes twice: {', '.join(cells)}. Fix the row."
            )
        names_by_label[cells[0]] = cells[1]
    label_counts = Counter(names_by_label.values())
    return {label: name if label_counts[name] == 1 else label for label, name in names_by_label.items()}
