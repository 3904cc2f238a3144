"""YOLO: a text file for each picture, with a line for each object.

    0 0.481719 0.634028 0.690625 0.713278            class number, centre x and y, width, height
    0 0.681 0.485 0.670 0.487 0.676 0.487            class number, x and y of each point of a polygon
    0 0.48 0.63 0.69 0.71 0.5 0.5 2 0.6 0.5 1        a box and keypoints, with kpt_shape in data.yaml

Coordinates are fractions of the picture's sides. A file is next to its picture, or in a folder `labels` where the picture is in
`images`. An empty file is a picture without objects. The names of classes come from data.yaml (`names: [...]` or
`names: {0: ..., 1: ...}`), classes.txt or obj.names (a line each), in the folder or in one of the two above it.
Source: https://docs.ultralytics.com/datasets/ (detect, segment and pose).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import yaml

from beam_jobs.annotations.annotation import (
    Annotated,
    ImageAnnotation,
    ObjectAnnotation,
    Place,
    pack_keypoints,
)
from beam_jobs.annotations.files.folders import (
    find_first_file,
    list_first_entries,
    list_paths_below,
    pick_folder,
    read_start,
)
from beam_jobs.annotations.files.rows import parse_number, read_text_lines
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from beam_jobs.annotations.segmentation import Polygons, pack_polygon
from beam_jobs.file_names import find_parent
from beam_jobs.references.labels import is_below
from tpudata.console.tables import count_text
from tpudata.error_text.lines import one_line
from tpudata.errors import SourceError
from tpudata.storage import Entry, storage_for

_SUFFIXES = (".txt",)
_NAME_FILES = ("classes.txt", "obj.names", "_darknet.labels")
# Other text files that lie among the annotations: lists of pictures, names of classes, and readme files.
_OTHER_FILES = (
    "classes.txt",
    "train.txt",
    "val.txt",
    "test.txt",
    "README.txt",
    "README.dataset.txt",
    "README.roboflow.txt",
)
_NUMBER = rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_HEAD = re.compile(rb"\s*\d+(?:[ \t]+%s){4,}[ \t]*(?:\r?\n|\Z)" % _NUMBER)
_BOX_NUMBERS = 4
# x and y of 3 points.
_MIN_POLYGON_NUMBERS = 6
# Number of folders that may have the names of classes: that of the text files, and two above it.
_LEVELS = 3


class _Names(NamedTuple):
    """Classes and keypoints of objects, from the files next to the annotations.

    Attributes:
        classes: names of the classes.
        keypoint_count: number of keypoints of each object.
        numbers_per_keypoint: how many numbers a keypoint has: 2 for x and y, or 3 with a visibility.
    """

    classes: tuple[str, ...]
    keypoint_count: int = 0
    numbers_per_keypoint: int = 3


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Loader of YAML that reads no booleans: `yes`, `no`, `on` and `off`, which YAML 1.1 has for true and false, are names."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        character: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
        for character, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@dataclasses.dataclass(frozen=True)
class YoloForm(AnnotationForm):
    """Text files of YOLO.

    Attributes:
        path: path of the folder that the text files are below.
        names: class names and keypoints, from files in the folder or in one of the two above it.
    """

    path: str
    names: _Names
    title = "YOLO text files"

    @classmethod
    def detect_folder(cls, path: str, entries: Sequence[Entry]) -> YoloForm | None:
        """Return the form of a folder if the first text file in it, or in its folder `labels`, is of YOLO; None otherwise.

        Raises:
            SourceError: no file gives the names of the classes, or data.yaml is damaged.
        """
        folder = pick_folder(entries, "labels") or path
        first_file = find_first_file(folder, _SUFFIXES, _OTHER_FILES)
        return cls(folder, _find_names(folder)) if first_file and _HEAD.match(read_start(first_file)) else None

    def list_parts(self) -> Iterable[str]:
        """Yield the text files."""
        for path, relative_path in list_paths_below(self.path, _SUFFIXES):
            if relative_path.rpartition("/")[2] not in _OTHER_FILES:
                yield path

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield the annotation of a file's picture, whose name has no extension, or an error if a line is invalid.

        Fills `names` from `self.names`, which are those of all files.
        """
        names.objects = tuple(dict.fromkeys(self.names.classes))
        # YOLO gives keypoints no names, so they are named by their numbers.
        names.keypoints = tuple(map(str, range(self.names.keypoint_count)))
        picture = _find_picture_name(part.removeprefix(f"{self.path.rstrip('/')}/"))
        objects = []
        for place, text in read_text_lines(part):
            try:
                objects.append(_parse_object(text.split(), self.names))
            except ValueError as error:
                yield place.make_error(str(error), picture)
                return
        yield ImageAnnotation(picture, Place(part), is_normalized=True, objects=tuple(objects))


