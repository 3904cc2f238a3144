"""CelebA: attributes, boxes and landmarks of faces, as text files or as the CSV files of Kaggle.

    list_attr_celeba.txt                   a line with the count, one with the names, and NAME -1 1 ... for each picture
    list_landmarks_align_celeba.txt        the same, with x and y of five points in the aligned pictures
    list_bbox_celeba.txt                   a line with the count, `image_id x_1 y_1 width height`, and NAME 95 71 226 313
    list_landmarks_celeba.txt              points in the original pictures ("in the wild")
    list_eval_partition.txt                NAME 0, 1 or 2: train, validation or test; perhaps in a folder Eval next to Anno

The attributes with 1 are the classes of a picture. Boxes belong to the original pictures, and would lie outside of the aligned
ones (`img_align_celeba`): if a folder has the landmarks of aligned pictures, its boxes and other landmarks are ignored. Landmarks
without a box get the box around all points. Source: https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from beam_jobs.annotations.annotation import Annotated, ImageAnnotation, ObjectAnnotation, make_box, pack_keypoints
from beam_jobs.annotations.files.folders import list_first_entries, pick_file, pick_folder, read_start
from beam_jobs.annotations.files.picture_parts import group_parts
from beam_jobs.annotations.files.rows import TableRow, parse_table_columns, read_table_rows, read_text_lines
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from beam_jobs.annotations.split_lists import NO_LISTS, SplitLists
from tpudata.console.tables import count_text
from tpudata.errors import BadRecordError, SourceError
from tpudata.storage import Entry

FACE = "face"
_PICTURE_COLUMN = "image_id"
_BOX_COLUMNS = ("x_1", "y_1", "width", "height")
_POINTS = ("lefteye", "righteye", "nose", "leftmouth", "rightmouth")
_LANDMARK_COLUMNS = tuple(f"{point}_{axis}" for point in _POINTS for axis in "xy")
# A list of attributes is recognized by one of its 40 names.
_ATTRIBUTE_COLUMN = "Smiling"
_PARTITION_NAMES = ("list_eval_partition.txt", "list_eval_partition.csv")
_COUNT_AND_COLUMNS = re.compile(rb"\d+[ \t]*\r?\n(?P<columns>[^\r\n]+)")
# Visibility of a keypoint, as in `ObjectAnnotation`.
_VISIBLE = 2.0
_ATTRIBUTES_KIND, _BOX_KIND, _LANDMARKS_KIND = "attributes", "boxes", "landmarks"
# Part of the file names of lists about aligned pictures.
_ALIGNED = "align"


@dataclasses.dataclass(frozen=True)
class CelebaForm(AnnotationForm):
    """Lists of CelebA about the same pictures.

    Attributes:
        paths: paths of the lists, at most one of each kind.
        lists: the list of partitions.
    """

    paths: tuple[str, ...]
    lists: SplitLists = NO_LISTS
    title = "CelebA lists"

    @classmethod
    def detect_file(cls, path: str, head: bytes) -> CelebaForm | None:
        """Return the form of a list with columns of CelebA; None for any other file."""
        return cls((path,)) if _find_kind(_find_columns(head)) else None

    @classmethod
    def detect_folder(cls, path: str, entries: Sequence[Entry]) -> CelebaForm | None:
        """Return the form of a folder with lists; None if it has none.

        If the folder has the landmarks of aligned pictures, boxes and other landmarks are ignored.

        Raises:
            SourceError: several lists are of one kind, or the list of partitions is damaged.
        """
        kinds_by_path = {}
        aligned_paths = set()
        for entry in entries:
            if not entry.is_folder and entry.name.startswith("list_") and entry.name.endswith((".txt", ".csv")):
                kind = _find_kind(_find_columns(read_start(entry.path)))
                if kind:
                    kinds_by_path[entry.path] = kind
                if kind == _LANDMARKS_KIND and _ALIGNED in entry.name:
                    aligned_paths.add(entry.path)
        if aligned_paths:
            # Boxes and other landmarks are of the original pictures; attributes are true of both kinds of pictures.
            kinds_by_path = {
                file: kind for file, kind in kinds_by_path.items() if kind == _ATTRIBUTES_KIND or file in aligned_paths
            }
        for repeated_kind, count in Counter(kinds_by_path.values()).items():
            if count > 1:
                files = ", ".join(file for file, kind in kinds_by_path.items() if kind == repeated_kind)
                raise SourceError(f"{path} has several lists of {repeated_kind}: {files}. Keep one.")
        # The list of partitions may be next to the other lists; `find_form` also looks for it in the folder above.
        return cls(tuple(kinds_by_path)).add_folder_facts(entries) if kinds_by_path else None

    def add_folder_facts(self, entries: Sequence[Entry]) -> CelebaForm:
        """Return the form with the list of partitions in the folder or in its subfolder `Eval`, if there is one."""
        partitions_path = pick_file(entries, *_PARTITION_NAMES)
        eval_folder = pick_folder(entries, "Eval")
        if not partitions_path and eval_folder:
            partitions_path = pick_file(list_first_entries(eval_folder), *_PARTITION_NAMES)
        if not partitions_path:
            return self
        # With an empty split for the list, each row gives the number of its split.
        return dataclasses.replace(self, lists=SplitLists.open([(partitions_path, "")]))

    @property
    def split_lists(self) -> SplitLists:
        """The list of partitions."""
        return self.lists

    def list_parts(self) -> Iterable[str]:
        """Return only the first file: all describe the same pictures, so `read` reads them together."""
        return self.paths[:1]

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield the annotation of each picture, in the order of first appearance in the lists; fill `names` first."""
        # The part is the first list, which stands for all of them.
        del part
        for path in self.paths:
            columns = _find_columns(read_start(path))
            kind = _find_kind(columns)
            if kind == _ATTRIBUTES_KIND:
                names.pictures = tuple(column for column in columns if column != _PICTURE_COLUMN)
            else:
                names.objects = (FACE,)
                if kind == _LANDMARKS_KIND:
                    names.keypoints = _POINTS
        for annotated in group_parts(pair for path in self.paths for pair in _read_annotations(path)):
            yield annotated if isinstance(annotated, BadRecordError) else _join_face(annotated)


