"""Pascal VOC: an XML file for each picture, in a folder `Annotations` or any other.

    <annotation>
      <filename>2008_000002.jpg</filename>
      <size><width>500</width><height>375</height><depth>3</depth></size>
      <object>
        <name>tvmonitor</name>
        <difficult>0</difficult>
        <bndbox><xmin>34</xmin><ymin>11</ymin><xmax>448</xmax><ymax>293</ymax></bndbox>
      </object>
    </annotation>

The top left pixel of a picture is (1, 1), and a box contains the pixels at xmin, ymin, xmax and ymax
(http://host.robots.ox.ac.uk/pascal/VOC/voc2012/devkit_doc.pdf, section 3.4), so its edges are at xmin - 1, ymin - 1, xmax and
ymax, as detectron2 reads them. A file with a document type is rejected, since its entities may expand without bounds.

Next to `Annotations`, `ImageSets/Main` has a list of pictures for each split: train.txt, val.txt and test.txt. Pictures in none of
them belong to other tasks of the dataset, and only objects of some classes have boxes. trainval.txt is the first two together,
and is read if both are missing.
"""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Sequence

from beam_jobs.annotations.annotation import Annotated, Box, ImageAnnotation, ObjectAnnotation, Place
from beam_jobs.annotations.files.folders import (
    find_first_file,
    list_first_entries,
    list_paths_below,
    pick_file,
    pick_folder,
    read_start,
)
from beam_jobs.annotations.files.rows import parse_number
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from beam_jobs.annotations.split_lists import NO_LISTS, SplitLists
from tpudata.storage import Entry, storage_for

_SUFFIXES = (".xml",)
_HEAD = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml.*?\?>\s*)?(?:<!.*>\s*)*<annotation[\s>]", re.DOTALL)
# An annotation of a picture has a few KB. Without this limit, a far larger file would be read to memory whole.
_MAX_BYTES = 1 << 24
# Splits by the name of their list in ImageSets/Main.
_SPLITS_BY_LIST_NAME = {"train.txt": "train", "val.txt": "validation", "test.txt": "test"}
_TRAIN_AND_VALIDATION = "trainval.txt"
# Names of the dataset's folders of label maps.
_SEGMENTATIONS = ("SegmentationClass", "SegmentationObject")


