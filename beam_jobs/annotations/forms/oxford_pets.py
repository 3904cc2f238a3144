"""Oxford-IIIT Pets: the folder `annotations`, in which list.txt has the breeds and `trimaps` the label maps.

    #Image CLASS-ID SPECIES BREED ID
    Abyssinian_100 1 1 1

Next to it, trainval.txt and test.txt have the same rows, divided into the splits train and test.
A picture's class is its breed: its name without number; `species` is 1 for a cat and 2 for a dog. Trimaps have 1 for the pet, 2
for the background and 3 for the border. The boxes of heads, which only a part of the pictures has, are Pascal VOC files: read
them with the folder `annotations/xmls`. Source: https://www.robots.ox.ac.uk/~vgg/data/pets/.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from beam_jobs.annotations.annotation import Annotated, ImageAnnotation, MapFile
from beam_jobs.annotations.files.folders import pick_file, pick_folder
from beam_jobs.annotations.files.rows import read_text_lines
from beam_jobs.annotations.form import AnnotationForm, ListedNames
from beam_jobs.annotations.split_lists import NO_LISTS, SplitLists
from beam_jobs.file_names import find_parent
from tpudata.errors import SourceError
from tpudata.storage import Entry, storage_for

_SPLITS_BY_LIST_NAME = {"trainval.txt": "train", "test.txt": "test"}
# No class has a number of more than 9 digits; int() rejects strings of over 4,300 digits.
_ROW = re.compile(r"(?P<picture>(?P<breed>\S+)_\d+) (?P<number>\d{1,9}) (?P<species>[12]) \d+")
_HEAD = re.compile(rb"(?:#[^\n]*\n)*\S+_\d+ \d+ [12] \d+\r?\n")


@dataclasses.dataclass(frozen=True)
class OxfordPetsForm(AnnotationForm):
    """The lists of Oxford-IIIT Pets.

    Attributes:
        path: list.txt, trainval.txt or test.txt.
        trimaps: path of the folder of trimaps; empty if there is none.
        lists: lists of the pictures of each split.
    """

    path: str
    trimaps: str
    lists: SplitLists = NO_LISTS
    title = "Oxford-IIIT Pets list.txt"

    @classmethod
    def detect_file(cls, path: str, head: bytes) -> OxfordPetsForm | None:
        """Return the form of a list of breeds, with the folder `trimaps` next to it if there is one; None for any other file."""
        if not _HEAD.match(head):
            return None
        trimaps = storage_for(path).join(find_parent(path) or ".", "trimaps")
        entry = storage_for(path).stat(trimaps)
        return cls(path, trimaps if entry is not None and entry.is_folder else "")

    @classmethod
    def detect_folder(cls, path: str, entries: Sequence[Entry]) -> OxfordPetsForm | None:
        """Return the form of a folder with list.txt and trimaps; None for any other folder."""
        del path
        trimaps, list_path = pick_folder(entries, "trimaps"), pick_file(entries, "list.txt")
        if not trimaps or not list_path:
            return None
        split_files = ((pick_file(entries, name), split) for name, split in _SPLITS_BY_LIST_NAME.items())
        return cls(list_path, trimaps, SplitLists.open([(file, split) for file, split in split_files if file]))

    @property
    def split_lists(self) -> SplitLists:
        """trainval.txt and test.txt."""
        return self.lists

    @property
    def map_folders(self) -> tuple[str, ...]:
        """The folder of trimaps; empty if there is none."""
        return (self.trimaps,) if self.trimaps else ()

    def list_parts(self) -> Iterable[str]:
        """Return the list, the only part."""
        return (self.path,)

    def read(self, part: str, names: ListedNames) -> Iterator[Annotated]:
        """Yield breed, species and trimap of each picture; at the end, `names` has the breeds in the order of their numbers.

        Raises:
            SourceError: two breeds have the same number.
        """
        breeds_by_number: dict[int, str] = {}
        seen_pictures: set[str] = set()
        for place, text in read_text_lines(part):
            if text.startswith("#"):
                continue
            row = _ROW.fullmatch(text)
            if row is None:
                yield place.make_error(f"not a row of NAME_NUMBER CLASS-ID SPECIES BREED-ID: {text[:80]!r}")
                continue
            picture, breed, number = row["picture"], row["breed"], int(row["number"])
            first_breed = breeds_by_number.setdefault(number, breed)
            if first_breed != breed:
                raise SourceError(
                    f"{part} line {place.line}: class {number} is {breed!r} here, and {first_breed!r} above. Fix the list."
                )
            if picture in seen_pictures:
                yield place.make_error("listed twice", picture)
                continue
            seen_pictures.add(picture)
            trimap = MapFile(storage_for(self.trimaps).join(self.trimaps, f"{picture}.png")) if self.trimaps else None
            yield ImageAnnotation(
                picture, place, classes=(breed,), map_file=trimap, values=(("species", int(row["species"])),)
            )
        names.pictures = tuple(dict.fromkeys(breed for _, breed in sorted(breeds_by_number.items())))
