"""A folder with the second image of each pair, named like the first: `A/train/1.jpg` and `B/train/1.png`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from beam_jobs.annotations.annotation import Annotated, ImageAnnotation, Place
from beam_jobs.annotations.files.folders import find_first_file, list_paths_below
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from beam_jobs.annotations.pictures import PICTURE_EXTENSIONS, drop_extension
from tpudata.storage import Entry


@dataclasses.dataclass(frozen=True)
class TargetsForm(AnnotationForm):
    """A folder of second images.

    Attributes:
        path: path of the folder that the second images are below.
    """

    path: str
    title = "a folder of targets"

    @classmethod
    def detect_folder(cls, path: str, entries: Sequence[Entry]) -> TargetsForm | None:
        """Return the form of a folder in which `find_first_file` finds an image; None for any other folder."""
        del entries
        return cls(path) if find_first_file(path, PICTURE_EXTENSIONS) else None

    @property
    def map_folders(self) -> tuple[str, ...]:
        """The folder, whose images are targets, not pictures."""
        return (self.path,)

    def list_parts(self) -> Iterable[str]:
        """Return the folder, the only part."""
        return (self.path,)

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield the second image of each pair, in the order of the images' paths; the picture is named without its extension."""
        del names
        for path, relative_path in list_paths_below(part, PICTURE_EXTENSIONS):
            yield ImageAnnotation(drop_extension(relative_path), Place(path), target=path)