def _find_columns(head: bytes) -> tuple[str, ...]:
    """Return the columns of a list from its first bytes; a text file may omit the column of the picture."""
    # A text file begins with the number of its rows and a line of columns; without them it is a CSV.
    match = _COUNT_AND_COLUMNS.match(head)
    if match is None:
        return parse_table_columns(head)
    return tuple(match["columns"].decode("utf-8", "replace").split())


def _find_kind(columns: Sequence[str]) -> str:
    """Return the kind of a list from its columns; an empty string if they are not those of CelebA."""
    if _ATTRIBUTE_COLUMN in columns:
        return _ATTRIBUTES_KIND
    if {*_LANDMARK_COLUMNS} <= {*columns}:
        return _LANDMARKS_KIND
    return _BOX_KIND if {*_BOX_COLUMNS, _PICTURE_COLUMN} <= {*columns} else ""


def _read_annotations(path: str) -> Iterator[tuple[str, Annotated]]:
    """Yield (picture's name, annotation) for each row of a list, or (picture's name or unique key, error) for a bad row.

    Args:
        path: path of a list of attributes, boxes or landmarks.
    """
    kind = _find_kind(_find_columns(read_start(path)))
    parse_row = {_ATTRIBUTES_KIND: _parse_attributes, _BOX_KIND: _parse_box, _LANDMARKS_KIND: _parse_landmarks}[kind]
    seen_names: set[str] = set()
    for row in _read_rows(path):
        if isinstance(row, BadRecordError):
            # The message names the line, so no other row has this key.
            yield str(row), row
            continue
        picture_name = row.cells[_PICTURE_COLUMN]
        try:
            if picture_name in seen_names:
                raise ValueError("listed twice")
            seen_names.add(picture_name)
            yield picture_name, parse_row(row)
        except ValueError as error:
            yield picture_name, row.place.make_error(str(error), picture_name)


def _read_rows(path: str) -> Iterator[TableRow | BadRecordError]:
    """Yield the rows of a CSV, or of a text file that begins with its number of rows; SourceError if that number is wrong."""
    if _COUNT_AND_COLUMNS.match(read_start(path)) is None:
        yield from read_table_rows(path)
        return
    lines = read_text_lines(path)
    # No count has more than 20 digits, and int() rejects strings of over 4,300 digits.
    stated_count = int(next(lines).text[:20])
    columns = [name for name in next(lines).text.split() if name != _PICTURE_COLUMN]
    row_count = 0
    for place, text in lines:
        row_count += 1
        cells = text.split()
        if len(cells) == len(columns) + 1:
            yield TableRow(place, dict(zip((_PICTURE_COLUMN, *columns), cells, strict=True)))
        else:
            yield place.make_error(f"{count_text(len(cells), 'cell')} (expected a picture and {len(columns)} values)")
    if row_count != stated_count:
        raise SourceError(
            f"{path}: its first line says {stated_count:,} pictures, and it has {row_count:,}. Download it again."
        )


def _parse_attributes(row: TableRow) -> ImageAnnotation:
    """Return the annotation of a row: attributes that are 1 are classes; ValueError if an attribute is not 1, -1 or 0."""
    values = {name: cell for name, cell in row.cells.items() if name != _PICTURE_COLUMN}
    invalid_name = next((name for name, cell in values.items() if cell not in ("1", "-1", "0")), None)
    if invalid_name is not None:
        raise ValueError(f"attribute {invalid_name} is {values[invalid_name]!r} (expected 1, 0 or -1)")
    return ImageAnnotation(
        row.cells[_PICTURE_COLUMN], row.place, classes=tuple(name for name, cell in values.items() if cell == "1")
    )


def _parse_box(row: TableRow) -> ImageAnnotation:
    """Return the annotation of a row of boxes: a face in a box."""
    x, y, width, height = map(row.read_number, _BOX_COLUMNS)
    return ImageAnnotation(
        row.cells[_PICTURE_COLUMN], row.place, objects=(ObjectAnnotation(make_box(x, y, width, height), FACE),)
    )


def _parse_landmarks(row: TableRow) -> ImageAnnotation:
    """Return the annotation of a row of landmarks: a face with five keypoints, in the smallest box that holds them."""
    numbers = [row.read_number(column) for column in _LANDMARK_COLUMNS]
    xs, ys = numbers[::2], numbers[1::2]
    points = [number for x, y in zip(xs, ys, strict=True) for number in (x, y, _VISIBLE)]
    face = ObjectAnnotation((min(ys), min(xs), max(ys), max(xs)), FACE, keypoints=pack_keypoints(points))
    return ImageAnnotation(row.cells[_PICTURE_COLUMN], row.place, objects=(face,))


def _join_face(annotation: ImageAnnotation) -> ImageAnnotation:
    """Return an annotation whose face has both the box and the landmarks, which come from two lists as two objects.

    An annotation with fewer than two objects is returned unchanged.
    """
    if len(annotation.objects) < 2:
        return annotation
    boxed_face = next((face for face in annotation.objects if not face.keypoints), annotation.objects[0])
    keypoints = next((face.keypoints for face in annotation.objects if face.keypoints), b"")
    return annotation._replace(objects=(boxed_face._replace(keypoints=keypoints),))
