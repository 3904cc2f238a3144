r"""Tiny ImageNet: val_annotations.txt, with class and box of each picture of the validation split.

    val_0.JPEG\tn03444034\t0\t32\t44\t62

The columns are the file, the class, xmin, ymin, xmax and ymax. The box contains these pixels, counted from 0: that of a whole
picture of 64 x 64 pixels is 0, 0, 63, 63. So its edges are at xmin, ymin, xmax + 1 and ymax + 1. Source:
http://cs231n.stanford.edu/tiny-imagenet-200.zip.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator

from beam_jobs.annotations.annotation import Annotated, ImageAnnotation, ObjectAnnotation
from beam_jobs.annotations.files.rows import read_text_lines
from beam_jobs.annotations.form import AnnotationForm, ListedNames

# No picture has a side of more than 9 digits; int() rejects strings of over 4,300 digits.
_ROW = re.compile(r"(?P<picture>[^\t]+)\t(?P<name>[^\t]+)\t(?P<box>\d{1,9}(?:\t\d{1,9}){3})")
_HEAD = re.compile(rb"[^\t\r\n]+\t[^\t\r\n]+(?:\t\d+){4}\r?(?:\n|\Z)")


@dataclasses.dataclass(frozen=True)
class TinyImagenetForm(AnnotationForm):
    """A val_annotations.txt of Tiny ImageNet.

    Attributes:
        path: path of val_annotations.txt.
    """

    path: str
    title = "Tiny ImageNet val_annotations.txt"

    @classmethod
    def detect_file(cls, path: str, head: bytes) -> TinyImagenetForm | None:
        """Return the form if the first row has a name, a class and four integers, separated by tabs; None otherwise."""
        return cls(path) if _HEAD.match(head) else None

    def list_parts(self) -> Iterable[str]:
        """Return the file, the only part."""
        return (self.path,)

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield class and box of each picture."""
        del names
        seen_pictures: set[str] = set()
        for place, text in read_text_lines(part):
            row = _ROW.fullmatch(text)
            if row is None:
                yield place.make_error(f"not a row of file, class, xmin, ymin, xmax and ymax: {text[:80]!r}")
            elif row["picture"] in seen_pictures:
                yield place.make_error("listed twice", row["picture"])
            else:
                seen_pictures.add(row["picture"])
                xmin, ymin, xmax, ymax = map(int, row["box"].split("\t"))
                # xmax and ymax are the last pixels inside of the box, so its edges are one pixel further.
                box = (float(ymin), float(xmin), ymax + 1.0, xmax + 1.0)
                annotated_object = ObjectAnnotation(box, row["name"])
                yield ImageAnnotation(row["picture"], place, objects=(annotated_object,), classes=(row["name"],))