def _find_picture_name(relative_path: str) -> str:
    """Return the name of a file's picture, without extension: `train/images/0001` for `train/labels/0001.txt`."""
    *folders, name = relative_path[: -len(".txt")].split("/")
    # As in YOLO, the last of several folders `labels` stands for `images`.
    label_levels = [level for level, folder in enumerate(folders) if folder == "labels"]
    if label_levels:
        folders[label_levels[-1]] = "images"
    return "/".join((*folders, name))


def _parse_object(cells: list[str], names: _Names) -> ObjectAnnotation:
    """Return the object of a line: a box, a box with keypoints, or a polygon; ValueError if it is invalid."""
    class_number = cells[0]
    if not class_number.isdecimal() or not is_below(class_number.lstrip("0") or "0", len(names.classes)):
        raise ValueError(
            f"unknown class number {class_number[:80]!r}; {count_text(len(names.classes), 'class', 'classes')} with names"
        )
    name = names.classes[int(class_number)]
    coordinates = [parse_number(cell, f"column {number}") for number, cell in enumerate(cells[1:], 2)]
    if len(coordinates) == _BOX_NUMBERS + names.keypoint_count * names.numbers_per_keypoint:
        x, y, width, height = coordinates[:_BOX_NUMBERS]
        box = (y - height / 2, x - width / 2, y + height / 2, x + width / 2)
        keypoints = coordinates[_BOX_NUMBERS:]
        if names.numbers_per_keypoint == 2:
            # As in Ultralytics, an unplaced keypoint is at 0, 0, and all others are visible.
            pairs = zip(keypoints[::2], keypoints[1::2], strict=True)
            keypoints = [number for pair in pairs for number in (*pair, 2.0 if any(pair) else 0.0)]
        return ObjectAnnotation(box, name, keypoints=pack_keypoints(keypoints))
    if names.keypoint_count or len(coordinates) % 2 or len(coordinates) < _MIN_POLYGON_NUMBERS:
        expected = (
            f"a box and {names.keypoint_count} keypoints"
            if names.keypoint_count
            else "a box, or 3 points of a polygon or more"
        )
        raise ValueError(f"{len(coordinates)} numbers after the class (expected those of {expected})")
    polygon = Polygons((pack_polygon(coordinates),), is_normalized=True)
    return ObjectAnnotation(polygon.bounds, name, segmentation=polygon)


def _find_names(folder: str) -> _Names:
    """Return the names in a folder or, if it has none, in the nearest of the two folders above it.

    Raises:
        SourceError: none of the three folders gives names, or a YAML file is damaged.
    """
    searched_folder = folder
    for _ in range(_LEVELS):
        for entry in list_first_entries(searched_folder):
            if entry.is_folder:
                continue
            if entry.name in _NAME_FILES:
                return _Names(tuple(text for _, text in read_text_lines(entry.path)))
            if entry.name.endswith((".yaml", ".yml")):
                names = _read_yaml_names(entry.path)
                if names is not None:
                    return names
        above = find_parent(searched_folder)
        if not above:
            break
        searched_folder = above
    raise SourceError(
        f"{folder}: YOLO text files without names of classes. Add classes.txt with a name in each line, or data.yaml with names."
    )


def _read_yaml_names(path: str) -> _Names | None:
    """Return the names in a YAML file, None if it has no `names`; SourceError if it is not YAML, or its values are invalid."""
    data = storage_for(path).read(path)
    try:
        content = yaml.load(data, _Loader)
    except MemoryError:
        raise
    # PyYAML raises any error for values that are not of their types, such as ValueError for the date 2026-13-01.
    except Exception as error:
        raise SourceError(f"{path}: not YAML: {one_line(error)}. Fix it.") from None
    if not isinstance(content, dict) or "names" not in content:
        return None
    classes = _list_classes(content["names"])
    # [keypoints of an object, numbers of a keypoint]; datasets without keypoints have no such entry.
    shape = content.get("kpt_shape", [0, 3])
    is_pair = isinstance(shape, list) and len(shape) == 2 and all(isinstance(number, int) for number in shape)
    if classes is None or not is_pair or shape[0] < 0 or shape[1] not in (2, 3):
        raise SourceError(
            f"{path}: names or kpt_shape are not those of YOLO (expected a list of names or numbers with names, and"
            " [keypoints, 2 or 3]). Fix it."
        )
    return _Names(classes, keypoint_count=shape[0], numbers_per_keypoint=shape[1])


def _list_classes(names: Any) -> tuple[str, ...] | None:
    """Return the names of classes 0, 1 and so on.

    None if `names` is empty, neither a list nor a mapping from these numbers, or has a list or mapping in place of a name.
    """
    # The keys are sorted as strings, since keys of different types, such as 0 and "a", have no order.
    if isinstance(names, dict) and sorted(names, key=str) == sorted(range(len(names)), key=str):
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names or any(isinstance(name, list | dict) for name in names):
        return None
    return tuple(map(str, names))