@dataclasses.dataclass(frozen=True)
class VocForm(AnnotationForm):
    """XML files of Pascal VOC.

    Attributes:
        path: a file, or a folder of files.
        is_folder: whether it is a folder.
        lists: lists of the pictures of each split.
        segmentations: folders of label maps in the dataset.
    """

    path: str
    is_folder: bool
    lists: SplitLists = NO_LISTS
    segmentations: tuple[str, ...] = ()
    title = "Pascal VOC XML"

    @classmethod
    def detect_file(cls, path: str, head: bytes) -> VocForm | None:
        """Return the form of an XML file whose root is an annotation; None for any other file."""
        return cls(path, is_folder=False) if _HEAD.match(head) else None

    @classmethod
    def detect_folder(cls, path: str, entries: Sequence[Entry]) -> VocForm | None:
        """Return the form of a folder if the first XML file in it or in its folder `Annotations` is an annotation; else None."""
        folder = pick_folder(entries, "Annotations") or path
        first_file = find_first_file(folder, _SUFFIXES)
        return cls(folder, is_folder=True) if first_file and _HEAD.match(read_start(first_file)) else None

    def add_folder_facts(self, entries: Sequence[Entry]) -> VocForm:
        """Return the form with the splits and label maps of the dataset, if the folder has `Annotations` and `ImageSets`."""
        sets = pick_folder(entries, "ImageSets")
        if not sets or not pick_folder(entries, "Annotations"):
            return self
        main = pick_folder(list_first_entries(sets), "Main")
        files = list_first_entries(main) if main else []
        files_by_split = {split: pick_file(files, name) for name, split in _SPLITS_BY_LIST_NAME.items()}
        # Without the two lists, all pictures of trainval.txt are for training.
        if not files_by_split["train"] and not files_by_split["validation"]:
            files_by_split["train"] = pick_file(files, _TRAIN_AND_VALIDATION)
        lists = SplitLists.open([(file, split) for split, file in files_by_split.items() if file])
        segmentations = tuple(entry.path for entry in entries if entry.is_folder and entry.name in _SEGMENTATIONS)
        return dataclasses.replace(self, lists=lists, segmentations=segmentations)

    @property
    def map_folders(self) -> tuple[str, ...]:
        """The folders of label maps."""
        return self.segmentations

    @property
    def split_lists(self) -> SplitLists:
        """The lists of `ImageSets/Main`."""
        return self.lists

    def list_parts(self) -> Iterable[str]:
        """Return the XML files; if there are lists of splits, only the files of the listed pictures."""
        if not self.is_folder:
            return (self.path,)
        paths = (path for path, _ in list_paths_below(self.path, _SUFFIXES))
        # The split is None for a picture that no list contains, and an empty string for any picture if there are no lists.
        return (path for path in paths if self.lists.find_split(_find_picture_name(path)) is not None)

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield the annotation of a file's picture, or an error if the file is damaged."""
        del names
        place = Place(part)
        # One byte more than allowed shows a file that is too large.
        data = storage_for(part).read_range(part, 0, _MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            reason = f"too large for the annotation of a picture (expected at most {_MAX_BYTES:,} bytes)"
            yield place.make_error(reason, _find_picture_name(part))
            return
        try:
            yield _parse_annotation(parse_xml(data), place)
        except ValueError as error:
            yield place.make_error(str(error), _find_picture_name(part))


class _Builder(ElementTree.TreeBuilder):
    """A builder that stops at the start of a document type, before its entities are read."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        """Raise ValueError; the parser calls this at the start of a document type."""
        del name, pubid, system
        raise ValueError("XML with a document type (<!DOCTYPE ...>), whose entities are not read; remove it")


def parse_xml(data: bytes) -> ElementTree.Element:
    """Return the root of an XML file; ValueError if it is truncated or damaged, or has a document type or an unknown encoding."""
    parser = ElementTree.XMLParser(target=_Builder())
    try:
        parser.feed(data)
        root: ElementTree.Element = parser.close()
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML, or truncated: {error}") from None
    except LookupError as error:
        raise ValueError(f"XML of an unknown encoding: {error}") from None
    return root


def _parse_annotation(root: ElementTree.Element, place: Place) -> ImageAnnotation:
    """Return the annotation of a file, whose picture is named like the file if the XML does not name it; ValueError if invalid."""
    if root.tag != "annotation":
        raise ValueError(f"not an annotation of a picture: its root is <{root.tag}>")
    name = _read_text(root, "filename") or _find_picture_name(place.path)
    size = root.find("size")
    width, height = (0, 0) if size is None else (_parse_side(size, "width"), _parse_side(size, "height"))
    objects = tuple(map(_parse_object, root.findall("object")))
    return ImageAnnotation(name, place, width, height, objects=objects)


def _find_picture_name(path: str) -> str:
    """Return the name of an XML file without folder and extension, which names the picture if the file does not."""
    return path.rpartition("/")[2].rpartition(".")[0]


def _parse_object(element: ElementTree.Element) -> ObjectAnnotation:
    """Return the object of an element `object`; ValueError if it is invalid."""
    name = _read_text(element, "name")
    if not name:
        raise ValueError("an object without name")
    bounds = element.find("bndbox")
    if bounds is None:
        raise ValueError(f"object {name!r} has no bndbox")
    try:
        box = _parse_box(bounds)
    except ValueError as error:
        raise ValueError(f"object {name!r}: {error}") from None
    return ObjectAnnotation(box, name, is_difficult=_read_text(element, "difficult") not in ("", "0"))


def _parse_box(bounds: ElementTree.Element) -> Box:
    """Return the edges of a `bndbox`, counted from 0; ValueError if one is missing or not a number."""
    # VOC counts pixels from 1, and xmax and ymax are the last ones inside: their far edges have the same numbers counted from 0.
    xmin, ymin, xmax, ymax = (parse_number(_read_text(bounds, name), name) for name in ("xmin", "ymin", "xmax", "ymax"))
    return ymin - 1, xmin - 1, ymax, xmax


def _parse_side(size: ElementTree.Element, name: str) -> int:
    """Return the width or height in pixels; 0 if it is missing, ValueError if it is not a number of pixels."""
    text = _read_text(size, name)
    if not text:
        return 0
    number = parse_number(text, name)
    if not 0 <= number < 2**31 or number != int(number):
        raise ValueError(f"{name} is not a number of pixels: {text!r}")
    return int(number)


def _read_text(element: ElementTree.Element, name: str) -> str:
    return (element.findtext(name) or "").strip()
