"""Folders of label maps that are named like the pictures: Cityscapes, ADE20K, and any folder of PNGs.

    gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png    of leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png
    annotations/training/ADE_train_00000001.png                     of images/training/ADE_train_00000001.jpg
    masks/a.png                                                     of any a.jpg

For Cityscapes, the maps with labelTrainIds are read if there are any, and those with labelIds otherwise. Sources:
https://github.com/mcordts/cityscapesScripts and http://sceneparsing.csail.mit.edu/.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from beam_jobs.annotations.annotation import Annotated, ImageAnnotation, MapFile, Place
from beam_jobs.annotations.files.folders import find_first_file, list_paths_below, pick_folder, read_start
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from tpudata.format.label_map import GREY, MAP_BITS, PALETTE, png_kind
from tpudata.storage import Entry

_SUFFIXES = (".png",)
_WIDE_BITS = MAP_BITS["uint16"]
_CITYSCAPES = re.compile(r"(?P<picture>.*)_gt(?:Fine|Coarse)_(?P<ids>\w+)\.png")
_TRAIN_IDS, _LABEL_IDS = "labelTrainIds", "labelIds"


@dataclasses.dataclass(frozen=True)
class LabelMapsForm(AnnotationForm):
    """A folder of label maps.

    Attributes:
        path: path of the folder that the maps are below.
        cityscapes_ids: `"labelIds"` or `"labelTrainIds"` for Cityscapes; empty for other folders.
        is_wide: whether the first map has 16 bits per pixel: then records have maps of 16 bits.
    """

    path: str
    cityscapes_ids: str = ""
    is_wide: bool = False
    title = "a folder of label maps (PNG)"

    @classmethod
    def detect_folder(cls, path: str, entries: Sequence[Entry]) -> LabelMapsForm | None:
        """Return the form of a folder of Cityscapes, or of a folder whose first PNG has grey values or a palette; else None."""
        folder = pick_folder(entries, "gtFine", "gtCoarse") or path
        if find_first_file(folder, (f"_{_TRAIN_IDS.lower()}.png",)):
            return cls(folder, _TRAIN_IDS)
        if find_first_file(folder, (f"_{_LABEL_IDS.lower()}.png",)):
            return cls(folder, _LABEL_IDS)
        first_map = find_first_file(folder, _SUFFIXES)
        kind = png_kind(read_start(first_map)) if first_map else None
        if kind is None:
            return None
        bits, colour = kind
        return cls(folder, is_wide=bits == _WIDE_BITS) if colour in (GREY, PALETTE) else None

    @property
    def map_folders(self) -> tuple[str, ...]:
        """The folder."""
        return (self.path,)

    def list_parts(self) -> Iterable[str]:
        """Return the folder, the only part."""
        return (self.path,)

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield the map of each picture, whose name has no extension, in the order of the maps' paths."""
        del names
        for path, relative_path in list_paths_below(part, _SUFFIXES):
            if not self.cityscapes_ids:
                picture = relative_path[: -len(".png")]
                yield ImageAnnotation(picture, Place(path), map_file=MapFile(path, is_wide=self.is_wide))
                continue
            match = _CITYSCAPES.fullmatch(relative_path)
            if match is not None and match["ids"] == self.cityscapes_ids:
                yield ImageAnnotation(f"{match['picture']}_leftImg8bit", Place(path), map_file=MapFile(path))
